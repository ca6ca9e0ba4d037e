#include "job/persist/seat_share.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

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

// Whatever the axes, and whatever was declared equal along them. A box that several seats have, though none said so, comes from
// each of them, and is one.
TEST(SeatShare, SoTheyDoWhateverTheMesh) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    const RandomJob job(seed, seed % 100 == 0);
    std::map<std::pair<std::string, std::string>, std::vector<Box>> boxes;
    std::map<std::pair<std::string, std::string>, Shape> shapes;
    for (std::uint32_t seat = 0; seat < job.world; ++seat) {
      const TestSeat& one = job.seats[seat];
      for (const StorePiece& piece : share_of(one.layout, Seat(seat), one.payload, one.text, "{}")) {
        if (piece.role.starts_with("seat_")) continue;
        shapes[{piece.name, piece.role}] = piece.shape;
        std::vector<Box>& known = boxes[{piece.name, piece.role}];
        if (volume(piece.box) > 0 && std::ranges::find(known, piece.box) == known.end()) known.push_back(piece.box);
      }
    }
    EXPECT_EQ(shapes.size(), job.seats[0].layout.entries.size() - 1) << seed << ": all but the blob";
    for (const auto& [key, shape] : shapes) {
      const Box whole = whole_box(shape);
      const bool tiles = volume(whole) == 0 || check_tiling(whole, boxes[key]).is_exact();
      EXPECT_TRUE(tiles) << seed << " " << key.first << " " << key.second;
    }
  }
}

// As of 2 x 2 seats that are alike along one axis alone, and of a state that is each seat's own though all have it.
TEST(SeatShare, WhatIsNotSaidToBeEqualOnAllComesWholeFromTheLowestOrFromEach) {
  LayoutBuilder builder(4);
  ASSERT_TRUE(builder.add_mesh({"grid", {{"dp", 2}, {"tp", 2}}}));
  for (const Lifetime lifetime : {Lifetime::stable, Lifetime::volatile_}) {
    LayoutEntry entry;
    entry.name = name_of(lifetime);
    entry.role = "weight";
    entry.shape = {4, 1 << 19};  // worth to be cut
    entry.box = whole_box(entry.shape);
    entry.mesh = 0;
    entry.lifetime = lifetime;
    entry.equal_axes = lifetime == Lifetime::stable ? 1 : 0;
    ASSERT_TRUE(builder.add(entry));
  }
  const SeatLayout layout = *builder.build();
  const std::vector<std::byte> payload(layout.payload_bytes);
  for (std::uint32_t seat = 0; seat < 4; ++seat) {
    std::map<std::string, std::uint64_t> elements;
    for (const StorePiece& piece : share_of(layout, Seat(seat), payload, "", ""))
      if (piece.role == "weight") elements[piece.name] += volume(piece.box);
    EXPECT_EQ(elements["stable"], seat == 0 ? 1u << 21 : 0u) << seat;
    EXPECT_EQ(elements["volatile"], 1u << 21) << seat;
    const SeatBeside beside = beside_of(layout, Seat(seat), payload);
    EXPECT_EQ(beside.sums.size(), seat == 0 ? 0u : 1u) << seat;
    EXPECT_TRUE(beside.own.contains({"volatile", "weight"}));
  }
}

// HSDP with tensor parallelism: each two seats are alike. One tensor is cut unevenly by tp; the other all hold, which those that
// are not alike do not know of each other. Whatever else they write, they cut it in the same places.
TEST(SeatShare, ATensorThatMoreSeatsHoldThanAreAlikeIsCutInTheSamePlaces) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> rows;
  for (std::uint32_t seat = 0; seat < 4; ++seat) {
    LayoutBuilder builder(4);
    ASSERT_TRUE(builder.add_mesh({"grid", {{"replica", 2}, {"tp", 2}}}));
    LayoutEntry cut;
    cut.name = "a cut one";
    cut.role = "weight";
    cut.shape = {6, 1 << 18};  // a row is of 1 MiB
    cut.box = whole_box(cut.shape);
    cut.box.begin[0] = seat % 2 == 0 ? 0 : 5;
    cut.box.size[0] = seat % 2 == 0 ? 5 : 1;
    cut.mesh = 0;
    cut.placement = TensorPlacement::unique;
    cut.equal_axes = 1;
    ASSERT_TRUE(builder.add(cut));
    LayoutEntry whole = cut;
    whole.name = "b whole";
    whole.shape = {4, 1 << 18};
    whole.box = whole_box(whole.shape);
    ASSERT_TRUE(builder.add(whole));
    const SeatLayout layout = *builder.build();
    const std::vector<std::byte> payload(layout.payload_bytes);
    for (const StorePiece& piece : share_of(layout, Seat(seat), payload, "", ""))
      if (piece.name == whole.name) rows.emplace(piece.box.begin[0], piece.box.size[0]);
  }
  EXPECT_EQ(rows, (std::set<std::pair<std::uint64_t, std::uint64_t>>{{0, 2}, {2, 2}}));
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
  EXPECT_EQ(values_in(job.seats[0].layout, job.seats[0].payload), kTestValues);
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
