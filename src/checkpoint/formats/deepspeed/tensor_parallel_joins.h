// TensorParallelJoins: the ways in which tensor-parallel ranks' tensors make a parameter, one function each.
//
// Each takes the shapes of all ranks' tensors, which have been checked (at most eight dimensions, extents below 2^44),
// and proves that they fit. Fails: `invalid`, naming the parameter and the shapes; `full` past a limit. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"

namespace pawl::checkpoint::deepspeed {

using ShardWidths = std::vector<std::vector<std::uint64_t>>;  // [sub-parameter][rank]

inline constexpr std::size_t kPartsMax = 1024;  // of an affine map

// One after another.
[[nodiscard]] Result<MergedParameter> join_along(std::string_view name, std::size_t dimension,
                                                 std::span<const Shape> locals);
// Each rank's first half, one after another, then each one's second.
[[nodiscard]] Result<MergedParameter> join_two_sub_parameters(std::string_view name, std::span<const Shape> locals);
// Each rank has all of it: copies that should be equal, or versions whose mean is meant.
[[nodiscard]] Result<MergedParameter> join_repeated(std::string_view name, std::span<const Shape> locals,
                                                    bool averaged);
// Sub-parameter after sub-parameter, of each rank by these widths.
[[nodiscard]] Result<MergedParameter> join_sub_parameters(std::string_view name, const SubParameters& sub,
                                                          const ShardWidths& widths, std::span<const Shape> locals);
// The widths where they weren't said, which was allowed where they are even.
[[nodiscard]] Result<ShardWidths> even_widths(std::string_view name, const SubParameters& sub,
                                              std::span<const Shape> locals);
[[nodiscard]] Result<MergedParameter> join_affine(std::string_view name, const AffineMap& map,
                                                  std::span<const Shape> locals);

[[nodiscard]] Error unfit(std::string_view name, std::string_view why);  // `invalid`
[[nodiscard]] std::string texts_of(std::span<const Shape> shapes);       // "[4,8], [3,8]", of the first few

}  // namespace pawl::checkpoint::deepspeed
