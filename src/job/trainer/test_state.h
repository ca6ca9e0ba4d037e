// For the tests of what copies a trainer's state: its layout, and an arena and a page of their own, with no process besides.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "env/shared_memory.h"
#include "job/layout/seat_layout.h"
#include "job/snapshot/arena.h"
#include "job/snapshot/trainer_page.h"

namespace pawl::job {

inline constexpr std::uint32_t kTestBucketBytes = 4096;

struct TestEntry {
  std::string name;
  std::uint64_t count = 0;  // of elements
  Lifetime lifetime = Lifetime::stable;
  ElementType dtype = ElementType::uint64;
};

// Of one seat that holds each entry whole.
inline SeatLayout test_layout(const std::vector<TestEntry>& entries) {
  LayoutBuilder builder(1);
  EXPECT_TRUE(builder.add_mesh({"data", {{"dp", 1}}}));
  for (const TestEntry& entry : entries) {
    LayoutEntry declared;
    declared.name = entry.name;
    declared.role = "weight";
    declared.dtype = entry.dtype;
    declared.shape = {entry.count};
    declared.box = whole_box(declared.shape);
    declared.mesh = 0;
    declared.lifetime = entry.lifetime;
    EXPECT_TRUE(builder.add(declared));
  }
  Result<SeatLayout> layout = builder.build();
  EXPECT_TRUE(layout);
  return std::move(*layout);
}

// The memory that pawld makes for a seat of this layout.
struct TestSegments {
  explicit TestSegments(const SeatLayout& layout) {
    ArenaSpec spec;
    spec.job = "test";
    spec.payload_bytes = layout.payload_bytes;
    spec.stable_bytes = layout.stable_bytes;
    spec.bucket_bytes = kTestBucketBytes;
    const std::uint64_t size = Arena::size_bytes(spec);
    arena_memory = *map_segment(create_segment("arena", size)->get(), size);
    arena = *Arena::format(arena_memory.bytes(), spec);
    page_memory = *map_segment(create_segment("page", kTrainerPageBytes)->get(), kTrainerPageBytes);
    page = *initialise_page(page_memory.bytes());
  }

  Mapping arena_memory, page_memory;
  Arena arena;
  TrainerPage* page = nullptr;
};

}  // namespace pawl::job
