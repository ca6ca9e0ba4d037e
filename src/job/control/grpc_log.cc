#include "job/control/grpc_log.h"

#include <grpc/support/log.h>

#include <cstdlib>
#include <mutex>
#include <string_view>

#include "base/log.h"

namespace pawl::job {

void take_grpc_log() {
  static std::once_flag once;
  std::call_once(once, [] {
    const char* wanted = std::getenv("PAWL_LOG");
    if (wanted != nullptr && std::string_view(wanted) == "debug") {
      gpr_set_log_function([](gpr_log_func_args* line) { log_debug("grpc", "message", line->message); });
    } else {
      gpr_set_log_function([](gpr_log_func_args*) {});
    }
  });
}

}  // namespace pawl::job
