// JobLayout: which rank holds which part of which tensor, and where in its buffers. Enumeration lists it as pieces.
//
// Each rank has one buffer for each tensor that it holds by itself (its local array, row-major), and one for each flat
// group of which it holds members. A *piece* is a box of a tensor and the strided place that it has in a buffer. Every
// placement can be written as pieces. Elements of a buffer that no piece covers are padding, and mean nothing.
// What always holds: pieces of one tensor on one rank never overlap; over all ranks, the pieces of one version and copy
// tile the tensor. All counts are elements. Pure; an Enumeration is immutable and thread-safe, and reads its layout as
// long as it lives.
// SeatLayout (job/layout/seat_layout.h) is something else: what one running seat has declared.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/box.h"
#include "tensor/element_type.h"
#include "tensor/mesh.h"
#include "tensor/placement.h"

namespace pawl {

struct JobTensor {
  std::string name;
  std::string role;
  ElementType dtype = ElementType::float32;
  Shape shape;   // the tensor's own
  Shape padded;  // what is placed: the shape, longer where a vocabulary is padded. Empty: the shape
  MeshPlacement placement;
  bool operator==(const JobTensor&) const = default;
  [[nodiscard]] const Shape& placed_shape() const { return padded.empty() ? shape : padded; }
};

// Tensors whose local arrays are flattened, joined and cut in equal intervals over `axes`: ZeRO, Megatron's distributed
// optimizer (a group is one bucket), FSDP1. Ranks that differ on another axis have flat buffers of their own.
struct FlatGroup {
  enum class Form : std::uint8_t {
    joined,       // all members joined, the end padded, cut in equal intervals: ZeRO-1/2, FSDP1, Megatron
    each_member,  // every member padded and cut by itself, the parts joined: ZeRO-3
  };
  struct Member {
    std::uint32_t tensor = 0;  // index in the layout
    std::uint64_t gap = 0;     // elements left free before it, then up to the next multiple of align
    bool operator==(const Member&) const = default;
  };
  std::string name;
  std::uint32_t mesh = 0;
  std::vector<std::uint32_t> axes = {};  // row-major: the last runs fastest. A member has no pattern on these
  Form form = Form::joined;
  std::uint64_t align = 1;  // each member begins at a multiple (joined: of the whole; each_member: of a rank's part)
  std::uint64_t pad = 1;    // joined: the whole is padded to a multiple of this and of the parts' number
  std::vector<Member> members = {};  // in the order in which they are joined
  bool operator==(const FlatGroup&) const = default;
};

struct JobLayout {
  std::uint32_t world = 0;
  std::vector<Mesh> meshes;
  std::vector<JobTensor> tensors;
  std::vector<FlatGroup> groups;
  bool operator==(const JobLayout&) const = default;
};

// "tensor wte (weight)": for errors.
[[nodiscard]] std::string label_of(std::string_view name, std::string_view role);
// Fails: `invalid`, naming the tensor or group.
[[nodiscard]] Status check_layout(const JobLayout& layout);

struct TensorPiece {
  std::uint32_t tensor = 0;
  std::uint32_t holder = 0;   // a rank; of files, whatever numbers the reader gives them
  std::uint32_t buffer = 0;   // see Enumeration::buffers_of; of files, whatever the reader means
  std::uint32_t version = 0;  // of an averaged tensor, in rank order; else 0
  std::uint32_t copy = 0;     // which replica: pieces of one version and copy do not overlap
  Box box;                    // in the tensor's own shape: never padding, never empty
  std::uint64_t offset = 0;   // of the box's first element in the buffer
  PerDimension stride{};      // in the buffer, of one step along each dimension
  bool operator==(const TensorPiece&) const = default;
};

struct Buffer {
  std::uint32_t number = 0;  // a tensor's index, or the number of tensors + a flat group's index
  ElementType dtype = ElementType::float32;
  std::uint64_t size = 0;  // with padding; may be 0
  bool operator==(const Buffer&) const = default;
};

class Enumeration {
 public:
  // The layout was checked, and outlives this.
  explicit Enumeration(const JobLayout& layout);

  [[nodiscard]] const JobLayout& layout() const { return layout_; }
  // Appends what `rank` holds of `tensor`: streams, since nothing is kept.
  void append_pieces(std::uint32_t tensor, std::uint32_t rank, std::vector<TensorPiece>& out) const;
  struct Only {
    const Box* meeting = nullptr;                 // pieces that share an element with this box of the tensor
    const std::vector<bool>* is_alive = nullptr;  // of ranks for which it is true
  };
  // The same pieces for rank after rank, but what ranks share is computed once, and ranks that cannot hold any such
  // piece are mostly not looked at.
  void append_pieces_of_all(std::uint32_t tensor, Only only, std::vector<TensorPiece>& out) const;
  [[nodiscard]] std::vector<Buffer> buffers_of(std::uint32_t rank) const;
  [[nodiscard]] std::uint32_t versions_of(std::uint32_t tensor) const;

 private:
  static constexpr std::uint64_t kNotHeld = ~std::uint64_t{0};
  struct Membership {
    std::uint32_t group = ~0u;  // none
    std::uint32_t member = 0;
  };
  // Where the members begin, for ranks that differ along the group's axes only.
  struct FlatPlan {
    std::vector<std::uint64_t> begin;  // kNotHeld: these ranks do not hold the member
    std::uint64_t part = 0;            // the size of a rank's buffer
    bool held = false;                 // at least one member is
  };
  [[nodiscard]] FlatPlan plan_group(const FlatGroup& group, std::uint32_t rank) const;
  // Of a local array, row-major: the elements [begin, end), and where element 0 lies in the buffer (it may wrap).
  struct Interval {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
    std::uint64_t base = 0;
  };
  [[nodiscard]] Interval interval_of(Membership membership, std::uint32_t rank, std::uint64_t part,
                                     std::uint64_t count) const;
  class OfAll;

  const JobLayout& layout_;
  std::vector<Membership> membership_;               // of each tensor
  std::vector<std::vector<std::uint32_t>> plan_of_;  // [group][rank]: index in flat_plans_
  std::vector<FlatPlan> flat_plans_;
};

}  // namespace pawl
