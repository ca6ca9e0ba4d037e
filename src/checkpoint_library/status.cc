#include "checkpoint_library/status.h"

#include <string>
#include <utility>

namespace pawl {
namespace {

thread_local std::string last;

pawl_status status_of(Code code) {
  switch (code) {
    case Code::invalid:
    case Code::not_found:
    case Code::stale:
      return PAWL_INVALID;
    case Code::timeout:
      return PAWL_TIMEOUT;
    case Code::unreachable:
      return PAWL_UNREACHABLE;
    case Code::corrupt:
      return PAWL_CORRUPT;
    case Code::full:
    case Code::io:
      return PAWL_IO;
    case Code::cancelled:
      return PAWL_STOP;
    case Code::broken:
      return PAWL_BROKEN;
  }
  return PAWL_BROKEN;
}

}  // namespace

pawl_status failed(Error error) {
  last = std::move(error.what);
  return status_of(error.code);
}

pawl_status answer(Status status) {
  return status ? PAWL_OK : failed(std::move(status).error());
}

const char* last_error() {
  return last.c_str();
}

}  // namespace pawl
