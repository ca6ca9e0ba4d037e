#include "job/daemon/replication.h"

#include "base/crc32c.h"
#include "base/log.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

using namespace std::chrono_literals;

ArenaShape shape_of(const ArenaSpec& spec) {
  return {spec.slot_count, spec.payload_bytes, spec.stable_bytes, spec.bucket_bytes, spec.layout_digest, spec.layout};
}

ArenaSpec spec_of(const ArenaShape& shape, const std::string& job, Seat seat, ArenaKind kind) {
  return {job,
          seat,
          kind,
          shape.slot_count,
          shape.payload_bytes,
          shape.stable_bytes,
          shape.bucket_bytes,
          shape.layout_digest,
          shape.layout};
}

// --- Sender

ReplicaSender::ReplicaSender(Options options)
    : options_(std::move(options)), changed_(options_.context.environment->tasks.make_condition()) {}

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
  }
  changed_->notify_all();
}

void ReplicaSender::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (stream_ != nullptr) stream_->shut_down();
  }
  changed_->notify_all();
}

void ReplicaSender::wait_notice(Duration at_most) {
  std::unique_lock lock(mutex_);
  Clock& clock = options_.context.environment->clock;
  const Duration until = clock.now() + at_most;
  while (!ended_ && notices_ == seen_ && clock.now() < until) changed_->wait_for(lock, until - clock.now());
  seen_ = notices_;
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
      const Status served = serve_connection(**stream);
      if (!served && !ended_) {
        log_info("replica_stream_broken", "seat", options_.hello.seat, "to", options_.address, "why",
                 served.error().what);
        if (served.error().code == Code::invalid) options_.on_refused(served.error());
      }
      std::lock_guard lock(mutex_);
      stream_ = nullptr;
    }
    if (!ended_) wait_notice(20ms);
  }
}

Status ReplicaSender::serve_connection(Stream& stream) {
  PAWL_TRY(send_frame(stream, frame_of(options_.hello)));
  PAWL_ASSIGN(Frame answer, receive_frame(stream));  // ends with shut_down() in end()
  if (is<PeerRefusedMessage>(answer)) {
    PeerRefusedMessage refused;
    (void)decode(answer.payload, refused);  // what is missing in it is empty: it is a refusal all the same
    return Error{refused.refusal == PeerRefusal::never ? Code::invalid : Code::stale, refused.why};
  }
  while (!ended_) {
    Slot slot;
    SlotWord word;
    if (pick(slot, word)) {
      PAWL_TRY(send_step(stream, slot, word));
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
    if ((candidate.acknowledged() >> options_.holder_index & 1) != 0) continue;
    if (found && word.step < w.step) continue;
    slot = candidate;
    word = w;
    found = true;
  }
  return found;
}

Status ReplicaSender::send_step(Stream& stream, const Slot& slot, SlotWord word) {
  const ArenaSpec& spec = options_.arena->arena.spec();
  auto still_there = [&] {
    const SlotWord now = slot.word();
    return !ended_ && !now.frozen && now.generation == word.generation && now.step == word.step &&
           now.state != SlotState::empty;
  };
  auto held = [&] {
    slot.acknowledge(word.generation, word.step, options_.holder_index);
    options_.on_held(word.step);
    return Status();
  };
  for (;;) {
    PAWL_TRY(send_frame(stream, frame_of(OpenMessage{word.generation, word.step, slot.samples(), shape_of(spec)})));
    PAWL_ASSIGN(Frame answer, receive_frame(stream));
    if (is<HeldMessage>(answer)) return still_there() ? held() : Status();
    if (is<OpenedMessage>(answer)) break;
    if (!is<BusyMessage>(answer)) return unexpected_message(answer);
    wait_notice(1ms);
    if (!still_there()) return {};
  }
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
    while (!slot.bucket_ready(i)) {
      if (!still_there()) return send_frame(stream, frame_of(AbandonMessage{word.step}));
      wait_notice(5ms);
    }
    const auto bytes = slot.bucket(i);
    const std::uint32_t sum = slot.buckets()[i].crc32c;
    const std::string fields = encode(BucketMessage{i, sum});
    std::byte head[kFrameHeaderBytes];
    encode_header(
        {static_cast<std::uint32_t>(fields.size() + bytes.size()), static_cast<std::uint16_t>(BucketMessage::kKind), 0,
         crc32c_combine(crc32c(std::as_bytes(std::span(fields))), sum, bytes.size())},
        head);
    PAWL_TRY(stream.send_all(
        {std::span<const std::byte>(head), std::as_bytes(std::span(fields)), std::span<const std::byte>(bytes)},
        Deadline::never()));
    options_.context.bytes_sent->add(bytes.size());
  }
  while (slot.word().state != SlotState::sealed) {
    if (!still_there()) return send_frame(stream, frame_of(AbandonMessage{word.step}));
    wait_notice(5ms);
  }
  PAWL_TRY(send_frame(stream, frame_of(SealMessage{word.step})));
  PAWL_ASSIGN(Frame answer, receive_frame(stream));
  if (is<BucketBadMessage>(answer)) {
    // Either the slot was taken for another step under our hands, or bytes were damaged on the way: begin the step
    // again.
    BucketBadMessage bad;
    (void)decode(answer.payload, bad);
    log_warn("replica_bucket_bad", "seat", options_.hello.seat, "step", word.step, "bucket", bad.index);
    return {};
  }
  if (!is<HeldMessage>(answer)) return unexpected_message(answer);
  return still_there() ? held() : Status();
}

// --- Receiver

