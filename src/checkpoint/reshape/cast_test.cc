#include "checkpoint/reshape/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace pawl::checkpoint {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The nearest of all 65536 values, ties to the even one: a search, not arithmetic on bits.
template <class ToFloat>
class Nearest {
 public:
  // `step`: of the last place of the largest finite value; beyond half of it all is infinity.
  Nearest(ToFloat to_float, std::uint16_t largest) : to_float_(to_float), largest_(largest) {
    step_ = static_cast<double>(to_float(largest)) - static_cast<double>(to_float(largest - 1));
  }
  std::uint16_t operator()(float value) const {
    const double wanted = std::fabs(static_cast<double>(value));
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (wanted >= static_cast<double>(to_float_(largest_)) + step_ / 2) return sign | (largest_ + 1);
    std::uint32_t low = 0;  // the greatest value <= wanted; magnitudes ascend with their bits
    std::uint32_t high = largest_;
    while (low < high) {
      const std::uint32_t middle = (low + high + 1) / 2;
      if (static_cast<double>(to_float_(static_cast<std::uint16_t>(middle))) <= wanted) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low == largest_) return sign | low;
    const double below = wanted - static_cast<double>(to_float_(static_cast<std::uint16_t>(low)));
    const double above = static_cast<double>(to_float_(static_cast<std::uint16_t>(low + 1))) - wanted;
    return static_cast<std::uint16_t>(sign | (below < above || (below == above && low % 2 == 0) ? low : low + 1));
  }

 private:
  ToFloat to_float_;
  std::uint16_t largest_;
  double step_;
};

std::vector<float> interesting() {
  std::vector<float> values{0.0F,
                            -0.0F,
                            1.0F,
                            65504.0F,
                            65519.99F,
                            65520.0F,
                            65536.0F,
                            0x1p-24F,
                            0x1p-25F,
                            0x1p-26F,
                            0x1.8p-25F,
                            0x1p-14F,
                            0x1p-15F,
                            3e38F,
                            1e-45F,
                            std::nextafter(65520.0F, 0.0F),
                            0x1.000001p-25F,
                            0x1.ffcp-15F,
                            0x1.ffep-15F,
                            std::numeric_limits<float>::max()};
  std::mt19937_64 random(7);
  while (values.size() < 400'000) {
    const float value = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (!std::isfinite(value)) continue;
    values.push_back(value);
    // In the range of float16, and halfway between two of them, or two bfloat16.
    const auto half = static_cast<std::uint16_t>(random());
    const float narrow = float32_of_float16(half);
    const float next = float32_of_float16(half + 1);
    if (std::isfinite(narrow) && std::isfinite(next)) values.push_back(narrow + (next - narrow) / 2);
    values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(half & 0x7F7F) << 16 | 0x8000));
  }
  return values;
}

TEST(Cast, RoundsToNearestEven) {
  const Nearest float16(float32_of_float16, 0x7BFF);
  const Nearest bfloat16(float32_of_bfloat16, 0x7F7F);
  for (const float value : interesting()) {
    ASSERT_EQ(float16_of(value), float16(value)) << std::hexfloat << value;
    ASSERT_EQ(bfloat16_of(value), bfloat16(value)) << std::hexfloat << value;
  }
}

TEST(Cast, ByKnownValues) {
  EXPECT_EQ(float32_of_float16(0x3C00), 1.0F);
  EXPECT_EQ(float32_of_float16(0xC000), -2.0F);
  EXPECT_EQ(float32_of_float16(0x7BFF), 65504.0F);
  EXPECT_EQ(float32_of_float16(0x0001), 0x1p-24F);
  EXPECT_EQ(float32_of_float16(0x03FF), 1023 * 0x1p-24F);
  EXPECT_EQ(float32_of_float16(0x0400), 0x1p-14F);
  EXPECT_EQ(float32_of_bfloat16(0x3F80), 1.0F);
  EXPECT_EQ(float16_of(0.1F), 0x2E66);
  EXPECT_EQ(bfloat16_of(0.1F), 0x3DCD);
}

