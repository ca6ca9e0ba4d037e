// For unit tests of what one daemon sends to another: a network whose connections end in the test's hands, small
// arenas, and a queue for what other threads hand to the loop.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/text.h"
#include "env/environment.h"
#include "job/daemon/loop.h"
#include "job/daemon/memory.h"
#include "job/daemon/replication.h"
#include "job/transport/messages.h"

namespace pawl::job {

inline constexpr Duration kTestPatience = std::chrono::seconds(10);
inline constexpr Duration kTestQuiet = std::chrono::milliseconds(40);  // so long nothing comes: nothing will

template <class Condition>
bool eventually(Condition condition) {
  const Deadline deadline = Deadline::in(kTestPatience);
  while (!condition() && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return condition();
}

inline std::pair<Fd, Fd> connected_pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

// The other daemon's end of a connection.
class PeerEnd {
 public:
  explicit PeerEnd(Fd fd) : fd_(std::move(fd)) {}

  template <class Message>
  void say(const Message& message) {
    EXPECT_TRUE(send_frame(fd_.get(), frame_of(message), Deadline::in(kTestPatience)).has_value());
  }
  // A bucket as a sender sends it; `sum` is that of the bytes if it is not given.
  void say_bucket(std::uint32_t index, std::span<const std::byte> bytes, Generation generation, Step step,
                  std::optional<std::uint32_t> sum = {}) {
    say_bucket({0, index, sum.value_or(crc32c(bytes)), generation, step}, bytes);
  }
  void say_bucket(const BucketMessage& fields, std::span<const std::byte> bytes) {
    Frame frame = frame_of(fields);
    frame.payload.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    EXPECT_TRUE(send_frame(fd_.get(), frame, Deadline::in(kTestPatience)).has_value());
  }
  void say_bytes(std::span<const std::byte> bytes) {
    EXPECT_TRUE(send_all(fd_.get(), bytes, Deadline::in(kTestPatience)).has_value());
  }

  // The next message; a failure if it is another one, or none comes.
  template <class Message>
  Message next() {
    auto frame = receive_frame(fd_.get(), Deadline::in(kTestPatience));
    EXPECT_TRUE(frame.has_value()) << "nothing came: " << (frame ? "" : frame.error().what);
    if (!frame) return {};
    auto message = message_in<Message>(*frame);
    EXPECT_TRUE(message.has_value()) << "another message came, of kind " << frame->kind;
    return message ? *message : Message{};
  }
  struct BucketFrame {
    BucketMessage fields;
    std::string bytes;
  };
  BucketFrame next_bucket() {
    auto frame = receive_frame(fd_.get(), Deadline::in(kTestPatience));
    EXPECT_TRUE(frame.has_value() && is<BucketMessage>(*frame)) << "no bucket came";
    if (!frame || frame->payload.size() < BucketMessage::kFieldsBytes) return {};
    BucketFrame bucket;
    EXPECT_TRUE(decode(std::string_view(frame->payload).substr(0, BucketMessage::kFieldsBytes), bucket.fields));
    bucket.bytes = frame->payload.substr(BucketMessage::kFieldsBytes);
    return bucket;
  }
  // One that may have been damaged on the way, or before.
  void skip_bucket() {
    std::byte head[kFrameHeaderBytes];
    ASSERT_TRUE(receive_all(fd_.get(), head, Deadline::in(kTestPatience)));
    const auto header = decode_header(std::span<const std::byte, kFrameHeaderBytes>(head));
    ASSERT_TRUE(header.has_value() && header->kind == static_cast<std::uint16_t>(BucketMessage::kKind));
    std::vector<std::byte> bytes(header->length);
    ASSERT_TRUE(receive_all(fd_.get(), bytes, Deadline::in(kTestPatience)));
  }
  bool is_quiet() {
    auto frame = receive_frame(fd_.get(), Deadline::in(kTestQuiet));
    return !frame && frame.error().code == Code::timeout;
  }
  // The other side closes without another word.
  bool is_closed() {
    auto frame = receive_frame(fd_.get(), Deadline::in(kTestPatience));
    return !frame && frame.error().code == Code::unreachable;
  }
  void hang_up() { fd_.reset(); }
  [[nodiscard]] int fd() const { return fd_.get(); }
  [[nodiscard]] Fd release() { return std::move(fd_); }

 private:
  Fd fd_;
};

// A trainer process that has connected, and what pawld has sent it.
class TrainerSide {
 public:
  explicit TrainerSide(const std::string& path) : fd_(*connect_unix(path, Deadline::in(kTestPatience))) {}
  template <class Message>
  void say(const Message& message, std::uint64_t id = 0) {
    EXPECT_TRUE(send_frame(fd_.get(), frame_of(message, id), Deadline::in(kTestPatience)).has_value());
  }
  // The next frame; descriptors that come with it are added to `fds`.
  Frame next() {
    Frame frame;
    for (;;) {
      const auto whole = reader_.next(frame);
      if (!whole || *whole) return frame;
      std::byte buffer[4096];
      const auto got = receive_with_fds(fd_.get(), buffer, fds, Deadline::in(kTestPatience));
      EXPECT_TRUE(got.has_value()) << "nothing came: " << (got ? "" : got.error().what);
      if (!got) return {};
      reader_.append(std::span(buffer, *got));
    }
  }
  // The next message; a failure if it is another one.
  template <class Message>
  Message next_as() {
    const Frame frame = next();
    auto message = message_in<Message>(frame);
    EXPECT_TRUE(message.has_value()) << "another message came, of kind " << frame.kind;
    return message ? *message : Message{};
  }
  bool is_closed() {
    std::byte byte;
    const auto got = receive_some(fd_.get(), std::span(&byte, 1), Deadline::in(kTestPatience));
    return !got && got.error().code == Code::unreachable;
  }
  std::vector<Fd> fds;

 private:
  Fd fd_;
  FrameReader reader_;
};

// Whoever is connected to, the test is at the other end.
class TestNetwork : public Network {
 public:
  Result<std::unique_ptr<Stream>> connect(const Address& address, Deadline) override {
    std::lock_guard lock(mutex_);
    asked_.push_back(address);
    if (refusals_ > 0) {
      --refusals_;
      return Error{refusal_, "connect: nobody listens (ECONNREFUSED)"};
    }
    auto [ours, theirs] = connected_pair();
    waiting_.push_back(std::move(theirs));
    changed_.notify_all();
    return real_stream(std::move(ours));
  }
  Result<std::unique_ptr<Stream>> start_connect(const Address& address) override {
    return connect(address, Deadline::never());
  }
  Result<std::unique_ptr<Poller>> make_poller() override { return real_network().make_poller(); }
  Result<std::unique_ptr<SharedEvent>> make_event() override { return real_network().make_event(); }

  void refuse_next(int count, Code code = Code::unreachable) {
    std::lock_guard lock(mutex_);
    refusals_ = count;
    refusal_ = code;
  }
  // The oldest connection that has not been accepted yet; waits for one.
  PeerEnd accept() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kTestPatience, [this] { return !waiting_.empty(); })) << "nobody connected";
    if (waiting_.empty()) return PeerEnd(Fd());
    PeerEnd end(std::move(waiting_.front()));
    waiting_.pop_front();
    return end;
  }
  [[nodiscard]] bool has_waiting() {
    std::lock_guard lock(mutex_);
    return !waiting_.empty();
  }
  [[nodiscard]] std::vector<Address> asked() {
    std::lock_guard lock(mutex_);
    return asked_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Address> asked_;
  std::deque<Fd> waiting_;
  int refusals_ = 0;
  Code refusal_ = Code::unreachable;
};

