#include "job/daemon/replication.h"

#include <algorithm>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/text.h"
#include "job/daemon/replica_lanes.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

// Who says `later` is asked again after a while that doubles: it may be short of memory, and asking costs it work.
constexpr Duration kLaterMin = 20ms;
constexpr Duration kLaterMax = 1s;
// So is a holder to which a step came damaged: sending it again costs all of its bytes.
constexpr Duration kDamagedMin = 20ms;
constexpr Duration kDamagedMax = 1s;

constexpr std::size_t kSettledAtOnce = 2 * AwaitedBuckets::kLookAheadMax;

bool is_named_by(const ArenaShape& shape, std::string_view layout) {
  return layout.size() == shape.layout_bytes && digest_of(layout) == shape.layout_digest;
}

}  // namespace

// Only own slots are pinned, so a replica needs no third one.
ArenaShape shape_of(const ArenaSpec& spec) {
  return {.slot_count = std::min(spec.slot_count, kSlotCountMin),
          .payload_bytes = spec.payload_bytes,
          .stable_bytes = spec.stable_bytes,
          .bucket_bytes = spec.bucket_bytes,
          .layout_digest = spec.layout_digest,
          .layout_bytes = spec.layout.size()};
}

Result<ArenaSpec> spec_of(const ArenaShape& shape, std::string layout, const std::string& job, Seat seat,
                          ArenaKind kind) {
  if (shape.plan_digest != 0) return Error{Code::corrupt, text("plan_digest is ", shape.plan_digest, ", not 0")};
  if (!is_named_by(shape, layout)) return Error{Code::corrupt, "another layout came than the one that was named"};
  return ArenaSpec{.job = job,
                   .seat = seat,
                   .kind = kind,
                   .slot_count = shape.slot_count,
                   .payload_bytes = shape.payload_bytes,
                   .stable_bytes = shape.stable_bytes,
                   .bucket_bytes = shape.bucket_bytes,
                   .layout_digest = shape.layout_digest,
                   .layout = std::move(layout)};
}

bool is_void(const StreamContext& context, Step step) {
  const Progress progress = Progress::unpack(context.progress->load());
  return step < progress.committed || progress.is_void(step);  // what was committed, this holder has
}

bool is_still(const StreamContext& context, const Slot& slot, SlotWord word) {
  const SlotWord now = slot.word();
  return !is_void(context, word.step) && !now.frozen && now.generation == word.generation && now.step == word.step &&
         now.state != SlotState::empty;
}

// --- Sender

std::string to_text(const GivenUpStep& step) {
  if (step.is_own_wrong)
    return text("a flipped bit in seat ", step.seat, "'s own copy of step ", step.step, ", in bucket ", step.bucket);
  return text("bucket ", step.bucket, " of step ", step.step, " came damaged to node ", step.holder,
              ", or its memory is bad; tried ", step.tries, step.tries == 1 ? " time" : " times");
}

ReplicaSender::ReplicaSender(Options options)
    : options_(std::move(options)),
      changed_(options_.context.environment->tasks.make_condition()),
      unsent_(options_.equal, options_.arena->arena.spec().bucket_bytes, options_.arena->arena.spec().payload_bytes) {}

std::shared_ptr<ReplicaSender> ReplicaSender::start(Options options) {
  std::shared_ptr<ReplicaSender> sender(new ReplicaSender(std::move(options)));
  sender->options_.context.workers->begin();
  (void)sender->options_.context.environment->tasks.start("pawl-send", [sender] {
    sender->run();
    sender->options_.context.workers->finish();
  });
  return sender;
}

void ReplicaSender::notice() {
  {
    std::lock_guard lock(mutex_);
    ++notices_;
    if (lanes_) lanes_->notice();
  }
  changed_->notify_all();
}

void ReplicaSender::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (stream_ != nullptr) stream_->shut_down();
    if (lanes_) lanes_->end();
  }
  changed_->notify_all();
}

std::string ReplicaSender::obstacle() const {
  std::lock_guard lock(mutex_);
  return obstacle_;
}

