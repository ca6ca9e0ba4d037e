#include "ring.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "random.h"
#include "rendezvous.h"

namespace charlm {
namespace {

using std::chrono::steady_clock;
using namespace std::chrono_literals;

// Addresses meet in this process's memory.
class Board : public Rendezvous {
 public:
  Outcome exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch&, Address* next) override {
    std::unique_lock lock(mutex_);
    addresses_[rank] = mine;
    changed_.notify_all();
    const std::uint32_t wanted = (rank + 1) % world;
    if (!changed_.wait_for(lock, 20s, [&] { return addresses_.count(wanted) != 0; })) return Outcome::failed("alone");
    *next = addresses_[wanted];
    return {};
  }
  Address address_of(std::uint32_t rank) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [&] { return addresses_.count(rank) != 0; });
    return addresses_[rank];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, Address> addresses_;
};

// Interrupts its waiting thread from another one, as pawl does.
class Bell : public Watch {
 public:
  Bell() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  ~Bell() override { close(fd_); }
  void ring() {
    rung_ = true;
    eventfd_write(fd_, 1);
  }
  [[nodiscard]] int event_fd() const override { return fd_; }
  [[nodiscard]] bool interrupted() override { return rung_; }

 private:
  int fd_;
  std::atomic<bool> rung_{false};
};

// Runs `body(rank)` on a thread per rank.
void on_ranks(std::uint32_t world, const std::function<void(std::uint32_t)>& body) {
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < world; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

RingOptions options_of(std::uint32_t rank, std::uint32_t world) {
  RingOptions options;
  options.rank = rank;
  options.world = world;
  options.generation = 3;
  options.configuration = 77;
  return options;
}

std::vector<float> input_of(std::uint32_t rank, std::size_t size) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) {
    values[i] = to_symmetric(random_at(rank, i)) * static_cast<float>(1 << (i % 17));  // sums round
  }
  return values;
}

class RingOfAnySize : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(RingOfAnySize, SumsInTheDefinedOrderBitForBit) {
  const std::uint32_t world = GetParam();
  const std::size_t chunk = 100003, size = chunk * world;
  std::vector<std::vector<float>> inputs(world);
  for (std::uint32_t rank = 0; rank < world; ++rank) inputs[rank] = input_of(rank, size);
  std::vector<float> expected(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::size_t owner = i / chunk;
    float sum = inputs[(owner + 1) % world][i];
    for (std::size_t hop = 2; hop <= world; ++hop) sum += inputs[(owner + hop) % world][i];
    expected[i] = sum;
  }
  Board board;
  on_ranks(world, [&](std::uint32_t rank) {
    Watch watch;
    Ring ring;
    const Outcome connected = ring.connect(options_of(rank, world), board, watch);
    ASSERT_TRUE(connected.ok()) << connected.what;
    auto values = inputs[rank];
    ASSERT_TRUE(ring.reduce_scatter(values, watch).ok());
    EXPECT_EQ(0, std::memcmp(&values[rank * chunk], &expected[rank * chunk], chunk * sizeof(float)));
    ASSERT_TRUE(ring.all_gather(values, watch).ok());
    EXPECT_EQ(0, std::memcmp(values.data(), expected.data(), size * sizeof(float)));
    const std::uint64_t mine = 1000 + rank;
    std::vector<std::uint64_t> all(world);
    ASSERT_TRUE(
        ring.all_gather_bytes(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)), watch).ok());
    for (std::uint32_t other = 0; other < world; ++other) EXPECT_EQ(all[other], 1000 + other);
  });
}
INSTANTIATE_TEST_SUITE_P(Worlds, RingOfAnySize, ::testing::Values(1, 2, 3, 4));