// Threads, counted: a test outlives what runs in them.
class TestTasks : public Tasks {
 public:
  std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) override {
    ++running_;
    return real_tasks().start(name, [this, body = std::move(body)]() mutable {
      body();
      body = nullptr;
      --running_;
    });
  }
  std::unique_ptr<Condition> make_condition() override { return real_tasks().make_condition(); }
  [[nodiscard]] bool all_ended() const { return running_ == 0; }

 private:
  std::atomic<int> running_{0};
};

// The real time, and as much more as a test has skipped. Of one that stands still nothing goes by but what is skipped: for
// a test that measures, and must not measure how busy the machine is.
class SkippingClock : public Clock {
 public:
  Duration now() override { return (stands_ ? stood_now_.load() : real_clock().now()) + skipped_.load(); }
  Duration boottime() override {
    return (stands_ ? stood_boottime_.load() : real_clock().boottime()) + skipped_.load();
  }
  Duration wall() override { return real_clock().wall(); }
  void sleep(Duration duration) override { real_clock().sleep(duration); }
  Duration waited_for_core() override { return waited_.load(); }
  void stand_still() {
    stood_now_ = real_clock().now();
    stood_boottime_ = real_clock().boottime();
    stands_ = true;
  }
  void skip(Duration duration) { skipped_ = skipped_.load() + duration; }
  void skip_without_a_core(Duration duration) {
    skip(duration);
    waited_ = waited_.load() + duration;
  }

