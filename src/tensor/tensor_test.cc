#include <gtest/gtest.h>

#include <random>

#include "pawl/pawl.h"
#include "tensor/dtype.h"
#include "tensor/mesh.h"
#include "tensor/region.h"

namespace pawl {
namespace {

TEST(DType, HasTheNumbersOfTheCInterface) {
  EXPECT_EQ(dtype_numbered(PAWL_FLOAT32), DType::float32);
  EXPECT_EQ(dtype_numbered(PAWL_FLOAT64), DType::float64);
  EXPECT_EQ(dtype_numbered(PAWL_FLOAT16), DType::float16);
  EXPECT_EQ(dtype_numbered(PAWL_BFLOAT16), DType::bfloat16);
  EXPECT_EQ(dtype_numbered(PAWL_INT8), DType::int8);
  EXPECT_EQ(dtype_numbered(PAWL_INT64), DType::int64);
  EXPECT_EQ(dtype_numbered(PAWL_UINT8), DType::uint8);
  EXPECT_EQ(dtype_numbered(PAWL_UINT64), DType::uint64);
  EXPECT_EQ(dtype_numbered(PAWL_BOOL), DType::boolean);
  EXPECT_EQ(dtype_numbered(13), std::nullopt);
}

TEST(DType, NamesAndSizes) {
  for (std::uint32_t i = 0; i < kDTypeCount; ++i)
    EXPECT_EQ(dtype_named(name_of(static_cast<DType>(i))), static_cast<DType>(i));
  EXPECT_EQ(dtype_named("float31"), std::nullopt);
  EXPECT_EQ(size_bytes(DType::bfloat16), 2u);
  EXPECT_EQ(size_bytes(DType::uint64), 8u);
  EXPECT_EQ(size_bytes(DType::boolean), 1u);
}

TEST(Region, CountsElementsWithoutOverflow) {
  EXPECT_EQ(*element_count({}), 1u);
  EXPECT_EQ(*element_count({3, 4}), 12u);
  EXPECT_EQ(*element_count({3, 0, 4}), 0u);
  EXPECT_FALSE(element_count({std::uint64_t{1} << 32, std::uint64_t{1} << 32}));
  EXPECT_FALSE(element_count({0, std::uint64_t{1} << 40, std::uint64_t{1} << 40}));
  EXPECT_FALSE(element_count(Shape(9, 1)));
}

TEST(Region, LiesInsideOrNot) {
  EXPECT_TRUE(check_inside({{0, 0}, {4, 8}}, {4, 8}));
  EXPECT_TRUE(check_inside({{2, 8}, {2, 0}}, {4, 8}));
  EXPECT_TRUE(check_inside({{}, {}}, {}));
  EXPECT_FALSE(check_inside({{2, 0}, {3, 8}}, {4, 8}));
  EXPECT_FALSE(check_inside({{~std::uint64_t{0}, 0}, {2, 8}}, {4, 8}));
  EXPECT_FALSE(check_inside({{0}, {4, 8}}, {4, 8}));
}

TEST(Region, ShapesAsText) {
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
