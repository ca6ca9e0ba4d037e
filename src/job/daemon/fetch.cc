#include "job/daemon/fetch.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/crc32c.h"
#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr int kDamagedMax = 3;
// No descriptor or no memory may be a matter of a moment: what died here a moment ago still gives back its own.
constexpr int kFailedMax = 10;
constexpr Duration kFailedPause = 100ms;

Error refusal_of(const Frame& frame) {
  PeerRefusedMessage refused;
  if (!is<PeerRefusedMessage>(frame)) return unexpected_message(frame);
  (void)decode(frame.payload, refused);  // what is missing in it is empty: it is a refusal all the same
  const Code code = refused.refusal == PeerRefusal::missing ? Code::not_found
                    : refused.refusal == PeerRefusal::never ? Code::invalid
                                                            : Code::stale;
  return {code, refused.why};
}

Error ended_error() {
  return {Code::cancelled, "the recovery that needs it is over"};
}

}  // namespace

Slot slot_to_fill(const Arena& arena, Generation generation, Step step) {
  auto worth = [&](const Slot& slot) -> std::uint64_t {  // least first
    const SlotWord word = slot.word();
    if (word.generation == generation && word.step == step) return 0;
    if (word.state != SlotState::sealed) return 1;
    return slot.pinned(word) ? ~std::uint64_t{0} : 2 + word.step.value;  // another one always is not
  };
  Slot best = arena.slot(0);
  for (std::uint32_t i = 1; i < arena.slot_count(); ++i)
    if (worth(arena.slot(i)) < worth(best)) best = arena.slot(i);
  return best;
}

namespace {

template <class Accept>
bool find_slot(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index, Accept accept) {
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const SlotWord word = arena.slot(i).word();
    if (word.generation != generation || word.step != step || !accept(word)) continue;
    slot = arena.slot(i);
    index = i;
    return true;
  }
  return false;
}

}  // namespace

bool find_sealed(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index) {
  return find_slot(arena, generation, step, slot, index,
                   [](const SlotWord& word) { return word.state == SlotState::sealed; });
}

bool find_filling(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index) {
  return find_slot(arena, generation, step, slot, index,
                   [](const SlotWord& word) { return word.frozen && word.state != SlotState::empty; });
}

namespace {

// Of these buckets those that are wrong where they lie, from the first to the last of them; nullopt: none is.
std::optional<BucketsBadMessage> wrong_in(const Slot& slot, BucketRange range) {
  std::optional<BucketsBadMessage> bad;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    if (crc32c(slot.bucket(i)) == slot.buckets()[i].crc32c) continue;
    if (!bad) bad = BucketsBadMessage{i, 0, text("where it lies: bucket ", i, ": checksum differs")};
    bad->count = i - bad->first + 1;
  }
  return bad;
}

bool is_path(const Source& source) {
  return source.kind == SourceKind::path;
}

// Those that the source has in whole.
BucketRange whole_buckets(const FetchFromPlace& place, const Slot& slot, std::uint64_t bucket_bytes) {
  const std::uint64_t all = slot.buckets().size();
  if (!is_path(place.source)) return {0, static_cast<std::uint32_t>(all)};
  const Extent extent = place.source.extent;
  const std::uint64_t first = std::min(all, (extent.begin + bucket_bytes - 1) / bucket_bytes);
  const std::uint64_t end = extent.end == kStreamEnd ? all : std::min(all, extent.end / bucket_bytes);
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(std::max(first, end) - first)};
}

std::vector<Source> sources_in(const std::vector<FetchFromPlace>& places) {
  std::vector<Source> sources;
  for (const FetchFromPlace& place : places) sources.push_back(place.source);
  return sources;
}

// How many streams a slot of so many bytes is worth.
std::size_t streams_for(std::uint64_t bytes, const FetchSizes& sizes) {
  return bytes > sizes.one_stream_bytes_max ? kFetchStreamsMax : 1;
}

FetchRanges ranges_of(const ArenaSpec& spec, const std::vector<FetchFromPlace>& sources, const FetchSizes& sizes) {
  std::vector<Extents> offers;
  for (const FetchFromPlace& place : sources) offers.push_back({place.source.extent});
  const std::uint64_t most = std::max<std::uint64_t>(sizes.range_bytes / spec.bucket_bytes, 1);
  return {{.bucket_count = Arena::bucket_count(spec),
           .bucket_bytes = spec.bucket_bytes,
           .range_max = static_cast<std::uint32_t>(most)},
          std::move(offers)};
}

}  // namespace

