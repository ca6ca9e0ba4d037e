#include "job/daemon/stored_import.h"

#include <map>
#include <utility>

#include "base/crc32c.h"
#include "base/first_few.h"
#include "base/text.h"
#include "job/daemon/fetch.h"
#include "job/persist/other_world.h"

namespace pawl::job {
namespace {

// What each of two layouts has that the other has not, the first few.
std::string differences_of(const SeatLayout& stored, const SeatLayout& declared) {
  FirstFew found;
  const auto lines_of = [](const SeatLayout& layout) {
    std::map<std::string, std::string> lines;
    for (const LayoutEntry& entry : layout.entries)
      lines[text(entry.name, " (", entry.role, ")")] =
          entry.mesh == kNoMesh ? "a blob"
                                : text(name_of(entry.dtype), ' ', text_of(entry.shape), ", box ", text_of(entry.box),
                                       ", ", name_of(entry.lifetime));
    return lines;
  };
  const auto there = lines_of(stored), here = lines_of(declared);
  for (const auto& [name, line] : there) {
    const auto other = here.find(name);
    if (other == here.end())
      found.add(text(name, ": is not declared here"));
    else if (other->second != line)
      found.add(text(name, ": ", line, " there, ", other->second, " here"));
  }
  for (const auto& [name, line] : here)
    if (!there.contains(name)) found.add(text(name, ": is not in the checkpoint"));
  return found.any() ? found.sentence() : "its meshes, or the order of its tensors";
}

Error another_state(std::string_view differences) {
  return {Code::invalid, text("the checkpoint is of another state than the script declares: ", differences,
                              "; with the same script it goes on; else let the script load it (pawl.torch.load)")};
}

// In which the slot is made: as the checkpoint has it; of another world, as `seat` declares it, with the room of both. Fails:
// `invalid` if whoever declared the other could not restore it.
Result<ArenaSpec> spec_for(ArenaSpec declared, Seat seat, const StoredSeat& stored) {
  if (declared.layout == stored.layout) return declared;
  PAWL_ASSIGN(SeatLayout taken, parse_layout(stored.layout));
  PAWL_ASSIGN(const SeatLayout here, parse_layout(declared.layout));
  if (taken.world != here.world) {
    Result<SeatLayout> from_there = layout_from_other_world(here, seat, taken);
    if (!from_there) return another_state(from_there.error().what);
    taken = std::move(*from_there);
  } else if (!have_same_state(taken, here)) {
    return another_state(differences_of(taken, here));
  }
  declared.layout = text_of(taken);
  declared.layout_digest = digest_of(declared.layout);
  declared.payload_bytes = taken.payload_bytes;
  declared.stable_bytes = taken.stable_bytes;
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
  PAWL_ASSIGN(const ArenaSpec spec, spec_for(options_.declared, options_.seat, stored));
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
