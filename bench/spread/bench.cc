// What spreading makes of this machine's loopback: the shipped ends of a replica stream, from a sealed slot to the
// holder's acknowledgement, as it is shipped and over one connection only, against raw TCP of one stream and of four. Seat and holder are two processes; raw bytes, too,
// go from one slot's memory into the other's. Rounds take turns; all memory is touched before. Connecting is part of every
// figure. The processes' time on cores stands beside the time that passed. Last, a slot of which the holder's process has
// captured the same bytes itself: only sums are sent, and the holder copies.
// make bench-spread ARGS="MIB ROUNDS BUCKET_KIB LIMIT_MIB": see main().
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/text.h"
#include "env/environment.h"
#include "env/network.h"
#include "job/daemon/replication.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kGeneration{1};
constexpr Seat kSeat{0};
constexpr Duration kPatience = 60s;

struct Sizes {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  int rounds = 7;
  std::uint32_t bucket_bytes = 1 << 20;
  std::uint64_t bytes_a_second = 0;  // that may be spread; 0: no limit
};

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

ArenaSpec spec_of(ArenaKind kind, const Sizes& sizes) {
  ArenaSpec spec;
  spec.job = "bench";
  spec.seat = kSeat;
  spec.kind = kind;
  spec.payload_bytes = spec.stable_bytes = sizes.bytes;
  spec.bucket_bytes = sizes.bucket_bytes;
  spec.layout = "bench";
  spec.layout_digest = digest_of(spec.layout);
  spec.shelf_count = kind == ArenaKind::own ? 1 : 0;
  return spec;
}

Memory::Keeper nobody_keeps() {
  return {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}};
}

// What streams of one process share.
struct Shared {
  Shared() {
    context.environment = &environment;
    context.workers = &workers;
    context.progress = &progress;
    context.bytes_sent = &sent;
    context.bytes_received = &received;
    context.bytes_spared = &spared;
    context.gate_off = true;  // nothing is ever committed here
    context.hold = [](const char*, const std::atomic<bool>&) {};
  }
  const Environment environment = real_environment();
  Workers workers{[] {}};
  std::atomic<std::uint64_t> progress{0};
  Counter sent, received, spared;
  StreamContext context;
};

// A slot whose bytes are known, and captured in no time.
class Captured {
 public:
  explicit Captured(ArenaHandle arena) : arena_(std::move(arena)) {
    const Slot slot = arena_->arena.slot(0);
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
      std::ranges::fill(slot.bucket(i), static_cast<std::byte>(i));
      sums_.push_back(crc32c(slot.bucket(i)));
    }
  }
  // Sealed in the one slot; nothing sends it yet.
  void capture(Step step) {
    const Slot slot = arena_->arena.slot(0);
    if (!slot.try_open(slot.word(), kGeneration, step, 1)) give_up("a slot can't be opened");
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) slot.bucket_done(i, sums_[i], kGeneration, step);
    if (!slot.try_seal(kGeneration, step)) give_up("a slot can't be sealed");
  }
  [[nodiscard]] const ArenaHandle& arena() const { return arena_; }

 private:
  ArenaHandle arena_;
  std::vector<std::uint32_t> sums_;
};

const EqualExtent kAll{{}, 77};

// --- The holder's process. A hello of purpose `fetch` begins a raw stream: its seat says which, its generation how many.

void receive_raw(Fd fd, const Hello& hello, std::span<std::byte> to) {
  const std::size_t part = to.size() / hello.generation.value;
  const std::byte done{1};
  if (!receive_all(fd.get(), to.subspan(hello.seat.value * part, part), Deadline::in(kPatience)) ||
      !send_all(fd.get(), std::span(&done, 1), Deadline::in(kPatience)))
    give_up("raw TCP failed");
}