void ReplicaSender::set_obstacle(std::string why) {
  std::lock_guard lock(mutex_);
  obstacle_ = std::move(why);
}

void ReplicaSender::wait_notice(Duration at_most) {
  std::unique_lock lock(mutex_);
  Clock& clock = options_.context.environment->clock;
  const Duration until = clock.now() + at_most;
  while (!ended_ && notices_ == seen_ && clock.now() < until) changed_->wait_for(lock, until - clock.now());
  seen_ = notices_;
}

void ReplicaSender::wait_while_there(const Slot& slot, SlotWord word, Duration at_most) {
  Clock& clock = options_.context.environment->clock;
  for (const Duration until = clock.now() + at_most; still_there(slot, word) && clock.now() < until;)
    wait_notice(until - clock.now());
}

void ReplicaSender::wait_for_limit(std::size_t bytes) {
  const StreamContext& context = options_.context;
  while (!ended_ && context.send_limit != nullptr) {
    const Duration wait = context.send_limit->take(bytes, context.environment->clock.now());
    if (wait == Duration::zero()) return;
    wait_notice(wait);
  }
}

void ReplicaSender::run() {
  const Environment& environment = *options_.context.environment;
  while (!ended_) {
    auto address = Address::parse(options_.address);
    auto stream = address ? environment.network.connect(*address, Deadline::in(500ms, environment.clock))
                          : Result<std::unique_ptr<Stream>>(std::move(address).error());
    if (stream) {
      {
        std::lock_guard lock(mutex_);
        if (ended_) return;
        stream_ = stream->get();
      }
      const Status served = serve_connection(**stream, *address);
      if (!served && !ended_) {
        set_obstacle(text("the stream to node ", options_.holder, " broke: ", served.error().what));
        log_info("replica_stream_broken", "seat", options_.hello.seat, "to", options_.address, "why",
                 served.error().what);
        if (served.error().code == Code::invalid) options_.on_refused(served.error());
      }
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
    } else {
      set_obstacle(text("node ", options_.holder, " can't be reached: ", stream.error().what));
    }
    if (!ended_) wait_notice(20ms);
  }
}

Status ReplicaSender::serve_connection(Stream& stream, const Address& address) {
  Hello hello = options_.hello;
  hello.stream = static_cast<std::uint64_t>(options_.context.environment->clock.now().count());
  PAWL_TRY(greet(stream, hello));
  set_obstacle("");
  const bool is_large =
      options_.arena->arena.spec().payload_bytes > options_.context.spread_sizes.one_connection_bytes_max;
  const std::shared_ptr<ReplicaLanes> lanes = ReplicaLanes::start({.hello = hello,
                                                                   .address = address,
                                                                   .arena = options_.arena,
                                                                   .context = options_.context,
                                                                   .count = is_large ? kSpreadConnectionsMax - 1 : 0},
                                                                  stream);
  {
    std::lock_guard lock(mutex_);
    lanes_ = lanes;
    if (ended_) lanes->end();
  }
  Status served = send_steps(stream, *lanes);
  lanes->end();
  std::lock_guard lock(mutex_);
  lanes_ = nullptr;
  return served;
}

Status ReplicaSender::greet(Stream& stream, const Hello& hello) {
  PAWL_TRY(send_frame(stream, frame_of(hello)));
  PAWL_ASSIGN(Frame answer, receive_frame(stream));  // ends with shut_down() in end()
  if (is<PeerRefusedMessage>(answer)) {
    PeerRefusedMessage refused;
    (void)decode(answer.payload, refused);  // what is missing in it is empty: it is a refusal all the same
    return Error{refused.refusal == PeerRefusal::never ? Code::invalid : Code::stale, refused.why};
  }
  return {};
}

