// A seat's slot, written to storage from where it lies. Nobody overwrites it meanwhile: it is pinned, or frozen.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "job/daemon/memory.h"
#include "job/persist/checkpoint_store.h"

namespace pawl::job {

struct SlotToWrite {
  Seat seat;
  ArenaHandle arena;
  std::uint32_t slot = 0;
  SlotWord word;
  bool by_pin = true;  // the pin is what keeps it; else the freeze does
};

// Whether it has what it had, and may still be read.
[[nodiscard]] bool is_still(const SlotToWrite& what);

// Blocks; any task. Whether what was written is the step, is known only after: the slot is what it was. Fails: `corrupt` if its
// sums are wrong, `stale` if it has not stayed what it was; else as CheckpointStore::write.
[[nodiscard]] Status write_slot(CheckpointStore& store, const std::string& folder, const SlotToWrite& what,
                                PartProgress& progress);

}  // namespace pawl::job
