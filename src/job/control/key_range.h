// Key ranges, as the parts of KeyValues and the watches read them.
#pragma once

#include <string>
#include <string_view>

namespace pawl::job {

inline constexpr std::string_view kNoEnd("\0", 1);  // as range_end: every key from `key` on

[[nodiscard]] inline bool key_in_range(std::string_view candidate, std::string_view key, std::string_view range_end) {
  if (range_end.empty()) return candidate == key;
  return candidate >= key && (range_end == kNoEnd || candidate < range_end);
}

}  // namespace pawl::job