// What this holder has acknowledged, and the fence has found written since.
Status ReplicaSender::tell_torn(Stream& stream) {
  const Arena& arena = options_.arena->arena;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const Slot slot = arena.slot(i);
    const SlotWord word = slot.word();
    const bool is_held = still_there(slot, word) && slot.acknowledged(word, options_.holder_index);
    if (!is_held || !slot.torn(word) || told_torn_[i] == word) continue;
    PAWL_TRY(send_frame(stream, frame_of(TornMessage{word.generation, word.step})));
    told_torn_[i] = word;
  }
  return {};
}

Status ReplicaSender::send_steps(Stream& stream, ReplicaLanes& lanes) {
  told_torn_.assign(options_.arena->arena.slot_count(), {});
  while (!ended_) {
    Slot slot;
    SlotWord word;
    const bool picked = pick(slot, word);
    PAWL_TRY(tell_torn(stream));  // of the step before that one; a window is compared before the next begins
    if (picked) {
      PAWL_TRY(send_step(stream, lanes, slot, word));
    } else {
      wait_notice(50ms);
    }
  }
  return {};
}

// The oldest step of this generation that the holder has not acknowledged.
bool ReplicaSender::pick(Slot& slot, SlotWord& word) {
  bool found = false;
  const Arena& arena = options_.arena->arena;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const Slot candidate = arena.slot(i);
    const SlotWord w = candidate.word();
    if (w.state == SlotState::empty || w.frozen || w.generation != options_.hello.generation) continue;
    if (is_void(options_.context, w.step)) continue;
    if (candidate.acknowledged(w, options_.holder_index)) continue;
    if (!candidate.samples_of(w)) continue;  // it is just being opened
    if (found && word.step < w.step) continue;
    slot = candidate;
    word = w;
    found = true;
  }
  return found;
}

bool ReplicaSender::still_there(const Slot& slot, SlotWord word) const {
  return !ended_ && is_still(options_.context, slot, word);
}

Status ReplicaSender::note_held(const Slot& slot, SlotWord word) {
  if (!still_there(slot, word)) return {};
  if (!slot.acknowledge(word.generation, word.step, options_.holder_index)) {
    if (!still_there(slot, word)) return {};
    const std::uint32_t shelves = options_.arena->arena.spec().shelf_count;
    return Error{Code::broken,
                 text("the arena has ", shelves, " shelves, and none for holder ", options_.holder_index)};
  }
  damage_.reset();
  set_obstacle("");
  options_.on_held(word.step);
  return {};
}

// It asks for the layout's text first where it has never had it.
Result<Frame> ReplicaSender::answer_to(const OpenMessage& open, Stream& stream) {
  PAWL_TRY(send_frame(stream, frame_of(open)));
  PAWL_ASSIGN(Frame answer, receive_frame(stream));
  if (!is<LayoutWantedMessage>(answer)) return answer;
  PAWL_ASSIGN(const LayoutWantedMessage wanted, message_in<LayoutWantedMessage>(answer));
  if (wanted.layout_digest != open.shape.layout_digest) return unexpected_message(answer);
  PAWL_TRY(send_frame(stream, frame_of(LayoutTextMessage{options_.arena->arena.spec().layout})));
  return receive_frame(stream);
}

// Until the holder takes the step, or has it, or it is not there any more.
Result<bool> ReplicaSender::offer(Stream& stream, const Slot& slot, SlotWord word) {
  const ArenaShape shape = shape_of(options_.arena->arena.spec());
  bool was_busy = false;
  for (Duration later = kLaterMin; still_there(slot, word);) {
    const std::optional<std::uint64_t> samples = slot.samples_of(word);
    if (!samples) return false;  // it has just been reopened
    PAWL_ASSIGN(const Frame answer, answer_to({word.generation, word.step, *samples, shape}, stream));
    if (is<OpenedMessage>(answer)) return true;
    if (is<HeldMessage>(answer)) {
      PAWL_TRY(note_held(slot, word));
      return false;
    }
    was_busy = is<BusyMessage>(answer);
    if (was_busy) {
      set_obstacle(text("node ", options_.holder, " has no slot free for step ", word.step, " yet"));
      wait_notice(1ms);
      continue;
    }
    PAWL_ASSIGN(const LaterMessage refused, message_in<LaterMessage>(answer));
    set_obstacle(text("node ", options_.holder, " can't take it: ", refused.why));
    wait_while_there(slot, word, later);
    later = std::min(2 * later, kLaterMax);
  }
  if (was_busy) set_obstacle("");  // with a step that is no more
  return false;
}

