#include "base/memory_kernel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/crc32c.h"

namespace pawl {
namespace {

std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// Whole pages with an inaccessible one on either side.
class GuardedPages {
 public:
  explicit GuardedPages(std::size_t size) : page_(static_cast<std::size_t>(getpagesize())), size_(size) {
    void* memory = mmap(nullptr, size + 2 * page_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
    EXPECT_EQ(mprotect(base_ + page_, size, PROT_READ | PROT_WRITE), 0);
  }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;
  ~GuardedPages() { munmap(base_, size_ + 2 * page_); }
  [[nodiscard]] std::byte* begin() const { return base_ + page_; }
  [[nodiscard]] std::byte* end() const { return begin() + size_; }

 private:
  std::byte* base_ = nullptr;
  std::size_t page_;
  std::size_t size_;
};

// A piece and everything around it, by one kernel. Empty: all is right. Both are of one size: what is made, and what it
// should be.
struct Target {
  explicit Target(std::size_t size) : made(size), expected(size) {}
  void clear() { std::memset(made.data(), kUntouched, made.size()); }
  [[nodiscard]] bool is_right() const { return std::memcmp(made.data(), expected.data(), made.size()) == 0; }
  static constexpr int kUntouched = 0xA5;
  std::vector<std::byte> made, expected;
};

std::string fault_of(const MemoryKernel& kernel, std::span<const std::byte> from, Target& to, std::size_t at) {
  const std::uint32_t seed = 0x1234567;
  const std::uint32_t expected = ~crc32c_reference(from, ~seed);
  if (kernel.sum(from.data(), from.size(), seed) != expected) return "sum";
  std::memset(to.expected.data(), Target::kUntouched, to.expected.size());
  if (!from.empty()) std::memcpy(to.expected.data() + at, from.data(), from.size());
  to.clear();
  if (kernel.copy_and_sum(to.made.data() + at, from.data(), from.size(), seed) != expected) return "sum of a copy";
  if (!to.is_right()) return "copy with its sum";
  to.clear();
  kernel.copy_rows({to.made.data() + at, 0, from.data(), 0, from.size(), 1});
  return to.is_right() ? "" : "copy";
}

class EachMemoryKernel : public ::testing::TestWithParam<const MemoryKernel*> {
 protected:
  const MemoryKernel& kernel_ = *GetParam();
};

TEST_P(EachMemoryKernel, EqualsTheReferenceForEveryAlignment) {
  const auto source = random_bytes(8192, 1);
  for (const std::size_t size : {0u, 1u, 7u, 63u, 64u, 65u, 191u, 256u, 1023u, 1024u, 1300u, 2111u}) {
    Target target(size + 256);
    for (std::size_t from = 0; from < 64; ++from) {
      for (std::size_t to = 0; to < 64; ++to)
        ASSERT_EQ(fault_of(kernel_, std::span(source).subspan(from, size), target, 128 + to), "")
            << "size " << size << " from " << from << " to " << to;
    }
  }
}

TEST_P(EachMemoryKernel, EqualsTheReferenceForEveryLength) {
  const auto source = random_bytes(100'000, 2);
  std::mt19937_64 random(3);
  const auto check = [&](Target& target, std::size_t size) {
    ASSERT_EQ(fault_of(kernel_, std::span(source).subspan(random() % 128, size), target, random() % 128), "")
        << "size " << size;
  };
  Target small(4096), target(source.size() + 256);
  for (std::size_t size = 0; size < 3500; ++size) check(small, size);
  // Every length of a lane, in lines; and lanes of a page before it.
  for (std::size_t lines = 1; lines <= 64; ++lines) {
    check(target, lines * 256);
    check(target, lines * 256 + 16384 + random() % 256);
  }
  for (int round = 0; round < 100; ++round) check(target, random() % 99'000);
}

TEST_P(EachMemoryKernel, TouchesNoByteBeyondTheEdges) {
  const std::size_t room = 128 << 10;
  GuardedPages from(room), to(room);
  const auto bytes = random_bytes(room, 4);
  std::memcpy(from.begin(), bytes.data(), room);
  const std::size_t longs[] = {4096, 12288, 12289, 16384, 32767, 32768, 65535, 65536, 65537, 100'001, room};
  std::vector<std::size_t> sizes(longs, std::end(longs));
  for (std::size_t size = 0; size < 2300; ++size) sizes.push_back(size);
  for (const std::size_t size : sizes) {
    const std::span<const std::byte> head(from.begin(), size), tail(from.end() - size, size);
    const std::uint32_t head_sum = ~crc32c_reference(head), tail_sum = ~crc32c_reference(tail);
    ASSERT_EQ(kernel_.sum(head.data(), size, ~0u), head_sum);
    ASSERT_EQ(kernel_.sum(tail.data(), size, ~0u), tail_sum);
    ASSERT_EQ(kernel_.copy_and_sum(to.begin(), tail.data(), size, ~0u), tail_sum);
    ASSERT_EQ(kernel_.copy_and_sum(to.end() - size, head.data(), size, ~0u), head_sum);
    ASSERT_EQ(std::memcmp(to.end() - size, head.data(), size), 0);
    kernel_.copy_rows({to.begin(), 0, tail.data(), 0, size, 1});
    ASSERT_EQ(std::memcmp(to.begin(), tail.data(), size), 0);
    kernel_.copy_rows({to.end() - size, 0, head.data(), 0, size, 1});
    ASSERT_EQ(std::memcmp(to.end() - size, head.data(), size), 0);
  }
}

TEST_P(EachMemoryKernel, CopiesRowsAtAnyDistance) {
  std::mt19937_64 random(5);
  const auto source = random_bytes(1 << 20, 6);
  for (int round = 0; round < 200; ++round) {
    RowCopy copy;
    copy.bytes = random() % (round % 4 == 0 ? 20'000 : 6000);
    copy.rows = random() % 12;
    copy.from_stride = round % 5 == 0 ? 0 : copy.bytes + random() % 300;
    copy.to_stride = copy.bytes + random() % 300;
    copy.from = source.data() + random() % 64;
    std::vector<std::byte> expected(copy.rows * copy.to_stride + 20'200, std::byte{0xA5});
    std::vector<std::byte> made = expected;
    copy.to = made.data() + random() % 128;
    const auto begin = static_cast<std::size_t>(copy.to - made.data());
    for (std::uint64_t row = 0; row < copy.rows; ++row)
      std::memcpy(expected.data() + begin + row * copy.to_stride, copy.from + row * copy.from_stride, copy.bytes);
    kernel_.copy_rows(copy);
    ASSERT_EQ(made, expected) << "bytes " << copy.bytes << " rows " << copy.rows;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachMemoryKernel, ::testing::ValuesIn(memory_kernels().begin(), memory_kernels().end()),
                         [](const auto& each) {
                           std::string name = each.param->name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

TEST(MemoryKernels, AreFoundByName) {
  ASSERT_FALSE(memory_kernels().empty());
  EXPECT_STREQ(memory_kernels().back()->name, "portable");
  for (const MemoryKernel* kernel : memory_kernels()) {
    EXPECT_EQ(find_memory_kernel(kernel->name), kernel);
    EXPECT_NE(std::string(memory_kernel_names()).find(kernel->name), std::string::npos);
  }
  EXPECT_EQ(find_memory_kernel("abacus"), nullptr);
  EXPECT_EQ(find_memory_kernel(memory_kernel().name), &memory_kernel());
}

}  // namespace
}  // namespace pawl