Fetch::Fetch(Options options)
    : options_(std::move(options)),
      changed_(options_.context.environment->tasks.make_condition()),
      places_(options_.sources.size()),
      proof_(sources_in(options_.sources)),
      began_(options_.context.environment->clock.now()) {}

std::shared_ptr<Fetch> Fetch::start(Options options) {
  std::shared_ptr<Fetch> fetch(new Fetch(std::move(options)));
  fetch->start_lane();
  return fetch;
}

void Fetch::end() {
  std::lock_guard lock(mutex_);
  ended_ = true;
  for (const Lane& lane : lanes_)
    if (lane.stream != nullptr) lane.stream->shut_down();
  changed_->notify_all();
}

FetchState Fetch::state() const {
  std::lock_guard lock(mutex_);
  return state_;
}

bool Fetch::is_open() const {
  std::lock_guard lock(mutex_);
  return filling_.has_value();
}

Deadline Fetch::deadline(std::uint64_t bytes) const {
  return Deadline::in(options_.patience + time_to_move(bytes), options_.context.environment->clock);
}

// From here on, and not before, memory is touched: whoever ended us waits for that.
bool Fetch::may_touch() {
  std::lock_guard lock(mutex_);
  if (ended_ || over_) return false;
  options_.context.workers->begin();
  return true;
}

// --- Lanes

void Fetch::start_lane() {
  std::size_t lane = 0;
  {
    std::lock_guard lock(mutex_);
    lane = lanes_.size();
    lanes_.emplace_back();
    ++running_;
  }
  (void)options_.context.environment->tasks.start("pawl-fetch", [fetch = shared_from_this(), lane] {
    fetch->run_lane(lane);
    fetch->lane_ended();
  });
}

void Fetch::lane_ended() {
  {
    std::lock_guard lock(mutex_);
    if (--running_ > 0) return;
  }
  finish(ended_error());  // unless it is over
}

void Fetch::run_lane(std::size_t lane) {
  while (const std::optional<std::size_t> source = pick_source()) {
    const Status tried = attempt(lane, *source);
    {
      std::lock_guard lock(mutex_);
      --places_[*source].streams;
    }
    if (!tried && !judge(lane, *source, tried.error())) return;
  }
}

// Of those that have something to give one whose sums are awaited, then that which failed least lately, then the one with
// the fewest streams.
std::optional<std::size_t> Fetch::pick_source() {
  std::lock_guard lock(mutex_);
  std::optional<std::size_t> best;
  const auto rank = [this](std::size_t i) {
    return std::tuple(!proof_.is_awaited(i), places_[i].failures, places_[i].streams);
  };
  for (std::size_t i = 0; i < places_.size() && !over_ && !ended_; ++i) {
    if (places_[i].failed || (filling_ && !filling_->ranges.may_give(i)) || !proof_.may_ask(i)) continue;
    if (!best || rank(i) < rank(*best)) best = i;
  }
  if (best) {
    ++places_[*best].streams;
    ++state_.tries;
  }
  return best;
}

Status Fetch::attempt(std::size_t lane, std::size_t source) {
  const Environment& environment = *options_.context.environment;
  PAWL_ASSIGN(const Address address, Address::parse(options_.sources[source].address));
  PAWL_ASSIGN(const std::unique_ptr<Stream> stream,
              environment.network.connect(address, Deadline::in(500ms, environment.clock)));
  {
    std::lock_guard lock(mutex_);
    if (ended_ || over_) return ended_error();
    lanes_[lane].stream = stream.get();
    lanes_[lane].source = source;
  }
  Status status = talk(*stream, lane, source);
  std::lock_guard lock(mutex_);
  lanes_[lane].stream = nullptr;
  return status;
}

