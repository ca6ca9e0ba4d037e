// SlotPart: a seat's part of a checkpoint, from the sealed slot that holds the step, proven by the sums it was sealed with.
//
// The proof and the writing are one pass over the payload (checkpoint/store/part_writer.h). Whether the slot stayed as it is, is the
// caller's to know: he has pinned it, and looks again afterwards.
#pragma once

#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "job/persist/checkpoint_store.h"
#include "job/snapshot/arena.h"

namespace pawl::job {

// What `slot`, of an arena of that spec, was sealed with, of each bucket of its payload. Call it when its header is proven.
[[nodiscard]] checkpoint::MemorySums sums_of(const Slot& slot, const ArenaSpec& spec);

// Fails as Slot::verify and as CheckpointStore::write; `corrupt` may come late: when all is written, and no share of it.
[[nodiscard]] Status write_slot_part(CheckpointStore& store, const std::string& folder, Seat seat, const Slot& slot,
                                     const ArenaSpec& spec, PartProgress& progress);

}  // namespace pawl::job