// Buckets and seal are of the step that was picked, whatever the slot has become meanwhile: what is not there as that
// step's any more is not sent, and the seal is sent only if the slot was it to the last.
Status ReplicaSender::send_step(Stream& stream, ReplicaLanes& lanes, const Slot& slot, SlotWord word) {
  PAWL_ASSIGN(const bool wanted, offer(stream, slot, word));
  if (!wanted) return {};
  if (!damage_) set_obstacle("");
  unsent_.begin_step();
  PAWL_ASSIGN(const ReplicaLanes::Sent sent,
              lanes.send(slot, word, unsent_.offers(static_cast<std::uint32_t>(slot.buckets().size()))));
  const SlotWord sealed{word.generation, word.step, SlotState::sealed, false};
  while (!sent.is_whole || slot.word() != sealed) {
    if (!sent.is_whole || !still_there(slot, word))
      return send_frame(stream, frame_of(AbandonMessage{word.step, sent.lane_buckets}));
    wait_notice(5ms);
  }
  return seal_step(stream, slot, word, sent.lane_buckets);
}

// What the holder wants of it is sent first, and the seal is said anew, if the slot still is that step's. An answer `opened` says
// that it isn't.
Result<Frame> ReplicaSender::answer_to_seal(Stream& stream, const Slot& slot, SlotWord word,
                                            std::uint32_t lane_buckets) {
  const SlotWord sealed{word.generation, word.step, SlotState::sealed, false};
  was_late_ = false;
  for (;;) {
    PAWL_TRY(send_frame(stream, frame_of(SealMessage{word.step, lane_buckets})));
    PAWL_ASSIGN(Frame answer, receive_frame(stream));
    if (!is<BucketsWantedMessage>(answer)) return answer;
    PAWL_ASSIGN(const BucketsWantedMessage wanted, message_in<BucketsWantedMessage>(answer));
    if (wanted.buckets.empty()) return unexpected_message(answer);
    if (wanted.differ && still_there(slot, word)) unsent_.note_wanted(true);
    was_late_ = true;
    for (const std::uint32_t index : wanted.buckets) {
      if (index >= slot.buckets().size()) return unexpected_message(answer);
      const std::size_t size = slot.bucket(index).size();
      wait_for_limit(size);
      if (!still_there(slot, word)) break;
      PAWL_TRY(send_bucket(stream, slot, word, index));
      options_.context.bytes_sent->add(size);
    }
    if (!still_there(slot, word) || slot.word() != sealed) {
      PAWL_TRY(send_frame(stream, frame_of(AbandonMessage{word.step, lane_buckets})));
      return frame_of(OpenedMessage{});
    }
  }
}

Status ReplicaSender::seal_step(Stream& stream, const Slot& slot, SlotWord word, std::uint32_t lane_buckets) {
  PAWL_ASSIGN(const Frame answer, answer_to_seal(stream, slot, word, lane_buckets));
  if (is<OpenedMessage>(answer)) return {};
  if (is<BucketBadMessage>(answer)) return on_bucket_bad(answer, slot, word);
  if (!is<HeldMessage>(answer)) return unexpected_message(answer);
  // Of a step that comes to nothing, the seats there have not been late.
  if (was_late_ && still_there(slot, word)) unsent_.note_wanted(false);
  return note_held(slot, word);
}

