// What every implementation of SharedMemory must do. For tests: another one instantiates the suite with itself.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "env/shared_memory.h"

namespace pawl {

class SharedMemoryConformance : public ::testing::TestWithParam<SharedMemory*> {
 protected:
  SharedMemory& memory_ = *GetParam();
};

TEST_P(SharedMemoryConformance, ASegmentIsZeroedAndKnowsItsSize) {
  Result<Fd> segment = memory_.create("pawl_test", 3 << 20);
  ASSERT_TRUE(segment) << segment.error().what;
  EXPECT_EQ(*memory_.size_bytes(segment->get()), std::uint64_t{3} << 20);
  Result<Mapping> mapping = memory_.map(segment->get(), 3 << 20, {.populate = true});
  ASSERT_TRUE(mapping);
  EXPECT_TRUE(std::ranges::all_of(mapping->bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_P(SharedMemoryConformance, AllMappingsOfASegmentShowTheSameBytes) {
  Result<Fd> segment = memory_.create("pawl_test", 8192);
  ASSERT_TRUE(segment);
  Result<Mapping> first = memory_.map(segment->get(), 8192, {});
  const Fd handed_on(dup(segment->get()));
  Result<Mapping> second = memory_.map(handed_on.get(), 4096, {.read_only = true});
  ASSERT_TRUE(first && second);
  first->data()[100] = std::byte{42};
  EXPECT_EQ(second->data()[100], std::byte{42});
  EXPECT_EQ(second->size_bytes(), 4096U);
}

TEST_P(SharedMemoryConformance, ASegmentLivesAsLongAsADescriptorOrAMapping) {
  Result<Fd> segment = memory_.create("pawl_test", 4096);
  ASSERT_TRUE(segment);
  memory_.map(segment->get(), 4096, {})->data()[0] = std::byte{7};
  Result<Mapping> again = memory_.map(segment->get(), 4096, {});
  segment->reset();
  ASSERT_TRUE(again);
  EXPECT_EQ(again->data()[0], std::byte{7});
}

TEST_P(SharedMemoryConformance, WhatIsMadeSlowlyIsAsGoodAndEndsWhenItIsToldTo) {
  std::atomic<bool> until = false;
  Result<Fd> segment = memory_.create_slowly("pawl_test", 3 << 20, until, 0);
  ASSERT_TRUE(segment) << segment.error().what;
  EXPECT_EQ(*memory_.size_bytes(segment->get()), std::uint64_t{3} << 20);
  EXPECT_TRUE(memory_.map(segment->get(), 3 << 20, {.populate = true}));
  until = true;
  EXPECT_EQ(memory_.create_slowly("pawl_test", std::uint64_t{64} << 20, until, 0).error().code, Code::cancelled);
}

TEST_P(SharedMemoryConformance, TooLittleMemoryIsAnErrorNow) {
  EXPECT_EQ(memory_.create("pawl_test", std::uint64_t{1} << 60).error().code, Code::full);
}

TEST_P(SharedMemoryConformance, RefusesWhatIsWrong) {
  EXPECT_EQ(memory_.create("pawl_test", 0).error().code, Code::invalid);
  Result<Fd> segment = memory_.create("pawl_test", 4096);
  ASSERT_TRUE(segment);
  EXPECT_EQ(memory_.map(segment->get(), 0, {}).error().code, Code::invalid);
  EXPECT_EQ(memory_.map(segment->get(), 4097, {}).error().code, Code::invalid);
  const Fd no_segment(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(memory_.size_bytes(no_segment.get()).error().code, Code::invalid);
  EXPECT_EQ(memory_.map(no_segment.get(), 4096, {}).error().code, Code::invalid);
}

}  // namespace pawl
