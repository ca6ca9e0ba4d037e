#include "job/daemon/memory.h"

#include <algorithm>
#include <iterator>

#include "base/contains.h"
#include "base/log.h"
#include "job/layout/equal_state.h"
#include "job/layout/seat_layout.h"
#include "job/recovery/decide.h"

namespace pawl::job {
namespace {

bool same_shape(const ArenaSpec& a, const ArenaSpec& b) {
  return a.job == b.job && a.slot_count == b.slot_count && a.payload_bytes == b.payload_bytes &&
         a.stable_bytes == b.stable_bytes && a.bucket_bytes == b.bucket_bytes && a.layout_digest == b.layout_digest &&
         a.layout == b.layout && a.shelf_count == b.shelf_count;
}

SourceKind source_kind(ArenaKind kind) {
  return kind == ArenaKind::own ? SourceKind::own_arena : SourceKind::replica;
}

ArenaKind arena_kind(SourceKind kind) {
  return kind == SourceKind::replica ? ArenaKind::replica : ArenaKind::own;
}

void freeze(const Arena& arena) {
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) arena.slot(i).freeze();
}

// Nothing less than a bucket can be proven, or read.
Extent in_whole_buckets(Extent extent, std::uint64_t bucket_bytes) {
  extent.begin = (extent.begin + bucket_bytes - 1) / bucket_bytes * bucket_bytes;
  if (extent.end != kStreamEnd) extent.end = extent.end / bucket_bytes * bucket_bytes;
  return extent;
}

std::vector<EqualOffer> offers_in(const ArenaSpec& spec) {
  std::vector<EqualOffer> offers;
  const auto layout = parse_layout(spec.layout);
  if (!layout || spec.seat.value >= layout->world) return offers;
  for (const EqualState& state : equal_state_of(*layout, spec.seat))
    for (EqualExtent extent : state.extents) {
      extent.extent = in_whole_buckets(extent.extent, spec.bucket_bytes);
      if (!extent.extent.is_empty() && extent.extent.begin < spec.payload_bytes)
        offers.push_back({state.seats, extent, spec.seat});
    }
  return offers;
}

}  // namespace

std::string segment_name(ArenaKind kind, Seat seat) {
  return text(kind == ArenaKind::own ? "own." : "replica.", seat);
}

Status Memory::adopt(const std::string& name, Fd fd) {
  PAWL_ASSIGN(std::uint64_t size, shared_.size_bytes(fd.get()));
  PAWL_ASSIGN(Mapping mapping, shared_.map(fd.get(), size, {}));
  PAWL_ASSIGN(Arena arena, Arena::open(mapping.bytes()));
  if (segment_name(arena.spec().kind, arena.spec().seat) != name)
    return Error{Code::corrupt, text("segment ", name, " says it is another")};
  if (frozen_) freeze(arena);
  const Key key{arena.spec().kind, arena.spec().seat};
  const Pages pages = shared_.pages_of(fd.get());
  arenas_[key] = std::make_shared<HeldArena>(HeldArena{std::move(fd), std::move(mapping), arena, pages});
  note_own_bytes();
  return {};
}

ArenaHandle Memory::find_equal(const ArenaSpec& spec) const {
  const ArenaHandle found = find(spec.kind, spec.seat);
  return found && same_shape(found->arena.spec(), spec) ? found : nullptr;
}

Result<ArenaHandle> Memory::make(const ArenaSpec& spec) const {
  PAWL_ASSIGN(ReadySegment segment, segment_for(spec));
  PAWL_ASSIGN(Arena arena, Arena::format(segment.mapping.bytes(), spec));
  const Pages pages = shared_.pages_of(segment.fd.get());
  return std::make_shared<HeldArena>(HeldArena{std::move(segment.fd), std::move(segment.mapping), arena, pages});
}

Result<ReadySegment> Memory::segment_for(const ArenaSpec& spec) const {
  const std::uint64_t size = Arena::size_bytes(spec);
  if (spare_ != nullptr)
    if (std::optional<ReadySegment> ready = spare_->take(size)) return std::move(*ready);
  PAWL_ASSIGN(Fd fd, shared_.create("pawl." + spec.job + "." + segment_name(spec.kind, spec.seat), size));
  PAWL_ASSIGN(Mapping mapping, shared_.map(fd.get(), size, {.populate = true}));
  return ReadySegment{std::move(fd), std::move(mapping)};
}

void Memory::put(const ArenaHandle& made) {
  const ArenaSpec& spec = made->arena.spec();
  const std::string name = segment_name(spec.kind, spec.seat);
  if (frozen_) freeze(made->arena);
  if (find(spec.kind, spec.seat)) log_warn("arena_replaced", "name", name, "why", "the layout differs");
  drop(spec.kind, spec.seat);
  keeper_.hold(name, made->fd.get());
  arenas_[{spec.kind, spec.seat}] = made;
  note_own_bytes();
  log_info("arena_made", "name", name, "bytes", made->mapping.size_bytes(), "pages", name_of(made->pages));
}

Result<ArenaHandle> Memory::arena_for(const ArenaSpec& spec) {
  if (ArenaHandle found = find_equal(spec)) return found;
  PAWL_ASSIGN(ArenaHandle made, make(spec));
  put(made);
  return made;
}

