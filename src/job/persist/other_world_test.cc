#include "job/persist/other_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "env/temporary_directory.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_test_job.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kSeed = 5;

struct JobOptions {
  std::uint64_t rows = 10;      // of what is cut: the last seats may have less, or nothing
  std::uint64_t capacity = 40;  // of the blob
  bool counts = true;           // there is a volatile tensor `count`
  std::uint64_t width = 3;      // of the buffer
  bool averages = true;         // there is an exp_avg
};

// As a script declares its state in a world of that many seats.
SeatLayout layout_of(std::uint32_t world, std::uint32_t seat, const JobOptions& options = {}) {
  LayoutBuilder builder(world);
  EXPECT_TRUE(builder.add_mesh({"data", {{"dp", world}}}));
  const auto add = [&](std::string name, std::string role, Shape shape, Box box, std::uint64_t equal,
                       Lifetime lifetime = Lifetime::stable) {
    LayoutEntry entry;
    entry.name = std::move(name);
    entry.role = std::move(role);
    entry.placement = box == whole_box(shape) ? TensorPlacement::replicate : TensorPlacement::unique;
    if (lifetime == Lifetime::volatile_) entry.placement = TensorPlacement::unique;
    entry.shape = std::move(shape);
    entry.box = box;
    entry.mesh = 0;
    entry.lifetime = lifetime;
    entry.equal_axes = equal;
    const auto added = builder.add(entry);
    EXPECT_TRUE(added) << added.error().what;
  };
  add("equal everywhere", "weight", {4, 3}, whole_box({4, 3}), 1);
  Box shard = whole_box({options.rows, 2});  // as FSDP cuts: what is left for the last ones
  const std::uint64_t each = (options.rows + world - 1) / world;
  shard.begin[0] = std::min(options.rows, each * seat);
  shard.size[0] = std::min(options.rows, each * (seat + 1)) - shard.begin[0];
  add("cut", "weight", {options.rows, 2}, shard, 0);
  if (options.averages) add("cut", "exp_avg", {options.rows, 2}, shard, 0);
  add("mean", "buffer", {options.width}, whole_box({options.width}), 0, Lifetime::volatile_);
  if (options.counts) add("count", "buffer", {}, whole_box({}), 0, Lifetime::volatile_);
  EXPECT_TRUE(builder.add_blob(text("volatile/rank", seat), options.capacity));
  EXPECT_TRUE(builder.add_blob("same name", 30));
  if (seat == 0) {
    EXPECT_TRUE(builder.add_blob(std::string(kValuesBlob), 100));
  }
  return *builder.build();
}

// What is the seat's own is that of seat `own`.
TestSeat seat_of(SeatLayout layout, std::uint32_t own) {
  TestSeat made;
  made.layout = std::move(layout);
  made.text = text_of(made.layout);
  made.payload.resize(made.layout.payload_bytes);
  for (const LayoutEntry& entry : made.layout.entries) fill(made, entry, own, kSeed);
  return made;
}

class OtherWorld : public testing::Test {
 protected:
  void write(std::uint32_t world, const JobOptions& options = {}) {
    world_ = world;
    const auto open = store->begin({path(), 1, "", ""});
    ASSERT_TRUE(open) << open.error().what;
    for (std::uint32_t seat = 0; seat < world; ++seat) {
      const TestSeat one = seat_of(layout_of(world, seat, options), seat);
      const std::string info = to_json(SeatInfo{640, 4096});
      const auto pieces = share_of(one.layout, Seat(seat), one.payload, one.text, info);
      const std::string beside = text_of(beside_of(one.layout, Seat(seat), one.payload));
      PartProgress progress;
      const Status written =
          store->write((*open)->folder(), {Seat(seat), pieces, beside, values_in(one.layout, one.payload)}, progress);
      ASSERT_TRUE(written) << written.error().what;
    }
    const Status published = (*open)->publish(world);
    ASSERT_TRUE(published) << published.error().what;
  }
  std::string path() const { return directory.path("step-7"); }

