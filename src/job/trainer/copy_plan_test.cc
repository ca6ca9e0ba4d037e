#include "job/trainer/copy_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "base/crc32c.h"
#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

// The payload byte by byte, as the layout says it.
std::vector<std::byte> naive_payload(const SeatLayout& layout, const std::vector<std::vector<std::byte>>& data) {
  std::vector<std::byte> payload(layout.payload_bytes);
  for (std::size_t i = 0; i < data.size(); ++i) {
    if (layout.entries[i].payload_offset == kNotCaptured || data[i].empty()) continue;
    std::memcpy(payload.data() + layout.entries[i].payload_offset, data[i].data(), data[i].size());
  }
  return payload;
}

TEST(CopyPlan, CopiesWhatTheLayoutSaysAndBack) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<TestEntry> wanted;
    std::vector<std::vector<std::byte>> data;
    const int count = 1 + static_cast<int>(random() % 12);
    for (int i = 0; i < count; ++i) {
      const std::uint64_t bytes = i > 0 && random() % 5 == 0 ? 0 : 1 + random() % (random() % 4 == 0 ? 30000 : 300);
      const auto lifetime = static_cast<Lifetime>(i == 0 ? 0 : random() % 3);
      wanted.push_back({"t" + std::to_string(i), bytes, lifetime, ElementType::uint8});
      data.emplace_back(bytes);
      for (std::byte& byte : data.back()) byte = static_cast<std::byte>(random());
    }
    const SeatLayout layout = test_layout(wanted);
    const CopyPlan plan(layout, 4096);
    ASSERT_EQ(plan.bucket_count(), (layout.payload_bytes + 4095) / 4096);
    if (layout.stable_bytes < layout.payload_bytes) {
      EXPECT_EQ(plan.first_volatile_bucket(), layout.stable_bytes / 4096);
    } else {
      EXPECT_EQ(plan.first_volatile_bucket(), plan.bucket_count());
    }

    std::vector<std::byte*> bases;
    for (auto& bytes : data) bases.push_back(bytes.data());
    const std::vector<std::byte> expected = naive_payload(layout, data);
    std::vector<std::byte> payload(layout.payload_bytes, std::byte{0xaa});
    for (std::uint32_t i = 0; i < plan.bucket_count(); ++i) {
      const std::uint64_t begin = std::uint64_t{i} * 4096;
      const std::size_t size = std::min<std::uint64_t>(4096, layout.payload_bytes - begin);
      EXPECT_EQ(gather(plan.bucket(i), default_copy_kernel(), bases, payload.data() + begin),
                crc32c(std::span(expected).subspan(begin, size)));
    }
    ASSERT_EQ(payload, expected);

    const auto before = data;
    for (std::size_t i = 0; i < data.size(); ++i) {
      if (wanted[i].lifetime != Lifetime::derived) std::fill(data[i].begin(), data[i].end(), std::byte{0});
    }
    for (std::uint32_t i = 0; i < plan.bucket_count(); ++i) {
      const std::uint64_t begin = std::uint64_t{i} * 4096;
      const std::size_t size = std::min<std::uint64_t>(4096, layout.payload_bytes - begin);
      EXPECT_EQ(scatter(plan.bucket(i), default_copy_kernel(), payload.data() + begin, bases),
                crc32c(std::span(expected).subspan(begin, size)));
    }
    ASSERT_EQ(data, before);
  }
}

}  // namespace
}  // namespace pawl::job