// The holder proves each bucket where it lies. One that is wrong in the own slot already comes right in no try: the seat
// does not have the step. Else it was damaged on the way, or lies in bad memory: later the step may come whole. In the end it is
// given up all the same, for nothing after it is captured as long as it lies here, and other bytes may fare better.
Status ReplicaSender::on_bucket_bad(const Frame& answer, const Slot& slot, SlotWord word) {
  PAWL_ASSIGN(const BucketBadMessage bad, message_in<BucketBadMessage>(answer));
  if (bad.index >= slot.buckets().size()) return unexpected_message(answer);
  if (!still_there(slot, word)) return {};
  if (!damage_ || damage_->word != word) damage_ = {word, 0};
  const std::uint32_t tries = ++damage_->tries;
  const bool is_own_wrong = crc32c(slot.bucket(bad.index)) != slot.buckets()[bad.index].crc32c;
  const GivenUpStep found{options_.hello.seat, word.step, bad.index, is_own_wrong, options_.holder, tries};
  log_warn("replica_bucket_bad", "seat", options_.hello.seat, "step", word.step, "bucket", bad.index, "to",
           options_.address, "own_is_wrong", is_own_wrong, "tries", tries);
  set_obstacle(to_text(found));
  if (!is_own_wrong && tries < kDamagedTriesMax) {
    wait_while_there(slot, word, std::min(kDamagedMin * (1u << (tries - 1)), kDamagedMax));
    return {};
  }
  // What was read is of this step if this succeeds: no slot gets the same step twice.
  if (slot.try_give_up(word.generation, word.step)) options_.on_given_up(found);
  return {};
}

// --- Receiver

ReplicaReceiver::ReplicaReceiver(Options options)
    : options_(std::move(options)),
      stream_(std::move(options_.stream)),
      changed_(options_.context.environment->tasks.make_condition()) {}

std::shared_ptr<ReplicaReceiver> ReplicaReceiver::start(Options options) {
  std::shared_ptr<ReplicaReceiver> receiver(new ReplicaReceiver(std::move(options)));
  receiver->running_ = 1;
  receiver->start_task([it = receiver.get()] { return it->serve_first(*it->stream_); });
  return receiver;
}

void ReplicaReceiver::start_task(std::function<Status()> serve) {
  options_.context.workers->begin();
  (void)options_.context.environment->tasks.start("pawl-receive",
                                                  [receiver = shared_from_this(), serve = std::move(serve)] {
                                                    receiver->leave(serve());
                                                    receiver->options_.context.workers->finish();
                                                  });
}

void ReplicaReceiver::notice() {
  changed_->notify_all();  // who misses it looks again soon
}

void ReplicaReceiver::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    stream_->shut_down();
    for (const auto& lane : lanes_) lane->shut_down();
  }
  changed_->notify_all();
}

bool ReplicaReceiver::may_add_lane() {
  std::lock_guard lock(mutex_);
  return !ended_ && !is_over_ && lanes_.size() + 1 < kSpreadConnectionsMax;
}

void ReplicaReceiver::add_lane(std::unique_ptr<Stream> stream, std::optional<Frame> welcome) {
  std::shared_ptr<Stream> lane(std::move(stream));
  {
    std::lock_guard lock(mutex_);
    if (ended_ || is_over_) return;
    lanes_.push_back(lane);
    ++running_;
  }
  start_task([this, lane = std::move(lane), welcome = std::move(welcome)]() -> Status {
    if (welcome) PAWL_TRY(send_frame(*lane, *welcome));
    return serve_lane(*lane);
  });
}

// The first that leaves takes the others with it.
void ReplicaReceiver::leave(const Status& served) {
  std::lock_guard lock(mutex_);
  if (!served && !ended_ && !is_over_ && !is_end_of_stream(served.error()))
    log_info("replica_receive_ended", "seat", options_.seat, "why", served.error().what);
  is_over_ = true;
  stream_->shut_down();
  for (const auto& lane : lanes_) lane->shut_down();
  changed_->notify_all();
  if (--running_ == 0) finished_ = true;
}