// A process that is really killed in the middle of a collective: both neighbours learn it from their sockets at once.
TEST(Ring, DeathOfAPeerIsAnErrorAtOnce) {
  Socket reserved;
  Address master;
  ASSERT_TRUE(listen_on({"127.0.0.1", "0"}, &reserved, &master).ok());
  reserved.close();
  const auto take_part = [&](std::uint32_t rank, Ring& ring) {
    Watch watch;
    MasterRendezvous rendezvous(master);
    return ring.connect(options_of(rank, 3), rendezvous, watch);
  };
  const pid_t victim = fork();  // before there are threads
  if (victim == 0) {
    Ring ring;
    if (!take_part(2, ring).ok()) _exit(1);
    for (;;) pause();  // connected, and never coming to the collective
  }
  std::atomic<int> waiting{0};
  std::vector<steady_clock::duration> freed(2);
  std::thread killer([&] {
    while (waiting < 2) std::this_thread::yield();
    std::this_thread::sleep_for(50ms);
    kill(victim, SIGKILL);
  });
  std::vector<std::string> why(2);
  on_ranks(2, [&](std::uint32_t rank) {
    Ring ring;
    const Outcome connected = take_part(rank, ring);
    ++waiting;
    ASSERT_TRUE(connected.ok()) << connected.what;
    std::vector<float> values(3 << 18);
    Watch watch;
    const auto began = steady_clock::now();
    const Outcome outcome = ring.reduce_scatter(values, watch);
    freed[rank] = steady_clock::now() - began;
    EXPECT_EQ(outcome.kind, Outcome::Kind::failed);
    why[rank] = outcome.what;
  });
  killer.join();
  int status = 0;
  ASSERT_EQ(waitpid(victim, &status, 0), victim);
  EXPECT_TRUE(WIFSIGNALED(status));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_LT(freed[rank], 60s) << "ended by the silence deadline, not by the death";
    EXPECT_NE(why[rank].find("reduce-scatter"), std::string::npos) << why[rank];
  }
}

// Rank 2 sees at once that nobody sends to it any more. Rank 0 waits for rank 2 until it is interrupted, as pawl does it.
TEST(Ring, KnowsWhichNeighbourIsGone) {
  Board board;
  Bell bell;
  std::array<std::string, 3> lost;
  std::atomic<int> connected{0};
  std::atomic<bool> gone{false};
  on_ranks(3, [&](std::uint32_t rank) {
    Watch watch;
    {
      Ring ring;
      ASSERT_TRUE(ring.connect(options_of(rank, 3), board, watch).ok());
      ++connected;
      while (connected < 3) std::this_thread::sleep_for(1ms);
      if (rank != 1) {
        std::vector<float> values(3 << 10);
        EXPECT_FALSE(ring.reduce_scatter(values, rank == 0 ? static_cast<Watch&>(bell) : watch).ok());
        while (!gone) std::this_thread::sleep_for(1ms);
        if (rank == 2) bell.ring();
        lost[rank] = ring.lost();
        ++connected;
        while (connected < 5) std::this_thread::sleep_for(1ms);
      }
    }
    if (rank == 1) gone = true;
  });
  EXPECT_EQ(lost[0], "1 ");
  EXPECT_EQ(lost[2], "1");
}

// A peer that is silent but connected: only pawl's event can end this wait.
TEST(Ring, InterruptFreesAWaitingCollective) {
  Board board;
  Bell bell;
  std::atomic<bool> done{false};
  on_ranks(2, [&](std::uint32_t rank) {
    Watch watch;
    Ring ring;
    ASSERT_TRUE(ring.connect(options_of(rank, 2), board, rank == 0 ? static_cast<Watch&>(bell) : watch).ok());
    if (rank == 0) {
      std::thread ringer([&] {
        std::this_thread::sleep_for(30ms);
        bell.ring();
      });
      std::vector<float> values(1 << 20);
      const auto began = steady_clock::now();
      EXPECT_EQ(ring.reduce_scatter(values, bell).kind, Outcome::Kind::interrupted);
      EXPECT_LT(steady_clock::now() - began, 60s);
      ringer.join();
      done = true;
    }
    while (!done) std::this_thread::sleep_for(1ms);
  });
}