  // As StoredImport does it; the slot's memory had something else before.
  Result<TestSeat> read(const SeatLayout& declared, Seat seat) {
    PAWL_ASSIGN(const std::unique_ptr<StoredCheckpoint> stored, store->open(path()));
    PAWL_ASSIGN(const StoredSeat there, stored->seat(seat));
    EXPECT_EQ(there.seat, Seat(seat.value % world_));
    EXPECT_EQ(there.info, (SeatInfo{640, 4096}));
    PAWL_ASSIGN(const SeatLayout other, parse_layout(there.layout));
    TestSeat made;
    PAWL_ASSIGN(made.layout, layout_from_other_world(declared, seat, other));
    made.payload.resize(made.layout.payload_bytes);
    std::ranges::fill(std::span(made.payload).subspan(made.layout.stable_bytes), std::byte{0xAB});
    PartProgress progress;
    PAWL_TRY(stored->read(seat, made.layout, made.payload, progress));
    return made;
  }

  TemporaryDirectory directory;
  std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
  std::uint32_t world_ = 0;
};

TEST_F(OtherWorld, EachSeatGetsItsPartsAndWhatIsAnotherSeatsOwn) {
  for (const auto& [there, here] : {std::pair(4, 2), std::pair(4, 8), std::pair(4, 3), std::pair(1, 4), std::pair(3, 1),
                                    std::pair(2, 13), std::pair(5, 5)}) {
    write(there);
    for (std::uint32_t seat = 0; seat < static_cast<std::uint32_t>(here); ++seat) {
      const SeatLayout declared = layout_of(here, seat);
      const auto got = read(declared, Seat(seat));
      ASSERT_TRUE(got) << there << " to " << here << ", seat " << seat << ": " << got.error().what;
      EXPECT_TRUE(have_same_state(got->layout, declared));
      const TestSeat wanted = seat_of(got->layout, seat % there);
      EXPECT_EQ(got->payload, wanted.payload) << there << " to " << here << ", seat " << seat;
    }
  }
}

TEST_F(OtherWorld, ABlobHasTheLargerRoom) {
  write(2, {.capacity = 300});
  for (const std::uint64_t capacity : {40u, 300u, 4000u}) {
    const auto got = read(layout_of(3, 2, {.capacity = capacity}), Seat(2));
    ASSERT_TRUE(got) << got.error().what;
    const auto blob = std::ranges::find(got->layout.entries, "volatile/rank2", &LayoutEntry::name);
    ASSERT_NE(blob, got->layout.entries.end());
    EXPECT_EQ(blob->bytes, std::max<std::uint64_t>(capacity, 300) + kBlobHeaderBytes);
    EXPECT_EQ(got->payload, seat_of(got->layout, 0).payload);
    const auto again = read(got->layout, Seat(2));  // what the arena has from then on
    ASSERT_TRUE(again) << again.error().what;
    EXPECT_EQ(again->layout, got->layout);
  }
}

TEST_F(OtherWorld, WhatOneOfThemLacksOrHasOtherwiseIsNamed) {
  write(2);
  const auto refused = [this](const SeatLayout& declared) {
    const auto got = read(declared, Seat(1));
    if (got) return std::string("it was not refused");
    EXPECT_EQ(got.error().code, Code::invalid);
    return got.error().what;
  };
  EXPECT_EQ(refused(layout_of(4, 1, {.counts = false})), "count (buffer): is not declared here");
  EXPECT_EQ(
      refused(layout_of(4, 1, {.width = 4})),
      "mean (buffer): float32 [3], box [3] at [0] there, float32 [4], box [4] at [0] here, and each seat's is its own");
  EXPECT_NE(refused(layout_of(4, 1, {.rows = 12})).find("cut (weight) is float32 [10,2] there, float32 [12,2] here"),
            std::string::npos);
  const auto another_optimizer = read(layout_of(4, 0, {.averages = false}), Seat(0));
  ASSERT_FALSE(another_optimizer);
  EXPECT_EQ(another_optimizer.error().what, "cut (exp_avg): is not declared here");
  EXPECT_TRUE(read(layout_of(4, 1, {.averages = false}), Seat(1))) << "a seat may have no part of any";
  SeatLayout renamed = layout_of(4, 1);
  for (LayoutEntry& entry : renamed.entries)
    if (entry.name == "equal everywhere" || entry.name == "same name") entry.name += " now";
  EXPECT_EQ(refused(renamed),
            "same name now (blob): is not in the checkpoint; same name (blob): is not declared here; equal everywhere "
            "(weight): is not declared here");
}