Status ReplicaReceiver::serve_first(Stream& stream) {
  while (!ended_) {
    std::byte head[kFrameHeaderBytes];
    PAWL_TRY(stream.receive_all(head, Deadline::never()));
    PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
    if (header.kind == static_cast<std::uint16_t>(BucketMessage::kKind)) {
      PAWL_TRY(on_bucket(stream, header));
      continue;
    }
    PAWL_ASSIGN(const Frame frame, receive_payload(stream, header));
    if (is<OpenMessage>(frame)) {
      PAWL_TRY(on_open(frame));
    } else if (is<SameBucketsMessage>(frame)) {
      PAWL_TRY(on_same(frame));
    } else if (is<SealMessage>(frame)) {
      PAWL_TRY(on_seal(frame));
    } else if (is<AbandonMessage>(frame)) {
      PAWL_TRY(on_abandon(frame));
    } else if (is<TornMessage>(frame)) {
      PAWL_TRY(on_torn(frame));
    } else {
      return unexpected_message(frame);
    }
  }
  return {};
}

Status ReplicaReceiver::serve_lane(Stream& stream) {
  while (!ended_) {
    std::byte head[kFrameHeaderBytes];
    PAWL_TRY(stream.receive_all(head, Deadline::never()));
    PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
    if (header.kind != static_cast<std::uint16_t>(BucketMessage::kKind))
      return Error{Code::corrupt, text("message ", header.kind, " came on a lane")};
    PAWL_TRY(on_bucket(stream, header));
  }
  return {};
}

Status ReplicaReceiver::on_open(const Frame& frame) {
  PAWL_ASSIGN(const OpenMessage open, message_in<OpenMessage>(frame));
  {
    std::lock_guard lock(mutex_);
    if (opened_.landing > 0) return Error{Code::corrupt, "a step is opened while buckets of another come"};
    opened_ = {.step = open.step};
  }
  told_ = {};
  if (open.generation != options_.generation) return Error{Code::stale, "a step of another generation"};
  if (!arena_ || shape_of(arena_->arena.spec()) != open.shape) {
    PAWL_ASSIGN(std::string layout, layout_of(open.shape));
    PAWL_ASSIGN(const ArenaSpec spec,
                spec_of(open.shape, std::move(layout), options_.job, options_.seat, ArenaKind::replica));
    auto arena = options_.arena_for(spec);
    if (!arena && arena.error().code == Code::stale) return std::move(arena).error();  // the generation is over
    if (!arena) {  // said, and tried again when the sender asks again: it takes its time
      log_warn("replica_arena_refused", "seat", options_.seat, "why", arena.error().what);
      return send_frame(*stream_, frame_of(LaterMessage{arena.error().what}));
    }
    arena_ = *arena;
    layout_.clear();
  }
  return open_slot(open);
}

// From the arena that is here, of an earlier stream or generation; else the sender is asked, once.
Result<std::string> ReplicaReceiver::layout_of(const ArenaShape& shape) {
  if (is_named_by(shape, layout_)) return layout_;
  if (const ArenaHandle held = options_.held(); held && is_named_by(shape, held->arena.spec().layout))
    return held->arena.spec().layout;
  PAWL_TRY(send_frame(*stream_, frame_of(LayoutWantedMessage{shape.layout_digest})));
  PAWL_ASSIGN(const Frame frame, receive_frame(*stream_));
  PAWL_ASSIGN(LayoutTextMessage told, message_in<LayoutTextMessage>(frame));
  layout_ = std::move(told.layout);
  return layout_;
}

Status ReplicaReceiver::open_slot(const OpenMessage& open) {
  const Arena& arena = arena_->arena;
  std::vector<SlotWord> words;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) words.push_back(arena.slot(i).word());
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    const SlotWord& word = words[i];
    if (word.frozen)  // between two generations; else it was left behind, and somebody must hear of it
      return send_frame(*stream_, frame_of(LaterMessage{text("its slot ", i, " is frozen, at step ", word.step)}));
    if (word.state == SlotState::sealed && word.generation == options_.generation && word.step == open.step) {
      options_.context.hold("ack", ended_);
      return send_frame(*stream_, frame_of(HeldMessage{open.step}));
    }
  }
  Progress progress = Progress::unpack(options_.context.progress->load());
  if (options_.context.gate_off) progress.committed = Step(kStepMax);
  const auto index = choose_slot(words, progress, options_.generation, open.step);
  if (!index || !arena.slot(*index).try_open(words[*index], options_.generation, open.step, open.samples))
    return send_frame(*stream_, frame_of(BusyMessage{}));
  {
    std::lock_guard lock(mutex_);
    opened_ = {.is_open = true, .step = open.step, .slot = arena.slot(*index)};
  }
  told_ = AwaitedBuckets(arena.slot(*index), options_.generation, open.step);
  return send_frame(*stream_, frame_of(OpenedMessage{}));
}

