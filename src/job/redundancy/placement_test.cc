#include "job/redundancy/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

namespace pawl::job {
namespace {

using SeatCounts = std::vector<std::uint32_t>;

TEST(ARing, MayBeEmpty) {
  const Ring ring;
  EXPECT_EQ(ring.seat_count(), 0u);
  EXPECT_EQ(ring.position_count(), 0u);
  EXPECT_EQ(Ring(SeatCounts(), 1).replica_count(), 0u);
}

TEST(ARing, TheNextPositionsHold) {
  const Ring ring(SeatCounts{2, 2, 2, 2}, 2);
  EXPECT_EQ(ring.position_of(Seat(5)), 2u);
  EXPECT_EQ(ring.holders_of(Seat(5)), (std::vector<std::uint32_t>{3, 0}));
  EXPECT_EQ(ring.wards_of(0), (std::vector<Seat>{Seat(6), Seat(7), Seat(4), Seat(5)}));
  EXPECT_TRUE(Ring(SeatCounts{2, 2, 2, 2}, 0).holders_of(Seat(5)).empty());
}

TEST(ARing, MayHaveMoreSeatsAtOnePositionThanAtAnother) {
  const Ring ring(SeatCounts{1, 3, 2}, 1);
  EXPECT_EQ(ring.seat_count(), 6u);
  EXPECT_EQ(ring.seats_per_node_max(), 3u);
  EXPECT_EQ(ring.position_of(Seat(0)), 0u);
  EXPECT_EQ(ring.position_of(Seat(3)), 1u);
  EXPECT_EQ(ring.position_of(Seat(4)), 2u);
  EXPECT_EQ(ring.first_seat(2), Seat(4));
  EXPECT_EQ(ring.seats_at(1), 3u);
  EXPECT_EQ(ring.wards_of(2), (std::vector<Seat>{Seat(1), Seat(2), Seat(3)}));
  EXPECT_EQ(ring.wards_of(0), (std::vector<Seat>{Seat(4), Seat(5)}));
}

TEST(ARing, OfFewNodesHasAsManyReplicasAsItCan) {
  const Ring ring(SeatCounts{1, 1, 1}, 5);
  EXPECT_EQ(ring.replica_count(), 2u);
  EXPECT_EQ(ring.holders_of(Seat(1)), (std::vector<std::uint32_t>{2, 0}));
  EXPECT_TRUE(Ring(SeatCounts{4}, 1).holders_of(Seat(1)).empty());
}

void for_each_way(std::uint32_t positions, SeatCounts& counts, const std::function<void()>& act) {
  if (counts.size() == positions) return act();
  for (std::uint32_t count = 1; count <= 3; ++count) {
    counts.push_back(count);
    for_each_way(positions, counts, act);
    counts.pop_back();
  }
}

void expect_sound(const Ring& ring, const SeatCounts& counts, std::uint32_t k) {
  const auto nodes = static_cast<std::uint32_t>(counts.size());
  ASSERT_EQ(ring.seat_count(), std::accumulate(counts.begin(), counts.end(), 0u));
  std::vector<std::set<std::uint32_t>> places(ring.seat_count());
  for (std::uint32_t seat = 0; seat < ring.seat_count(); ++seat) {
    const std::uint32_t own = ring.position_of(Seat(seat));
    ASSERT_LE(ring.first_seat(own), Seat(seat));
    ASSERT_LT(seat, ring.first_seat(own).value + counts[own]);
    const auto holders = ring.holders_of(Seat(seat));
    places[seat] = {holders.begin(), holders.end()};
    ASSERT_EQ(places[seat].size(), k);
    ASSERT_FALSE(places[seat].contains(own));
    places[seat].insert(own);
  }
  for (std::uint32_t position = 0; position < nodes; ++position) {
    const std::vector<Seat> wards = ring.wards_of(position);
    for (std::uint32_t seat = 0; seat < ring.seat_count(); ++seat)
      ASSERT_EQ(std::ranges::count(wards, Seat(seat)), std::ranges::count(ring.holders_of(Seat(seat)), position));
  }
  for (std::uint32_t dead = 0; dead < 1u << nodes; ++dead) {
    if (std::popcount(dead) > static_cast<int>(k)) continue;
    for (const auto& held : places)
      ASSERT_TRUE(std::ranges::any_of(held, [&](std::uint32_t p) { return (dead >> p & 1) == 0; }));
  }
}

// For every small job: k distinct holders, never the owner's domain; wards are the inverse; and after any k losses every
// seat is left with a copy.
TEST(ARing, KeepsEverySeatThroughAnyKLosses) {
  for (std::uint32_t nodes = 1; nodes <= 5; ++nodes) {
    SeatCounts counts;
    for_each_way(nodes, counts, [&] {
      for (std::uint32_t k = 0; k < nodes && k <= 3; ++k) expect_sound(Ring(counts, k), counts, k);
    });
  }
}

// --- Failure domains

TEST(ARing, WithoutDomainsIsTheRingOfNextPositions) {
  for (std::uint32_t nodes = 1; nodes <= 12; ++nodes)
    for (std::uint32_t k = 0; k < nodes; ++k) {
      const SeatCounts counts(nodes, 2);
      std::vector<std::uint32_t> each(nodes);  // a domain for each, under any number
      for (std::uint32_t i = 0; i < nodes; ++i) each[i] = 1000 - 7 * i;
      for (const Ring& ring : {Ring(counts, k), Ring(counts, k, each)}) {
        ASSERT_EQ(ring.domain_count(), nodes);
        ASSERT_EQ(ring.wards_per_node_max(), 2 * k);
        for (std::uint32_t position = 0; position < nodes; ++position) {
          std::vector<std::uint32_t> next;
          std::vector<Seat> wards;
          for (std::uint32_t i = 1; i <= k; ++i) {
            next.push_back((position + i) % nodes);
            const std::uint32_t before = (position + nodes - i) % nodes;
            wards.insert(wards.end(), {Seat(2 * before), Seat(2 * before + 1)});
          }
          ASSERT_EQ(ring.holders_of(ring.first_seat(position)), next);
          ASSERT_EQ(ring.wards_of(position), wards);
        }
      }
    }
}

TEST(ARing, OfRacksHoldsInTheNextRacksAndEachNodeAsMuchAsItHas) {
  const std::vector<std::uint32_t> racks = {0, 0, 1, 1, 2, 2};
  const Ring ring(SeatCounts(6, 1), 2, racks);
  EXPECT_EQ(ring.domain_count(), 3u);
  EXPECT_EQ(ring.holders_of(Seat(0)), (std::vector<std::uint32_t>{2, 4}));
  EXPECT_EQ(ring.holders_of(Seat(3)), (std::vector<std::uint32_t>{5, 1}));
  EXPECT_EQ(ring.wards_of(1), (std::vector<Seat>{Seat(5), Seat(3)}));
  EXPECT_EQ(ring.wards_per_node_max(), 2u);
}

TEST(ARing, WhereOneRackIsLargeBurdensTheOthers) {
  const std::vector<std::uint32_t> racks = {7, 7, 7, 1, 2};
  const Ring ring(SeatCounts(5, 1), 1, racks);
  EXPECT_EQ(ring.wards_per_node_max(), 2u) << "three seats' copies on two nodes";
  for (std::uint32_t position = 0; position < 3; ++position) EXPECT_GE(ring.holders_at(position)[0], 3u);
}

TEST(ARing, KeepsCopiesInOtherDomainsWhereverThereAreEnough) {
  std::mt19937 random(7);
  std::uint32_t even = 0, uneven = 0, too_few = 0;
  for (int i = 0; i < 20'000 && !HasFatalFailure(); ++i) {
    const auto below = [&random](std::uint32_t n) { return static_cast<std::uint32_t>(random() % n); };
    const std::uint32_t nodes = 1 + below(20), named = 1 + below(8), k = below(4);
    std::vector<std::uint32_t> domains;
    std::map<std::uint32_t, std::uint32_t> sizes;
    for (std::uint32_t node = 0; node < nodes; ++node) ++sizes[domains.emplace_back(below(named))];
    const Ring ring(SeatCounts(nodes, 1), k, domains);
    ASSERT_EQ(ring.domain_count(), sizes.size());
    ASSERT_EQ(ring.replica_count(), std::min(k, nodes - 1));
    std::size_t wards = 0;
    for (std::uint32_t node = 0; node < nodes; ++node) {
      std::set<std::uint32_t> places = {node}, used = {domains[node]};
      for (const std::uint32_t holder : ring.holders_at(node)) {
        ASSERT_TRUE(places.insert(holder).second) << "a node twice, or itself";
        used.insert(domains[holder]);
        const auto held = ring.wards_of(holder);
        ASSERT_EQ(std::ranges::count(held, Seat(node)), 1);
      }
      ASSERT_EQ(used.size(), std::min<std::size_t>(sizes.size(), ring.replica_count() + 1));
      wards += ring.wards_of(node).size();
    }
    ASSERT_EQ(wards, std::size_t{nodes} * ring.replica_count());
    std::uint32_t largest = 0;
    for (const auto& [domain, size] : sizes) largest = std::max(largest, size);
    if ((ring.replica_count() + 1) * largest <= nodes) {
      ++even;
      ASSERT_EQ(ring.wards_per_node_max(), ring.replica_count()) << "no node holds more than it has";
    } else if (sizes.size() > ring.replica_count()) {
      ++uneven;
    } else {
      ++too_few;
    }
  }
  EXPECT_GT(even, 1000u);
  EXPECT_GT(uneven, 1000u);
  EXPECT_GT(too_few, 1000u);
}

}  // namespace
}  // namespace pawl::job
