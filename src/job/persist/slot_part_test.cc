#include "job/persist/slot_part.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/crc32c.h"
#include "env/shared_memory.h"
#include "env/temporary_directory.h"
#include "job/persist/persist_test_job.h"

namespace pawl::job {
namespace {

constexpr Generation kGeneration{2};
constexpr Step kStep{7};

// A seat's state, sealed in the first slot of an arena.
struct SealedSeat {
  explicit SealedSeat(const TestSeat& seat) {
    spec.job = "test";
    spec.payload_bytes = seat.payload.size();
    spec.stable_bytes = seat.layout.stable_bytes;
    spec.bucket_bytes = 4096;
    spec.layout = seat.text;
    spec.layout_digest = digest_of(seat.text);
    segment = *create_segment("test", Arena::size_bytes(spec));
    memory = *map_segment(segment.get(), Arena::size_bytes(spec));
    arena = *Arena::format(memory.bytes(), spec);
    const Slot slot = arena.slot(0);
    EXPECT_TRUE(slot.try_open(slot.word(), kGeneration, kStep, 70));
    std::ranges::copy(seat.payload, slot.payload().begin());
    for (std::uint32_t i = 0; i < slot.buckets().size(); ++i)
      slot.bucket_done(i, crc32c(slot.bucket(i)), kGeneration, kStep);
    EXPECT_TRUE(slot.try_seal(kGeneration, kStep));
  }
  ArenaSpec spec;
  Fd segment;
  Mapping memory;
  Arena arena;
};

class SlotPartTest : public testing::Test {
 protected:
  Status write(const SealedSeat& sealed, std::uint32_t seat) {
    PartProgress progress;
    return write_slot_part(*store, open->folder(), Seat(seat), sealed.arena.slot(0), sealed.spec, progress);
  }

  TemporaryDirectory directory;
  TestJob job{11, 3000};
  std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
  std::unique_ptr<OpenCheckpoint> open = *store->begin({directory.path("step-7"), 1, "", ""});
};

TEST_F(SlotPartTest, EverySeatGetsBackWhatItsSlotHad) {
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
    const Status written = write(SealedSeat(job.seats[seat]), seat);
    ASSERT_TRUE(written) << written.error().what;
  }
  ASSERT_TRUE(open->publish(TestJob::world));
  const auto stored = *store->open(directory.path("step-7"));
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
    const TestSeat& one = job.seats[seat];
    const StoredSeat found = *stored->seat(Seat(seat));
    EXPECT_EQ(found.layout, one.text);
    EXPECT_EQ(found.info, (SeatInfo{70, 4096}));
    std::vector<std::byte> payload(one.payload.size());
    PartProgress progress;
    ASSERT_TRUE(stored->read(Seat(seat), one.layout, payload, progress));
    for (const LayoutEntry& entry : one.layout.entries) {
      if (entry.payload_offset == kNotCaptured || entry.mesh == kNoMesh || entry.lifetime != Lifetime::stable) continue;
      const std::uint64_t at = entry.payload_offset;
      EXPECT_EQ(std::memcmp(payload.data() + at, one.payload.data() + at, entry.bytes), 0) << entry.name;
    }
  }
}

TEST_F(SlotPartTest, AByteThatChangedSinceTheSealIsNeverPublished) {
  const SealedSeat sealed(job.seats[0]);
  const std::span<std::byte> payload = sealed.arena.slot(0).payload();
  for (std::size_t at = 0; at < payload.size(); at += payload.size() / 7) {
    open.reset();
    open = *store->begin({directory.path("step-7"), 2 + at, "", ""});
    payload[at] ^= std::byte{4};
    const Status written = write(sealed, 0);
    ASSERT_FALSE(written) << at;
    EXPECT_EQ(written.error().code, Code::corrupt) << written.error().what;
    EXPECT_EQ(open->publish(1).error().code, Code::not_found);  // there is no share of it
    payload[at] ^= std::byte{4};
  }
}

TEST_F(SlotPartTest, OnlyASealedSlotIsWritten) {
  const SealedSeat sealed(job.seats[0]);
  const Slot slot = sealed.arena.slot(0);
  ASSERT_TRUE(slot.try_open(slot.word(), kGeneration, Step(9), 90));
  EXPECT_EQ(write(sealed, 0).error().code, Code::stale);
}

}  // namespace
}  // namespace pawl::job
