#include "job/daemon/replication.h"

#include <thread>

#include "base/crc32c.h"
#include "base/log.h"
#include "env/network.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

std::string string_of(PeerWire kind) {
  return text("message ", static_cast<std::uint16_t>(kind));
}

Frame frame_of(PeerWire kind, std::string payload = {}) {
  return Frame{static_cast<std::uint16_t>(kind), 0, std::move(payload)};
}

bool is_kind(const Frame& frame, PeerWire kind) {
  return frame.kind == static_cast<std::uint16_t>(kind);
}

}  // namespace

void write_spec(Writer& out, const ArenaSpec& spec) {
  out.u32(spec.slot_count)
      .u64(spec.payload_bytes)
      .u64(spec.stable_bytes)
      .u32(spec.bucket_bytes)
      .u64(spec.layout_digest)
      .str(spec.layout);
}

Result<ArenaSpec> read_spec(Reader& in, const std::string& job, Seat seat, ArenaKind kind) {
  ArenaSpec spec;
  spec.job = job;
  spec.seat = seat;
  spec.kind = kind;
  spec.slot_count = in.u32();
  spec.payload_bytes = in.u64();
  spec.stable_bytes = in.u64();
  spec.bucket_bytes = in.u32();
  spec.layout_digest = in.u64();
  spec.layout = in.str();
  if (!in.ok()) return Error{Code::corrupt, "an arena's shape is cut short"};
  return spec;
}

// --- Sender

std::shared_ptr<ReplicaSender> ReplicaSender::start(Options options) {
  std::shared_ptr<ReplicaSender> sender(new ReplicaSender(std::move(options)));
  sender->options_.context.workers->begin();
  std::thread([sender] {
    sender->run();
    sender->options_.context.workers->finish();
  }).detach();
  return sender;
}

void ReplicaSender::notice() {
  {
    std::lock_guard lock(mutex_);
    ++notices_;
  }
  changed_.notify_all();
}

void ReplicaSender::end() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
    if (fd_ >= 0) shut_down(fd_);
  }
  changed_.notify_all();
}

void ReplicaSender::wait_notice(Duration at_most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, at_most, [&] { return ended_ || notices_ != seen_; });
  seen_ = notices_;
}

void ReplicaSender::run() {
  while (!ended_) {
    auto address = Address::parse(options_.address);
    auto fd = address ? connect_tcp(*address, Deadline::in(500ms)) : Result<Fd>(std::move(address).error());
    if (fd) {
      {
        std::lock_guard lock(mutex_);
        if (ended_) return;
        fd_ = fd->get();
      }
      const Status served = serve_connection(fd->get());
      if (!served && !ended_) {
        log_info("replica_stream_broken", "seat", options_.hello.seat, "to", options_.address, "why",
                 served.error().what);
        if (served.error().code == Code::invalid) options_.on_refused(served.error());
      }
      std::lock_guard lock(mutex_);
      fd_ = -1;
    }
    if (!ended_) wait_notice(20ms);
  }
}

