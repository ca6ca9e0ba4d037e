#include "job/daemon/slot_writer.h"

#include "base/text.h"
#include "job/persist/slot_part.h"

namespace pawl::job {

bool is_still(const SlotToWrite& what) {
  const Slot slot = what.arena->arena.slot(what.slot);
  const SlotWord now = slot.word();
  return now.state == SlotState::sealed && now.generation == what.word.generation && now.step == what.word.step &&
         (what.by_pin ? slot.pinned(now) : now.frozen) && !slot.torn(now);
}

Status write_slot(CheckpointStore& store, const std::string& folder, const SlotToWrite& what, PartProgress& progress) {
  const Slot slot = what.arena->arena.slot(what.slot);
  const ArenaSpec& spec = what.arena->arena.spec();
  PAWL_TRY(write_slot_part(store, folder, what.seat, slot, spec, progress));
  if (!is_still(what))
    return Error{Code::stale, text("step ", what.word.step.value, " was written while it was copied")};
  return {};
}

}  // namespace pawl::job
