#include "job/daemon/replica_lanes.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/log.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

constexpr Duration kLaneAgainMin = 20ms;
constexpr Duration kLaneAgainMax = 1s;
constexpr std::size_t kSameMax = 1024;  // told at once

Error ended_error() {
  return {Code::cancelled, "the stream has ended"};
}

}  // namespace

Status send_bucket(Stream& stream, const Slot& slot, SlotWord word, std::uint32_t index) {
  const auto bytes = slot.bucket(index);
  const std::uint32_t sum = slot.buckets()[index].crc32c;
  const std::string fields = encode(BucketMessage{0, index, sum, word.generation, word.step});
  std::byte head[kFrameHeaderBytes];
  encode_header(
      {static_cast<std::uint32_t>(fields.size() + bytes.size()), static_cast<std::uint16_t>(BucketMessage::kKind), 0,
       crc32c_combine(crc32c(std::as_bytes(std::span(fields))), sum, bytes.size())},
      head);
  return stream.send_all(
      {std::span<const std::byte>(head), std::as_bytes(std::span(fields)), std::span<const std::byte>(bytes)},
      Deadline::never());
}

ReplicaLanes::ReplicaLanes(Options options, Stream& first)
    : options_(std::move(options)), first_(first), changed_(options_.context.environment->tasks.make_condition()) {}

std::shared_ptr<ReplicaLanes> ReplicaLanes::start(Options options, Stream& first) {
  std::shared_ptr<ReplicaLanes> lanes(new ReplicaLanes(std::move(options), first));
  for (std::size_t i = 0; i < lanes->options_.count; ++i) {
    (void)lanes->options_.context.environment->tasks.start("pawl-send-lane", [lanes] { lanes->run_lane(); });
  }
  return lanes;
}

void ReplicaLanes::notice() {
  { std::lock_guard lock(mutex_); }  // whoever has just looked waits by now
  changed_->notify_all();
}

void ReplicaLanes::end() {
  {
    std::lock_guard lock(mutex_);
    is_ended_ = true;
    shut_down_all();
  }
  changed_->notify_all();
}

void ReplicaLanes::shut_down_all() {
  for (Stream* lane : lanes_) lane->shut_down();
}

// --- Dealing

bool ReplicaLanes::is_there() const {
  return !is_over() && is_still(options_.context, deal_.slot, deal_.word);
}

bool ReplicaLanes::may_take() const {
  return deal_.is_open && is_there() && deal_.next < deal_.slot.buckets().size() &&
         deal_.slot.bucket_ready(deal_.next, deal_.word.generation, deal_.word.step);
}

// True: take(), now; the node's limit has counted that bucket. False, after a wait: look again.
bool ReplicaLanes::may_send_now(std::unique_lock<std::mutex>& lock, Duration look_again) {
  const StreamContext& context = options_.context;
  Duration wait = look_again;
  if (may_take()) {
    if (context.send_limit == nullptr) return true;
    wait = context.send_limit->take(deal_.slot.bucket(deal_.next).size(), context.environment->clock.now());
    if (wait == Duration::zero()) return true;
  }
  changed_->wait_for(lock, wait);
  return false;
}

// Those with an offer are told, and nobody sends them.
void ReplicaLanes::pass_told() {
  while (deal_.next < deal_.offers.size() && deal_.offers[deal_.next] != nullptr) ++deal_.next;
}

std::uint32_t ReplicaLanes::take() {
  const std::uint32_t index = deal_.next++;
  pass_told();
  if (may_take()) changed_->notify_all();  // there is more to do than this connection can
  return index;
}

// The next that are captured, follow each other, and have one offer.
SameBucketsMessage ReplicaLanes::take_same() {
  SameBucketsMessage same{deal_.word.generation, deal_.word.step, 0, 0, {}};
  for (; deal_.told < deal_.offers.size() && same.crc32c.size() < kSameMax; ++deal_.told) {
    const EqualExtent* const offer = deal_.offers[deal_.told];
    const bool goes_on = offer != nullptr && (same.crc32c.empty() || same.digest == offer->digest);
    if (!goes_on && !same.crc32c.empty()) break;
    if (offer == nullptr) continue;
    if (!deal_.slot.bucket_ready(deal_.told, deal_.word.generation, deal_.word.step)) break;
    if (same.crc32c.empty()) same.first = deal_.told;
    same.digest = offer->digest;
    same.crc32c.push_back(deal_.slot.buckets()[deal_.told].crc32c);
  }
  return same;
}

Status ReplicaLanes::tell(const SameBucketsMessage& same) {
  PAWL_TRY(send_frame(first_, frame_of(same)));
  for (std::size_t i = 0; i < same.crc32c.size(); ++i)
    options_.context.bytes_spared->add(deal_.slot.bucket(same.first + static_cast<std::uint32_t>(i)).size());
  return {};
}

