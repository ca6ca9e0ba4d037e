// How long a protection plan takes, by seats: protection_bench [--seats 1000,10000,...]. Times are of the CPU, the median of five.
//
// Eight seats a node, sixteen nodes a rack. "own": each seat's state is its own, and sent to other racks. "dp": sixty-four
// data-parallel paths have the same state besides, cut over them. "ring": what a daemon makes of it whenever the members change.
#include <ctime>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "base/text.h"
#include "job/redundancy/placement.h"
#include "job/redundancy/protection.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kSeatsPerNode = 8, kNodesPerRack = 16, kPaths = 64;

double cpu_ms() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e3 * static_cast<double>(now.tv_sec) + 1e-6 * static_cast<double>(now.tv_nsec);
}

double median_of_five(const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = 0; i < 5; ++i) {
    const double before = cpu_ms();
    work();
    times.push_back(cpu_ms() - before);
  }
  std::ranges::sort(times);
  return times[2];
}

Positions positions_of(std::uint32_t seats) {
  Positions positions;
  for (std::uint32_t left = seats; left > 0; left -= positions.seat_counts.back()) {
    positions.domains.push_back(static_cast<std::uint32_t>(positions.seat_counts.size()) / kNodesPerRack);
    positions.seat_counts.push_back(std::min(left, kSeatsPerNode));
  }
  return positions;
}

std::vector<StateGroup> groups_of(std::uint32_t seats, bool with_paths) {
  std::vector<StateGroup> groups;
  for (std::uint32_t seat = 0; seat < seats; ++seat) groups.push_back({{Seat(seat)}, 1 << 20, seat});
  const std::uint32_t parts = std::max(1U, seats / kPaths);
  for (std::uint32_t part = 0; with_paths && part < parts; ++part) {
    StateGroup group{{}, std::uint64_t{1} << 30, part};
    for (std::uint32_t seat = part; seat < seats; seat += parts) group.seats.emplace_back(seat);
    groups.push_back(std::move(group));
  }
  return groups;
}

void must(bool made, const std::string& why) {
  if (made) return;
  std::fprintf(stderr, "protection_bench: %s\n", why.c_str());
  std::exit(1);
}

void measure(std::uint32_t seats) {
  const Positions positions = positions_of(seats);
  const auto plan_ms = [&](const char* words, bool with_paths) {
    const ProtectionPolicy policy = *parse_redundancy(words);
    return median_of_five([&] {
      const auto plan = protect(groups_of(seats, with_paths), positions, policy);
      must(plan.has_value(), plan ? "" : plan.error().what);
    });
  };
  const double ring_ms = median_of_five([&] {
    const Ring ring(positions.seat_counts, 2, positions.domains);
    must(ring.replica_count() == 2, "too few nodes");
  });
  const auto plan = protect(groups_of(seats, true), positions, *parse_redundancy("cut:1"));
  must(plan.has_value(), plan ? "" : plan.error().what);
  std::vector<ShelfId> sound;
  for (const Shelf& shelf : plan->shelves) sound.push_back(shelf.id);
  const double survival_ms =
      median_of_five([&] { must(survival_of(*plan, sound, plan->domains).whole, "nothing is whole"); });
  std::printf("%8u %12.1f %12.1f %12.1f %12.1f %12.2f\n", seats, plan_ms("copies:2", false), plan_ms("copies:1", true),
              plan_ms("cut:1", true), survival_ms, ring_ms);
}

}  // namespace
}  // namespace pawl::job

int main(int argc, char** argv) {
  std::string list = "1000,10000,100000";
  if (argc == 3 && std::string(argv[1]) == "--seats") list = argv[2];
  std::printf("%8s %12s %12s %12s %12s %12s\n", "seats", "own copies:2", "dp copies:1", "dp cut:1", "survival", "ring");
  std::printf("%8s %12s %12s %12s %12s %12s\n", "", "ms", "ms", "ms", "ms", "ms");
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    std::uint32_t seats = 0;
    if (!pawl::parse_number(std::string_view(word), seats) || seats < 1000) return 2;
    pawl::job::measure(seats);
  }
  return 0;
}