// Where it is to land. From here to end_landing the step stays open.
Result<Slot> ReplicaReceiver::begin_landing(const BucketMessage& bucket, std::uint64_t size_bytes) {
  const std::uint32_t index = bucket.index;
  if (bucket.extent != 0) return Error{Code::corrupt, text("bucket ", index, ": extent is ", bucket.extent, ", not 0")};
  std::lock_guard lock(mutex_);
  if (!opened_.is_open || index >= opened_.slot.buckets().size())
    return Error{Code::corrupt, text("bucket ", index, " of no open slot")};
  if (bucket.generation != options_.generation || bucket.step != opened_.step)
    return Error{Code::corrupt,
                 text("bucket ", index, " of step ", bucket.step, ", and step ", opened_.step, " is open")};
  if (size_bytes != opened_.slot.bucket(index).size())
    return Error{Code::corrupt, text("bucket ", index, " of a wrong size")};
  ++opened_.landing;
  return opened_.slot;
}

void ReplicaReceiver::end_landing(const BucketMessage& bucket, bool is_right, bool is_on_lane) {
  std::lock_guard lock(mutex_);
  --opened_.landing;
  if (is_on_lane) ++opened_.lane_buckets;
  if (is_right)
    opened_.slot.bucket_done(bucket.index, bucket.crc32c, options_.generation, opened_.step);
  else if (!opened_.damaged)
    opened_.damaged = bucket.index;
  if (is_on_lane) changed_->notify_all();
}

Status ReplicaReceiver::on_bucket(Stream& stream, FrameHeader header) {
  std::byte fields[BucketMessage::kFieldsBytes];
  if (header.length < sizeof fields) return Error{Code::corrupt, "a bucket without its fields"};
  PAWL_TRY(stream.receive_all(fields, Deadline::never()));
  BucketMessage bucket;
  (void)decode(std::string_view(reinterpret_cast<const char*>(fields), sizeof fields), bucket);  // it is as long
  PAWL_ASSIGN(const Slot slot, begin_landing(bucket, header.length - sizeof fields));
  const auto place = slot.bucket(bucket.index);
  const Status received = stream.receive_all(place, Deadline::never());
  // Verified where it lies; a wrong one stays not ready, so the slot can't be sealed. The frame's sum is over the
  // fields, too: right bytes under a wrong index are wrong.
  const std::uint32_t found = received ? crc32c(place) : 0;
  const bool is_right = received && found == bucket.crc32c &&
                        crc32c_combine(crc32c(fields), found, place.size()) == header.payload_crc32c;
  if (received) options_.context.bytes_received->add(place.size());
  end_landing(bucket, is_right, &stream != stream_.get());
  return received;
}

// What was sent over lanes may come after the word that it was.
Status ReplicaReceiver::await_lanes(std::uint32_t lane_buckets) {
  std::unique_lock lock(mutex_);
  while (opened_.lane_buckets < lane_buckets && !ended_ && !is_over_) changed_->wait(lock);
  if (ended_ || is_over_) return Error{Code::cancelled, "the stream has ended"};
  if (opened_.lane_buckets > lane_buckets || opened_.landing > 0)
    return Error{Code::corrupt, text("more than ", lane_buckets, " buckets came over lanes")};
  return {};
}

void ReplicaReceiver::close_step() {
  std::lock_guard lock(mutex_);
  opened_.is_open = false;
  told_ = {};
}