[[noreturn]] void hold(const Sizes& sizes, int tell) {
  (void)::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Shared shared;
  Memory memory{real_shared_memory(), nobody_keeps()};
  const ArenaHandle arena = *memory.arena_for(spec_of(ArenaKind::replica, sizes));
  for (std::uint32_t i = 0; i < 2; ++i) std::ranges::fill(arena->arena.slot(i).payload(), std::byte{1});
  Captured own(*memory.arena_for(spec_of(ArenaKind::own, sizes)));
  auto listening = listen_tcp({"127.0.0.1", 0});
  if (!listening) give_up(listening.error().what);
  const std::uint16_t port = local_address(listening->get())->port;
  if (::write(tell, &port, sizeof port) != sizeof port) give_up("the seat is gone");
  std::shared_ptr<ReplicaReceiver> receiver;
  for (;;) {
    auto accepted = accept_connection(listening->get(), Deadline::never());
    if (!accepted) give_up(accepted.error().what);
    auto frame = receive_frame(accepted->get(), Deadline::in(kPatience));
    Hello hello;
    if (!frame || !decode(frame->payload, hello)) give_up("another hello came");
    if (hello.purpose == Purpose::fetch) {
      std::thread([fd = std::make_shared<Fd>(std::move(*accepted)), hello, arena] {
        receive_raw(std::move(*fd), hello, arena->arena.slot(0).payload());
      }).detach();
      continue;
    }
    own.capture(Step(hello.incarnation.value));
    (void)send_frame(accepted->get(), frame_of(WelcomeMessage{}), Deadline::in(kPatience));
    if (hello.purpose == Purpose::lane) {
      receiver->add_lane(real_stream(std::move(*accepted)));
      continue;
    }
    receiver = ReplicaReceiver::start({.stream = real_stream(std::move(*accepted)),
                                       .generation = kGeneration,
                                       .seat = kSeat,
                                       .job = "bench",
                                       .context = shared.context,
                                       .held = [&arena] { return arena; },
                                       .arena_for = [&arena](const ArenaSpec&) { return arena; },
                                       .equal_arenas =
                                           [&own] {
                                             return std::vector<EqualArena>{{kAll, own.arena()}};
                                           }});
  }
}

// --- The seat's process.

double seconds_of(clockid_t clock) {
  timespec at{};
  (void)::clock_gettime(clock, &at);
  return static_cast<double>(at.tv_sec) + static_cast<double>(at.tv_nsec) * 1e-9;
}

struct Took {
  double s = 0;
  double seat_core_s = 0;
  double holder_core_s = 0;
};

class Stopwatch {
 public:
  explicit Stopwatch(pid_t holder) { (void)::clock_getcpuclockid(holder, &holder_); }
  void begin() { begun_ = now(); }
  [[nodiscard]] Took took() const {
    const Took at = now();
    return {at.s - begun_.s, at.seat_core_s - begun_.seat_core_s, at.holder_core_s - begun_.holder_core_s};
  }

 private:
  [[nodiscard]] Took now() const {
    return {seconds_of(CLOCK_MONOTONIC), seconds_of(CLOCK_PROCESS_CPUTIME_ID), seconds_of(holder_)};
  }
  clockid_t holder_{};
  Took begun_;
};

void send_raw(std::span<const std::byte> from, const Address& to, std::uint32_t streams) {
  const std::size_t part = from.size() / streams;
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < streams; ++i)
    threads.emplace_back([&, i] {
      auto fd = connect_tcp(to, Deadline::in(kPatience));
      if (!fd) give_up(fd.error().what);
      Hello hello;
      hello.purpose = Purpose::fetch;
      hello.seat = Seat(i);
      hello.generation = Generation(streams);
      std::byte done{};
      if (!send_frame(fd->get(), frame_of(hello), Deadline::in(kPatience)) ||
          !send_all(fd->get(), from.subspan(i * part, part), Deadline::in(kPatience)) ||
          !receive_all(fd->get(), std::span(&done, 1), Deadline::in(kPatience)))
        give_up("raw TCP failed");
    });
  for (std::thread& thread : threads) thread.join();
}