Status ReplicaSender::serve_connection(int fd) {
  PAWL_TRY(send_frame(fd, frame_of(PeerWire::hello, options_.hello.encode())));
  PAWL_ASSIGN(Frame answer, receive_frame(fd));  // ends with shut_down() in end()
  if (is_kind(answer, PeerWire::refused)) {
    Reader in(answer.payload);
    const bool never = static_cast<PeerRefusal>(in.u8()) == PeerRefusal::never;
    return Error{never ? Code::invalid : Code::stale, in.str()};
  }
  while (!ended_) {
    Slot slot;
    SlotWord word;
    if (pick(slot, word)) {
      PAWL_TRY(send_step(fd, slot, word));
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

Status ReplicaSender::send_step(int fd, const Slot& slot, SlotWord word) {
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
    Writer open;
    open.u64(word.generation.value).u64(word.step.value).u64(slot.samples());
    write_spec(open, spec);
    PAWL_TRY(send_frame(fd, frame_of(PeerWire::open, open.take())));
    PAWL_ASSIGN(Frame answer, receive_frame(fd));
    if (is_kind(answer, PeerWire::held)) return still_there() ? held() : Status();
    if (is_kind(answer, PeerWire::opened)) break;
    if (!is_kind(answer, PeerWire::busy)) return Error{Code::corrupt, "unexpected " + string_of(PeerWire(answer.kind))};
    wait_notice(1ms);
    if (!still_there()) return {};
  }
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
    while (!slot.bucket_ready(i)) {
      if (!still_there()) return send_frame(fd, frame_of(PeerWire::abandon, Writer().u64(word.step.value).take()));
      wait_notice(5ms);
    }
    const auto bytes = slot.bucket(i);
    const std::uint32_t sum = slot.buckets()[i].crc32c;
    const std::string fields = Writer().u32(i).u32(sum).take();
    std::byte head[kFrameHeaderBytes];
    encode_header(
        {static_cast<std::uint32_t>(fields.size() + bytes.size()), static_cast<std::uint16_t>(PeerWire::bucket), 0,
         crc32c_combine(crc32c(std::as_bytes(std::span(fields))), sum, bytes.size())},
        head);
    PAWL_TRY(send_all(
        fd, {std::span<const std::byte>(head), std::as_bytes(std::span(fields)), std::span<const std::byte>(bytes)},
        Deadline::never()));
    *options_.context.bytes_sent += bytes.size();
  }
  while (slot.word().state != SlotState::sealed) {
    if (!still_there()) return send_frame(fd, frame_of(PeerWire::abandon, Writer().u64(word.step.value).take()));
    wait_notice(5ms);
  }
  PAWL_TRY(send_frame(fd, frame_of(PeerWire::seal, Writer().u64(word.step.value).take())));
  PAWL_ASSIGN(Frame answer, receive_frame(fd));
  if (is_kind(answer, PeerWire::bucket_bad)) {
    // Either the slot was taken for another step under our hands, or bytes were damaged on the way: begin the step
    // again.
    log_warn("replica_bucket_bad", "seat", options_.hello.seat, "step", word.step, "bucket",
             Reader(answer.payload).u32());
    return {};
  }
  if (!is_kind(answer, PeerWire::held)) return Error{Code::corrupt, "unexpected " + string_of(PeerWire(answer.kind))};
  return still_there() ? held() : Status();
}

// --- Receiver

std::shared_ptr<ReplicaReceiver> ReplicaReceiver::start(Options options) {
  std::shared_ptr<ReplicaReceiver> receiver(new ReplicaReceiver(std::move(options)));
  receiver->options_.context.workers->begin();
  std::thread([receiver] {
    receiver->run();
    receiver->finished_ = true;
    receiver->options_.context.workers->finish();
  }).detach();
  return receiver;
}

void ReplicaReceiver::end() {
  ended_ = true;
  shut_down(options_.fd.get());
}

void ReplicaReceiver::run() {
  const Status served = serve();
  if (!served && !ended_ && !is_end_of_stream(served.error()))
    log_info("replica_receive_ended", "seat", options_.seat, "why", served.error().what);
  shut_down(options_.fd.get());
}

Status ReplicaReceiver::serve() {
  const int fd = options_.fd.get();
  while (!ended_) {
    std::byte head[kFrameHeaderBytes];
    PAWL_TRY(receive_all(fd, head, Deadline::never()));
    PAWL_ASSIGN(FrameHeader header, decode_header(std::span<const std::byte, kFrameHeaderBytes>(head)));
    if (header.kind == static_cast<std::uint16_t>(PeerWire::bucket)) {
      PAWL_TRY(on_bucket(header));
      continue;
    }
    Frame frame{header.kind, header.id, std::string(header.length, '\0')};
    PAWL_TRY(receive_all(fd, std::as_writable_bytes(std::span(frame.payload)), Deadline::never()));
    PAWL_TRY(check_payload(header, frame.payload));
    if (is_kind(frame, PeerWire::open)) {
      PAWL_TRY(on_open(frame));
    } else if (is_kind(frame, PeerWire::seal)) {
      PAWL_TRY(on_seal(frame));
    } else if (is_kind(frame, PeerWire::abandon)) {
      if (open_) (void)slot_.try_abandon(options_.generation, step_);
      open_ = false;
    } else {
      return Error{Code::corrupt, "unexpected " + string_of(PeerWire(frame.kind))};
    }
  }
  return {};
}

Status ReplicaReceiver::on_open(const Frame& frame) {
  const int fd = options_.fd.get();
  Reader in(frame.payload);
  const Generation generation(in.u64());
  step_ = Step(in.u64());
  const std::uint64_t samples = in.u64();
  PAWL_ASSIGN(ArenaSpec spec, read_spec(in, options_.job, options_.seat, ArenaKind::replica));
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
      return send_frame(fd, frame_of(PeerWire::held, Writer().u64(step_.value).take()));
    }
  Progress progress = Progress::unpack(options_.context.progress->load());
  if (options_.context.gate_off) progress.committed = Step(kStepMax);
  const auto index = choose_slot(words, progress, generation, step_);
  open_ = index && arena.slot(*index).try_open(words[*index], generation, step_, samples);
  if (open_) slot_ = arena.slot(*index);
  return send_frame(fd, frame_of(open_ ? PeerWire::opened : PeerWire::busy));
}

