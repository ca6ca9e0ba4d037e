#include "checkpoint/library/watch.h"

namespace pawl::checkpoint {

void watch_execution(pawl_checkpoint_watch* watch, ExecuteOptions& options, std::uint64_t bytes_all) {
  if (watch == nullptr) return;
  watch->bytes_done = 0;
  watch->bytes_all = bytes_all;
  options.cancel = &watch->is_cancelled;
  options.bytes_expected = bytes_all;
  options.progress = [watch](const ExecuteProgress& progress) { watch->bytes_done = progress.bytes_done; };
}

}  // namespace pawl::checkpoint
