// Real processes: children that open their memory, write into ours, leave and are killed.
#include "env/peer_memory.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "base/text.h"

namespace pawl {
namespace {

using std::chrono::seconds;

iovec range(const void* at, std::size_t size) {
  return {const_cast<void*>(at), size};
}

// Lines to and from a child; it ends with this.
class Child {
 public:
  using Body = std::function<void(Child& parent)>;
  explicit Child(const Body& body) {
    int down[2], up[2];
    EXPECT_EQ(::pipe(down), 0);
    EXPECT_EQ(::pipe(up), 0);
    pid_ = ::fork();
    read_ = pid_ == 0 ? down[0] : up[0];
    write_ = pid_ == 0 ? up[1] : down[1];
    ::close(pid_ == 0 ? up[0] : down[0]);
    ::close(pid_ == 0 ? down[1] : up[1]);
    if (pid_ != 0) return;
    body(*this);
    ::_exit(0);
  }
  ~Child() { kill(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    EXPECT_EQ(::waitpid(pid_, nullptr, 0), pid_);
    ::close(read_);
    ::close(write_);
    pid_ = 0;
  }
  void say(std::string line) {
    line += '\n';
    if (::write(write_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) ::_exit(1);
  }
  std::string hear() {
    std::string line;
    for (char one = 0; ::read(read_, &one, 1) == 1 && one != '\n';) line += one;
    return line;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = 0;
  int read_ = -1, write_ = -1;
};

bool is_allowed(const PeerMemory& one) {
  PeerMemory other;
  const std::vector<std::string> tickets{other.ticket(), one.ticket()};
  return other.join(tickets, 0).has_value();
}

#define NEEDS_LEAVE() \
  if (PeerMemory probe; !is_allowed(probe)) GTEST_SKIP() << "privilege: process_vm_writev is refused here"

TEST(PeerMemoryTest, writes_scattered_ranges_into_another_process) {
  NEEDS_LEAVE();
  constexpr std::size_t kRows = 3000, kRow = 24;  // more than one call takes
  static std::array<char, kRows * 64> memory;     // at the same address in both
  Child child([](Child& parent) {
    PeerMemory mine;
    parent.say(mine.ticket());
    parent.hear();
    std::size_t right = 0;
    for (std::size_t row = 0; row < kRows; ++row)
      for (std::size_t i = 0; i < 64; ++i)
        right += memory[row * 64 + i] == (i < kRow ? static_cast<char>(row % 100 + i) : 0) ? 1 : 0;
    parent.say(text(right));
    parent.hear();
  });
  PeerMemory mine;
  const std::vector<std::string> tickets{mine.ticket(), child.hear()};
  const Status joined = mine.join(tickets, 0);
  ASSERT_TRUE(joined) << joined.error().what;
  std::vector<char> rows(kRows * kRow);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<char>(i / kRow % 100 + i % kRow);
  std::vector<iovec> to;
  for (std::size_t row = 0; row < kRows; ++row) to.push_back(range(&memory[row * 64], kRow));
  const std::vector<iovec> from{range(rows.data(), 1000), range(rows.data() + 1000, rows.size() - 1000)};
  const Status written = mine.write(1, from, to);
  EXPECT_TRUE(written) << written.error().what;
  std::vector<std::byte> back(3 * 64);
  EXPECT_TRUE(mine.read(1, reinterpret_cast<std::uintptr_t>(memory.data()) + 64, back));
  for (std::size_t row = 0; row < 3; ++row)
    EXPECT_EQ(std::memcmp(back.data() + row * 64, rows.data() + (row + 1) * kRow, kRow), 0) << row;
  EXPECT_FALSE(mine.read(1, 16, back)) << "no such address";
  EXPECT_FALSE(mine.read(2, 16, back)) << "no such peer";
  child.say("look");
  EXPECT_EQ(child.hear(), text(memory.size()));
  EXPECT_EQ(std::ranges::count(memory, 0), static_cast<std::ptrdiff_t>(memory.size())) << "ours stays as it was";
}

TEST(PeerMemoryTest, refuses_tickets_that_lead_nowhere) {
  NEEDS_LEAVE();
  PeerMemory mine;
  const auto join = [&](const std::string& other) {
    PeerMemory one;
    const std::vector<std::string> tickets{one.ticket(), other};
    const Status joined = one.join(tickets, 0);
    return joined ? std::string("joined") : joined.error().what;
  };
  EXPECT_EQ(join(mine.ticket()), "joined");
  EXPECT_NE(join("").find("no ticket"), std::string::npos);
  EXPECT_NE(join("door9 1 2 3").find("no ticket"), std::string::npos);
  EXPECT_NE(join(mine.ticket() + " 4").find("no ticket"), std::string::npos);
  EXPECT_NE(join(mine.ticket().substr(0, mine.ticket().size() - 1)).find("is gone, or has left"), std::string::npos)
      << "another cookie";
  EXPECT_NE(join("door1 -3 16 7").find("no ticket"), std::string::npos);
  EXPECT_NE(join(text("door1 ", ::getpid(), " 16 7")).find("gone"), std::string::npos) << "no such address";
  std::string old;
  {
    const PeerMemory left;
    old = left.ticket();
  }
  EXPECT_NE(join(old).find("gone"), std::string::npos);
  Child child([](Child& parent) {
    const PeerMemory its;
    parent.say(its.ticket());
    parent.hear();
  });
  const std::string ticket = child.hear();
  EXPECT_EQ(join(ticket), "joined");
  child.kill();
  EXPECT_NE(join(ticket).find("gone"), std::string::npos);
  const std::vector<std::string> swapped{mine.ticket(), PeerMemory().ticket()};
  EXPECT_FALSE(mine.join(swapped, 1));
  const std::vector<std::string> many(PeerMemory::kPeersMax + 1, mine.ticket());
  EXPECT_FALSE(mine.join(many, 0));
}

TEST(PeerMemoryTest, tells_a_writer_that_the_other_has_left_or_died) {
  NEEDS_LEAVE();
  static std::uint64_t memory = 5;
  Child child([](Child& parent) {
    PeerMemory its;
    parent.say(its.ticket());
    parent.hear();
    if (its.close(seconds(1))) parent.say("closed");
    parent.hear();
    parent.say(text(memory));
    parent.hear();
  });
  PeerMemory mine;
  const std::vector<std::string> tickets{child.hear(), mine.ticket()};
  ASSERT_TRUE(mine.join(tickets, 1));
  const std::uint64_t seven = 7, nine = 9;
  const iovec to = range(&memory, 8);
  const iovec first = range(&seven, 8), second = range(&nine, 8);
  EXPECT_TRUE(mine.write(0, {&first, 1}, {&to, 1}));
  const iovec nowhere = range(reinterpret_cast<void*>(16), 8);
  const Status refused = mine.write(0, {&first, 1}, {&nowhere, 1});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::io);
  child.say("close");
  EXPECT_EQ(child.hear(), "closed");
  const Status left = mine.write(0, {&second, 1}, {&to, 1});
  ASSERT_FALSE(left);
  EXPECT_EQ(left.error().code, Code::unreachable);
  child.say("look");
  EXPECT_EQ(child.hear(), "7");
  child.kill();
  const Status dead = mine.write(0, {&second, 1}, {&to, 1});
  ASSERT_FALSE(dead);
  EXPECT_EQ(dead.error().code, Code::unreachable);
  EXPECT_TRUE(mine.close(seconds(1))) << "the dead write nothing";
  EXPECT_FALSE(mine.write(2, {&first, 1}, {&to, 1})) << "no such peer";
}

// A child that writes into `memory` as fast as it can, another number each time, until it is refused; it says so then.
class Writer {
 public:
  Writer(PeerMemory& mine, std::vector<std::uint64_t>& memory)
      : child_([&memory](Child& parent) {
          PeerMemory its;
          parent.say(its.ticket());
          const std::vector<std::string> tickets{parent.hear(), its.ticket()};
          if (!its.join(tickets, 1)) ::_exit(2);
          std::vector<std::uint64_t> numbers(memory.size(), 1);
          parent.say("joined");
          const iovec from = range(numbers.data(), numbers.size() * 8), to = range(memory.data(), memory.size() * 8);
          for (std::uint64_t number = 2; its.write(0, {&from, 1}, {&to, 1}); ++number)
            numbers.front() = numbers.back() = number;  // no more: nearly all of its time is writing
          parent.say("refused");
          parent.hear();
        }) {
    const std::vector<std::string> tickets{mine.ticket(), child_.hear()};
    child_.say(mine.ticket());
    EXPECT_EQ(child_.hear(), "joined");
    EXPECT_TRUE(mine.join(tickets, 0));
  }
  Child& child() { return child_; }

 private:
  Child child_;
};

TEST(PeerMemoryTest, nobody_writes_after_close) {
  NEEDS_LEAVE();
  static std::vector<std::uint64_t> memory(1 << 14);
  for (int round = 0; round < 60; ++round) {
    PeerMemory mine;
    Writer writer(mine, memory);
    ::usleep(static_cast<useconds_t>(round * 53));
    ASSERT_TRUE(mine.close(seconds(20)));
    const std::vector<std::uint64_t> before = memory;
    ASSERT_EQ(writer.child().hear(), "refused");
    EXPECT_EQ(memory, before) << "round " << round;
  }
}

// Whether close() found a writer that was stopped in the middle of a write; nearly always it is.
bool waits_for_a_stopped_writer() {
  static std::vector<std::uint64_t> memory(8 << 20);
  PeerMemory mine;
  volatile std::uint64_t& last = memory.back();
  last = 0;
  Writer writer(mine, memory);
  for (int i = 0; last == 0 && i < 10'000; ++i) ::usleep(1000);  // until it has written all of it once
  ::kill(writer.child().pid(), SIGSTOP);
  ::usleep(50'000);
  const Status closed = mine.close(std::chrono::milliseconds(50));
  writer.child().kill();
  EXPECT_TRUE(mine.close(seconds(5))) << "the dead write nothing";
  return !closed && closed.error().code == Code::timeout;
}

TEST(PeerMemoryTest, close_waits_for_a_stopped_writer_no_longer_than_asked) {
  NEEDS_LEAVE();
  bool waited = false;
  for (int i = 0; i < 20 && !waited; ++i) waited = waits_for_a_stopped_writer();
  EXPECT_TRUE(waited);
}

}  // namespace
}  // namespace pawl
