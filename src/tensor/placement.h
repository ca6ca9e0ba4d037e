// MeshPlacement: how one tensor lies on the ranks of a mesh.
//
// A placement is a list of patterns, one a mesh axis, applied one after another. Each takes what the pattern before it
// left, and gives a part of it to every index along its axis. An axis without a pattern replicates. The order matters
// only if two axes cut the same dimension: in FSDP2 with TP, the data-parallel axis cuts what the tensor-parallel axis
// has cut (torch's _StridedShard), so the order is "tp, then dp".
// What a rank holds of a tensor is its *local array*: along each dimension, some spans of the tensor, joined. Every cut
// is along one dimension, so lists of spans, one a dimension, describe it completely.
// For several tensors that are flattened and joined, see FlatGroup in tensor/enumerate.h. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "tensor/box.h"
#include "tensor/mesh.h"

namespace pawl {

inline constexpr std::size_t kSegmentsMax = 4096;  // of one fused tensor

struct AxisPattern {
  enum class Kind : std::uint8_t {
    only,      // these indices along the axis hold all of it, the others nothing: a pipeline stage, a tied embedding
    averaged,  // every index holds its own version; the value is their mean
    shard,     // cut along one dimension
  };
  enum class Split : std::uint8_t {
    chunk,  // torch's: pieces of ceil(n / parts), the last ones shorter or empty
    even,   // the same, refused unless it divides
    given,  // sizes says it
  };
  using Numbers = std::vector<std::uint64_t>;

  Kind kind = Kind::shard;
  std::uint32_t axis = 0;       // of the mesh
  Numbers holders = {};         // only: indices along the axis, ascending
  std::uint32_t dimension = 0;  // shard
  Split split = Split::chunk;
  Numbers segments =
      {};              // shard: each segment is cut by itself and the parts are joined (Q, K, V; gate, up). Empty: one
  Numbers sizes = {};  // split given: the parts of segment 0, then of segment 1, ...
  bool operator==(const AxisPattern&) const = default;

  [[nodiscard]] static AxisPattern only(std::uint32_t axis, Numbers holders);
  [[nodiscard]] static AxisPattern averaged(std::uint32_t axis);
  [[nodiscard]] static AxisPattern shard(std::uint32_t axis, std::uint32_t dimension, Split split = Split::chunk);
  [[nodiscard]] static AxisPattern shard_sizes(std::uint32_t axis, std::uint32_t dimension, Numbers sizes);
  [[nodiscard]] static AxisPattern shard_segments(std::uint32_t axis, std::uint32_t dimension, Numbers segments,
                                                  Split split = Split::even);
};

struct MeshPlacement {
  std::uint32_t mesh = 0;             // index in the job's meshes
  std::vector<AxisPattern> patterns;  // in the order in which they apply
  bool operator==(const MeshPlacement&) const = default;
};

// Fails: `invalid` unless every rank's part of a tensor of this (padded) shape is defined: axes and dimensions exist,
// no axis has two patterns, segments and sizes add up to what they cut, even cuts divide.
[[nodiscard]] Status check_placement(const MeshPlacement& placement, const Mesh& mesh, const Shape& padded);

struct Span {
  std::uint64_t begin = 0;
  std::uint64_t size = 0;
  bool operator==(const Span&) const = default;
};

struct LocalArray {
  std::vector<std::vector<Span>> spans;  // one list a dimension, joined in order; never an empty or adjacent span
  [[nodiscard]] Shape shape() const;
};

// What the rank at `coordinates` holds of a tensor of shape `padded`; false: nothing, not even an empty part.
// The placement was checked.
[[nodiscard]] bool local_array(const MeshPlacement& placement, const Mesh& mesh, const Shape& padded,
                               const std::vector<std::uint64_t>& coordinates, LocalArray& out);

// One entry of a torch DTensor's placements; they stand in the order of the mesh's axes.
struct DTensorPlacement {
  enum class Kind : std::uint8_t { replicate, shard, strided_shard } kind = Kind::replicate;
  std::uint32_t dimension = 0;
  std::uint64_t split_factor = 1;  // strided_shard: into how many parts later axes have cut the dimension before
};
// Fails: `invalid` if no order of the axes fits the split factors.
[[nodiscard]] Result<std::vector<AxisPattern>> patterns_of(const Mesh& mesh,
                                                           const std::vector<DTensorPlacement>& placements);

}  // namespace pawl
