#include "cli/checkpoint/access.h"

#include "cli/checkpoint/progress.h"
#include "cli/checkpoint/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"

namespace pawl::checkpoint {

ExecuteOptions execute_options(std::uint64_t memory_bytes) {
  ExecuteOptions options;
  options.memory_bytes = memory_bytes;
  options.cancel = &interrupted();
  return options;
}

int report_checkpoint_error(const Error& error, bool as_json) {
  if (as_json) print(json_text({{"error", error.what}, {"code", name_of(error.code)}}) + "\n");
  const int code = report_error(Error{error.code, printable(error.what)});
  return error.code == Code::corrupt ? static_cast<int>(kExitDegraded) : code;
}

}  // namespace pawl::checkpoint
