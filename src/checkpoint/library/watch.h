// What a caller of pawl/checkpoint.h sees of a running call, and ends it by: pawl_checkpoint_watch.
//
// A call's options name its watch. Thread-safe.
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

// A call of so many bytes begins: from now on `watch` shows how far it is, and cancels it. nullptr: nobody watches.
void watch_execution(pawl_checkpoint_watch* watch, ExecuteOptions& options, std::uint64_t bytes_all);

}  // namespace pawl::checkpoint