bool Fetch::judge(std::size_t lane, std::size_t source, const Error& error) {
  Clock& clock = options_.context.environment->clock;
  bool only = false;
  bool is_too_late = false;  // to be compared with others: asked later it would come when they have given their bytes
  {
    std::lock_guard lock(mutex_);
    if (ended_ || over_) return false;
    state_.failed = error.what;
    ++places_[source].failures;
    only = running_ == 1;
    is_too_late = proof_.is_awaited(source) && clock.now() - began_ >= options_.patience;
  }
  Duration pause = 10ms;
  if (is_too_late) give_up_source(source, error);
  switch (error.code) {
    case Code::unreachable:  // a source that restarts its pawld, or has not seen the generation yet, answers later
    case Code::timeout:
    case Code::stale:
      break;
    case Code::corrupt:
      came_odd(source, error);
      break;
    case Code::full:
    case Code::io:
      // Of several streams only one gives the fetch up for that: the others come back when there may be more again.
      if ((lane == 0 || only) && has_failed_for_long()) finish(error);
      pause = kFailedPause;
      break;
    case Code::not_found:
      strike(source, struck_of(options_.sources[source].source, options_.sources[source].source.extent), error.what);
      break;
    case Code::broken:
      finish(error);
      break;
    default:
      give_up_source(source, error);
  }
  clock.sleep(pause);
  return true;
}

bool Fetch::has_failed_for_long() {
  std::lock_guard lock(mutex_);
  return ++no_resources_ == kFailedMax;
}

void Fetch::came_odd(std::size_t source, const Error& error) {
  log_warn("fetch_again", "seat", first().seat, "why", error.what);
  {
    std::lock_guard lock(mutex_);
    if (++places_[source].odd < kDamagedMax) return;
  }
  give_up_source(source, {Code::io, error.what});
}

// Counted for itself: of a large slot several buckets may be damaged on the way.
void Fetch::came_damaged(std::size_t source, std::uint32_t bucket, const Error& error) {
  log_warn("fetch_again", "seat", first().seat, "why", error.what);
  {
    std::lock_guard lock(mutex_);
    if (++places_[source].damaged[bucket] < kDamagedMax) return;
  }
  give_up_source(source, {Code::io, "it comes damaged, and its source proves it right where it lies: " + error.what});
}

bool Fetch::must_prove(std::size_t source, BucketRange range) const {
  std::lock_guard lock(mutex_);
  const auto& damaged = places_[source].damaged;
  const auto bucket = damaged.lower_bound(range.first);
  return bucket != damaged.end() && bucket->first < range.first + range.count;
}

void Fetch::give_up_source(std::size_t source, Error why) {
  {
    std::lock_guard lock(mutex_);
    if (filling_) filling_->ranges.withdraw(source, {});
    places_[source].failed = std::move(why);
    proof_.pass_over(source);
  }
  finish_if_lost();
}

void Fetch::strike(std::size_t source, const Struck& wrong, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    Place& place = places_[source];
    const Extent all = options_.sources[source].source.extent;
    Struck now = wrong;
    Extents struck{now.extent};
    for (const Struck& one : struck_)
      if (struck_of(options_.sources[source].source, one.extent) == one) struck.push_back(one.extent);
    place.struck = joined_extents(std::move(struck)).size();
    if (place.struck > kStruckRangesMax) now.extent = all;
    if (now.extent == all) {
      place.failed = Error{Code::corrupt, why};
      proof_.pass_over(source);
    }
    if (filling_) filling_->ranges.withdraw(source, now.extent);
    struck_.push_back(now);
    if (why_struck_.empty()) why_struck_ = why;
    log_warn("fetch_struck", "seat", first().seat, "from", options_.sources[source].source.from.node, "what",
             to_text({&now.extent, 1}), "why", why);
  }
  finish_if_lost();
}

// Under the mutex.
Error Fetch::why_lost() const {
  if (!struck_.empty()) return {Code::corrupt, why_struck_};
  const auto failed = std::ranges::find_if(places_, [](const Place& place) { return place.failed.has_value(); });
  return failed != places_.end() ? *failed->failed : Error{Code::io, "its sources don't have all of it"};
}

// Under the mutex.
bool Fetch::is_lost() const {
  bool all_failed = true;  // a path that waits for sums which nobody else has is as good as failed
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (proof_.may_ask(i)) all_failed = all_failed && places_[i].failed.has_value();
  return all_failed || (filling_ && filling_->ranges.any_lost());
}