 private:
  std::atomic<bool> stands_{false};
  std::atomic<Duration> stood_now_{Duration::zero()}, stood_boottime_{Duration::zero()};
  std::atomic<Duration> skipped_{Duration::zero()};
  std::atomic<Duration> waited_{Duration::zero()};
};

// The real environment, but for its network, and time that may be skipped.
struct TestWorld {
  SkippingClock clock;
  TestNetwork network;
  TestTasks tasks;
  Environment environment{clock, tasks, network, real_files(), real_processes(), real_shared_memory()};
};

// What other threads post runs on the test's thread, as it does on the loop's.
class PostedTasks {
 public:
  void post(std::function<void()> task) {
    std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  void run() {
    std::deque<std::function<void()>> tasks;
    {
      std::lock_guard lock(mutex_);
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
  }
  template <class Condition>
  bool run_until(Condition condition) {
    return eventually([&] {
      run();
      return condition();
    });
  }

 private:
  std::mutex mutex_;
  std::deque<std::function<void()>> tasks_;
};

// A loop that runs. What works on it is made, asked and ended with `run`.
class RunningLoop {
 public:
  explicit RunningLoop(const Environment& environment)
      : loop_(*Loop::make(environment)), thread_([this] { loop_->run(); }) {}
  ~RunningLoop() {
    loop_->stop();
    thread_.join();
  }
  Loop& loop() { return *loop_; }
  // On the loop's thread, now.
  template <class Work>
  auto run(Work work) -> decltype(work()) {
    std::promise<decltype(work())> result;
    loop_->post([&] {
      if constexpr (std::is_void_v<decltype(work())>) {
        work();
        result.set_value();
      } else {
        result.set_value(work());
      }
    });
    return result.get_future().get();
  }
  template <class Condition>
  bool eventually(Condition condition) {
    return job::eventually([&] { return run(condition); });
  }

 private:
  std::unique_ptr<Loop> loop_;
  std::thread thread_;
};

// --- Arenas of three buckets, the last one shorter

inline constexpr std::uint32_t kTestBuckets = 3;
inline constexpr std::uint64_t kTestPayloadBytes = 10'000;
[[nodiscard]] constexpr std::size_t test_bucket_bytes(std::uint32_t index) {
  return index + 1 < kTestBuckets ? 4096 : kTestPayloadBytes - 2 * std::size_t{4096};
}

inline ArenaSpec test_arena(ArenaKind kind, Seat seat, int layout = 5) {
  ArenaSpec spec;
  spec.job = "test";
  spec.seat = seat;
  spec.kind = kind;
  spec.payload_bytes = spec.stable_bytes = kTestPayloadBytes;
  spec.bucket_bytes = 4096;
  spec.layout = text("layout ", layout);
  spec.layout_digest = digest_of(spec.layout);
  spec.shelf_count = kind == ArenaKind::own ? 1 : 0;  // as in a job with one replica
  return spec;
}

inline Memory::Keeper nobody_keeps() {
  return {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}};
}

// What the bucket of a step holds: no other one is equal.
inline std::vector<std::byte> bucket_bytes(Step step, std::uint32_t index, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>(step.value * 31 + std::uint64_t{index} * 101 + i);
  return bytes;
}

inline bool holds_bytes_of(const Slot& slot, Step step) {
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) {
    const auto expected = bucket_bytes(step, i, slot.bucket(i).size());
    if (std::memcmp(slot.bucket(i).data(), expected.data(), expected.size()) != 0) return false;
  }
  return slot.verify().has_value();
}

