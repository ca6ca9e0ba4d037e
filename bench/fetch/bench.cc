// What a fetch makes of this machine's loopback: the shipped ends of a fetch, from one holder and from two, against raw
// TCP of one stream and of four. Rounds take turns; all memory is touched before. bench/fetch/run [MIB] [ROUNDS].
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/text.h"
#include "env/environment.h"
#include "env/network.h"
#include "job/daemon/fetch.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kGeneration{1};
constexpr Step kStep{41};
constexpr Seat kSeat{0};
constexpr Duration kPatience = 60s;

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

ArenaSpec spec_of(ArenaKind kind, std::uint64_t bytes) {
  ArenaSpec spec;
  spec.job = "bench";
  spec.seat = kSeat;
  spec.kind = kind;
  spec.payload_bytes = spec.stable_bytes = bytes;
  spec.layout = "bench";
  spec.layout_digest = digest_of(spec.layout);
  return spec;
}

// Each connection is answered by a thread of its own.
class Served {
 public:
  explicit Served(std::function<void(Fd)> serve) {
    auto listening = listen_tcp({"127.0.0.1", 0});
    if (!listening) give_up(listening.error().what);
    fd_ = std::move(*listening);
    thread_ = std::thread([this, serve = std::move(serve)] {
      while (!ended_) {
        auto accepted = accept_connection(fd_.get(), Deadline::in(20ms));
        if (accepted)
          threads_.emplace_back([serve, fd = std::make_shared<Fd>(std::move(*accepted))] { serve(std::move(*fd)); });
      }
    });
  }
  ~Served() {
    ended_ = true;
    thread_.join();
    for (std::thread& thread : threads_) thread.join();
  }
  [[nodiscard]] std::string address() const { return text(*local_address(fd_.get())); }

 private:
  Fd fd_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
  std::vector<std::thread> threads_;
};

Memory::Keeper nobody_keeps() {
  return {.hold = [](const std::string&, int) {}, .drop = [](const std::string&) {}};
}

struct Holder {
  explicit Holder(std::uint64_t bytes, const StreamContext& context)
      : arena(*memory.arena_for(spec_of(ArenaKind::replica, bytes))) {
    const Slot slot = arena->arena.slot(0);
    if (!slot.try_open({}, kGeneration, kStep, 1)) give_up("a slot can't be opened");
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i) {
      std::ranges::fill(slot.bucket(i), static_cast<std::byte>(i));
      slot.bucket_done(i, crc32c(slot.bucket(i)), kGeneration, kStep);
    }
    if (!slot.try_seal(kGeneration, kStep)) give_up("a slot can't be sealed");
    memory.freeze_all();
    served = std::make_unique<Served>([this, context](Fd fd) {
      (void)receive_frame(fd.get(), Deadline::in(kPatience));
      (void)send_frame(fd.get(), frame_of(WelcomeMessage{}), Deadline::in(kPatience));
      (void)FetchServer::start({.stream = real_stream(std::move(fd)),
                                .context = context,
                                .find = [this](ArenaKind, Seat) { return arena; }});
    });
  }
  Memory memory{real_shared_memory(), nobody_keeps()};
  ArenaHandle arena;
  std::unique_ptr<Served> served;
};

double ms_since(Duration begun) {
  return static_cast<double>((real_clock().now() - begun) / 1us) / 1000.0;
}

double fetch_ms(std::vector<FetchFromPlace> places, Memory& to, const StreamContext& context) {
  std::atomic<bool> done{false};
  Hello hello;
  hello.job = "bench";
  hello.purpose = Purpose::fetch;
  const Duration begun = real_clock().now();
  auto fetch = Fetch::start({.hello = hello,
                             .sources = std::move(places),
                             .context = context,
                             .patience = kPatience,
                             .arena_for = [&](const ArenaSpec& spec) { return to.arena_for(spec); },
                             .on_done =
                                 [&](Fetched fetched) {
                                   if (!fetched.status) give_up(fetched.status.error().what);
                                   done = true;
                                   done.notify_all();
                                 }});
  done.wait(false);
  const double took = ms_since(begun);
  while (!context.workers->idle()) real_clock().sleep(1ms);
  return took;
}

// `streams` at once, each its part of the bytes, from memory into memory.
double raw_ms(std::span<std::byte> from, std::span<std::byte> to, std::size_t streams) {
  const std::size_t part = from.size() / streams;
  std::atomic<std::size_t> next{0};
  Served served([&](Fd fd) { (void)send_all(fd.get(), from.subspan(part * next++, part), Deadline::in(kPatience)); });
  const Address address = *Address::parse(served.address());
  const Duration begun = real_clock().now();
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < streams; ++i)
    threads.emplace_back([&, i] {
      const auto stream = real_network().connect(address, Deadline::in(kPatience));
      if (!stream || !(*stream)->receive_all(to.subspan(part * i, part), Deadline::in(kPatience)))
        give_up("raw TCP failed");
    });
  for (std::thread& thread : threads) thread.join();
  return ms_since(begun);
}

void measure(std::uint64_t bytes, int rounds) {
  const Environment environment = real_environment();
  Workers workers{[] {}};
  Counter sent, received, spared;
  StreamContext context;
  context.environment = &environment;
  context.workers = &workers;
  context.bytes_sent = &sent;
  context.bytes_received = &received;
  context.bytes_spared = &spared;
  {
    Holder first(bytes, context);
    Holder second(bytes, context);
    Memory to{real_shared_memory(), nobody_keeps()};
    (void)*to.arena_for(spec_of(ArenaKind::own, bytes));
    to.freeze_all();
    const auto place = [](const Holder& holder, std::uint32_t node) -> FetchFromPlace {
      return {{kSeat, SourceKind::replica, {NodeId(node), {}}, kGeneration, kStep}, holder.served->address()};
    };
    const std::vector one{place(first, 1)};
    const std::vector two{place(first, 1), place(second, 2)};
    const std::span<std::byte> target = to.find(ArenaKind::own, kSeat)->arena.slot(1).payload();
    std::map<std::string, std::vector<double>> took;
    for (int round = 0; round < rounds; ++round) {
      took["raw TCP, 1 stream"].push_back(raw_ms(first.arena->arena.slot(0).payload(), target, 1));
      took["raw TCP, 4 streams"].push_back(raw_ms(first.arena->arena.slot(0).payload(), target, 4));
      took["fetch from one"].push_back(fetch_ms(one, to, context));
      took["fetch from two"].push_back(fetch_ms(two, to, context));
    }
    for (auto& [what, times] : took) {
      std::ranges::sort(times);
      std::printf("%-20s %8.0f ms (%.0f .. %.0f)  %.2f GB/s\n", what.c_str(), times[times.size() / 2], times.front(),
                  times.back(), static_cast<double>(bytes) / times[times.size() / 2] / 1e6);
    }
  }
}

}  // namespace
}  // namespace pawl::job

int main(int argc, char** argv) {
  const std::uint64_t mib = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 512;
  pawl::job::measure(mib << 20, argc > 2 ? std::atoi(argv[2]) : 5);
}
