#include "job/erasure/parity_kernel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/memory_kernel.h"
#include "job/erasure/erasure_test_bytes.h"

namespace pawl::job {
namespace {

constexpr std::array kWrites{ParityWrite::assign, ParityWrite::stream, ParityWrite::add};

struct Shape {
  std::size_t sources = 4, rows = 2, size = 0;
  std::vector<std::size_t> source_at, row_at;  // where each begins; cyclic
  bool first_row_is_sum = false;
};

// One product by a kernel and by the plainest way, and all bytes around it. Empty: all is right.
class Trial {
 public:
  // Rows lie alike within their lines, so that they can be streamed.
  explicit Trial(std::size_t size_max) : room_((size_max + 256 + 63) / 64 * 64), bytes_(random_bytes(32 * room_, 11)) {
    coefficients_.resize(256);
    std::mt19937_64 random(12);
    for (std::uint8_t& c : coefficients_) c = static_cast<std::uint8_t>(random());
    before_ = random_bytes(32 * room_, 13);
  }

  std::string fault_of(const ParityKernel& kernel, const Shape& shape, ParityWrite write) {
    std::vector<const std::byte*> sources;
    std::vector<std::byte*> rows;
    made_.assign(before_.begin(), before_.begin() + static_cast<std::ptrdiff_t>(shape.rows * room_));
    std::vector<std::uint8_t> coefficients(
        coefficients_.begin(), coefficients_.begin() + static_cast<std::ptrdiff_t>(shape.rows * shape.sources));
    if (shape.first_row_is_sum) std::fill_n(coefficients.begin(), shape.sources, std::uint8_t{1});
    for (std::size_t i = 0; i < shape.sources; ++i)
      sources.push_back(bytes_.data() + i * room_ + 64 + shape.source_at[i % shape.source_at.size()]);
    ByteVector expected = made_;
    for (std::size_t row = 0; row < shape.rows; ++row) {
      const std::size_t begin = row * room_ + 64 + shape.row_at[row % shape.row_at.size()];
      rows.push_back(made_.data() + begin);
      if (write != ParityWrite::add) std::memset(expected.data() + begin, 0, shape.size);
      for (std::size_t source = 0; source < shape.sources; ++source) {
        const auto& products = products_of(coefficients[row * shape.sources + source]);
        for (std::size_t i = 0; i < shape.size; ++i)
          expected[begin + i] ^= products[static_cast<std::size_t>(sources[source][i])];
      }
    }
    kernel.multiply({sources, rows, coefficients, shape.size, write});
    return made_ == expected ? "" : "differs";
  }

