#include "checkpoint_library/status.h"

#include <string>
#include <utility>

#include "trainer/status.h"

namespace pawl {
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

}  // namespace pawl