// What is missing can't come from anywhere any more.
void Fetch::finish_if_lost() {
  Status status;
  {
    std::lock_guard lock(mutex_);
    if (!is_lost()) return;
    status = why_lost();
  }
  finish(std::move(status));
}

void Fetch::finish(Status status) {
  Fetched fetched{std::move(status)};
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(over_, true)) return;
    for (const Place& place : places_) fetched.bytes_from.push_back(place.bytes);
    fetched.struck = struck_;
    fetched.compared = proof_.compared();
    for (const Lane& lane : lanes_)
      if (lane.stream != nullptr) lane.stream->shut_down();
    changed_->notify_all();
  }
  if (ended_ && !fetched.status) fetched.status = ended_error();
  options_.on_done(std::move(fetched));
}

// --- What is said on a connection

Status Fetch::talk(Stream& stream, std::size_t lane, std::size_t source) {
  Hello hello = options_.hello;
  hello.expected = options_.sources[source].source.from.incarnation;
  PAWL_TRY(send_frame(stream, frame_of(hello), deadline()));
  PAWL_ASSIGN(Frame welcome, receive_frame(stream, deadline()));
  if (!is<WelcomeMessage>(welcome)) return refusal_of(welcome);
  if (!is_open()) PAWL_TRY(open_slot(stream, source));
  PAWL_TRY(prove_by_sums(stream, source));
  {
    std::lock_guard lock(mutex_);
    if (proof_.awaits_any()) return {};
  }
  start_other_lanes();
  if (!may_touch()) return ended_error();
  Status received = receive_ranges(stream, lane, source);
  options_.context.workers->finish();
  return received;
}

Result<Frame> Fetch::ask(Stream& stream, std::size_t source, BucketRange range, Asked what) {
  const Source& from = options_.sources[source].source;
  const FetchFrom kind = from.kind == SourceKind::replica ? FetchFrom::replica : FetchFrom::own;
  const Seat seat = is_path(options_.sources[source].source) ? from.of : from.seat;
  const bool prove = what == Asked::proven_bytes;
  const FetchMessage message{seat,  kind,        from.slot_generation, from.step,
                             prove, range.first, range.count,          what == Asked::sums};
  PAWL_TRY(send_frame(stream, frame_of(message), deadline()));
  const std::uint64_t proven = std::uint64_t{range.count} * (filling_ ? filling_->shape.bucket_bytes : 0);
  return receive_frame(stream, deadline(prove ? proven : 0));
}

Result<SlotBeginMessage> Fetch::begin_in(const Frame& answer) const {
  if (!is<SlotBeginMessage>(answer)) return refusal_of(answer);
  PAWL_ASSIGN(SlotBeginMessage begin, message_in<SlotBeginMessage>(answer));
  if (begin.generation != first().slot_generation || begin.step != first().step)
    return Error{Code::corrupt, text("step ", begin.step, " came, not step ", first().step)};
  return begin;
}

Error Fetch::of_another_layout(std::size_t source) const {
  return {Code::invalid, text("node ", options_.sources[source].source.from.node, " has it in another layout")};
}

Status Fetch::open_slot(Stream& stream, std::size_t source) {
  PAWL_ASSIGN(Frame answer, ask(stream, source, {}, Asked::bytes));
  PAWL_ASSIGN(const SlotBeginMessage begin, begin_in(answer));
  PAWL_ASSIGN(const ArenaSpec spec,
              spec_of(begin.shape, begin.layout, options_.hello.job, first().seat, ArenaKind::own));
  {
    std::lock_guard lock(mutex_);
    state_.total = begin.shape.payload_bytes;
  }
  PAWL_ASSIGN(ArenaHandle arena, options_.arena_for(spec));
  if (!may_touch()) return ended_error();
  const Slot slot = slot_to_fill(arena->arena, begin.generation, begin.step);
  const bool opened = slot.open_frozen(begin.generation, begin.step, begin.samples);
  options_.context.workers->finish();
  if (!opened) return Error{Code::broken, "the slot to fill is live: nothing may be restored into it"};
  {
    std::lock_guard lock(mutex_);
    FetchRanges ranges = ranges_of(spec, options_.sources, options_.context.fetch_sizes);
    for (std::size_t i = 0; i < places_.size(); ++i)
      if (places_[i].failed) ranges.withdraw(i, {});
    filling_.emplace(Filling{std::move(arena), slot, begin.shape, std::move(ranges)});
  }
  if (options_.on_filling) options_.on_filling();
  finish_if_lost();
  return {};
}