ReplicaReceiver::ReplicaReceiver(Options options) : options_(std::move(options)), stream_(std::move(options_.stream)) {}

std::shared_ptr<ReplicaReceiver> ReplicaReceiver::start(Options options) {
  std::shared_ptr<ReplicaReceiver> receiver(new ReplicaReceiver(std::move(options)));
  receiver->options_.context.workers->begin();
  (void)receiver->options_.context.environment->tasks.start("pawl-receive", [receiver] {
    receiver->run();
    receiver->finished_ = true;
    receiver->options_.context.workers->finish();
  });
  return receiver;
}

void ReplicaReceiver::end() {
  ended_ = true;
  stream_->shut_down();
}

void ReplicaReceiver::run() {
  const Status served = serve();
  if (!served && !ended_ && !is_end_of_stream(served.error()))
    log_info("replica_receive_ended", "seat", options_.seat, "why", served.error().what);
  stream_->shut_down();
}

Status ReplicaReceiver::serve() {
  while (!ended_) {
    std::byte head[kFrameHeaderBytes];
    PAWL_TRY(stream_->receive_all(head, Deadline::never()));
    PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
    if (header.kind == static_cast<std::uint16_t>(BucketMessage::kKind)) {
      PAWL_TRY(on_bucket(header));
      continue;
    }
    PAWL_ASSIGN(const Frame frame, receive_payload(*stream_, header));
    if (is<OpenMessage>(frame)) {
      PAWL_TRY(on_open(frame));
    } else if (is<SealMessage>(frame)) {
      PAWL_TRY(on_seal(frame));
    } else if (is<AbandonMessage>(frame)) {
      if (open_) (void)slot_.try_abandon(options_.generation, step_);
      open_ = false;
    } else {
      return unexpected_message(frame);
    }
  }
  return {};
}

Status ReplicaReceiver::on_open(const Frame& frame) {
  PAWL_ASSIGN(const OpenMessage open, message_in<OpenMessage>(frame));
  const Generation generation = open.generation;
  step_ = open.step;
  const ArenaSpec spec = spec_of(open.shape, options_.job, options_.seat, ArenaKind::replica);
  if (generation != options_.generation) return Error{Code::stale, "a step of another generation"};
  if (!arena_ || arena_->arena.spec().layout_digest != spec.layout_digest) {
    PAWL_ASSIGN(arena_, options_.arena_for(spec));
  }
  const Arena& arena = arena_->arena;
  std::vector<SlotWord> words;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) words.push_back(arena.slot(i).word());
  for (const SlotWord& word : words)
    if (word.state == SlotState::sealed && word.generation == generation && word.step == step_ && !word.frozen) {
      options_.context.hold("ack", ended_);
      return send_frame(*stream_, frame_of(HeldMessage{step_}));
    }
  Progress progress = Progress::unpack(options_.context.progress->load());
  if (options_.context.gate_off) progress.committed = Step(kStepMax);
  const auto index = choose_slot(words, progress, generation, step_);
  open_ = index && arena.slot(*index).try_open(words[*index], generation, step_, open.samples);
  if (open_) slot_ = arena.slot(*index);
  return send_frame(*stream_, open_ ? frame_of(OpenedMessage{}) : frame_of(BusyMessage{}));
}

Status ReplicaReceiver::on_bucket(FrameHeader header) {
  std::byte fields[BucketMessage::kFieldsBytes];
  if (header.length < sizeof fields) return Error{Code::corrupt, "a bucket without its fields"};
  PAWL_TRY(stream_->receive_all(fields, Deadline::never()));
  BucketMessage bucket;
  (void)decode(std::string_view(reinterpret_cast<const char*>(fields), sizeof fields), bucket);  // it is as long
  const std::uint32_t index = bucket.index;
  const std::uint32_t sum = bucket.crc32c;
  if (!open_ || index >= slot_.buckets().size())
    return Error{Code::corrupt, text("bucket ", index, " of no open slot")};
  const auto place = slot_.bucket(index);
  if (header.length - sizeof fields != place.size())
    return Error{Code::corrupt, text("bucket ", index, " of a wrong size")};
  PAWL_TRY(stream_->receive_all(place, Deadline::never()));
  options_.context.bytes_received->add(place.size());
  // Verified where it lies; a wrong one stays not ready, so the slot can't be sealed. The frame's sum is over the
  // fields, too: right bytes under a wrong index are wrong.
  const std::uint32_t found = crc32c(place);
  const bool right = found == sum && crc32c_combine(crc32c(fields), found, place.size()) == header.payload_crc32c;
  if (right) slot_.bucket_done(index, sum);
  return {};
}

Status ReplicaReceiver::on_seal(const Frame& frame) {
  PAWL_ASSIGN(const SealMessage seal, message_in<SealMessage>(frame));
  if (!open_ || seal.step != step_) return Error{Code::corrupt, "seal of a step that is not open"};
  open_ = false;
  for (std::uint32_t i = 0; i < slot_.buckets().size(); ++i)
    if (!slot_.bucket_ready(i)) {
      (void)slot_.try_abandon(options_.generation, step_);
      return send_frame(*stream_, frame_of(BucketBadMessage{i}));
    }
  if (!slot_.try_seal(options_.generation, step_)) return Error{Code::stale, "frozen: a new generation begins"};
  options_.context.hold("ack", ended_);
  if (ended_) return Error{Code::cancelled, "the generation has ended"};
  return send_frame(*stream_, frame_of(HeldMessage{step_}));
}

}  // namespace pawl::job
