#include "base/result.h"

#include <cstring>

namespace pawl {

const char* name_of(Code code) {
  switch (code) {
    case Code::invalid:
      return "invalid";
    case Code::not_found:
      return "not_found";
    case Code::stale:
      return "stale";
    case Code::full:
      return "full";
    case Code::timeout:
      return "timeout";
    case Code::unreachable:
      return "unreachable";
    case Code::corrupt:
      return "corrupt";
    case Code::io:
      return "io";
    case Code::cancelled:
      return "cancelled";
    case Code::broken:
      return "broken";
  }
  return "broken";
}

Error Error::within(std::string outer) && {
  what = std::move(outer) + ": " + what;
  return std::move(*this);
}

Error system_error(std::string what, int errno_value) {
  char text[128];
  const char* cause = strerror_r(errno_value, text, sizeof text);
  return Error{Code::io, std::move(what) + ": " + cause};
}

}  // namespace pawl
