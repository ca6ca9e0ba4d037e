// Bits that flip between two daemons: the shipped ends of a replica stream and of a fetch, real sockets, and between
// them a relay that damages one bit of what passes. What arrives must be right, or must not arrive.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/text.h"
#include "env/network.h"
#include "job/daemon/fetch.h"
#include "job/daemon/replication.h"
#include "job/daemon/test_wire.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kPayloadBytes = (300 << 10) + 77;
constexpr Generation kGeneration{3};
constexpr Step kStep{11};
constexpr Seat kSeat{1};

ArenaSpec spec_of(ArenaKind kind) {
  ArenaSpec spec;
  spec.job = "damaged";
  spec.seat = kSeat;
  spec.kind = kind;
  spec.payload_bytes = kPayloadBytes;
  spec.stable_bytes = kPayloadBytes;
  spec.bucket_bytes = 64 << 10;
  spec.layout = "a layout";
  spec.layout_digest = digest_of(spec.layout);
  spec.shelf_count = kind == ArenaKind::own ? 1 : 0;
  return spec;
}

Memory memory_of_its_own() {
  return Memory(real_shared_memory(), {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}});
}

void fill_and_seal(const Slot& slot) {
  std::mt19937_64 random(7);
  for (std::byte& byte : slot.payload()) byte = static_cast<std::byte>(random());
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i)
    slot.bucket_done(i, crc32c(slot.bucket(i)), kGeneration, kStep);
}

// Accepts on a loopback port of its own, and calls `serve` with each connection, on a thread of its own.
class Listener {
 public:
  explicit Listener(std::function<void(Fd)> serve) {
    auto listening = listen_tcp({"127.0.0.1", 0});
    EXPECT_TRUE(listening.has_value());
    fd_ = std::move(*listening);
    address_ = *local_address(fd_.get());
    thread_ = std::thread([this, serve = std::move(serve)] {
      while (!ended_) {
        auto accepted = accept_connection(fd_.get(), Deadline::in(20ms));
        if (accepted)
          threads_.emplace_back([serve, fd = std::make_shared<Fd>(std::move(*accepted))] { serve(std::move(*fd)); });
      }
    });
  }
  ~Listener() {
    ended_ = true;
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] std::string address() const { return text(address_); }

 private:
  Fd fd_;
  Address address_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
  std::vector<std::thread> threads_;
};

// Carries bytes both ways, and flips the bit `damaged_bit` (counted over all connections) of one direction, once.
class Relay {
 public:
  Relay(std::string to, bool damages_answers, std::uint64_t damaged_bit)
      : damages_answers_(damages_answers),
        damaged_bit_(damaged_bit),
        listener_([this, to](Fd in) { carry_both(std::move(in), to); }) {}
  ~Relay() { ended_ = true; }
  [[nodiscard]] std::string address() const { return listener_.address(); }
  [[nodiscard]] bool has_damaged() const { return passed_ * 8 > damaged_bit_; }

 private:
  void carry_both(Fd in, const std::string& to) {
    auto out = connect_tcp(*Address::parse(to), Deadline::in(2s));
    if (!out) return;
    std::thread back([&] { carry(out->get(), in.get(), damages_answers_); });
    carry(in.get(), out->get(), !damages_answers_);
    back.join();
  }
  void carry(int from, int to, bool damages) {
    std::vector<std::byte> buffer(16 << 10);
    while (!ended_) {
      auto got = receive_some(from, buffer, Deadline::in(50ms));
      if (!got && got.error().code == Code::timeout) continue;
      if (!got) break;
      const std::uint64_t before = damages ? passed_.fetch_add(*got) : 0;
      const std::uint64_t at = damaged_bit_ / 8;
      if (damages && at >= before && at < before + *got) buffer[at - before] ^= std::byte{1} << (damaged_bit_ % 8);
      if (!send_all(to, std::span(buffer).first(*got), Deadline::in(2s))) break;
    }
    shut_down(from);
    shut_down(to);
  }