void Fetch::start_other_lanes() {
  std::size_t lanes = 0;
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(has_lanes_, true)) return;
    lanes = streams_for(filling_->shape.payload_bytes, options_.context.fetch_sizes);
  }
  for (std::size_t lane = 1; lane < lanes; ++lane) start_lane();
}

// --- Proving paths

Result<std::vector<std::uint32_t>> Fetch::sums_at(Stream& stream, std::size_t source) {
  const BucketRange range = whole_buckets(options_.sources[source], filling_->slot, filling_->shape.bucket_bytes);
  std::vector<std::uint32_t> sums(range.count);
  if (sums.empty()) return sums;
  PAWL_ASSIGN(const Frame answer, ask(stream, source, range, Asked::sums));
  PAWL_ASSIGN(const SlotBeginMessage begin, begin_in(answer));
  if (is_path(options_.sources[source].source)) {
    if (begin.shape.bucket_bytes != filling_->shape.bucket_bytes)
      return Error{Code::not_found, "its buckets are of another size"};
  } else if (begin.shape != filling_->shape) {
    return of_another_layout(source);
  }
  const auto bytes = std::as_writable_bytes(std::span(sums));
  std::uint32_t sum = 0;
  const Deadline by = deadline(bytes.size());
  PAWL_TRY(stream.receive_all(bytes, by));
  PAWL_TRY(stream.receive_all(std::as_writable_bytes(std::span(&sum, 1)), by));
  if (crc32c(bytes) != sum) return Error{Code::corrupt, "the buckets' sums came damaged"};
  return sums;
}

Status Fetch::prove_by_sums(Stream& stream, std::size_t source) {
  {
    std::lock_guard lock(mutex_);
    if (!proof_.wants_sums(source)) return {};
  }
  PAWL_ASSIGN(std::vector<std::uint32_t> sums, sums_at(stream, source));
  const Slot& slot = filling_->slot;
  const BucketRange range = whole_buckets(options_.sources[source], slot, filling_->shape.bucket_bytes);
  std::optional<PathProof::Difference> differs;
  {
    std::lock_guard lock(mutex_);
    differs = proof_.hear(source, range.first, std::move(sums), slot.buckets().size());
  }
  if (!differs) return {};
  const Source& here = options_.sources[source].source;
  const Source& there = options_.sources[differs->other].source;
  const std::string why =
      text("bucket ", differs->bucket, " at seat ", here.of, " (node ", here.from.node, ") is not that of ",
           is_path(there) ? text("seat ", there.of) : text("seat ", here.seat, "'s own"), " (node ", there.from.node,
           "), though they were declared equal");
  strike(source, struck_for_difference(here), why);
  if (!is_path(there)) return {};
  strike(differs->other, struck_for_difference(there), why);  // nobody can tell which one is right, not even a third
  finish(Error{Code::corrupt, why});
  return {};
}

Status Fetch::receive_ranges(Stream& stream, std::size_t lane, std::size_t source) {
  while (const std::optional<BucketRange> range = take(lane, source)) {
    Status received = receive_range(stream, lane, source, *range);
    {
      std::lock_guard lock(mutex_);
      filling_->ranges.give_back(*range);
      lanes_[lane].has_range = false;
      changed_->notify_all();
    }
    if (!received) return received;
  }
  return {};
}

// nullopt: the source has nothing more to give, or it is over. Waits where others may give back what they have taken.
std::optional<BucketRange> Fetch::take(std::size_t lane, std::size_t source) {
  std::unique_lock lock(mutex_);
  while (!over_ && !ended_ && filling_->ranges.may_give(source)) {
    if (const std::optional<BucketRange> range = filling_->ranges.take(source)) {
      lanes_[lane].has_range = true;
      lanes_[lane].moved_at = options_.context.environment->clock.now();
      return range;
    }
    changed_->wait_for(lock, options_.patience / 4);
    hasten_others(source);
  }
  return std::nullopt;
}

