#include "job/redundancy/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <set>

namespace pawl::job {
namespace {

TEST(Ring, NeedsWholeNodesAndEnoughDomains) {
  EXPECT_TRUE(check_ring({4, 1, 1}));
  EXPECT_TRUE(check_ring({4, 2, 1}));
  EXPECT_TRUE(check_ring({1, 1, 0}));
  EXPECT_EQ(check_ring({0, 1, 0}).error().code, Code::invalid);
  EXPECT_EQ(check_ring({4, 0, 0}).error().code, Code::invalid);
  EXPECT_EQ(check_ring({4, 3, 1}).error().code, Code::invalid);
  EXPECT_EQ(check_ring({4, 4, 1}).error().code, Code::full);
  EXPECT_EQ(check_ring({4, 1, 4}).error().code, Code::full);
  EXPECT_EQ(check_ring({4, 1, 0xFFFFFFFF}).error().code, Code::full);
}

TEST(Ring, TheNextPositionsHold) {
  const RingOptions options{8, 2, 2};
  EXPECT_EQ(ring_position(Seat(5), options), 2u);
  EXPECT_EQ(holder_positions(Seat(5), options), (std::vector<std::uint32_t>{3, 0}));
  EXPECT_EQ(wards_of(0, options), (std::vector<Seat>{Seat(6), Seat(7), Seat(4), Seat(5)}));
  EXPECT_TRUE(holder_positions(Seat(5), {8, 2, 0}).empty());
}

// For every small job: k distinct holders, never the owner's domain; wards are the inverse; equal load; and after any k
// losses every seat is left with a copy.
TEST(Ring, KeepsEverySeatThroughAnyKLosses) {
  for (std::uint32_t nodes = 1; nodes <= 7; ++nodes) {
    for (std::uint32_t each = 1; each <= 3; ++each) {
      for (std::uint32_t k = 0; k < nodes && k <= 3; ++k) {
        const RingOptions options{nodes * each, each, k};
        ASSERT_TRUE(check_ring(options));
        std::vector<std::set<std::uint32_t>> places(options.seat_count);
        for (std::uint32_t seat = 0; seat < options.seat_count; ++seat) {
          const auto holders = holder_positions(Seat(seat), options);
          places[seat] = {holders.begin(), holders.end()};
          ASSERT_EQ(places[seat].size(), k);
          ASSERT_FALSE(places[seat].contains(ring_position(Seat(seat), options)));
          places[seat].insert(ring_position(Seat(seat), options));
        }
        for (std::uint32_t position = 0; position < nodes; ++position) {
          const std::vector<Seat> wards = wards_of(position, options);
          ASSERT_EQ(wards.size(), k * each);
          for (std::uint32_t seat = 0; seat < options.seat_count; ++seat) {
            const auto holders = holder_positions(Seat(seat), options);
            ASSERT_EQ(std::ranges::count(wards, Seat(seat)), std::ranges::count(holders, position));
          }
        }
        for (std::uint32_t dead = 0; dead < 1u << nodes; ++dead) {
          if (std::popcount(dead) > static_cast<int>(k)) continue;
          for (const auto& held : places) {
            ASSERT_TRUE(std::ranges::any_of(held, [&](std::uint32_t p) { return (dead >> p & 1) == 0; }));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace pawl::job
