#include "job/daemon/paths_watch.h"

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

using Json = nlohmann::json;

std::uint64_t sum_of_buckets(const Slot& slot, std::uint32_t bucket_bytes, Extent extent) {
  const std::span<Bucket> buckets = slot.buckets();
  const std::uint64_t end = extent.end == kStreamEnd ? buckets.size() : extent.end / bucket_bytes;
  std::uint64_t sum = 0xcbf29ce484222325u;  // FNV-1a over whole words
  for (std::uint64_t i = extent.begin / bucket_bytes; i < std::min<std::uint64_t>(end, buckets.size()); ++i) {
    sum = (sum ^ buckets[i].crc32c.load(std::memory_order_relaxed)) * 0x100000001b3u;
    sum ^= sum >> 29;
  }
  return sum;
}

std::vector<EqualExtent> parts_of(const EqualExtent& what, std::uint32_t bucket_bytes, std::uint64_t buckets) {
  const std::uint64_t first = what.extent.begin / bucket_bytes;
  const std::uint64_t end = std::min(buckets, what.extent.end / bucket_bytes);
  std::vector<EqualExtent> parts;
  if (first + 1 >= end) return parts;
  const std::uint64_t step = (end - first + kPartsMax - 1) / kPartsMax;
  for (std::uint64_t i = first; i < end; i += step)
    parts.push_back({{i * bucket_bytes, std::min(i + step, end) * bucket_bytes}, what.digest});
  if (what.extent.end == kStreamEnd) parts.back().extent.end = kStreamEnd;
  return parts;
}

namespace {

bool is_within(const EqualExtent& part, const EqualExtent& whole) {
  return part.digest == whole.digest && part.extent.begin >= whole.extent.begin && part.extent.end <= whole.extent.end;
}

std::vector<std::string> tensors_in(const SeatLayout& layout, Extent extent) {
  std::vector<std::string> names;
  for (const LayoutEntry& entry : layout.entries)
    if (entry.equal_axes != 0 && entry.bytes > 0 && entry.payload_offset != kNotCaptured &&
        extent.overlaps({entry.payload_offset, entry.payload_offset + entry.bytes}))
      names.push_back(text(entry.name, " (", entry.role, ")"));
  return names;
}

constexpr std::uint32_t kCommitsMax = 32;  // in which a part is waited for
constexpr std::size_t kTensorsNamedMax = 8;

}  // namespace

PathsWatch::PathsWatch(NodeContext& context, Memory& memory, Events& events, Hooks hooks)
    : differences_(context.metrics.counter(
          "paths_differ_total", "Parts of the state that differed at a commit on seats that declared them equal.")),
      context_(context),
      memory_(memory),
      events_(events),
      hooks_(std::move(hooks)) {}

void PathsWatch::enter() {
  const Generation now = context_.mirror.generation();
  if (std::exchange(watched_, now) == now) return;
  settled_ = {};
  looked_at_.clear();
  own_ = {};
  children_.clear();
  passed_on_ = {};
  differing_.clear();
  narrowed_.reset();
  narrowed_before_.clear();
  named_.clear();
}

// Nobody overwrites a sealed slot whose step is not settled; if it is by now, its word has changed.
void PathsWatch::look_at(const HeldArena& held, std::uint32_t index, std::span<const EqualOffer> offers) {
  const Slot slot = held.arena.slot(index);
  const SlotWord word = slot.word();
  const Seat seat = offers.front().seat;
  if (word.state != SlotState::sealed || word.generation != watched_ || word.step <= settled_) return;
  if (looked_at_[{seat, index}] == word) return;
  const std::uint32_t bucket_bytes = held.arena.spec().bucket_bytes;
  EqualSums sums;
  for (const EqualOffer& offer : offers) {
    std::vector<EqualExtent> all{offer.state};
    if (narrowed_ && is_within(narrowed_->what, offer.state))
      for (const EqualExtent& part : parts_of(narrowed_->what, bucket_bytes, slot.buckets().size()))
        all.push_back(part);
    for (const EqualExtent& what : all)
      sums.add({word.step, what, sum_of_buckets(slot, bucket_bytes, what.extent), 1, seat});
  }
  if (slot.word() != word) return;
  looked_at_[{seat, index}] = word;
  own_.add(sums);
}

void PathsWatch::look() {
  const std::vector<EqualOffer> offers = memory_.equal_offers();  // by seats
  for (auto offer = offers.begin(); offer != offers.end();) {
    const auto end =
        std::ranges::find_if(offer, offers.end(), [&](const EqualOffer& other) { return other.seat != offer->seat; });
    const ArenaHandle held = memory_.find(ArenaKind::own, offer->seat);
    for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) look_at(*held, i, {offer, end});
    offer = end;
  }
}

void PathsWatch::pass_on() {
  if (context_.ending || !context_.is_running() || !context_.mirror.is_member()) return;
  enter();
  look();
  const JobMirror& mirror = context_.mirror;
  if (mirror.is_root()) return;
  EqualSums all = own_;
  for (const auto& [child, sums] : children_) all.add(sums);
  if (all == passed_on_) return;
  const auto parent = mirror.node_at((mirror.my_position() - 1) / 2);
  if (parent && hooks_.send(*parent, frame_of(EqualSumsMessage{watched_, to_text(all)}))) passed_on_ = std::move(all);
}

void PathsWatch::on_sums(NodeId child, Generation generation, const std::string& sums) {
  if (!context_.is_running() || generation != context_.mirror.generation()) return;
  enter();
  auto parsed = parse_equal_sums(sums);
  if (!parsed) return;
  parsed->forget(settled_);  // the child may not have heard of that yet
  children_[child] = std::move(*parsed);
}

