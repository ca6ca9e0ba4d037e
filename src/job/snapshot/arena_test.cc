#include "job/snapshot/arena.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <set>

#include "base/crc32c.h"

namespace pawl::job {
namespace {

// Shared memory that ends at an inaccessible page, so that a read beyond it is a crash.
class Segment {
 public:
  explicit Segment(std::uint64_t size) : page_(static_cast<std::uint64_t>(getpagesize())) {
    size_ = (size + page_ - 1) / page_ * page_;
    void* memory = mmap(nullptr, size_ + page_, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(mprotect(base_, size_, PROT_READ | PROT_WRITE), 0);
  }
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() { munmap(base_, size_ + page_); }
  [[nodiscard]] std::span<std::byte> memory() const { return {base_, size_}; }

 private:
  std::uint64_t page_, size_ = 0;
  std::byte* base_ = nullptr;
};

ArenaSpec small_spec() {
  ArenaSpec spec;
  spec.job = "charlm";
  spec.seat = Seat(3);
  spec.payload_bytes = 20'000;
  spec.stable_bytes = 16'384;
  spec.bucket_bytes = 4096;
  spec.layout_digest = 0x1234;
  spec.layout = "pawl layout 1\n";
  spec.shelf_count = 3;
  return spec;
}

void fill(const Slot& slot, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  for (std::byte& byte : slot.payload()) byte = static_cast<std::byte>(random());
  const SlotWord of = slot.word();
  for (std::uint32_t i = 0; i < slot.buckets().size(); ++i)
    slot.bucket_done(i, crc32c(slot.bucket(i)), of.generation, of.step);
}

SlotWord word_of(std::uint64_t generation, std::uint64_t step, SlotState state, bool frozen = false) {
  return SlotWord{Generation(generation), Step(step), state, frozen};
}

class ArenaTest : public testing::Test {
 protected:
  Segment segment_{Arena::size_bytes(small_spec())};
  Arena arena_ = *Arena::format(segment_.memory(), small_spec());
  Slot slot_ = arena_.slot(0);

