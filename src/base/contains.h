// contains(values, value): whether one of a list's values is that one. Linear.
#pragma once

#include <algorithm>

namespace pawl {

template <class Values, class Value>
[[nodiscard]] bool contains(const Values& values, const Value& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

}  // namespace pawl
