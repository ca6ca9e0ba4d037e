#include "job/persist/seat_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "job/persist/persist_test_job.h"
#include "tensor/tiling.h"

namespace pawl::job {
namespace {

using checkpoint::StorePiece;

// Over all seats each element of each tensor is there once, but for buffers, which each seat has.
TEST(SeatShare, TogetherTheSeatsWriteEveryElementOnce) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    const TestJob job(seed);
    std::map<std::pair<std::string, std::string>, std::vector<Box>> boxes;
    std::map<std::pair<std::string, std::string>, Shape> shapes;
    for (std::uint32_t seat = 0; seat < job.world; ++seat) {
      const TestSeat& one = job.seats[seat];
      for (const StorePiece& piece : share_of(one.layout, Seat(seat), one.payload, one.text, "{}")) {
        if (piece.role.starts_with("seat_")) continue;
        shapes[{piece.name, piece.role}] = piece.shape;
        if (volume(piece.box) > 0 && (piece.role != "buffer" || seat == 0))
          boxes[{piece.name, piece.role}].push_back(piece.box);
        EXPECT_NE(piece.role, "nonpersistent_buffer");
        EXPECT_NE(piece.role, "derived");
      }
    }
    EXPECT_EQ(shapes.size(), job.stored_tensors()) << seed;
    for (const auto& [key, shape] : shapes) {
      const Box whole = whole_box(shape);
      const bool tiles = volume(whole) == 0 || check_tiling(whole, boxes[key]).is_exact();
      EXPECT_TRUE(tiles) << seed << " " << key.first << " " << key.second;
    }
  }
}

TEST(SeatShare, WhatIsEqualIsCutAmongItsHolders) {
  const TestJob job(1, 1 << 21);  // more than the least part for each
  std::map<std::uint32_t, std::uint64_t> bytes;
  for (std::uint32_t seat = 0; seat < job.world; ++seat)
    for (const StorePiece& piece : share_of(job.seats[seat].layout, Seat(seat), job.seats[seat].payload, "", ""))
      if (piece.name == "equal everywhere") bytes[seat] += volume(piece.box) * 4;
  ASSERT_EQ(bytes.size(), job.world);
  for (const auto& [seat, written] : bytes) EXPECT_NEAR(static_cast<double>(written), (1 << 23) / 4.0, 1 << 20) << seat;
}

TEST(SeatShare, EachSeatsOwnIsUnderARoleThatLoadsLeaveAside) {
  const TestJob job(3);
  const TestSeat& one = job.seats[2];
  std::map<std::string, std::uint64_t> sizes;
  for (const StorePiece& piece : share_of(one.layout, Seat(2), one.payload, one.text, R"({"samples":3})"))
    if (piece.name == "seat2") sizes[piece.role] = piece.shape.at(0);
  EXPECT_EQ(sizes,
            (std::map<std::string, std::uint64_t>{{"seat_volatile", one.layout.payload_bytes - one.layout.stable_bytes},
                                                  {"seat_layout", one.text.size()},
                                                  {"seat_info", 13}}));
}

TEST(SeatShare, ValuesAreThoseOfTheBlobOfThatName) {
  const TestJob job(4);
  EXPECT_EQ(values_in(job.seats[0].layout, job.seats[0].payload), TestJob::kValues);
  EXPECT_EQ(values_in(job.seats[1].layout, job.seats[1].payload), "");
}

TEST(SeatShare, WhatItLeavesToAnotherHasASum) {
  const TestJob job(5);
  const SeatBeside lowest = beside_of(job.seats[0].layout, Seat(0), job.seats[0].payload);
  const SeatBeside other = beside_of(job.seats[3].layout, Seat(3), job.seats[3].payload);
  EXPECT_TRUE(lowest.sums.empty());
  ASSERT_EQ(other.sums.size(), 1u);
  EXPECT_EQ(other.sums.begin()->first, (std::pair<std::string, std::string>("not declared equal", "step")));
  EXPECT_TRUE(other.own.contains({"running_mean", "buffer"}));
  EXPECT_EQ(*parse_beside(text_of(other)), other);
  for (const char* bad : {"own\ta", "own\ta\n", "sum\ta\tb\tx\n", "x\ta\tb\n"}) EXPECT_FALSE(parse_beside(bad)) << bad;
}

TEST(SeatInfo, ComesBackAsItWas) {
  const SeatInfo info{1234567890123, 262144};
  EXPECT_EQ(*parse_seat_info(to_json(info)), info);
  for (const char* bad :
       {"", "{}", "[]", R"({"samples":-1,"bucket_bytes":4})", R"({"samples":1,"bucket_bytes":4294967296})"})
    EXPECT_FALSE(parse_seat_info(bad)) << bad;
}

}  // namespace
}  // namespace pawl::job
