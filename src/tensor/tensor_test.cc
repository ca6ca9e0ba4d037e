#include <gtest/gtest.h>

#include <random>

#include "pawl/pawl.h"
#include "tensor/box.h"
#include "tensor/element_type.h"
#include "tensor/mesh.h"

namespace pawl {
namespace {

TEST(ElementTypeTest, HasTheNumbersOfTheCInterface) {
  EXPECT_EQ(captured_type_numbered(PAWL_FLOAT32), ElementType::float32);
  EXPECT_EQ(captured_type_numbered(PAWL_FLOAT64), ElementType::float64);
  EXPECT_EQ(captured_type_numbered(PAWL_FLOAT16), ElementType::float16);
  EXPECT_EQ(captured_type_numbered(PAWL_BFLOAT16), ElementType::bfloat16);
  EXPECT_EQ(captured_type_numbered(PAWL_INT8), ElementType::int8);
  EXPECT_EQ(captured_type_numbered(PAWL_INT64), ElementType::int64);
  EXPECT_EQ(captured_type_numbered(PAWL_UINT8), ElementType::uint8);
  EXPECT_EQ(captured_type_numbered(PAWL_UINT64), ElementType::uint64);
  EXPECT_EQ(captured_type_numbered(PAWL_BOOL), ElementType::boolean);
  EXPECT_EQ(captured_type_numbered(PAWL_COMPLEX32), ElementType::complex32);
  EXPECT_EQ(captured_type_numbered(PAWL_COMPLEX128), ElementType::complex128);
  EXPECT_EQ(captured_type_numbered(16), std::nullopt);
}

TEST(ElementTypeTest, NamesAndSizes) {
  for (std::uint32_t i = 0; i < kCapturedTypeCount; ++i)
    EXPECT_EQ(captured_type_named(name_of(static_cast<ElementType>(i))), static_cast<ElementType>(i));
  EXPECT_EQ(captured_type_named("float31"), std::nullopt);
  EXPECT_EQ(captured_type_named("float8_e4m3fn"), std::nullopt);
  EXPECT_FALSE(is_captured(ElementType::float8_e4m3fn));
  EXPECT_EQ(size_bits(ElementType::bfloat16), 16u);
  EXPECT_EQ(size_bits(ElementType::uint64), 64u);
  EXPECT_EQ(size_bits(ElementType::boolean), 8u);
}

TEST(ElementTypeTest, IsFoundByTheNameOfEachFormat) {
  for (std::uint32_t i = 0; i < kElementTypeCount; ++i) {
    const auto type = static_cast<ElementType>(i);
    EXPECT_EQ(element_type_named(name_of(type)), type) << name_of(type);
  }
  EXPECT_EQ(element_type_named("float31"), std::nullopt);
  EXPECT_EQ(element_type_of_safetensors("BF16"), ElementType::bfloat16);
  EXPECT_EQ(element_type_of_safetensors("F8_E4M3"), ElementType::float8_e4m3fn);
  EXPECT_EQ(element_type_of_safetensors("F8_E4M3FNUZ"), ElementType::float8_e4m3fnuz);
  EXPECT_EQ(element_type_of_safetensors("bfloat16"), std::nullopt) << "that is torch's";
  EXPECT_EQ(element_type_of_storage("HalfStorage"), ElementType::float16);
  EXPECT_EQ(element_type_of_storage("LongStorage"), ElementType::int64);
  EXPECT_EQ(element_type_of_storage("ComplexFloatStorage"), ElementType::complex64);
  EXPECT_EQ(element_type_of_storage("UntypedStorage"), std::nullopt);
  // Many types have no such name: none of them may be found by an empty one.
  EXPECT_EQ(element_type_named(""), std::nullopt);
  EXPECT_EQ(element_type_of_safetensors(""), std::nullopt);
  EXPECT_EQ(element_type_of_storage(""), std::nullopt);
}

TEST(ElementTypeTest, SwapsTheHalvesOfComplexNumbersEachByItself) {
  EXPECT_EQ(swapped_bytes(ElementType::float32), 4u);
  EXPECT_EQ(swapped_bytes(ElementType::boolean), 1u);
  EXPECT_EQ(swapped_bytes(ElementType::complex64), 4u);
  EXPECT_EQ(swapped_bytes(ElementType::complex128), 8u);
  EXPECT_EQ(swapped_bytes(ElementType::float6_e2m3), 1u) << "packed: a byte is none of its elements";
}

TEST(ElementTypeTest, CountsBytesOfWholeAndOfPackedElements) {
  constexpr std::uint64_t one = 1;
  EXPECT_EQ(size_bytes(ElementType::float32, 0), 0u);
  EXPECT_EQ(size_bytes(ElementType::float32, 3), 12u);
  EXPECT_EQ(size_bytes(ElementType::complex128, 3), 48u);
  EXPECT_EQ(size_bytes(ElementType::float4_e2m1, 6), 3u);
  EXPECT_EQ(size_bytes(ElementType::float4_e2m1, 7), std::nullopt) << "half a byte is left";
  EXPECT_EQ(size_bytes(ElementType::float6_e3m2, 12), 9u);
  EXPECT_EQ(size_bytes(ElementType::float6_e3m2, 2), std::nullopt);
  // Up to 2^63, also where the bits no longer fit into 64.
  EXPECT_EQ(size_bytes(ElementType::float32, (one << 61) - 1), (one << 63) - 4);
  EXPECT_EQ(size_bytes(ElementType::float32, one << 61), std::nullopt);
  EXPECT_EQ(size_bytes(ElementType::float32, one << 62), std::nullopt) << "2^64 is no 0";
  EXPECT_EQ(size_bytes(ElementType::uint8, ~one), std::nullopt);
  EXPECT_EQ(size_bytes(ElementType::float4_e2m1, one << 62), one << 61);
  EXPECT_EQ(size_bytes(ElementType::float4_e2m1, (one << 62) + 1), std::nullopt);
}

TEST(ShapeTest, CountsElementsWithoutOverflow) {
  EXPECT_EQ(*element_count({}), 1u);
  EXPECT_EQ(*element_count({3, 4}), 12u);
  EXPECT_EQ(*element_count({3, 0, 4}), 0u);
  EXPECT_FALSE(element_count({std::uint64_t{1} << 32, std::uint64_t{1} << 32}));
  EXPECT_FALSE(element_count({0, std::uint64_t{1} << 40, std::uint64_t{1} << 40}));
  EXPECT_FALSE(element_count(Shape(9, 1)));
}

TEST(BoxTest, LiesInsideOrNot) {
  EXPECT_TRUE(box_inside({0, 0}, {4, 8}, {4, 8}));
  EXPECT_TRUE(box_inside({2, 8}, {2, 0}, {4, 8}));
  EXPECT_TRUE(box_inside({}, {}, {}));
  EXPECT_FALSE(box_inside({2, 0}, {3, 8}, {4, 8}));
  EXPECT_FALSE(box_inside({~std::uint64_t{0}, 0}, {2, 8}, {4, 8}));
  EXPECT_FALSE(box_inside({0}, {4, 8}, {4, 8}));
}

// Each element of a box of [6,5,4] is counted: once if it is in the rest, never if it is in the hole.
TEST(BoxTest, WithoutAHoleIsTheRestAndNoneOfItTwice) {
  std::mt19937 random(3);
  const Shape shape{6, 5, 4};
  for (int round = 0; round < 300; ++round) {
    Box from = whole_box(shape), hole = from;
    for (std::uint32_t d = 0; d < 3; ++d) {
      from.begin[d] = random() % 3;
      from.size[d] = 1 + random() % (shape[d] - from.begin[d]);
      const std::uint64_t before = random() % from.size[d];
      hole.begin[d] = from.begin[d] + before;
      hole.size[d] = 1 + random() % (from.size[d] - before);
    }
    std::vector<Box> rest;
    append_difference(from, hole, rest);
    EXPECT_LE(rest.size(), 6u);
    for (std::uint64_t x = 0; x < 6; ++x) {
      for (std::uint64_t y = 0; y < 5; ++y) {
        for (std::uint64_t z = 0; z < 4; ++z) {
          const Box element{3, {x, y, z}, {1, 1, 1}};
          const auto has = [&](const Box& box) { return volume(intersection(box, element)); };
          std::uint64_t times = 0;
          for (const Box& box : rest) times += has(box);
          EXPECT_EQ(times, has(from) - has(hole))
              << text_of(element) << " of " << text_of(from) << " less " << text_of(hole);
        }
      }
    }
  }
  std::vector<Box> rest;
  append_difference(whole_box(shape), whole_box(shape), rest);
  EXPECT_TRUE(rest.empty());
  append_difference(whole_box({}), whole_box({}), rest);
  EXPECT_TRUE(rest.empty()) << "a scalar";
}

TEST(ShapeTest, AsText) {
  for (const Shape& shape : {Shape{}, Shape{0}, Shape{1, 2, 3}, Shape(8, ~std::uint64_t{0})}) {
    EXPECT_EQ(*parse_shape(text_of(shape)), shape);
  }
  for (const char* wrong : {"", "[", "]", "4", "[4", "[4,]", "[,4]", "[,]", "[04]", "[-1]", "[ 4]",
                            "[1,1,1,1,1,1,1,1,1]", "[18446744073709551616]", "[[4]]"}) {
    EXPECT_FALSE(parse_shape(wrong)) << wrong;
  }
}

TEST(MeshTest, CoordinatesAndBack) {
  const Mesh mesh{"dense", {{"pp", 2}, {"dp", 3}, {"tp", 4}}};
  ASSERT_TRUE(check_mesh(mesh, 24));
  EXPECT_EQ(coordinates_of(mesh, 0), (std::vector<std::uint64_t>{0, 0, 0}));
  EXPECT_EQ(coordinates_of(mesh, 5), (std::vector<std::uint64_t>{0, 1, 1}));
  for (std::uint32_t rank = 0; rank < 24; ++rank) EXPECT_EQ(rank_at(mesh, coordinates_of(mesh, rank)), rank);
}

TEST(MeshTest, MustCoverTheWorld) {
  EXPECT_FALSE(check_mesh({"m", {{"dp", 3}}}, 4));
  EXPECT_FALSE(check_mesh({"m", {{"dp", 0}}}, 0));
  EXPECT_FALSE(check_mesh({"m", {}}, 1));
  EXPECT_FALSE(check_mesh({"", {{"dp", 4}}}, 4));
  EXPECT_FALSE(check_mesh({"m", {{"d\tp", 4}}}, 4));
  EXPECT_FALSE(check_mesh({"m", {{"dp", 2}, {"dp", 2}}}, 4));
  EXPECT_FALSE(check_mesh({"m", {{"a", std::uint64_t{1} << 63}, {"b", 2}}}, 0x80000000));
  EXPECT_FALSE(check_mesh({"m", {{"a", std::uint64_t{1} << 33}, {"b", std::uint64_t{1} << 31}}}, 0));
}

}  // namespace
}  // namespace pawl
