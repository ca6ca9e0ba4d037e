#include "checkpoint/library/status.h"

#include <string>
#include <utility>

#include "base/c_status.h"

namespace pawl::checkpoint {
namespace {

thread_local std::string last;

}  // namespace

pawl_status failed(Error error) {
  last = std::move(error.what);
  return status_of(error.code, PAWL_INVALID);  // `stale`: somebody else is at it
}

pawl_status answer(Status status) {
  return status ? PAWL_OK : failed(std::move(status).error());
}

const char* last_error() {
  return last.c_str();
}

}  // namespace pawl::checkpoint