// What it is a bucket of does not change while one is under way.
Status ReplicaLanes::send_one(Stream& stream, std::uint32_t index) {
  PAWL_TRY(send_bucket(stream, deal_.slot, deal_.word, index));
  options_.context.bytes_sent->add(deal_.slot.bucket(index).size());
  return {};
}

Result<ReplicaLanes::Sent> ReplicaLanes::send(const Slot& slot, SlotWord word, std::vector<const EqualExtent*> offers) {
  const std::size_t count = slot.buckets().size();
  std::unique_lock lock(mutex_);
  deal_ = {.slot = slot, .word = word, .is_open = true, .offers = std::move(offers)};
  pass_told();
  if (may_take()) changed_->notify_all();
  const auto is_done = [&] { return deal_.next == count && deal_.told == deal_.offers.size(); };
  Status sent;
  while (sent && is_there() && !is_done()) {
    const SameBucketsMessage same = take_same();
    if (!same.crc32c.empty()) {
      lock.unlock();
      sent = tell(same);
      lock.lock();
    } else if (!is_done() && may_send_now(lock, 5ms)) {
      const std::uint32_t index = take();
      lock.unlock();
      sent = send_one(first_, index);
      lock.lock();
    }
  }
  deal_.is_open = false;
  while (sent && deal_.under_way > 0 && !is_over()) changed_->wait(lock);
  if (broken_) return *broken_;
  PAWL_TRY(std::move(sent));
  if (is_ended_) return ended_error();
  return Sent{deal_.lane_buckets, is_done()};
}

// --- Lanes

void ReplicaLanes::run_lane() {
  Clock& clock = options_.context.environment->clock;
  for (Duration pause = kLaneAgainMin;; pause = std::min(2 * pause, kLaneAgainMax)) {
    bool has_joined = false;
    const Status ended = try_lane(has_joined);
    if (has_joined) {
      leave(ended);
      return options_.context.workers->finish();
    }
    std::unique_lock lock(mutex_);
    if (is_over()) return;
    if (!ended && pause == kLaneAgainMin)
      log_info("replica_lane_missing", "seat", options_.hello.seat, "to", options_.address, "why", ended.error().what);
    for (const Duration until = clock.now() + pause; !is_over() && clock.now() < until;)
      changed_->wait_for(lock, until - clock.now());
    if (is_over()) return;
  }
}

// One that had joined takes the stream down.
void ReplicaLanes::leave(const Status& ended) {
  std::lock_guard lock(mutex_);
  if (is_over()) return;
  broken_ = ended ? ended_error() : ended.error();
  shut_down_all();
  first_.shut_down();  // under the mutex, and not after end(): it is still there
  changed_->notify_all();
}

Status ReplicaLanes::try_lane(bool& has_joined) {
  const Environment& environment = *options_.context.environment;
  PAWL_ASSIGN(const std::unique_ptr<Stream> lane,
              environment.network.connect(options_.address, Deadline::in(500ms, environment.clock)));
  {
    std::lock_guard lock(mutex_);
    if (is_over()) return ended_error();
    lanes_.push_back(lane.get());
  }
  Status status = join(*lane);
  has_joined = status.has_value();
  if (status) {  // from here on it may touch the arena, if the stream has not ended
    options_.context.workers->begin();
    status = carry(*lane);
  }
  std::lock_guard lock(mutex_);
  std::erase(lanes_, lane.get());
  return status;
}

Status ReplicaLanes::join(Stream& lane) {
  Hello hello = options_.hello;
  hello.purpose = Purpose::lane;
  PAWL_TRY(send_frame(lane, frame_of(hello)));
  PAWL_ASSIGN(const Frame answer, receive_frame(lane));  // ends with shut_down() in end()
  if (is<WelcomeMessage>(answer)) return {};
  PAWL_ASSIGN(const PeerRefusedMessage refused, message_in<PeerRefusedMessage>(answer));
  return Error{Code::stale, refused.why};
}

Status ReplicaLanes::carry(Stream& lane) {
  std::unique_lock lock(mutex_);
  while (!is_over()) {
    if (!deal_.is_open) {
      changed_->wait(lock);
      continue;
    }
    if (!may_send_now(lock, 50ms)) continue;
    const std::uint32_t index = take();
    ++deal_.under_way;
    ++deal_.lane_buckets;
    lock.unlock();
    const Status sent = send_one(lane, index);
    lock.lock();
    if (--deal_.under_way == 0) changed_->notify_all();
    PAWL_TRY(sent);
  }
  return {};
}

}  // namespace pawl::job
