#include "job/daemon/paths_watch.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/text.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kTensorsNamedMax = 8;

bool is_within(const EqualExtent& part, const EqualExtent& whole) {
  return part.digest == whole.digest && part.extent.begin >= whole.extent.begin && part.extent.end <= whole.extent.end;
}
bool is_part(const EqualExtent& what, const std::vector<Compared>& all) {
  return std::ranges::any_of(all, [&](const Compared& one) { return what != one.what && is_within(what, one.what); });
}
bool has_other_sum(const Compared& one, Seat seat) {
  return std::ranges::any_of(one.others, [seat](const EqualSum& other) { return other.first == seat; });
}

std::vector<std::string> tensors_in(const SeatLayout& layout, Extent extent) {
  std::vector<std::string> names;
  for (const LayoutEntry& entry : layout.entries)
    if (entry.equal_axes != 0 && entry.bytes > 0 && entry.payload_offset != kNotCaptured &&
        extent.overlaps({entry.payload_offset, entry.payload_offset + entry.bytes}))
      names.push_back(text(entry.name, " (", entry.role, ")"));
  return names;
}

std::string bytes_of(const EqualExtent& what) {
  return to_text(std::span(&what.extent, 1));
}

}  // namespace

// FNV-1a over whole words, in four lanes in turn: one multiplication waits for the one before it.
std::uint64_t sum_of_buckets(const Slot& slot, std::uint32_t bucket_bytes, Extent extent) {
  const std::span<Bucket> buckets = slot.buckets();
  const std::uint64_t end = std::min<std::uint64_t>(extent.end / bucket_bytes, buckets.size());
  constexpr std::uint64_t kPrime = 0x100000001b3u;
  std::array<std::uint64_t, 4> lanes = {0xcbf29ce484222325u, 1, 2, 3};
  std::size_t lane = 0;
  for (std::uint64_t i = extent.begin / bucket_bytes; i < end; ++i, lane = (lane + 1) % lanes.size()) {
    lanes[lane] = (lanes[lane] ^ buckets[i].crc32c.load(std::memory_order_relaxed)) * kPrime;
    lanes[lane] ^= lanes[lane] >> 29;
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t each : lanes) {
    sum = (sum ^ each) * kPrime;
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

PathsWatch::PathsWatch(NodeContext& context, Memory& memory, Events& events, Hooks hooks)
    : differences_(context.metrics.counter(
          "paths_differ_total", "How often it was told that state differs on seats that declared it equal.")),
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
  narrowed_.clear();
  named_.clear();
  told_ = 0;
}

// Nobody overwrites a sealed slot whose step is not settled; if it is by now, its word has changed.
void PathsWatch::look_at(const HeldArena& held, std::uint32_t index, std::span<const EqualOffer> offers) {
  const Slot slot = held.arena.slot(index);
  const SlotWord word = slot.word();
  const Seat seat = offers.front().seat;
  if (word.state != SlotState::sealed || word.generation != watched_ || word.step <= settled_) return;
  if (looked_at_[{seat, index}] == word || slot.torn(word)) return;
  const std::uint32_t bucket_bytes = held.arena.spec().bucket_bytes;
  EqualSums sums;
  for (const EqualOffer& offer : offers) {
    std::vector<EqualExtent> all{offer.state};
    const auto narrowed = narrowed_.find(offer.state.digest);
    if (narrowed != narrowed_.end() && is_within(narrowed->second.what, offer.state))
      for (const EqualExtent& part : parts_of(narrowed->second.what, bucket_bytes, slot.buckets().size()))
        all.push_back(part);
    for (const EqualExtent& what : all)
      sums.add({word.step, what, offer.seats.count, sum_of_buckets(slot, bucket_bytes, what.extent), 1, seat});
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

EqualSums PathsWatch::all() const {
  EqualSums all = own_;
  for (const auto& [child, sums] : children_) all.add(sums);
  return all;
}

// Looks after the report was made: all that it says is held is sealed by now.
void PathsWatch::before_report(const SeatReport& report, bool anew) {
  if (report.held == 0 || context_.ending || !context_.is_running() || !context_.mirror.is_member()) return;
  enter();
  look();
  const JobMirror& mirror = context_.mirror;
  if (mirror.is_root()) return;
  EqualSums sums = all().incomplete();
  if (sums == passed_on_ && !anew) return;
  const auto parent = mirror.node_at((mirror.my_position() - 1) / 2);
  if (parent && hooks_.send(*parent, frame_of(EqualSumsMessage{watched_, to_text(sums)}))) passed_on_ = std::move(sums);
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
  if (progress.committed > settled_) judge(progress.committed);
  settled_ = std::max(settled_, progress.settled());
  own_.forget(settled_);
  passed_on_.forget(settled_);
  for (auto& [child, sums] : children_) sums.forget(settled_);
}

void PathsWatch::judge(Step committed) {
  const std::vector<Compared> compared = all().compared(committed);
  judge_parts(compared);
  for (const Compared& one : compared)
    if (!is_part(one.what, compared)) one.others.empty() ? is_equal(one) : differs(one);
}

void PathsWatch::differs(const Compared& one) {
  const auto [known, is_new] = differing_.try_emplace(one.what);
  Difference& it = known->second;
  if (is_new) it.since = one.step;
  it.last = one;
  it.equal_commits = 0;
  std::optional<Seat> other;  // that was not told of
  for (const EqualSum& sum : one.others)
    if (!other && !it.told.contains(sum.first)) other = sum.first;
  const bool has_more = other || one.count() > it.told_count;
  if (!is_new && (!has_more || one.step.value < it.told_at.value + kStepsBetween)) return;
  it.told_at = one.step;
  it.told_count = one.count();
  for (const EqualSum& sum : one.others) it.told.insert(sum.first);
  differences_.add();
  log_warn("paths_differ", "step", one.step, "first", one.others.front().first, "count", one.count(), "like",
           one.most.first, "what", bytes_of(one.what));
  tell("paths_differ", json_of(one));
  if (other && !narrowed_.contains(one.what.digest)) narrow(one.what.digest, Narrowed{one.what, *other});
}

void PathsWatch::is_equal(const Compared& one) {
  const auto known = differing_.find(one.what);
  if (known == differing_.end() || ++known->second.equal_commits < kEqualCommits) return;
  differing_.erase(known);
  log_info("paths_equal", "step", one.step, "what", bytes_of(one.what));
  tell("paths_equal", Json{{"step", one.step.value}, {"bytes", bytes_of(one.what)}}.dump());
}

// Of the orders of this node, the next parts; an order of a node above is forgotten if it does not come again.
void PathsWatch::judge_parts(const std::vector<Compared>& all) {
  for (const auto& [digest, narrowed] : std::map(narrowed_)) {
    const auto is_next = [&, order = narrowed](const Compared& one) {
      return !one.others.empty() && one.what != order.what && is_within(one.what, order.what);
    };
    const auto of_seat = [&, seat = narrowed.seat](const Compared& one) {
      return is_next(one) && has_other_sum(one, seat);
    };
    auto next = std::ranges::find_if(all, of_seat);
    const bool has_seat = next != all.end();
    if (!has_seat) next = std::ranges::find_if(all, is_next);
    const bool is_own = std::ranges::any_of(
        differing_, [what = narrowed.what](const auto& each) { return is_within(what, each.first); });
    if (is_own && next != all.end()) {
      narrow(digest, Narrowed{next->what, has_seat ? narrowed.seat : next->others.front().first});
      continue;
    }
    Narrowed& order = narrowed_.at(digest);
    if (++order.commits > (is_own ? kPartCommits : 2 * kPartCommits))
      is_own ? narrow(digest, std::nullopt) : static_cast<void>(narrowed_.erase(digest));
    else if (is_own)
      narrow(digest, order);  // somebody may not have heard it
  }
}

void PathsWatch::on_narrow(const NarrowMessage& order) {
  if (!context_.is_running() || order.generation != context_.mirror.generation()) return;
  enter();
  std::optional<Narrowed> narrowed;
  if (order.begin < order.end) narrowed = Narrowed{{{order.begin, order.end}, order.digest}, order.seat};
  narrow(order.digest, std::move(narrowed));
}

void PathsWatch::narrow(std::uint64_t digest, std::optional<Narrowed> narrowed) {
  const auto known = narrowed_.find(digest);
  const bool is_new = narrowed && (known == narrowed_.end() || known->second != *narrowed);
  NarrowMessage order{watched_, 0, 0, digest, {}};
  if (narrowed) {
    order = {watched_, narrowed->what.extent.begin, narrowed->what.extent.end, digest, narrowed->seat};
    narrowed_[digest] = *narrowed;
  } else {
    narrowed_.erase(digest);
  }
  const JobMirror& mirror = context_.mirror;
  for (const std::uint32_t child : {2 * mirror.my_position() + 1, 2 * mirror.my_position() + 2})
    if (const auto node = mirror.node_at(child)) (void)hooks_.send(*node, frame_of(order));
  if (is_new) name_tensors(*narrowed);
}

// If it is this node's seat, and it can't be narrowed any more.
void PathsWatch::name_tensors(const Narrowed& narrowed) {
  const auto& [what, seat, commits] = narrowed;
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
  log_warn("paths_differ_in", "seat", seat, "tensors", count, "first", names.empty() ? "" : names.front(), "what",
           bytes_of(what));
  tell("paths_differ_in",
       Json{{"seat", seat.value}, {"tensors", names}, {"count", count}, {"bytes", bytes_of(what)}}.dump());
}

void PathsWatch::tell(const char* kind, const std::string& detail) {
  if (told_ < kToldMax) events_.tell(kind, detail);
  ++told_;
}

std::vector<Compared> PathsWatch::differing() const {
  std::vector<Compared> all;
  for (const auto& [what, one] : differing_) {
    all.push_back(one.last);
    all.back().step = one.since;
  }
  return all;
}

std::string json_of(const Compared& one) {
  Json seats = Json::array();
  for (const EqualSum& other : one.others) seats.push_back(other.first.value);
  return Json{{"step", one.step.value},       {"seats", seats},
              {"count", one.count()},         {"like", one.most.first.value},
              {"like_count", one.most.seats}, {"bytes", bytes_of(one.what)}}
      .dump();
}

}  // namespace pawl::job