// Publishes at once, but connects only after `event`.
class Late : public Rendezvous {
 public:
  Late(Board& board, std::atomic<bool>& event) : board_(board), event_(event) {}
  Outcome exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch& watch, Address* next) override {
    CHARLM_TRY(board_.exchange(rank, world, mine, watch, next));
    while (!event_) std::this_thread::sleep_for(1ms);
    return {};
  }

 private:
  Board& board_;
  std::atomic<bool>& event_;
};

// Somebody else's connections come first; then the right one, which gets in.
TEST(Ring, StrangersAndStalePeersAreTurnedAway) {
  Board board;
  std::atomic<bool> strangers_are_gone{false};
  on_ranks(3, [&](std::uint32_t rank) {
    Watch watch;
    if (rank == 2) {  // no rank of this ring
      const Address address = board.address_of(0);
      Socket noisy, silent, stale;
      const char noise[sizeof(RingHello)] = "GET / HTTP/1.1";
      ASSERT_TRUE(connect_to(address, watch, {}, &noisy).ok());
      ASSERT_TRUE(exchange({&noisy, noise, sizeof noise, nullptr, nullptr, 0}, watch).ok());
      ASSERT_TRUE(connect_to(address, watch, {}, &silent).ok());
      silent.close();
      // The previous rank as of the generation before, right in everything else.
      const RingHello old{kRingMagic, options_of(1, 2).generation - 1, options_of(1, 2).configuration, 1, 2};
      RingAnswer answer{};
      ASSERT_TRUE(connect_to(address, watch, {}, &stale).ok());
      ASSERT_TRUE(exchange({&stale, &old, sizeof old, nullptr, nullptr, 0}, watch).ok());
      EXPECT_TRUE(exchange({nullptr, nullptr, 0, &stale, &answer, sizeof answer}, watch).ok());
      EXPECT_EQ(answer.verdict, RingVerdict::stale);
      char more = 0;
      EXPECT_FALSE(exchange({nullptr, nullptr, 0, &stale, &more, 1}, watch).ok()) << "left open";
      strangers_are_gone = true;
      return;
    }
    Ring ring;
    Late late(board, strangers_are_gone);
    const Outcome connected =
        ring.connect(options_of(rank, 2), rank == 1 ? static_cast<Rendezvous&>(late) : board, watch);
    ASSERT_TRUE(connected.ok()) << rank << ": " << connected.what;
    std::vector<float> values(8, 1.0f);
    ASSERT_TRUE(ring.reduce_scatter(values, watch).ok());
    EXPECT_EQ(values[rank * 4], 2.0f);
  });
}

TEST(Ring, DifferentConfigurationsAreRefusedOnBothSides) {
  Board board;
  on_ranks(2, [&](std::uint32_t rank) {
    Watch watch;
    Ring ring;
    RingOptions options = options_of(rank, 2);
    options.configuration = rank;
    const Outcome connected = ring.connect(options, board, watch);
    EXPECT_EQ(connected.kind, Outcome::Kind::refused) << connected.what;
  });
}

TEST(Rendezvous, SaysWhatIsMissingOrTaken) {
  Watch watch;
  Address next;
  EXPECT_NE(MasterRendezvous({"", ""}).exchange(1, 2, {"127.0.0.1", "1"}, watch, &next).what.find("MASTER_ADDR"),
            std::string::npos);
  Socket taken;
  Address bound;
  ASSERT_TRUE(listen_on({"127.0.0.1", "0"}, &taken, &bound).ok());
  const Outcome refused = MasterRendezvous(bound).exchange(0, 2, {"127.0.0.1", "1"}, watch, &next);
  EXPECT_EQ(refused.kind, Outcome::Kind::refused);
  EXPECT_NE(refused.what.find(bound.port), std::string::npos) << refused.what;
}

}  // namespace
}  // namespace charlm
