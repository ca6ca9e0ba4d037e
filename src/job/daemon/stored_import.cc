#include "job/daemon/stored_import.h"

#include <utility>

#include "base/crc32c.h"
#include "base/text.h"
#include "job/daemon/fetch.h"

namespace pawl::job {
namespace {

// In which the slot is made: as the checkpoint has it. Fails: `invalid` if whoever declared the other could not restore it.
Result<ArenaSpec> spec_for(ArenaSpec declared, const StoredSeat& stored) {
  if (declared.layout == stored.layout) return declared;
  PAWL_ASSIGN(const SeatLayout captured, parse_layout(stored.layout));
  PAWL_ASSIGN(const SeatLayout here, parse_layout(declared.layout));
  if (!have_same_state(captured, here)) {
    std::string differences;
    for (const std::string& one : first_differences(text_of(here), stored.layout))
      differences += text(differences.empty() ? "" : "; ", one);
    return Error{Code::invalid, text("the checkpoint is of another state than the script declares: ", differences)};
  }
  declared.layout = stored.layout;
  declared.layout_digest = digest_of(stored.layout);
  declared.payload_bytes = captured.payload_bytes;
  declared.stable_bytes = captured.stable_bytes;
  return declared;
}

Error ended() {
  return {Code::cancelled, "the recovery that needs it is over"};
}

}  // namespace

std::shared_ptr<StoredImport> StoredImport::start(Options options) {
  auto import = std::make_shared<StoredImport>(std::move(options));
  (void)import->options_.tasks->start("pawl-import", [import] { import->options_.on_done(import->run()); });
  return import;
}

void StoredImport::end() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  progress_.cancel = true;
}

FetchState StoredImport::state() const {
  return {progress_.bytes, total_, 1, {}};
}

bool StoredImport::may_touch() {
  std::lock_guard lock(mutex_);
  if (ended_) return false;
  options_.workers->begin();
  return true;
}

Status StoredImport::run() {
  PAWL_ASSIGN(const std::unique_ptr<StoredCheckpoint> checkpoint, options_.store->open(options_.path));
  PAWL_ASSIGN(const StoredSeat stored, checkpoint->seat(options_.seat));
  PAWL_ASSIGN(const ArenaSpec spec, spec_for(options_.declared, stored));
  total_ = spec.payload_bytes;
  PAWL_ASSIGN(const ArenaHandle arena, options_.arena_for(spec));
  if (!may_touch()) return ended();
  Status filled = fill(*checkpoint, *arena, stored.info);
  options_.workers->finish();
  return filled;
}

Status StoredImport::fill(StoredCheckpoint& checkpoint, const HeldArena& arena, const SeatInfo& info) {
  const Slot slot = slot_to_fill(arena.arena, options_.slot_generation, options_.step);
  if (!slot.open_frozen(options_.slot_generation, options_.step, info.samples))
    return Error{Code::broken, "the slot to fill is live: nothing may be restored into it"};
  PAWL_ASSIGN(const SeatLayout layout, parse_layout(arena.arena.spec().layout));
  PAWL_TRY(checkpoint.read(options_.seat, layout, slot.payload(), progress_));
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i)
    slot.bucket_done(i, crc32c(slot.bucket(i)), options_.slot_generation, options_.step);
  return slot.seal_frozen(options_.slot_generation, options_.step);
}

}  // namespace pawl::job
