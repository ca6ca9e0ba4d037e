#include "job/daemon/memory.h"

#include <algorithm>

#include "base/log.h"
#include "job/recovery/decide.h"

namespace pawl::job {
namespace {

bool same_shape(const ArenaSpec& a, const ArenaSpec& b) {
  return a.job == b.job && a.slot_count == b.slot_count && a.payload_bytes == b.payload_bytes &&
         a.stable_bytes == b.stable_bytes && a.bucket_bytes == b.bucket_bytes && a.layout_digest == b.layout_digest &&
         a.layout == b.layout;
}

SourceKind source_kind(ArenaKind kind) {
  return kind == ArenaKind::own ? SourceKind::own_arena : SourceKind::replica;
}

}  // namespace

std::string segment_name(ArenaKind kind, Seat seat) {
  return text(kind == ArenaKind::own ? "own." : "replica.", seat);
}

Status Memory::adopt(const std::string& name, Fd fd) {
  PAWL_ASSIGN(std::uint64_t size, shared_.size_bytes(fd.get()));
  PAWL_ASSIGN(Mapping mapping, shared_.map(fd.get(), size, {.populate = true}));
  PAWL_ASSIGN(Arena arena, Arena::open(mapping.bytes()));
  if (segment_name(arena.spec().kind, arena.spec().seat) != name)
    return Error{Code::corrupt, text("segment ", name, " says it is another")};
  const Key key{arena.spec().kind, arena.spec().seat};
  arenas_[key] = std::make_shared<HeldArena>(HeldArena{std::move(fd), std::move(mapping), arena});
  return {};
}

Result<ArenaHandle> Memory::arena_for(const ArenaSpec& spec) {
  const Key key{spec.kind, spec.seat};
  auto found = arenas_.find(key);
  if (found != arenas_.end() && same_shape(found->second->arena.spec(), spec)) return found->second;
  const std::string name = segment_name(spec.kind, spec.seat);
  const std::uint64_t size = Arena::size_bytes(spec);
  PAWL_ASSIGN(Fd fd, shared_.create("pawl." + spec.job + "." + name, size));
  PAWL_ASSIGN(Mapping mapping, shared_.map(fd.get(), size, {.populate = true}));
  PAWL_ASSIGN(Arena arena, Arena::format(mapping.bytes(), spec));
  if (found != arenas_.end()) log_warn("arena_replaced", "name", name, "why", "the layout differs");
  drop(spec.kind, spec.seat);
  keeper_.hold(name, fd.get());
  ArenaHandle made = std::make_shared<HeldArena>(HeldArena{std::move(fd), std::move(mapping), arena});
  arenas_[key] = made;
  log_info("arena_made", "name", name, "bytes", size);
  return made;
}

ArenaHandle Memory::find(ArenaKind kind, Seat seat) const {
  auto found = arenas_.find({kind, seat});
  return found == arenas_.end() ? nullptr : found->second;
}

void Memory::drop(ArenaKind kind, Seat seat) {
  if (arenas_.erase({kind, seat}) > 0) keeper_.drop(segment_name(kind, seat));
}

void Memory::drop_all() {
  while (!arenas_.empty()) drop(arenas_.begin()->first.first, arenas_.begin()->first.second);
}

void Memory::freeze_all() {
  for (auto& [key, held] : arenas_)
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) held->arena.slot(i).freeze();
}

void Memory::unfreeze_all(std::span<const LineageEntry> lineage, std::span<const Struck> struck) {
  for (auto& [key, held] : arenas_)
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) {
      const Slot slot = held->arena.slot(i);
      const SlotWord word = slot.word();
      const bool wrong = std::any_of(struck.begin(), struck.end(), [&](const Struck& s) {
        return s.seat == key.second && s.kind == source_kind(key.first) && s.slot_generation == word.generation &&
               s.step == word.step;
      });
      slot.unfreeze(word.state == SlotState::sealed && !wrong && in_lineage(lineage, word.generation, word.step));
    }
}

std::vector<InventoryItem> Memory::inventory() const {
  std::vector<InventoryItem> items;
  for (const auto& [key, held] : arenas_)
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) {
      const SlotWord word = held->arena.slot(i).word();
      if (word.state == SlotState::empty) continue;
      items.push_back({key.second, source_kind(key.first), word.generation, word.step, word.state,
                       held->arena.spec().layout_digest});
    }
  return items;
}

std::uint64_t Memory::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [key, held] : arenas_) sum += held->mapping.size_bytes();
  return sum;
}

}  // namespace pawl::job