TEST(Cast, EveryNarrowValueComesBack) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float half = float32_of_float16(narrow);
    const float brain = float32_of_bfloat16(narrow);
    if (std::isnan(half)) {
      ASSERT_EQ(float16_of(half), narrow | 0x0200);  // quiet
    } else {
      ASSERT_EQ(float16_of(half), narrow);
    }
    if (std::isnan(brain)) {
      ASSERT_EQ(bfloat16_of(brain), narrow | 0x0040);
    } else {
      ASSERT_EQ(bfloat16_of(brain), narrow);
    }
  }
}

TEST(Cast, KeepsNanWhosePayloadIsCutOff) {
  const float low_payload = std::bit_cast<float>(0x7F80'0001);
  EXPECT_TRUE(std::isnan(float32_of_float16(float16_of(low_payload))));
  EXPECT_TRUE(std::isnan(float32_of_bfloat16(bfloat16_of(low_payload))));
  EXPECT_TRUE(std::isnan(float32_of_bfloat16(bfloat16_of(std::bit_cast<float>(0xFFFF'FFFF)))));
}

TEST(Cast, CountsWhatOverflows) {
  const std::vector<float> from{1.0F, 65520.0F, -1e30F, kInfinity, -kInfinity, std::nanf(""), 65519.0F};
  std::vector<std::uint16_t> to(from.size());
  EXPECT_EQ(cast(ElementType::float32, std::as_bytes(std::span(from)), ElementType::float16,
                 std::as_writable_bytes(std::span(to))),
            2u);
  EXPECT_EQ(to[1], 0x7C00);
  EXPECT_EQ(to[2], 0xFC00);
  EXPECT_EQ(to[3], 0x7C00);
  EXPECT_EQ(to[6], 0x7BFF);
  const std::vector<float> large{std::numeric_limits<float>::max()};
  EXPECT_EQ(cast(ElementType::float32, std::as_bytes(std::span(large)), ElementType::bfloat16,
                 std::as_writable_bytes(std::span(to).first(1))),
            1u);
}

// Every pair of types, all kinds of bits, at odd addresses and lengths: blocks give what single elements give.
TEST(Cast, InBlocksIsTheSameAsOneByOne) {
  const auto load = [](ElementType type, const std::byte* at) {
    std::uint32_t bits = 0;
    std::memcpy(&bits, at, size_bits(type) / 8);
    if (type == ElementType::float32) return std::bit_cast<float>(bits);
    const auto narrow = static_cast<std::uint16_t>(bits);
    return type == ElementType::float16 ? float32_of_float16(narrow) : float32_of_bfloat16(narrow);
  };
  const auto bits_of = [](ElementType type, float value) -> std::uint32_t {
    if (type == ElementType::float32) return std::bit_cast<std::uint32_t>(value);
    return type == ElementType::float16 ? float16_of(value) : bfloat16_of(value);
  };
  constexpr ElementType kTypes[] = {ElementType::float32, ElementType::float16, ElementType::bfloat16};
  std::mt19937_64 random(11);
  for (const ElementType from : kTypes) {
    for (const ElementType to : kTypes) {
      for (const std::size_t count : {1u, 7u, 8u, 100u, 2048u, 2049u, 100'003u}) {
        const std::size_t from_size = size_bits(from) / 8, to_size = size_bits(to) / 8;
        std::vector<std::byte> in(count * from_size + 1), out(count * to_size + 1, std::byte{0x5a});
        for (std::byte& byte : in) byte = static_cast<std::byte>(random());
        std::uint64_t expected_overflows = 0;
        const std::uint64_t overflows = cast(from, std::span(in).subspan(1), to, std::span(out).subspan(1));
        ASSERT_EQ(out[0], std::byte{0x5a});
        for (std::size_t i = 0; i < count; ++i) {
          const float value = load(from, in.data() + 1 + i * from_size);
          std::uint32_t bits = 0;
          std::memcpy(&bits, out.data() + 1 + i * to_size, to_size);
          std::uint32_t same = 0;  // of one type to itself not a bit changes, a NaN's neither
          std::memcpy(&same, in.data() + 1 + i * from_size, from_size);
          ASSERT_EQ(bits, from == to ? same : bits_of(to, value))
              << name_of(from) << " to " << name_of(to) << " " << std::hexfloat << value;
          if (std::isfinite(value) && std::isinf(load(to, out.data() + 1 + i * to_size))) ++expected_overflows;
        }
        ASSERT_EQ(overflows, expected_overflows) << name_of(from) << " to " << name_of(to);
      }
    }
  }
}

TEST(Cast, BetweenTheNarrowOnesGoesThroughFloat32) {
  const std::vector<std::uint16_t> from{bfloat16_of(1e6F), bfloat16_of(3.0F)};
  std::vector<std::uint16_t> to(2);
  EXPECT_EQ(cast(ElementType::bfloat16, std::as_bytes(std::span(from)), ElementType::float16,
                 std::as_writable_bytes(std::span(to))),
            1u);
  EXPECT_EQ(to[1], float16_of(3.0F));
}

TEST(Cast, KnowsWhatItCan) {
  EXPECT_TRUE(can_cast(ElementType::float32, ElementType::bfloat16));
  EXPECT_TRUE(can_cast(ElementType::int64, ElementType::int64));
  EXPECT_FALSE(can_cast(ElementType::float64, ElementType::float32));
  EXPECT_FALSE(can_cast(ElementType::int16, ElementType::float16));
  EXPECT_FALSE(can_average(ElementType::int32));
}

// 1 + 2^-8 twice: a bfloat16 sum loses each, a float32 sum keeps them; the order of versions matters.
TEST(Average, SumsInTheTensorsOwnDtypeInOrder) {
  const auto mean = [](std::vector<float> versions) {
    std::vector<std::uint16_t> narrow;
    std::vector<const std::byte*> at;
    for (const float version : versions) narrow.push_back(bfloat16_of(version));
    for (const std::uint16_t& version : narrow) at.push_back(reinterpret_cast<const std::byte*>(&version));
    std::uint16_t to = 0;
    average(ElementType::bfloat16, at, 1, reinterpret_cast<std::byte*>(&to));
    return float32_of_bfloat16(to) * static_cast<float>(versions.size());
  };
  EXPECT_EQ(mean({1.0F, 0x1p-8F, 0x1p-8F, 0.0F}), 1.0F);
  EXPECT_EQ(mean({0x1p-8F, 0x1p-8F, 1.0F, 0.0F}), 1.0F + 0x1p-7F);

  const std::vector<float> a{1.0F, 2.0F};
  const std::vector<float> b{0x1p-20F, 4.0F};
  const std::vector<const std::byte*> versions{std::as_bytes(std::span(a)).data(), std::as_bytes(std::span(b)).data()};
  std::vector<float> to(2);
  average(ElementType::float32, versions, 2, std::as_writable_bytes(std::span(to)).data());
  EXPECT_EQ(to, (std::vector<float>{(1.0F + 0x1p-20F) / 2, 3.0F}));
}

TEST(Average, InBlocksIsTheSameAsOneByOne) {
  std::mt19937_64 random(12);
  for (const bool half : {false, true}) {
    constexpr std::size_t kCount = 5003;
    std::vector<std::vector<std::uint16_t>> versions(3, std::vector<std::uint16_t>(kCount));
    std::vector<const std::byte*> at;
    for (auto& version : versions) {
      for (std::uint16_t& bits : version) bits = static_cast<std::uint16_t>(random());
      at.push_back(std::as_bytes(std::span(version)).data());
    }
    std::vector<std::uint16_t> to(kCount);
    average(half ? ElementType::float16 : ElementType::bfloat16, at, kCount,
            std::as_writable_bytes(std::span(to)).data());
    const auto widened = [&](std::uint16_t bits) {
      return half ? float32_of_float16(bits) : float32_of_bfloat16(bits);
    };
    const auto narrowed = [&](float value) { return half ? float16_of(value) : bfloat16_of(value); };
    for (std::size_t i = 0; i < kCount; ++i) {
      float sum = 0;
      for (const auto& version : versions) sum = widened(narrowed(sum + widened(version[i])));
      const std::uint16_t expected = narrowed(sum / 3);
      if (std::isnan(widened(expected))) {
        ASSERT_TRUE(std::isnan(widened(to[i])));  // of two of them the CPU may keep either
      } else {
        ASSERT_EQ(to[i], expected);
      }
    }
  }
}

}  // namespace
}  // namespace pawl::checkpoint