// The values of a checkpoint are written by one seat, and are read by none.
TEST_F(OtherWorld, OnlyTheSeatThatDeclaresThemHasTheValues) {
  write(2);
  const auto got = read(layout_of(4, 2), Seat(2));  // goes on from seat 0
  ASSERT_TRUE(got) << got.error().what;
  EXPECT_TRUE(values_in(got->layout, got->payload).empty());
}

TEST_F(OtherWorld, ANumberIsTheSeatsOnlyAsAWhole) {
  LayoutBuilder there(3), here(13);
  for (const char* name : {"of 2", "rank12", "rank0"}) ASSERT_TRUE(there.add_blob(name, 8));
  for (const char* name : {"of 2", "rank12", "rank0"}) ASSERT_TRUE(here.add_blob(name, 8));
  const SeatLayout stored = *there.build();
  EXPECT_TRUE(layout_from_other_world(*here.build(), Seat(12), stored)) << "names that are alike need no number";
  LayoutBuilder other(13);
  for (const char* name : {"of 0", "rank12", "rank0"}) ASSERT_TRUE(other.add_blob(name, 8));
  EXPECT_FALSE(layout_from_other_world(*other.build(), Seat(2), stored)) << "of 0 is not this seat's";
  LayoutBuilder long_one(13);
  for (const char* name : {"of 2", "rank112", "rank0"}) ASSERT_TRUE(long_one.add_blob(name, 8));
  EXPECT_FALSE(layout_from_other_world(*long_one.build(), Seat(12), stored)) << "112 is another number";
}

TEST_F(OtherWorld, ABlobThatIsLongerThanItCanBeIsCorrupt) {
  const SeatLayout stored = layout_of(2, 0), declared = layout_of(1, 0);
  TestSeat there = seat_of(stored, 0);
  const auto blob = std::ranges::find(stored.entries, "volatile/rank0", &LayoutEntry::name);
  const std::uint64_t size = 41;
  std::memcpy(there.payload.data() + blob->payload_offset, &size, sizeof size);
  const auto layout = layout_from_other_world(declared, Seat(0), stored);
  ASSERT_TRUE(layout);
  std::vector<std::byte> out(layout->payload_bytes - layout->stable_bytes);
  const Status damaged =
      fill_own_state(*layout, Seat(0), out, stored, std::span(there.payload).subspan(stored.stable_bytes));
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::corrupt);
}

TEST_F(OtherWorld, WhatNoJobHasWrittenHasNoSeats) {
  const auto open = store->begin({path(), 1, "", ""});
  const TestSeat one = seat_of(layout_of(1, 0), 0);
  auto pieces = share_of(one.layout, Seat(0), one.payload, one.text, "");
  std::erase_if(pieces, [](const auto& piece) { return piece.role.starts_with("seat_"); });
  PartProgress progress;
  const std::string beside = text_of(beside_of(one.layout, Seat(0), one.payload));
  ASSERT_TRUE(store->write((*open)->folder(), {Seat(0), pieces, beside, ""}, progress));
  ASSERT_TRUE((*open)->publish(1));
  const auto stored = store->open(path());
  ASSERT_TRUE(stored) << stored.error().what;
  EXPECT_EQ((*stored)->seat(Seat(0)).error().code, Code::not_found);
}

}  // namespace
}  // namespace pawl::job