  const bool damages_answers_;
  const std::uint64_t damaged_bit_;
  std::atomic<std::uint64_t> passed_{0};
  std::atomic<bool> ended_{false};
  Listener listener_;
};

template <class Condition>
bool wait_for(Condition condition) {
  for (int i = 0; i < 10'000 && !condition(); ++i) std::this_thread::sleep_for(1ms);
  return condition();
}

class DamagedWire : public ::testing::Test {
 protected:
  DamagedWire() {
    context_.environment = &environment_;
    context_.workers = &workers_;
    context_.progress = &progress_;
    context_.bytes_sent = &sent_;
    context_.bytes_received = &received_;
    context_.bytes_spared = &spared_;
    context_.hold = [](const char*, const std::atomic<bool>&) {};
    progress_ = Progress{Step(10), 0}.pack();
  }
  ~DamagedWire() override { EXPECT_TRUE(have_all_ended()) << "a stream has not ended"; }
  // Their threads, too, not only what they count among the workers: those are told last.
  bool have_all_ended() {
    return wait_for([this] { return tasks_.all_ended(); });
  }
  [[nodiscard]] static Hello hello_for(Purpose purpose) {
    Hello hello;
    hello.job = "damaged";
    hello.generation = kGeneration;
    hello.purpose = purpose;
    hello.seat = kSeat;
    return hello;
  }
  // Reads the hello and welcomes it, as pawld does; nullopt: it was damaged, the connection is of no use.
  static std::optional<Hello> welcome(int fd) {
    auto frame = receive_frame(fd, Deadline::in(2s));
    Hello hello;
    if (!frame || !decode(frame->payload, hello) || hello.job != "damaged") return std::nullopt;
    if (!send_frame(fd, frame_of(WelcomeMessage{NodeId(0), Incarnation(1)}))) return std::nullopt;
    return hello;
  }

  TestTasks tasks_;
  Environment environment_{real_clock(), tasks_, real_network(), real_files(), real_processes(), real_shared_memory()};
  Workers workers_{[] {}};
  std::atomic<std::uint64_t> progress_{0};
  Counter sent_, received_, spared_;
  StreamContext context_;
};

class DamagedStream : public DamagedWire {
 protected:
  // One step through a damaged wire: it must arrive whole, be acknowledged, and never be sealed wrong.
  void carry_a_step(bool damages_answers, std::uint64_t damaged_bit) {
    SCOPED_TRACE(text(damages_answers ? "answers" : "stream", ", bit ", damaged_bit));
    Memory ward = memory_of_its_own();
    Memory holder = memory_of_its_own();
    std::mutex mutex;
    std::vector<std::shared_ptr<ReplicaReceiver>> receivers;
    Listener listener([&](Fd fd) {
      const std::optional<Hello> hello = welcome(fd.get());
      if (!hello) return;
      std::lock_guard lock(mutex);
      if (hello->purpose == Purpose::lane) {
        if (receivers.back()->number() == hello->stream) receivers.back()->add_lane(real_stream(std::move(fd)));
        return;
      }
      receivers.push_back(
          ReplicaReceiver::start({.stream = real_stream(std::move(fd)),
                                  .number = hello->stream,
                                  .generation = kGeneration,
                                  .seat = kSeat,
                                  .job = "damaged",
                                  .context = context_,
                                  .held = [&] { return holder.find(ArenaKind::replica, kSeat); },
                                  .arena_for = [&](const ArenaSpec& spec) { return holder.arena_for(spec); }}));
    });
    Relay relay(listener.address(), damages_answers, damaged_bit);
    ArenaHandle arena = *ward.arena_for(spec_of(ArenaKind::own));
    const Slot slot = arena->arena.slot(0);
    ASSERT_TRUE(slot.try_open(slot.word(), kGeneration, kStep, 0));
    fill_and_seal(slot);
    ASSERT_TRUE(slot.try_seal(kGeneration, kStep));
    std::atomic<std::uint64_t> held_step{0};
    auto sender = ReplicaSender::start({.hello = hello_for(Purpose::data),
                                        .address = relay.address(),
                                        .holder = NodeId(2),
                                        .arena = arena,
                                        .context = context_,
                                        .on_held = [&](Step step) { held_step = step.value; },
                                        .on_refused = [](const Error&) {}});
    const bool arrived = wait_for([&] { return held_step == kStep.value; });
    sender->end();
    {
      std::lock_guard lock(mutex);
      for (auto& receiver : receivers) receiver->end();
    }
    EXPECT_TRUE(have_all_ended());
    ASSERT_TRUE(arrived) << "never acknowledged";
    EXPECT_TRUE(relay.has_damaged()) << "the bit lies beyond what passed: this case proves nothing";
    const ArenaHandle replica = holder.find(ArenaKind::replica, kSeat);
    ASSERT_NE(replica, nullptr);
    Slot copy;
    std::uint32_t index = 0;
    ASSERT_TRUE(find_sealed(replica->arena, kGeneration, kStep, copy, index));
    EXPECT_TRUE(copy.verify().has_value());
    EXPECT_EQ(std::memcmp(copy.payload().data(), slot.payload().data(), slot.payload().size()), 0);
  }
};

constexpr std::uint64_t kHelloBytes = kFrameHeaderBytes + 4 + 4 + 7 + 4 + 4 + 8 + 8 + 8 + 1 + 4 + 8;
constexpr std::uint64_t kOpenBytes = kFrameHeaderBytes + 3 * 8 + 4 + 8 + 8 + 4 + 8 + 8 + 8;
constexpr std::uint64_t kLayoutTextBytes = kFrameHeaderBytes + 4 + 8;
constexpr std::uint64_t kBeforeBuckets = kHelloBytes + kOpenBytes + kLayoutTextBytes;
constexpr std::uint64_t kBuckets = 5;

TEST_F(DamagedStream, TheHello) {
  carry_a_step(false, 8 * (kFrameHeaderBytes + 50));
}
TEST_F(DamagedStream, TheOpeningOfAStep) {
  carry_a_step(false, 8 * (kHelloBytes + kFrameHeaderBytes + 8));
}
TEST_F(DamagedStream, TheDigestOfALayoutAndItsText) {
  carry_a_step(false, 8 * (kHelloBytes + kFrameHeaderBytes + 3 * 8 + 32));              // the digest
  carry_a_step(false, 8 * (kHelloBytes + kOpenBytes));                                  // the length of its text
  carry_a_step(false, 8 * (kHelloBytes + kOpenBytes + kFrameHeaderBytes + 4 + 3) + 2);  // the text
}
TEST_F(DamagedStream, ABucketsIndexAndSumAndBytes) {
  const std::uint64_t bucket = kBeforeBuckets;
  carry_a_step(false, 8 * bucket);                                 // the length of its frame
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes));           // its extent
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes + 4));       // its index: the bytes are right, their place isn't
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes + 8) + 3);   // its sum
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes + 12));      // whose it is
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes + 28) + 5);  // its first byte
  carry_a_step(false, 8 * (bucket + kFrameHeaderBytes + 70'000));  // somewhere in the second
}
TEST_F(DamagedStream, TheSeal) {
  const std::uint64_t seal =
      kBeforeBuckets + kBuckets * (kFrameHeaderBytes + BucketMessage::kFieldsBytes) + kPayloadBytes;
  carry_a_step(false, 8 * (seal + kFrameHeaderBytes));
}
TEST_F(DamagedStream, TheAcknowledgement) {
  const std::uint64_t welcome_bytes = kFrameHeaderBytes + 12;
  carry_a_step(true, 8 * (welcome_bytes + kFrameHeaderBytes + 3));  // layout_wanted: which
  const std::uint64_t wanted_bytes = welcome_bytes + kFrameHeaderBytes + 8;
  carry_a_step(true, 8 * (wanted_bytes + 4));                                          // opened
  carry_a_step(true, 8 * (wanted_bytes + kFrameHeaderBytes + kFrameHeaderBytes) + 1);  // held: the step
}
TEST_F(DamagedStream, AnywhereAtAll) {
  std::mt19937_64 random(2026);
  for (int i = 0; i < 12; ++i) carry_a_step(false, random() % (8 * kPayloadBytes));
}

TEST_F(DamagedStream, AnywhereOnFourConnections) {
  context_.spread_sizes = {0};
  std::mt19937_64 random(2027);
  for (int i = 0; i < 12; ++i) carry_a_step(false, random() % (8 * kPayloadBytes));
}

// A fetch in a recovery: damage on the way is no reason to strike the only source out; damage at the source is.
class DamagedFetch : public DamagedWire {
 protected:
  Status fetch_through(std::uint64_t damaged_bit, bool source_is_damaged, Memory& to) {
    to.freeze_all();  // as in every recovery
    Memory holder = memory_of_its_own();
    const ArenaHandle arena = *holder.arena_for(spec_of(ArenaKind::replica));
    const Slot slot = arena->arena.slot(0);
    EXPECT_TRUE(slot.try_open(slot.word(), kGeneration, kStep, 0));
    fill_and_seal(slot);
    EXPECT_TRUE(slot.try_seal(kGeneration, kStep));
    if (source_is_damaged) slot.payload()[kPayloadBytes / 2] ^= std::byte{4};
    std::mutex mutex;
    std::vector<std::shared_ptr<FetchServer>> servers;
    Listener listener([&](Fd fd) {
      if (!welcome(fd.get())) return;
      std::lock_guard lock(mutex);
      servers.push_back(FetchServer::start(
          {.stream = real_stream(std::move(fd)), .context = context_, .find = [&](ArenaKind kind, Seat seat) {
             return holder.find(kind, seat);
           }}));
    });
    Relay relay(listener.address(), true, damaged_bit);
    std::atomic<bool> done{false};
    Status outcome;
    Source source{kSeat, SourceKind::replica, {}, kGeneration, kStep};
    auto fetch = Fetch::start({.hello = hello_for(Purpose::fetch),
                               .sources = {{source, relay.address()}},
                               .context = context_,
                               .patience = 1min,
                               .arena_for = [&](const ArenaSpec& spec) { return to.arena_for(spec); },
                               .on_done =
                                   [&](Fetched fetched) {
                                     outcome = std::move(fetched.status);
                                     done = true;
                                   }});
    EXPECT_TRUE(wait_for([&] { return done.load(); }));
    {
      std::lock_guard lock(mutex);
      for (auto& server : servers) server->end();
    }
    EXPECT_TRUE(have_all_ended());
    return outcome;
  }
};

TEST_F(DamagedFetch, IsAskedAgain) {
  for (const std::uint64_t byte :
       {std::uint64_t{kFrameHeaderBytes + 14}, std::uint64_t{200}, std::uint64_t{90'000}, kPayloadBytes}) {
    SCOPED_TRACE(byte);
    Memory to = memory_of_its_own();
    const Status fetched = fetch_through(8 * byte + 2, false, to);
    ASSERT_TRUE(fetched.has_value()) << fetched.error().what;
    Slot slot;
    std::uint32_t index = 0;
    const ArenaHandle arena = to.find(ArenaKind::own, kSeat);
    ASSERT_NE(arena, nullptr);
    for (std::uint32_t i = 0; i < arena->arena.slot_count(); ++i) arena->arena.slot(i).unfreeze(true);
    ASSERT_TRUE(find_sealed(arena->arena, kGeneration, kStep, slot, index));
    EXPECT_TRUE(slot.verify().has_value());
  }
}

TEST_F(DamagedFetch, ADamagedSourceIsStruckOut) {
  Memory to = memory_of_its_own();
  const Status fetched = fetch_through(~std::uint64_t{0}, true, to);
  ASSERT_FALSE(fetched.has_value());
  EXPECT_EQ(fetched.error().code, Code::corrupt);
}

}  // namespace
}  // namespace pawl::job