class SeatSide {
 public:
  SeatSide(const Sizes& sizes, Address holder)
      : address_(std::move(holder)), own_(*memory_.arena_for(spec_of(ArenaKind::own, sizes))) {
    limit_.set(sizes.bytes_a_second);
    shared.context.send_limit = &limit_;
  }
  [[nodiscard]] std::span<std::byte> payload() const { return own_.arena()->arena.slot(0).payload(); }
  void capture() { own_.capture(step_ = Step(step_.value + 1)); }
  void spread(bool over_one, std::vector<EqualExtent> equal) {
    shared.context.spread_sizes = over_one ? SpreadSizes{std::numeric_limits<std::uint64_t>::max()} : SpreadSizes{};
    std::atomic<bool> held{false};
    Hello hello;
    hello.job = "bench";
    hello.purpose = Purpose::data;
    hello.seat = kSeat;
    hello.generation = kGeneration;
    hello.incarnation = Incarnation(step_.value);  // which the holder captures, too
    sender_ = ReplicaSender::start({.hello = hello,
                                    .address = text(address_),
                                    .holder = NodeId(1),
                                    .arena = own_.arena(),
                                    .context = shared.context,
                                    .equal = std::move(equal),
                                    .on_held =
                                        [&](Step) {
                                          held = true;
                                          held.notify_all();
                                        },
                                    .on_refused = [](const Error& error) { give_up(error.what); }});
    held.wait(false);
  }
  void end() {
    sender_->end();
    while (!shared.workers.idle()) real_clock().sleep(1ms);
  }
  Shared shared;

 private:
  Address address_;
  Memory memory_{real_shared_memory(), nobody_keeps()};
  Captured own_;
  Step step_{40};
  SendLimit limit_;
  std::shared_ptr<ReplicaSender> sender_;
};

void print(const std::string& what, std::vector<Took> all, double bytes, double raw_median_s) {
  std::ranges::sort(all, {}, &Took::s);
  const Took& median = all[all.size() / 2];
  std::printf("%-20s %7.0f ms (%.0f .. %.0f)  %5.2f GB/s  %4.2fx raw of 4  core s: seat %.2f, holder %.2f\n",
              what.c_str(), median.s * 1e3, all.front().s * 1e3, all.back().s * 1e3, bytes / median.s / 1e9,
              raw_median_s / median.s, median.seat_core_s, median.holder_core_s);
}

double median_s(std::vector<Took> all) {
  std::ranges::sort(all, {}, &Took::s);
  return all[all.size() / 2].s;
}

void measure(const Sizes& sizes, pid_t holder, std::uint16_t port) {
  const Address address{"127.0.0.1", port};
  SeatSide seat(sizes, address);
  Stopwatch watch(holder);
  std::map<std::string, std::vector<Took>> took;
  for (int round = -1; round < sizes.rounds; ++round) {  // the first warms up
    for (std::uint32_t streams : {1u, 4u}) {
      watch.begin();
      send_raw(seat.payload(), address, streams);
      if (round >= 0) took[text("raw TCP, ", streams, " streams")].push_back(watch.took());
    }
    for (const std::string way : {"spread, 1 connection", "spread", "spread, equal there"}) {
      seat.capture();
      watch.begin();
      seat.spread(way == "spread, 1 connection",
                  way == "spread, equal there" ? std::vector<EqualExtent>{kAll} : std::vector<EqualExtent>{});
      if (round >= 0) took[way].push_back(watch.took());
      seat.end();
    }
  }
  const double raw = median_s(took["raw TCP, 4 streams"]);
  for (const auto& [what, all] : took) print(what, all, static_cast<double>(sizes.bytes), raw);
}

int run(const Sizes& sizes) {
  int ends[2];
  if (::pipe(ends) != 0) give_up("no pipe");
  const pid_t holder = ::fork();  // before there are threads
  if (holder == 0) hold(sizes, ends[1]);
  ::close(ends[1]);
  std::uint16_t port = 0;
  if (::read(ends[0], &port, sizeof port) != sizeof port) give_up("the holder died");
  measure(sizes, holder, port);
  ::kill(holder, SIGKILL);
  (void)::waitpid(holder, nullptr, 0);
  return 0;
}

}  // namespace
}  // namespace pawl::job

int main(int argc, char** argv) {
  pawl::job::Sizes sizes;
  if (argc > 1) sizes.bytes = std::strtoull(argv[1], nullptr, 10) << 20;
  if (argc > 2) sizes.rounds = std::atoi(argv[2]);
  if (argc > 3) sizes.bucket_bytes = static_cast<std::uint32_t>(std::strtoul(argv[3], nullptr, 10)) << 10;
  if (argc > 4) sizes.bytes_a_second = std::strtoull(argv[4], nullptr, 10) << 20;
  return pawl::job::run(sizes);
}