  [[nodiscard]] std::set<std::uint32_t> acknowledged() const {
    std::set<std::uint32_t> shelves;
    for (std::uint32_t i = 0; i < small_spec().shelf_count; ++i)
      if (slot_.acknowledged(slot_.word(), i)) shelves.insert(i);
    return shelves;
  }
  void seal(std::uint64_t generation, std::uint64_t step) {
    ASSERT_TRUE(slot_.try_open(slot_.word(), Generation(generation), Step(step), 640));
    fill(slot_, step);
    ASSERT_TRUE(slot_.try_seal(Generation(generation), Step(step)));
  }
};

// A slot that has just been opened, by who has not come to say with how many samples.
void open_no_further_than_the_word(const Slot& slot, SlotWord word) {
  auto* header = reinterpret_cast<std::byte*>(slot.buckets().data()) - 4096;
  reinterpret_cast<std::atomic<std::uint64_t>*>(header)->store(word.pack());
}

TEST(SlotWordTest, PacksAndUnpacks) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    const SlotWord word = word_of(random() & kGenerationMax, random() & kStepMax, static_cast<SlotState>(random() % 3),
                                  random() % 2 == 0);
    ASSERT_EQ(SlotWord::unpack(word.pack()), word);
  }
  EXPECT_EQ(SlotWord{}.pack(), 0u);
  EXPECT_EQ(word_of(0, 0, SlotState::empty, true).pack(), kSlotFrozenBit);
}

TEST_F(ArenaTest, TheSamplesOfAStepBeforeAreNotThoseOfTheStepThatIsOpened) {
  seal(3, 12);
  EXPECT_EQ(slot_.samples_of(slot_.word()), 640u);
  const SlotWord opened = word_of(3, 14, SlotState::dirty);
  open_no_further_than_the_word(slot_, opened);
  EXPECT_EQ(slot_.samples_of(opened), std::nullopt);
  ASSERT_TRUE(slot_.try_open(opened, Generation(3), Step(16), 960));
  EXPECT_EQ(slot_.samples_of(slot_.word()), 960u);
  EXPECT_EQ(slot_.samples_of(opened), std::nullopt);
}

TEST_F(ArenaTest, OpensWhatWasFormatted) {
  const Result<Arena> opened = Arena::open(segment_.memory());
  ASSERT_TRUE(opened) << opened.error().what;
  const ArenaSpec& spec = opened->spec();
  EXPECT_EQ(spec.job, "charlm");
  EXPECT_EQ(spec.seat, Seat(3));
  EXPECT_EQ(spec.kind, ArenaKind::own);
  EXPECT_EQ(spec.payload_bytes, 20'000u);
  EXPECT_EQ(spec.stable_bytes, 16'384u);
  EXPECT_EQ(spec.layout_digest, 0x1234u);
  EXPECT_EQ(spec.layout, "pawl layout 1\n");
  EXPECT_EQ(opened->slot_count(), 2u);
  EXPECT_EQ(opened->slot(1).payload().size(), 20'000u);
  EXPECT_EQ(opened->slot(1).buckets().size(), 5u);
  EXPECT_EQ(opened->slot(1).bucket(3).size(), 4096u);
  EXPECT_EQ(opened->slot(1).bucket(4).size(), 20'000u - 4 * 4096u);
  EXPECT_EQ(opened->slot(1).word(), SlotWord{});
}

TEST_F(ArenaTest, SealsAndVerifies) {
  EXPECT_EQ(slot_.verify().error().code, Code::stale);
  seal(2, 7);
  EXPECT_EQ(slot_.word(), word_of(2, 7, SlotState::sealed));
  EXPECT_TRUE(slot_.verify()) << slot_.verify().error().what;
  EXPECT_TRUE(slot_.verify_header());
  EXPECT_EQ(slot_.samples(), 640u);
  EXPECT_EQ(Arena::open(segment_.memory())->slot(0).verify().has_value(), true);
}

TEST_F(ArenaTest, SealsNothingThatMissesABucket) {
  ASSERT_TRUE(slot_.try_open(SlotWord{}, Generation(1), Step(1), 0));
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_FALSE(slot_.try_seal(Generation(1), Step(1))) << i;
    EXPECT_FALSE(slot_.bucket_ready(i, Generation(1), Step(1)));
    slot_.bucket_done(i, crc32c(slot_.bucket(i)), Generation(1), Step(1));
    EXPECT_TRUE(slot_.bucket_ready(i, Generation(1), Step(1)));
  }
  EXPECT_FALSE(slot_.try_seal(Generation(1), Step(2)));
  EXPECT_TRUE(slot_.try_seal(Generation(1), Step(1)));
  // Buckets of the last step count for nothing in the next.
  ASSERT_TRUE(slot_.try_open(slot_.word(), Generation(1), Step(3), 0));
  EXPECT_FALSE(slot_.bucket_ready(0, Generation(1), Step(3)));
  EXPECT_FALSE(slot_.try_seal(Generation(1), Step(3)));
}

TEST_F(ArenaTest, OnlyOneOfSealAndFreezeWins) {
  ASSERT_TRUE(slot_.try_open(SlotWord{}, Generation(1), Step(1), 0));
  fill(slot_, 1);
  EXPECT_EQ(slot_.freeze(), word_of(1, 1, SlotState::dirty, true));
  EXPECT_FALSE(slot_.try_seal(Generation(1), Step(1)));
  EXPECT_FALSE(slot_.try_abandon(Generation(1), Step(1)));
  EXPECT_FALSE(slot_.try_open(slot_.word(), Generation(2), Step(1), 0));
  EXPECT_EQ(slot_.freeze(), word_of(1, 1, SlotState::dirty, true));  // again: the same
  slot_.unfreeze(false);
  EXPECT_EQ(slot_.word(), SlotWord{});
  seal(2, 1);
  EXPECT_EQ(slot_.freeze(), word_of(2, 1, SlotState::sealed, true));
  EXPECT_TRUE(slot_.verify());
  slot_.unfreeze(true);
  EXPECT_EQ(slot_.word(), word_of(2, 1, SlotState::sealed));
  slot_.unfreeze(false);  // not frozen: nothing
  EXPECT_EQ(slot_.word(), word_of(2, 1, SlotState::sealed));
}

TEST_F(ArenaTest, AnOpenerMustHaveSeenTheWord) {
  seal(1, 4);
  EXPECT_FALSE(slot_.try_open(SlotWord{}, Generation(1), Step(6), 0));
  EXPECT_FALSE(slot_.try_open(word_of(1, 3, SlotState::sealed), Generation(1), Step(6), 0));
  EXPECT_TRUE(slot_.verify());
  EXPECT_TRUE(slot_.try_open(word_of(1, 4, SlotState::sealed), Generation(1), Step(6), 0));
  EXPECT_TRUE(slot_.try_abandon(Generation(1), Step(6)));
  EXPECT_EQ(slot_.word(), SlotWord{});
}

TEST_F(ArenaTest, TheDaemonFillsAFrozenSlot) {
  slot_.freeze();
  EXPECT_EQ(slot_.seal_frozen(Generation(3), Step(9)).error().code, Code::stale);
  ASSERT_TRUE(slot_.open_frozen(Generation(3), Step(9), 77));
  EXPECT_EQ(slot_.seal_frozen(Generation(3), Step(9)).error().code, Code::invalid);
  fill(slot_, 9);
  EXPECT_FALSE(slot_.try_seal(Generation(3), Step(9)));  // a trainer cannot
  ASSERT_TRUE(slot_.seal_frozen(Generation(3), Step(9)));
  EXPECT_EQ(slot_.word(), word_of(3, 9, SlotState::sealed, true));
  EXPECT_TRUE(slot_.verify());
  slot_.unfreeze(true);
  EXPECT_EQ(slot_.word(), word_of(3, 9, SlotState::sealed));
  EXPECT_TRUE(slot_.verify());
  EXPECT_EQ(slot_.samples(), 77u);
}

TEST_F(ArenaTest, ALiveSlotIsNeverOpenedOrEmptiedAsAFrozenOne) {
  seal(1, 4);
  EXPECT_FALSE(slot_.open_frozen(Generation(1), Step(4), 0));
  EXPECT_FALSE(slot_.empty_frozen());
  EXPECT_TRUE(slot_.verify());
  ASSERT_TRUE(slot_.try_open(slot_.word(), Generation(1), Step(6), 0));
  EXPECT_FALSE(slot_.open_frozen(Generation(1), Step(4), 0));
  EXPECT_EQ(slot_.word(), word_of(1, 6, SlotState::dirty));
}

TEST_F(ArenaTest, WhatProvedWrongIsTakenAwayWhileFrozen) {
  seal(1, 4);
  slot_.freeze();
  EXPECT_TRUE(slot_.empty_frozen());
  EXPECT_EQ(slot_.word(), word_of(0, 0, SlotState::empty, true));
  EXPECT_FALSE(slot_.try_open(slot_.word(), Generation(2), Step(5), 0));
  slot_.unfreeze(false);
  seal(2, 5);
}

// Who fills the slot with step R in a recovery is overtaken: the slot is let go and opened for R+1 by its trainer.
TEST_F(ArenaTest, BytesOfOneStepAreNeverSealedAsAnothers) {
  slot_.freeze();
  ASSERT_TRUE(slot_.open_frozen(Generation(1), Step(41), 0));
  for (std::uint32_t i = 0; i < 3; ++i) slot_.bucket_done(i, crc32c(slot_.bucket(i)), Generation(1), Step(41));
  slot_.unfreeze(false);
  ASSERT_TRUE(slot_.try_open(slot_.word(), Generation(2), Step(42), 0));
  for (std::uint32_t i = 0; i < 4; ++i) slot_.bucket_done(i, crc32c(slot_.bucket(i)), Generation(2), Step(42));
  slot_.bucket_done(4, crc32c(slot_.bucket(4)), Generation(1), Step(41));  // it still fills
  EXPECT_FALSE(slot_.bucket_ready(4, Generation(2), Step(42)));
  EXPECT_FALSE(slot_.try_seal(Generation(2), Step(42)));
  slot_.bucket_done(4, crc32c(slot_.bucket(4)), Generation(2), Step(42));
  slot_.bucket_done(1, 0, Generation(1), Step(41));  // and spoils what was ready: nothing is sealed
  EXPECT_FALSE(slot_.try_seal(Generation(2), Step(42)));
}

TEST_F(ArenaTest, ASlotFilledInARecoveryTakesNoOthersBuckets) {
  slot_.freeze();
  ASSERT_TRUE(slot_.open_frozen(Generation(1), Step(41), 0));
  fill(slot_, 1);
  slot_.bucket_done(2, crc32c(slot_.bucket(2)), Generation(1), Step(42));  // a copy thread of before
  EXPECT_EQ(slot_.seal_frozen(Generation(1), Step(41)).error().code, Code::invalid);
}

TEST_F(ArenaTest, ASealedStepMayBeGivenUpUntilItIsFrozen) {
  seal(1, 1);
  EXPECT_FALSE(slot_.try_give_up(Generation(1), Step(2)));
  EXPECT_FALSE(slot_.try_give_up(Generation(2), Step(1)));
  ASSERT_TRUE(slot_.try_give_up(Generation(1), Step(1)));
  EXPECT_EQ(slot_.word(), SlotWord{});
  EXPECT_FALSE(slot_.try_give_up(Generation(1), Step(1)));
  ASSERT_TRUE(slot_.try_open({}, Generation(1), Step(3), 0));
  EXPECT_FALSE(slot_.try_give_up(Generation(1), Step(3))) << "it is not sealed";
  seal(1, 5);
  slot_.freeze();
  EXPECT_FALSE(slot_.try_give_up(Generation(1), Step(5)));
  EXPECT_EQ(slot_.word().state, SlotState::sealed);
}

TEST_F(ArenaTest, WhatIsTornIsKnownOfThatStepAlone) {
  seal(1, 1);
  const SlotWord before = slot_.word();
  EXPECT_FALSE(slot_.torn(before));
  slot_.mark_torn(Generation(1), Step(1));
  EXPECT_TRUE(slot_.torn(before));
  EXPECT_TRUE(slot_.verify()) << "its bytes are whole";
  slot_.freeze();
  EXPECT_TRUE(slot_.torn(slot_.word()));
  slot_.unfreeze(true);
  seal(1, 3);
  EXPECT_FALSE(slot_.torn(slot_.word()));
  slot_.mark_torn(Generation(1), Step(1));  // late
  EXPECT_FALSE(slot_.torn(slot_.word()));
}

TEST_F(ArenaTest, AcknowledgementsBelongToTheirStep) {
  EXPECT_FALSE(slot_.acknowledge(Generation(1), Step(1), 0));
  seal(1, 1);
  EXPECT_EQ(acknowledged(), std::set<std::uint32_t>{});
  EXPECT_TRUE(slot_.acknowledge(Generation(1), Step(1), 2));
  EXPECT_TRUE(slot_.acknowledge(Generation(1), Step(1), 0));
  EXPECT_TRUE(slot_.acknowledge(Generation(1), Step(1), 0));
  EXPECT_FALSE(slot_.acknowledge(Generation(1), Step(1), 3)) << "there are three shelves";
  EXPECT_EQ(acknowledged(), (std::set<std::uint32_t>{0, 2}));
  EXPECT_FALSE(slot_.acknowledged_by_all(slot_.word()));
  slot_.freeze();
  EXPECT_EQ(acknowledged(), (std::set<std::uint32_t>{0, 2}));
  EXPECT_TRUE(slot_.acknowledge(Generation(1), Step(1), 1));
  EXPECT_TRUE(slot_.acknowledged_by_all(slot_.word()));
  slot_.unfreeze(true);
  const SlotWord before = slot_.word();
  EXPECT_TRUE(slot_.acknowledged_by_all(before));
  EXPECT_FALSE(slot_.acknowledged_by_all(SlotWord{}));
  seal(1, 3);
  EXPECT_EQ(acknowledged(), std::set<std::uint32_t>{});
  EXPECT_FALSE(slot_.acknowledged(before, 0));
  EXPECT_FALSE(slot_.acknowledge(Generation(1), Step(1), 0));  // too late
  EXPECT_FALSE(slot_.acknowledge(Generation(2), Step(3), 0));
  EXPECT_EQ(acknowledged(), std::set<std::uint32_t>{});
}

// The head of a slot grows by whole pages; nothing else moves into it.
TEST(Arena, HasRoomForAnyNumberOfShelves) {
  for (const std::uint32_t count : {0u, 1u, 17u, 472u, 473u, 5000u}) {
    SCOPED_TRACE(count);
    ArenaSpec spec = small_spec();
    spec.shelf_count = count;
    Segment segment(Arena::size_bytes(spec));
    ASSERT_TRUE(Arena::format(segment.memory(), spec));
    const Arena arena = *Arena::open(segment.memory());
    EXPECT_EQ(arena.spec().shelf_count, count);
    EXPECT_EQ(Arena::size_bytes(spec), segment.memory().size());
    const Slot slot = arena.slot(1);
    ASSERT_TRUE(slot.try_open(SlotWord{}, Generation(1), Step(1), 0));
    fill(slot, 1);
    ASSERT_TRUE(slot.try_seal(Generation(1), Step(1)));
    for (std::uint32_t i = 0; i < count; ++i) {
      EXPECT_FALSE(slot.acknowledged_by_all(slot.word()));
      EXPECT_TRUE(slot.acknowledge(Generation(1), Step(1), i));
    }
    EXPECT_TRUE(slot.acknowledged_by_all(slot.word()));
    EXPECT_FALSE(slot.acknowledged(slot.word(), count));
    EXPECT_TRUE(slot.verify());
    EXPECT_EQ(arena.slot(0).word(), SlotWord{});
  }
}

// docs/format.md: what nothing uses yet. Whoever finds something there reads what another version of pawl wrote.
TEST_F(ArenaTest, AFieldThatNothingUsesYetIsRefusedByName) {
  seal(1, 5);
  auto* const head = reinterpret_cast<std::byte*>(slot_.buckets().data()) - 4096;
  const auto refusal = [&](std::size_t offset, std::size_t size, bool of_extent, bool of_seal) {
    const std::vector<std::byte> sound(head, head + 4096 + 16);
    head[offset + size - 1] = std::byte{1};
    if (of_extent) {
      const std::uint32_t extents = crc32c({head + 256, 64});
      std::memcpy(head + 72, &extents, 4);
    }
    if (of_extent || of_seal) {
      const std::uint32_t sum = crc32c({head + 80, 64}, crc32c({head + 8, 68}));
      std::memcpy(head + 76, &sum, 4);
    }
    const Status status = slot_.verify_header();
    std::memcpy(head, sound.data(), sound.size());
    EXPECT_TRUE(slot_.verify_header());
    return status ? "" : status.error().what;
  };
  EXPECT_EQ(refusal(48, 1, false, true), "step 5: header: plan_digest is 1, not 0");
  EXPECT_EQ(refusal(64, 2, false, true), "step 5: header: extent_count is 257, not 1");
  EXPECT_EQ(refusal(160 + 8 * 11, 1, false, false), "step 5: header: reserved is 1, not 0");
  EXPECT_EQ(refusal(4096 + 12, 1, false, false), "step 5: bucket table: reserved is 1, not 0");
  EXPECT_EQ(refusal(256, 2, true, false), "step 5: extent 0 is of generation 257 step 5, the slot's word of 1 step 5");
  EXPECT_EQ(refusal(256 + 16, 1, true, false), "step 5: extent 0 is 20000 bytes at 1, not the payload's 20000");
  EXPECT_EQ(refusal(256 + 32, 1, true, false), "step 5: extent 0: stream is 1, not 0");
  EXPECT_EQ(refusal(256 + 40, 1, true, false), "step 5: extent 0: stream_offset is 1, not 0");
  EXPECT_EQ(refusal(256 + 48, 1, true, false), "step 5: extent 0: unit is 1, not 0");
  EXPECT_EQ(refusal(256 + 56, 1, true, false), "step 5: extent 0: buffer is 1, not 0");
  EXPECT_EQ(refusal(256 + 56, 1, false, false), "step 5: table of extents: checksum differs");
}

TEST_F(ArenaTest, APinCountsForItsStepAlone) {
  seal(1, 5);
  const SlotWord sealed = slot_.word();
  EXPECT_FALSE(slot_.pinned(sealed));
  EXPECT_EQ(slot_.word_for_gate(), sealed);
  slot_.pin(Generation(1), Step(5));
  EXPECT_TRUE(slot_.pinned(sealed));
  EXPECT_TRUE(slot_.word_for_gate().frozen) << "nobody overwrites it";
  EXPECT_EQ(slot_.word(), sealed) << "the word is as it was: it is read, sent and restored as ever";
  EXPECT_TRUE(slot_.verify());
  ASSERT_TRUE(slot_.try_open(sealed, Generation(1), Step(6), 0));  // whoever does not ask the gate
  EXPECT_FALSE(slot_.pinned(slot_.word()));
  EXPECT_FALSE(slot_.word_for_gate().frozen);
  slot_.pin(Generation(1), Step(6));
  EXPECT_FALSE(slot_.word_for_gate().frozen) << "a step that is not sealed can't be pinned";
  slot_.unpin();
  EXPECT_FALSE(slot_.pinned(SlotWord{Generation(1), Step(6), SlotState::sealed, false}));
}

TEST_F(ArenaTest, AHeaderOfAnotherVersionOrWithFieldsOfALaterOneIsRefusedByName) {
  std::byte* const begin = segment_.memory().data();
  const auto refusal = [&](std::size_t offset, std::byte value) {
    const std::vector<std::byte> sound(begin, begin + 4096);
    begin[offset] = value;
    const std::uint32_t sum = crc32c({begin, 192});
    std::memcpy(begin + 192, &sum, 4);
    const Result<Arena> opened = Arena::open(segment_.memory());
    std::memcpy(begin, sound.data(), sound.size());
    EXPECT_TRUE(Arena::open(segment_.memory()));
    return opened ? "" : opened.error().what;
  };
  EXPECT_EQ(refusal(8, std::byte{1}), "arena: format 1, written by another version of pawl; this one reads format 2");
  EXPECT_EQ(refusal(8, std::byte{3}), "arena: format 3, written by another version of pawl; this one reads format 2");
  EXPECT_EQ(refusal(160, std::byte{2}), "arena: extent_count is 2, not 1");
  EXPECT_EQ(refusal(164, std::byte{1}), "arena: buffer_count is 1, not 0");
  EXPECT_EQ(refusal(168, std::byte{1}), "arena: buffer_bytes is 1, not 0");
  EXPECT_EQ(refusal(176, std::byte{1}), "arena: pool_offset is 1, not 0");
  EXPECT_EQ(refusal(184, std::byte{1}), "arena: plan_digest is 1, not 0");
}

TEST_F(ArenaTest, EveryFlippedBitOfASealedSlotIsSeen) {
  seal(1, 5);
  std::mt19937_64 random(2);
  std::byte* const begin = segment_.memory().data();
  const auto first = static_cast<std::size_t>(slot_.payload().data() - begin);
  const auto table = static_cast<std::size_t>(reinterpret_cast<std::byte*>(slot_.buckets().data()) - begin);
  std::vector<std::size_t> places;
  for (std::size_t i = 8; i < 144; ++i) places.push_back(table - 4096 + i);                 // header
  for (std::size_t i = 160; i < 320; ++i) places.push_back(table - 4096 + i);               // unused, extent
  for (std::size_t i = 0; i < 5; ++i) places.push_back(table + 16 * i + 8 + random() % 4);  // table
  for (int i = 0; i < 200; ++i) places.push_back(first + random() % 20'000);
  for (const std::size_t place : places) {
    const auto flip = static_cast<std::byte>(1u << random() % 8);
    begin[place] ^= flip;
    const Status status = slot_.verify();
    ASSERT_FALSE(status) << "byte " << place;
    ASSERT_EQ(status.error().code, Code::corrupt);
    begin[place] ^= flip;
    ASSERT_TRUE(slot_.verify());
  }
  // The word itself: another step or generation is not what the header says.
  auto* word = reinterpret_cast<std::atomic<std::uint64_t>*>(begin + table - 4096);
  for (int bit = 3; bit < 64; ++bit) {
    *word ^= std::uint64_t{1} << bit;
    ASSERT_EQ(slot_.verify().error().code, Code::corrupt) << bit;
    *word ^= std::uint64_t{1} << bit;
  }
}

TEST(Arena, RefusesASpecOutOfRange) {
  Segment segment(1 << 20);
  const auto refused = [&](auto change) {
    ArenaSpec spec = small_spec();
    change(spec);
    const Result<Arena> arena = Arena::format(segment.memory(), spec);
    return !arena && arena.error().code == Code::invalid && Arena::size_bytes(spec) == 0;
  };
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.job = std::string(64, 'x'); }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.job = std::string("a\0b", 3); }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.slot_count = 1; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.slot_count = 5; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.payload_bytes = 0; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.payload_bytes = ~std::uint64_t{0}; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.stable_bytes = s.payload_bytes + 1; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.bucket_bytes = 0; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.bucket_bytes = 5000; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.bucket_bytes = 32 << 20; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.kind = static_cast<ArenaKind>(9); }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.shelf_count = 65'537; }));
  EXPECT_TRUE(refused([](ArenaSpec& s) { s.kind = ArenaKind::replica; }));  // and feeds shelves
  ArenaSpec spec = small_spec();
  spec.payload_bytes = 1 << 20;
  EXPECT_EQ(Arena::format(segment.memory(), spec).error().code, Code::invalid);  // too large for the memory
}

TEST(Arena, HostileMemoryIsCorrupt) {
  const ArenaSpec spec = small_spec();
  Segment segment(Arena::size_bytes(spec));
  EXPECT_EQ(Arena::open(segment.memory()).error().code, Code::corrupt);  // zeros
  EXPECT_EQ(Arena::open(segment.memory().first(100)).error().code, Code::corrupt);
  EXPECT_EQ(Arena::open({}).error().code, Code::corrupt);
  ASSERT_TRUE(Arena::format(segment.memory(), spec));
  ASSERT_TRUE(Arena::open(segment.memory()));
  EXPECT_EQ(Arena::open(segment.memory().first(segment.memory().size() - 4096)).error().code, Code::corrupt);

  // Each byte of the header and of the layout, wrong: refused. With the CRC made right again: refused, or within
  // memory.
  std::byte* const begin = segment.memory().data();
  const std::vector<std::byte> sound(begin, begin + 8192);
  std::mt19937_64 random(3);
  for (std::size_t place = 0; place < 196; ++place) {
    begin[place] ^= static_cast<std::byte>(1 + random() % 255);
    ASSERT_EQ(Arena::open(segment.memory()).error().code, Code::corrupt) << place;
    std::memcpy(begin, sound.data(), sound.size());
  }
  begin[4096] ^= std::byte{1};
  EXPECT_EQ(Arena::open(segment.memory()).error().code, Code::corrupt);
  std::memcpy(begin, sound.data(), sound.size());
  int opened = 0;
  for (int round = 0; round < 200'000; ++round) {
    const std::size_t place = 12 + random() % 84 / 4 * 4;
    const std::uint64_t extremes[] = {
        0, 1, 2, 4, 4095, 4096, 8192, 0xFFFFFFFF, ~std::uint64_t{0}, random(), random() % 70'000};
    const std::uint64_t value = extremes[random() % std::size(extremes)];
    std::memcpy(begin + place, &value, random() % 2 == 0 ? 4 : 8);
    const std::uint32_t crc = crc32c({begin, 192});
    std::memcpy(begin + 192, &crc, sizeof crc);
    if (const Result<Arena> arena = Arena::open(segment.memory())) {
      ++opened;
      for (std::uint32_t i = 0; i < arena->slot_count(); ++i) {
        const std::span<std::byte> payload = arena->slot(i).payload();
        ASSERT_GE(payload.data(), begin);
        ASSERT_LE(payload.data() + payload.size(), begin + segment.memory().size());
        (void)arena->slot(i).word();
      }
    }
    if (round % 3 == 0) std::memcpy(begin, sound.data(), sound.size());
  }
  EXPECT_GT(opened, 0);
}

}  // namespace
}  // namespace pawl::job
