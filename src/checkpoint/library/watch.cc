#include "checkpoint/library/watch.h"

namespace pawl::checkpoint {
namespace {

thread_local pawl_checkpoint_watch* current = nullptr;

}  // namespace

pawl_checkpoint_watch* current_watch() {
  return current;
}

void set_current_watch(pawl_checkpoint_watch* watch) {
  current = watch;
}

void watch_execution(ExecuteOptions& options, std::uint64_t bytes_all) {
  pawl_checkpoint_watch* const watch = current;
  if (watch == nullptr) return;
  watch->bytes_done = 0;
  watch->bytes_all = bytes_all;
  options.cancel = &watch->is_cancelled;
  options.bytes_expected = bytes_all;
  options.progress = [watch](const ExecuteProgress& progress) { watch->bytes_done = progress.bytes_done; };
}

}  // namespace pawl::checkpoint