inline void capture_bucket(const Slot& slot, std::uint32_t index) {
  const SlotWord of = slot.word();
  const auto bytes = bucket_bytes(of.step, index, slot.bucket(index).size());
  std::memcpy(slot.bucket(index).data(), bytes.data(), bytes.size());
  slot.bucket_done(index, crc32c(slot.bucket(index)), of.generation, of.step);
}

inline void open_step(const Slot& slot, Generation generation, Step step) {
  ASSERT_TRUE(slot.try_open(slot.word(), generation, step, 64 * step.value));
}

inline void capture_step(const Slot& slot, Generation generation, Step step) {
  open_step(slot, generation, step);
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(slot, i);
  ASSERT_TRUE(slot.try_seal(generation, step));
}

// What a sender says to a holder that has never had the layout of this arena: the step's opening, and that layout.
inline void say_first_open(PeerEnd& holder, Generation generation, Step step, const ArenaSpec& arena) {
  holder.say(OpenMessage{generation, step, 64 * step.value, shape_of(arena)});
  EXPECT_EQ(holder.next<LayoutWantedMessage>().layout_digest, arena.layout_digest);
  holder.say(LayoutTextMessage{arena.layout});
}

// What the source of a fetch sends: the begin of the slot, with the layout; then that of a range that is asked for, and
// its buckets.
inline void say_slot_begin(PeerEnd& asker, Generation generation, Step step, Seat seat) {
  const ArenaSpec arena = test_arena(ArenaKind::replica, seat);
  asker.say(SlotBeginMessage{generation, step, 64 * step.value, shape_of(arena), arena.layout});
}
inline void say_range_begin(PeerEnd& asker, Generation generation, Step step, Seat seat) {
  const ArenaSpec arena = test_arena(ArenaKind::replica, seat);
  asker.say(SlotBeginMessage{generation, step, 64 * step.value, shape_of(arena), ""});
}
// What is asked for next, which begins.
inline FetchMessage begin_range(PeerEnd& asker, Generation generation, Step step, Seat seat) {
  const FetchMessage asked = asker.next<FetchMessage>();
  EXPECT_GT(asked.bucket_count, 0u);
  say_range_begin(asker, generation, step, seat);
  return asked;
}
inline void say_slot_bucket(PeerEnd& asker, Step step, std::uint32_t index, bool damaged = false) {
  auto bytes = bucket_bytes(step, index, test_bucket_bytes(index));
  const std::uint32_t sum = crc32c(bytes);
  if (damaged) bytes[17] ^= std::byte{1};
  asker.say_bytes(std::as_bytes(std::span(&sum, 1)));
  asker.say_bytes(bytes);
}
inline void say_slot(PeerEnd& asker, Generation generation, Step step, Seat seat) {
  say_slot_begin(asker, generation, step, seat);
  const FetchMessage asked = begin_range(asker, generation, step, seat);
  for (std::uint32_t i = 0; i < asked.bucket_count; ++i) say_slot_bucket(asker, step, asked.first_bucket + i);
}

// What streams share with a daemon, without one.
struct TestStreams {
  TestStreams() {
    context.environment = &world.environment;
    context.workers = &workers;
    context.progress = &progress;
    context.bytes_sent = &sent;
    context.bytes_received = &received;
    context.bytes_spared = &spared;
    context.hold = [](const char*, const std::atomic<bool>&) {};
  }
  // Whoever ends a stream in its destructor calls this there: its task may still use what the test has.
  void wait_until_ended() {
    EXPECT_TRUE(eventually([this] { return world.tasks.all_ended(); })) << "a stream has not ended";
  }

  TestWorld world;
  Workers workers{[] {}};
  std::atomic<std::uint64_t> progress{0};
  Counter sent, received, spared;
  StreamContext context;
};

}  // namespace pawl::job