// Under the mutex, of a lane that is free. Others at which nothing moves give back what they have taken.
void Fetch::hasten_others(std::size_t source) {
  const Duration now = options_.context.environment->clock.now();
  const Duration once = options_.patience / 4 + time_to_move(filling_->shape.bucket_bytes);
  const Duration most = once * (1 + filling_->hastened);  // or slow ones would take a bucket from each other for ever
  for (Lane& lane : lanes_) {
    if (!lane.has_range || lane.stream == nullptr || lane.source == source || now - lane.moved_at < most) continue;
    lane.stream->shut_down();
    lane.moved_at = now;
    ++filling_->hastened;
  }
}

Status Fetch::receive_range(Stream& stream, std::size_t lane, std::size_t source, BucketRange range) {
  const Asked what = must_prove(source, range) ? Asked::proven_bytes : Asked::bytes;
  PAWL_ASSIGN(Frame answer, ask(stream, source, range, what));
  if (is<BucketsBadMessage>(answer)) {
    PAWL_ASSIGN(const BucketsBadMessage bad, message_in<BucketsBadMessage>(answer));
    if (bad.count == 0 || bad.first < range.first || bad.first + std::uint64_t{bad.count} > range.first + range.count)
      return Error{Code::corrupt, "the source names buckets that it was not asked for"};
    const Extent wrong = filling_->ranges.extent_of({bad.first, bad.count});
    strike(source, struck_of(options_.sources[source].source, wrong), bad.why);
    return {};
  }
  PAWL_ASSIGN(const SlotBeginMessage begin, begin_in(answer));
  if (!is_path(options_.sources[source].source) && begin.shape != filling_->shape) return of_another_layout(source);
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    if (Status received = receive_bucket(stream, source, i); !received) {
      if (received.error().code != Code::corrupt) return received;
      came_damaged(source, i, received.error());
      return Error{Code::stale, received.error().what};  // asked again, over another connection
    }
    bucket_done(lane, source, i);
  }
  std::unique_lock lock(mutex_);
  const bool whole = filling_->ranges.all_done() && !over_ && !std::exchange(filling_->is_sealing, true);
  lock.unlock();
  if (whole) seal();
  return {};
}

Status Fetch::receive_bucket(Stream& stream, std::size_t source, std::uint32_t index) {
  const std::span<std::byte> bytes = filling_->slot.bucket(index);
  std::uint32_t sum = 0;
  const Deadline by = deadline(bytes.size());
  PAWL_TRY(stream.receive_all(std::as_writable_bytes(std::span(&sum, 1)), by));
  if (is_path(options_.sources[source].source)) {
    std::lock_guard lock(mutex_);
    if (!proof_.is_right(index, sum))
      return Error{Code::invalid, text("bucket ", index, " is not the one whose sum it told before")};
  }
  PAWL_TRY(stream.receive_all(bytes, by));
  if (crc32c(bytes) != sum) return Error{Code::corrupt, text("bucket ", index, ": checksum differs")};
  filling_->slot.bucket_done(index, sum, first().slot_generation, first().step);
  return {};
}

void Fetch::bucket_done(std::size_t lane, std::size_t source, std::uint32_t index) {
  const std::uint64_t size = filling_->slot.bucket(index).size();
  options_.context.bytes_received->add(size);
  std::lock_guard lock(mutex_);
  filling_->ranges.done(index);
  state_.received += size;
  places_[source].bytes += size;
  places_[source].failures = 0;
  no_resources_ = 0;
  lanes_[lane].moved_at = options_.context.environment->clock.now();
}

// No lane writes any more: each bucket is done, and nobody takes one that is.
void Fetch::seal() {
  const Status sealed = filling_->slot.seal_frozen(first().slot_generation, first().step);
  finish(sealed ? Status() : Status(Error{Code::broken, sealed.error().what}));  // somebody else has written into it
}

// --- Who serves

FetchServer::FetchServer(Options options) : options_(std::move(options)), stream_(std::move(options_.stream)) {}

