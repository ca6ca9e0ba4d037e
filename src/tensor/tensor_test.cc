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
  EXPECT_EQ(captured_type_numbered(13), std::nullopt);
}

TEST(ElementTypeTest, NamesAndSizes) {
  for (std::uint32_t i = 0; i < kCapturedTypeCount; ++i)
    EXPECT_EQ(captured_type_named(name_of(static_cast<ElementType>(i))), static_cast<ElementType>(i));
  EXPECT_EQ(captured_type_named("float31"), std::nullopt);
  EXPECT_EQ(captured_type_named("complex64"), std::nullopt);
  EXPECT_FALSE(is_captured(ElementType::complex32));
  EXPECT_EQ(size_bits(ElementType::bfloat16), 16u);
  EXPECT_EQ(size_bits(ElementType::uint64), 64u);
  EXPECT_EQ(size_bits(ElementType::boolean), 8u);
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
