// What a caller of pawl/checkpoint.h sees of its calls while they run, and ends them by: pawl_checkpoint_watch.
//
// A thread names the watch of its calls; a call asks here at its beginning, in that thread. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

#include "checkpoint/reshape/execute.h"
#include "pawl/checkpoint.h"

struct pawl_checkpoint_watch {
  std::atomic<bool> is_cancelled{false};
  std::atomic<std::uint64_t> bytes_done{0};
  std::atomic<std::uint64_t> bytes_all{0};
};

namespace pawl::checkpoint {

// Of this thread's calls; nullptr: nobody watches them.
[[nodiscard]] pawl_checkpoint_watch* current_watch();
void set_current_watch(pawl_checkpoint_watch* watch);

// A call of so many bytes begins: the watch shows how far it is, and cancels it.
void watch_execution(ExecuteOptions& options, std::uint64_t bytes_all);

}  // namespace pawl::checkpoint