Status ReplicaReceiver::on_bucket(FrameHeader header) {
  const int fd = options_.fd.get();
  std::byte fields[8];
  if (header.length < sizeof fields) return Error{Code::corrupt, "a bucket without its fields"};
  PAWL_TRY(receive_all(fd, fields, Deadline::never()));
  Reader in(std::string_view(reinterpret_cast<const char*>(fields), sizeof fields));
  const std::uint32_t index = in.u32();
  const std::uint32_t sum = in.u32();
  if (!open_ || index >= slot_.buckets().size())
    return Error{Code::corrupt, text("bucket ", index, " of no open slot")};
  const auto place = slot_.bucket(index);
  if (header.length - sizeof fields != place.size())
    return Error{Code::corrupt, text("bucket ", index, " of a wrong size")};
  PAWL_TRY(receive_all(fd, place, Deadline::never()));
  *options_.context.bytes_received += place.size();
  // Verified where it lies; a wrong one stays not ready, so the slot can't be sealed. The frame's sum is over the
  // fields, too: right bytes under a wrong index are wrong.
  const std::uint32_t found = crc32c(place);
  const bool right = found == sum && crc32c_combine(crc32c(fields), found, place.size()) == header.payload_crc32c;
  if (right) slot_.bucket_done(index, sum);
  return {};
}

Status ReplicaReceiver::on_seal(const Frame& frame) {
  const int fd = options_.fd.get();
  const Step step(Reader(frame.payload).u64());
  if (!open_ || step != step_) return Error{Code::corrupt, "seal of a step that is not open"};
  open_ = false;
  for (std::uint32_t i = 0; i < slot_.buckets().size(); ++i)
    if (!slot_.bucket_ready(i)) {
      (void)slot_.try_abandon(options_.generation, step_);
      return send_frame(fd, frame_of(PeerWire::bucket_bad, Writer().u32(i).take()));
    }
  if (!slot_.try_seal(options_.generation, step_)) return Error{Code::stale, "frozen: a new generation begins"};
  options_.on_sealed(options_.seat, step_);
  options_.context.hold("ack", ended_);
  if (ended_) return Error{Code::cancelled, "the generation has ended"};
  return send_frame(fd, frame_of(PeerWire::held, Writer().u64(step_.value).take()));
}

}  // namespace pawl::job