 private:
  const std::array<std::byte, 256>& products_of(std::uint8_t coefficient) {
    std::array<std::byte, 256>& products = products_[coefficient];
    if (!known_[coefficient]) {
      for (unsigned x = 0; x < 256; ++x) products[x] = times(coefficient, static_cast<std::byte>(x));
      known_[coefficient] = true;
    }
    return products;
  }
  std::size_t room_;
  ByteVector bytes_, before_, made_;
  std::vector<std::uint8_t> coefficients_;
  std::array<std::array<std::byte, 256>, 256> products_{};
  std::array<bool, 256> known_{};
};

class EachParityKernel : public ::testing::TestWithParam<const ParityKernel*> {
 protected:
  const ParityKernel& kernel_ = *GetParam();
};

TEST_P(EachParityKernel, EveryCoefficientTimesEveryByte) {
  ByteVector all(256), made(256);
  for (unsigned x = 0; x < 256; ++x) all[x] = static_cast<std::byte>(x);
  for (unsigned c = 0; c < 256; ++c) {
    const std::byte* const source = all.data();
    std::byte* const row = made.data();
    const auto coefficient = static_cast<std::uint8_t>(c);
    kernel_.multiply({{&source, 1}, {&row, 1}, {&coefficient, 1}, 256, ParityWrite::assign});
    for (unsigned x = 0; x < 256; ++x) ASSERT_EQ(made[x], times(coefficient, all[x])) << c << " times " << x;
  }
}

TEST_P(EachParityKernel, EqualsThePlainWayForEveryAlignment) {
  Trial trial(700);
  for (const std::size_t size : {0u, 1u, 63u, 64u, 65u, 200u, 700u}) {
    for (std::size_t at = 0; at < 64; ++at) {
      for (const ParityWrite write : kWrites) {
        ASSERT_EQ(trial.fault_of(kernel_, {3, 2, size, {at}, {at}}, write), "") << size << " all at " << at;
        ASSERT_EQ(trial.fault_of(kernel_, {3, 2, size, {at, 7, 0}, {0}}, write), "") << size << " source at " << at;
        ASSERT_EQ(trial.fault_of(kernel_, {3, 2, size, {0}, {at, 5}}, write), "") << size << " rows at " << at;
      }
    }
  }
}

TEST_P(EachParityKernel, EqualsThePlainWayForEveryLength) {
  Trial trial(3 * 4096 + 64);
  std::vector<std::size_t> sizes(301);
  for (std::size_t size = 0; size <= 300; ++size) sizes[size] = size;
  for (const std::size_t page : {4096u, 8192u, 12288u})
    for (const int near : {-65, -64, -63, -1, 0, 1, 63, 64}) sizes.push_back(page + static_cast<std::size_t>(near));
  for (const std::size_t size : sizes) {
    for (const ParityWrite write : kWrites) {
      ASSERT_EQ(trial.fault_of(kernel_, {4, 2, size, {size % 64}, {0}, true}, write), "") << size;
      ASSERT_EQ(trial.fault_of(kernel_, {2, 3, size, {3, 1}, {size % 64}}, write), "") << size;
    }
  }
}

TEST_P(EachParityKernel, EqualsThePlainWayForEveryCountOfRowsAndSources) {
  Trial trial(5000);
  for (std::size_t sources = 1; sources < 32; ++sources) {
    for (std::size_t rows = 1; rows + sources <= 32; ++rows) {
      if (rows > 9 && rows + sources != 32) continue;
      for (const ParityWrite write : kWrites) {
        // Longer than a page: several groups of rows go page by page.
        const std::size_t size = rows < 6 || sources < 6 || (rows == 9 && sources == 11) ? 4500 : 777;
        ASSERT_EQ(trial.fault_of(kernel_, {sources, rows, size, {0, 9}, {0}, true}, write), "")
            << sources << " sources, " << rows << " rows";
      }
    }
  }
}

TEST_P(EachParityKernel, TouchesNoByteBeyondTheEdges) {
  const auto page = static_cast<std::size_t>(getpagesize());
  constexpr std::size_t kPieces = 5;  // three sources, two rows
  std::array<std::byte*, kPieces> begin{};
  for (std::byte*& piece : begin) {
    void* memory = mmap(nullptr, 4 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    piece = static_cast<std::byte*>(memory) + page;
    ASSERT_EQ(mprotect(piece, 2 * page, PROT_READ | PROT_WRITE), 0);
  }
  const std::vector<std::uint8_t> coefficients{1, 1, 1, 2, 3, 4};
  for (std::size_t size = 0; size <= 2 * page; size += size < 600 ? 1 : 997) {
    for (const bool at_end : {false, true}) {
      std::array<std::byte*, kPieces> at = begin;
      for (std::byte*& piece : at) piece += at_end ? 2 * page - size : 0;
      const std::array<const std::byte*, 3> sources{at[0], at[1], at[2]};
      const std::array<std::byte*, 2> rows{at[3], at[4]};
      for (const ParityWrite write : kWrites) kernel_.multiply({sources, rows, coefficients, size, write});
    }
  }
  for (std::byte* piece : begin) munmap(piece - page, 4 * page);
}

// Against a memory kernel and multiply(), for every count of rows, and sources that lie anywhere.
TEST_P(EachParityKernel, CopiesAndSumsAsAMemoryKernelDoes) {
  if (kernel_.copy_and_multiply == nullptr) return;
  std::mt19937_64 random(31);
  const ByteVector data = random_bytes(40'000, 32);
  for (int round = 0; round < 400; ++round) {
    const std::size_t sources = 1 + random() % 10, rows = 1 + random() % (round % 4 == 0 ? 10 : 4);
    const std::size_t size = 64 * (random() % (round % 3 == 0 ? 5 : 150));
    const ParityWrite write = kWrites[random() % kWrites.size()];
    const std::size_t room = (size + 4096 + 63) / 64 * 64;
    std::vector<std::uint8_t> coefficients(sources * rows);
    for (std::uint8_t& c : coefficients) c = static_cast<std::uint8_t>(random());
    if (round % 2 == 0) std::fill_n(coefficients.begin(), sources, std::uint8_t{1});
    ByteVector memory = random_bytes((sources + rows) * room + 64, 33);
    std::byte* const begin = memory.data() + (-reinterpret_cast<std::uintptr_t>(memory.data()) & 63);
    const std::size_t row_at = write == ParityWrite::stream ? 64 : 64 + random() % 64;
    std::vector<const std::byte*> from;
    std::vector<std::byte*> copies, to;
    std::vector<std::uint32_t> states, expected_states;
    for (std::size_t i = 0; i < sources; ++i) {
      from.push_back(data.data() + random() % 20'000);
      copies.push_back(begin + i * room + 64);
      states.push_back(static_cast<std::uint32_t>(random()));
    }
    for (std::size_t i = 0; i < rows; ++i) to.push_back(begin + (sources + i) * room + row_at);
    const ParityProduct product{from, to, coefficients, size, write};

    const ByteVector before = memory;
    for (std::size_t i = 0; i < sources; ++i)
      expected_states.push_back(memory_kernel().copy_and_sum(copies[i], from[i], size, states[i]));
    kernel_.multiply(product);
    const ByteVector expected = memory;
    std::ranges::copy(before, memory.begin());
    kernel_.copy_and_multiply(product, copies, states);
    ASSERT_EQ(states, expected_states) << "round " << round;
    ASSERT_EQ(memory, expected) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EachParityKernel, ::testing::ValuesIn(parity_kernels().begin(), parity_kernels().end()),
                         [](const auto& each) {
                           std::string name = each.param->name;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(ParityKernels, AreFoundByName) {
  ASSERT_FALSE(parity_kernels().empty());
  EXPECT_STREQ(parity_kernels().back()->name, "portable");
  for (const ParityKernel* kernel : parity_kernels()) EXPECT_EQ(find_parity_kernel(kernel->name), kernel);
  EXPECT_EQ(find_parity_kernel("abacus"), nullptr);
  EXPECT_EQ(find_parity_kernel(parity_kernel().name), &parity_kernel());
}

}  // namespace
}  // namespace pawl::job
