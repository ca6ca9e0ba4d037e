// TensorParallelInfo: what `universal_checkpoint_info` says, read and checked, and not yet applied to any parameter.
//
// What always holds: numbers are below 2^62; an affine piece has as many strides as extents; `reasons`,
// `sub_of_pattern` and `affine` go by the numbers of their patterns. Whether it fits the parameters is seen when they
// are joined (tensor_parallel_joins.h). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/formats/deepspeed/name_patterns.h"
#include "tensor/box.h"

namespace pawl::checkpoint::deepspeed {

inline constexpr double kInfoVersionMax = 0.4;

// `shape` of parameter_with_sub_params: sizes of a view of the parameter; at `dimension` the sub-parameters' widths.
struct SubParameters {
  std::vector<std::int64_t> shape;    // -1: what is left
  std::vector<std::uint64_t> widths;  // of the whole; empty: `count` equal ones (written before 0.4)
  std::uint64_t count = 0;
  std::size_t dimension = 0;
};

struct AffinePiece {
  std::vector<std::uint64_t> shape;
  std::uint64_t whole_offset = 0;
  std::vector<std::uint64_t> whole_strides;
  std::uint64_t local_offset = 0;
  std::vector<std::uint64_t> local_strides;
};

struct AffineMap {
  struct Rank {
    Shape shape;
    std::vector<AffinePiece> pieces;
  };
  Shape shape;
  std::map<std::uint64_t, Rank> ranks;
  bool is_scaled = false;
};

struct TensorParallelInfo {
  bool said_nothing = true;
  double version = 0;
  NamePatterns replicated, averaged, two_sub_parameters, row_parallel, vocabulary, pipeline_replicated, unsupported;
  std::vector<std::string> reasons;  // why `unsupported` ones are
  NamePatterns sub_patterns;
  std::vector<std::uint32_t> sub_of_pattern;  // index in `subs`
  std::vector<SubParameters> subs;
  std::unordered_map<std::string, std::vector<std::vector<std::uint64_t>>> shard_widths;  // [sub-parameter][rank]
  NamePatterns affine_patterns;
  std::vector<AffineMap> affine;
  std::optional<std::uint64_t> original_vocabulary;
};

// Fails: `corrupt`, `invalid`, `full`, as TensorParallelRules::read does.
[[nodiscard]] Result<TensorParallelInfo> read_tensor_parallel_info(const Pickle& pickle, Pickle::Value info);

}  // namespace pawl::checkpoint::deepspeed
