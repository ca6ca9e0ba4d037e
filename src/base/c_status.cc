#include "base/c_status.h"

namespace pawl {

pawl_status status_of(Code code, pawl_status stale) {
  switch (code) {
    case Code::invalid:
    case Code::not_found:
      return PAWL_INVALID;
    case Code::stale:
      return stale;
    case Code::cancelled:
      return PAWL_STOP;
    case Code::timeout:
      return PAWL_TIMEOUT;
    case Code::unreachable:
      return PAWL_UNREACHABLE;
    case Code::corrupt:
      return PAWL_CORRUPT;
    case Code::full:
    case Code::io:
      return PAWL_IO;
    case Code::broken:
      return PAWL_BROKEN;
  }
  return PAWL_BROKEN;
}

Code code_of(std::uint32_t status) {
  switch (status) {
    case PAWL_RECOVER:
      return Code::stale;
    case PAWL_STOP:
      return Code::cancelled;
    case PAWL_INVALID:
      return Code::invalid;
    case PAWL_TIMEOUT:
      return Code::timeout;
    case PAWL_UNREACHABLE:
      return Code::unreachable;
    case PAWL_CORRUPT:
      return Code::corrupt;
    case PAWL_IO:
      return Code::io;
    default:
      return Code::broken;
  }
}

}  // namespace pawl
