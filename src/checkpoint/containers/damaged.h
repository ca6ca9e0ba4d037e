// The error of every reader of files that finds bytes which can't be right.
#pragma once

#include <string>
#include <utility>

#include "base/result.h"

namespace pawl::checkpoint {

[[nodiscard]] inline Error damaged(std::string why) {
  return Error{Code::corrupt, std::move(why)};
}

}  // namespace pawl::checkpoint