ArenaHandle Memory::find(ArenaKind kind, Seat seat) const {
  auto found = arenas_.find({kind, seat});
  return found == arenas_.end() ? nullptr : found->second;
}

void Memory::drop(ArenaKind kind, Seat seat) {
  auto dropped = arenas_.extract({kind, seat});
  if (dropped.empty()) return;
  keeper_.drop(segment_name(kind, seat));
  if (keeper_.let_go) keeper_.let_go(std::move(dropped.mapped()));
  note_own_bytes();
}

void Memory::drop_all_but(std::span<const Seat> own, std::span<const Seat> replicas) {
  std::vector<Key> others;
  for (const auto& [key, held] : arenas_) {
    const std::span<const Seat> kept = key.first == ArenaKind::own ? own : replicas;
    if (std::ranges::find(kept, key.second) == kept.end()) others.push_back(key);
  }
  for (const auto& [kind, seat] : others) drop(kind, seat);
}

void Memory::freeze_all() {
  frozen_ = true;
  for (auto& [key, held] : arenas_) freeze(held->arena);
}

void Memory::empty_struck(std::span<const Struck> struck, NodeLife self) {
  for (const Struck& wrong : struck) {
    if (wrong.kind == SourceKind::path) continue;  // it is wrong for another seat; its own may be right
    if (wrong.at == self && !wrong.extent.is_whole()) {
      note_wrong(arena_kind(wrong.kind), wrong.seat, {wrong.slot_generation, wrong.step});
      continue;
    }
    const ArenaHandle held = wrong.at == self ? find(arena_kind(wrong.kind), wrong.seat) : nullptr;
    for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) {
      const Slot slot = held->arena.slot(i);
      const SlotWord word = slot.word();
      if (word.generation == wrong.slot_generation && word.step == wrong.step) (void)slot.empty_frozen();
    }
  }
}

void Memory::note_wrong(ArenaKind kind, Seat seat, SlotWord word) {
  wrong_.insert({{kind, seat}, word.generation, word.step});
}

void Memory::unfreeze_all(std::span<const LineageEntry> lineage, Generation running) {
  frozen_ = false;
  for (auto& [key, held] : arenas_)
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) {
      const Slot slot = held->arena.slot(i);
      const SlotWord word = slot.word();
      const bool right = !wrong_.contains({key, word.generation, word.step});
      slot.unfreeze(word.state == SlotState::sealed && right && in_lineage(lineage, word.generation, word.step));
      // Nobody writes an older generation's step any more. Left there, it would take the slot for good: the gate lets go
      // only of what is before the committed step.
      if (!word.frozen && word.state == SlotState::dirty && word.generation < running)
        (void)slot.try_abandon(word.generation, word.step);
    }
  wrong_.clear();
}

std::vector<InventoryItem> Memory::inventory() const {
  std::vector<InventoryItem> items;
  for (const auto& [key, held] : arenas_)
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) {
      const Slot slot = held->arena.slot(i);
      const SlotWord word = slot.word();
      if (word.state == SlotState::empty) continue;
      items.push_back({key.second,
                       source_kind(key.first),
                       word.generation,
                       word.step,
                       word.state,
                       held->arena.spec().layout_digest,
                       {},
                       word.state == SlotState::sealed && slot.torn(word)});
    }
  return items;
}

std::vector<EqualOffer> Memory::equal_offers() {
  std::vector<EqualOffer> all;
  for (const auto& [key, held] : arenas_) {
    if (key.first != ArenaKind::own) continue;
    const ArenaSpec& spec = held->arena.spec();
    const auto [known, is_new] = offers_.try_emplace(key.second);
    if (is_new || known->second.layout_digest != spec.layout_digest)
      known->second = {spec.layout_digest, offers_in(spec)};
    const auto limit = offers_limit_.find(key.second);
    std::ranges::copy_if(known->second.offers, std::back_inserter(all), [&](const EqualOffer& offer) {
      return limit == offers_limit_.end() || contains(limit->second, offer);
    });
  }
  return all;
}

void Memory::note_declared(const ArenaSpec& declared) {
  const ArenaHandle held = find(ArenaKind::own, declared.seat);
  if (held && held->arena.spec().layout != declared.layout)
    offers_limit_[declared.seat] = offers_in(declared);
  else
    offers_limit_.erase(declared.seat);
}

std::uint64_t Memory::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& [key, held] : arenas_) sum += held->mapping.size_bytes();
  return sum;
}

std::uint64_t Memory::ready_bytes() const {
  return spare_ == nullptr ? 0 : spare_->ready_bytes();
}

void Memory::note_own_bytes() {
  std::uint64_t greatest = 0;
  for (const auto& [key, held] : arenas_)
    if (key.first == ArenaKind::own) greatest = std::max(greatest, Arena::size_bytes(held->arena.spec()));
  own_bytes_max_ = greatest;
}

std::vector<ArenaHandle> Memory::arenas() const {
  std::vector<ArenaHandle> all;
  for (const auto& [key, held] : arenas_) all.push_back(held);
  return all;
}

std::vector<SlotView> slots_of(const Arena& arena) {
  std::vector<SlotView> slots;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const Slot slot = arena.slot(i);
    const SlotWord word = slot.word();
    slots.push_back({word, word.state == SlotState::sealed && slot.acknowledged_by_all(word)});
  }
  return slots;
}

}  // namespace pawl::job