std::shared_ptr<FetchServer> FetchServer::start(Options options) {
  std::shared_ptr<FetchServer> server(new FetchServer(std::move(options)));
  server->options_.context.workers->begin();
  (void)server->options_.context.environment->tasks.start("pawl-serve", [server] {
    const Status served = server->serve();
    if (!served) log_info("fetch_served_badly", "why", served.error().what);
    server->stream_->shut_down();
    server->options_.context.workers->finish();
  });
  return server;
}

void FetchServer::end() {
  stream_->shut_down();
}

Status FetchServer::serve() {
  for (std::uint32_t answered = 0;; ++answered) {
    Result<Frame> frame = receive_frame(*stream_);
    if (!frame && answered > 0 && frame.error().code == Code::unreachable) return {};  // it has all that it wants
    if (!frame) return frame.error();
    FetchMessage asked;
    if (!is<FetchMessage>(*frame) || !decode(frame->payload, asked)) return Error{Code::corrupt, "not a fetch"};
    PAWL_TRY(answer(asked));
  }
}

Status FetchServer::refuse(const Error& why) {
  const bool dropped = why.code == Code::stale;  // not wrong: the recovery is over
  return send_frame(*stream_,
                    frame_of(PeerRefusedMessage{dropped ? PeerRefusal::stale : PeerRefusal::missing, why.what}));
}

Status FetchServer::answer(const FetchMessage& asked) {
  const ArenaKind kind = asked.from == FetchFrom::own ? ArenaKind::own : ArenaKind::replica;
  const bool same = arena_ && arena_->arena.spec().kind == kind && arena_->arena.spec().seat == asked.seat;
  if (!same) {
    arena_ = options_.find(kind, asked.seat);
    verified_.reset();
  }
  Slot slot;
  std::uint32_t index = 0;
  if (!arena_ || !find_sealed(arena_->arena, asked.slot_generation, asked.step, slot, index))
    return refuse({Code::not_found, text("no sealed slot of seat ", asked.seat, " step ", asked.step)});
  if (slot.torn(slot.word()))
    return refuse(
        {Code::not_found, text("seat ", asked.seat, " step ", asked.step, " was written while it was copied")});
  // Its table is checked once, and again where something came wrong: what a fetch reads is frozen.
  const SlotWord word{asked.slot_generation, asked.step};
  if (asked.prove || verified_ != word) {
    verified_.reset();
    if (const Status found = slot.verify_header(); !found)
      return refuse({found.error().code, "where it lies: " + found.error().what});
    verified_ = word;
  }
  const BucketRange range{asked.first_bucket, asked.bucket_count};
  if (std::uint64_t{range.first} + range.count > slot.buckets().size())
    return refuse({Code::not_found, text("bucket ", range.first, " and ", range.count, " more were asked for, of ",
                                         slot.buckets().size())});
  if (const std::optional<BucketsBadMessage> bad = asked.prove ? wrong_in(slot, range) : std::nullopt) {
    options_.on_wrong(kind, asked.seat, {asked.slot_generation, asked.step});
    return send_frame(*stream_, frame_of(*bad));
  }
  const ArenaSpec& spec = arena_->arena.spec();
  const std::string layout = range.count == 0 ? spec.layout : "";  // who asks for buckets has it
  PAWL_TRY(send_frame(
      *stream_, frame_of(SlotBeginMessage{asked.slot_generation, asked.step, slot.samples(), shape_of(spec), layout})));
  return asked.sums ? send_sums(slot, range) : send_buckets(slot, range);
}

Status FetchServer::send_sums(const Slot& slot, BucketRange range) {
  std::vector<std::uint32_t> sums;
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) sums.push_back(slot.buckets()[i].crc32c);
  const auto bytes = std::as_bytes(std::span(sums));
  const std::uint32_t sum = crc32c(bytes);
  return stream_->send_all({bytes, std::as_bytes(std::span(&sum, 1))}, Deadline::never());
}

Status FetchServer::send_buckets(const Slot& slot, BucketRange range) {
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i) {
    const std::uint32_t sum = slot.buckets()[i].crc32c;
    const std::span<const std::byte> bytes = slot.bucket(i);
    PAWL_TRY(stream_->send_all({std::as_bytes(std::span(&sum, 1)), bytes}, Deadline::never()));
    options_.context.bytes_sent->add(bytes.size());
  }
  return {};
}

}  // namespace pawl::job