void PathsWatch::on_progress(Progress progress) {
  if (!context_.is_running()) return;
  enter();
  if (context_.mirror.is_root()) judge(progress.committed);
  settled_ = std::max(settled_, progress.settled());
  own_.forget(settled_);
  passed_on_.forget(settled_);
  for (auto& [child, sums] : children_) sums.forget(settled_);
}

// Equal again is what was told by as many seats as when it differed: those that differ may be the ones that are not heard.
void PathsWatch::judge(Step committed) {
  EqualSums sums = own_;
  for (const auto& [child, told] : children_) sums.add(told);
  const std::vector<Compared> all = sums.compared(committed);
  if (narrowed_ && committed > settled_) judge_parts(all);
  for (const Compared& one : all) {
    const auto known = differing_.find(one.what);
    if (!one.others.empty() && !is_part(one.what)) {
      if (differing_.insert_or_assign(one.what, one).second) tell(one);
      if (!narrowed_ && narrowed_before_.insert(one.what).second) narrow(Narrowed{one.what, one.others.front().first});
    } else if (one.others.empty() && known != differing_.end() && one.seats() >= known->second.seats()) {
      differing_.erase(known);
      narrowed_before_.erase(one.what);
      tell(one);
      if (narrowed_ && is_within(narrowed_->what, one.what)) narrow(std::nullopt);
    }
  }
}

std::vector<Compared> PathsWatch::differing() const {
  std::vector<Compared> all;
  for (const auto& [what, one] : differing_) all.push_back(one);
  return all;
}

bool PathsWatch::is_part(const EqualExtent& what) const {
  return std::ranges::any_of(differing_,
                             [&](const auto& whole) { return what != whole.first && is_within(what, whole.first); });
}

void PathsWatch::judge_parts(const std::vector<Compared>& all) {
  for (const Compared& one : all)
    if (!one.others.empty() && one.what != narrowed_->what && is_within(one.what, narrowed_->what))
      return narrow(Narrowed{one.what, one.others.front().first});
  if (++narrowed_->commits > kCommitsMax) return narrow(std::nullopt);
  narrow(narrowed_);  // somebody may not have heard it
}

void PathsWatch::on_narrow(const NarrowMessage& order) {
  if (!context_.is_running() || order.generation != context_.mirror.generation()) return;
  enter();
  std::optional<Narrowed> narrowed;
  if (order.begin < order.end) narrowed = Narrowed{{{order.begin, order.end}, order.digest}, order.seat};
  narrow(std::move(narrowed));
}

void PathsWatch::narrow(std::optional<Narrowed> narrowed) {
  const bool is_new = narrowed_ != narrowed;
  narrowed_ = std::move(narrowed);
  NarrowMessage order{watched_, 0, 0, 0, {}};
  if (narrowed_)
    order = {watched_, narrowed_->what.extent.begin, narrowed_->what.extent.end, narrowed_->what.digest,
             narrowed_->seat};
  const JobMirror& mirror = context_.mirror;
  for (const std::uint32_t child : {2 * mirror.my_position() + 1, 2 * mirror.my_position() + 2})
    if (const auto node = mirror.node_at(child)) (void)hooks_.send(*node, frame_of(order));
  if (is_new && narrowed_) name_tensors();
}

// If it is this node's seat, and it can't be narrowed any more.
void PathsWatch::name_tensors() {
  const auto [what, seat, commits] = *narrowed_;
  const ArenaHandle held = memory_.find(ArenaKind::own, seat);
  if (!held || named_.contains({what.digest, seat})) return;
  const ArenaSpec& spec = held->arena.spec();
  const auto layout = parse_layout(spec.layout);
  if (!layout) return;
  std::vector<std::string> names = tensors_in(*layout, what.extent);
  if (names.size() > 1 && !parts_of(what, spec.bucket_bytes, held->arena.slot(0).buckets().size()).empty()) return;
  named_.insert({what.digest, seat});
  const std::size_t count = names.size();
  names.resize(std::min(count, kTensorsNamedMax));
  const std::string bytes = to_text(std::span(&what.extent, 1));
  log_warn("paths_differ_in", "seat", seat, "tensors", count, "first", names.empty() ? "" : names.front(), "what",
           bytes);
  events_.tell("paths_differ_in",
               Json{{"seat", seat.value}, {"tensors", names}, {"count", count}, {"bytes", bytes}}.dump());
}

void PathsWatch::tell(const Compared& one) {
  const std::string bytes = to_text(std::span(&one.what.extent, 1));
  if (one.others.empty()) {
    log_info("paths_equal", "step", one.step, "what", bytes);
    return events_.tell("paths_equal", Json{{"step", one.step.value}, {"bytes", bytes}}.dump());
  }
  differences_.add();
  log_warn("paths_differ", "step", one.step, "first", one.others.front().first, "like", one.most.first, "what", bytes);
  events_.tell("paths_differ", json_of(one));
}

std::string json_of(const Compared& one) {
  Json seats = Json::array();
  for (const EqualSum& other : one.others) seats.push_back(other.first.value);
  return Json{{"step", one.step.value},
              {"seats", seats},
              {"count", one.seats() - one.most.seats},
              {"like", one.most.first.value},
              {"like_count", one.most.seats},
              {"bytes", to_text(std::span(&one.what.extent, 1))}}
      .dump();
}

}  // namespace pawl::job