Status ReplicaReceiver::on_abandon(const Frame& frame) {
  PAWL_ASSIGN(const AbandonMessage abandon, message_in<AbandonMessage>(frame));
  if (!opened_.is_open) return {};
  PAWL_TRY(await_lanes(abandon.lane_buckets));
  close_step();
  (void)opened_.slot.try_abandon(options_.generation, opened_.step);
  return {};
}

// Nothing is answered where the step is not here any more: then nobody can restore it from here.
Status ReplicaReceiver::on_torn(const Frame& frame) {
  PAWL_ASSIGN(const TornMessage torn, message_in<TornMessage>(frame));
  const ArenaHandle held = arena_ ? arena_ : options_.held();
  if (!held) return {};
  for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i) {
    const Slot slot = held->arena.slot(i);
    const SlotWord word = slot.word();
    if (word.state != SlotState::sealed || word.generation != torn.generation || word.step != torn.step) continue;
    log_warn("replica_torn", "seat", options_.seat, "step", torn.step);
    slot.mark_torn(torn.generation, torn.step);
  }
  return {};
}

// Of a step of which nothing comes any more: one that is missing, or of whose place a damaged one may have been the last.
std::optional<std::uint32_t> ReplicaReceiver::bad_bucket() const {
  if (opened_.damaged) return opened_.damaged;
  for (std::uint32_t i = 0; i < opened_.slot.buckets().size(); ++i)
    if (!opened_.slot.bucket_ready(i, options_.generation, opened_.step)) return i;
  return std::nullopt;
}

Status ReplicaReceiver::on_same(const Frame& frame) {
  PAWL_ASSIGN(const SameBucketsMessage told, message_in<SameBucketsMessage>(frame));
  if (!opened_.is_open || told.generation != options_.generation || told.step != opened_.step)
    return Error{Code::corrupt, text("equal buckets of step ", told.step, ", which is not open")};
  const std::size_t count = opened_.slot.buckets().size();
  if (told.first > count || told.crc32c.size() > count - told.first)
    return Error{Code::corrupt, text("equal buckets from ", told.first, " of ", count)};
  if (!told_.knows_arenas()) told_.set_arenas(options_.equal_arenas());
  told_.add(told);
  told_.settle(Duration::zero(), ended_,
               kSettledAtOnce);  // what else comes on this connection should not wait for long
  return {};
}

// Afterwards each bucket that was told is here, or wanted. Nothing is awaited of a step that is void.
void ReplicaReceiver::await_same() {
  Clock& clock = options_.context.environment->clock;
  const Duration since = clock.now();
  while (!told_.empty() && !ended_) {
    told_.settle(is_void(options_.context, opened_.step) ? AwaitedBuckets::kCaptureMax : clock.now() - since, ended_);
    if (told_.empty()) return;
    std::unique_lock lock(mutex_);
    if (!ended_) changed_->wait_for(lock, 2ms);
  }
}

Status ReplicaReceiver::on_seal(const Frame& frame) {
  PAWL_ASSIGN(const SealMessage seal, message_in<SealMessage>(frame));
  const Step step = opened_.step;
  if (!opened_.is_open || seal.step != step) return Error{Code::corrupt, "seal of a step that is not open"};
  PAWL_TRY(await_lanes(seal.lane_buckets));
  await_same();
  if (ended_) return Error{Code::cancelled, "the generation has ended"};
  if (const BucketsWantedMessage wanted = told_.take_wanted(); !wanted.buckets.empty())
    return send_frame(*stream_, frame_of(wanted));
  close_step();
  if (const auto bad = bad_bucket()) {
    (void)opened_.slot.try_abandon(options_.generation, step);
    return send_frame(*stream_, frame_of(BucketBadMessage{*bad}));
  }
  if (!opened_.slot.try_seal(options_.generation, step)) return Error{Code::stale, "frozen: a new generation begins"};
  options_.context.hold("ack", ended_);
  if (ended_) return Error{Code::cancelled, "the generation has ended"};
  return send_frame(*stream_, frame_of(HeldMessage{step}));
}

}  // namespace pawl::job
