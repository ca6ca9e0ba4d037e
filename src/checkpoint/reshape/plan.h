// ReshapePlan: the list of copies that turns what one layout holds into what another layout needs.
//
// Pieces that are held are intersected with pieces that are wanted. What always holds of a plan: each element that the
// target holds is written exactly once, from a source that holds it. Elements of a target's buffer that no copy writes
// are padding (whoever runs the plan zeroes them). If several sources hold a box, the one that has given the fewest
// bytes so far is used. If something cannot be covered, planning fails and names the first tensors.
// A block-quantised payload is cut only on the edges of its blocks, and must go where its scales go; otherwise planning
// fails. A packed type is never cut.
// Pure, and streamed: one copy at a time, with one tensor's pieces in memory. Target ranks that want the same box share
// the work. Equal arguments give equal plans. A plan belongs to one thread; several plans may run at once. Moves no
// bytes (checkpoint/reshape/execute.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/enumerate.h"

namespace pawl::checkpoint {

struct SourceTensor {
  std::string name;
  std::string role;
  ElementType dtype = ElementType::float32;
  Shape shape;
  std::uint32_t versions = 1;  // > 1: the value is the mean of so many
  BlockScales scales = {};     // of a payload of the same role
};

// What a source holds: another layout's ranks, or files as their reader found them.
struct ReshapeSource {
  std::vector<SourceTensor> tensors;
  // Appends all pieces of tensors[i]. Pure, and as thread-safe as the source's user needs.
  std::function<void(std::uint32_t tensor, std::vector<TensorPiece>& out)> append_pieces;
  // The same, but need not append pieces that share no element with the box. May stay empty: all are looked at.
  std::function<void(std::uint32_t tensor, const Box& box, std::vector<TensorPiece>& out)> append_meeting = {};
  bool disjoint = false;  // pieces of one version and copy are known not to overlap; else the plan checks
};

// The ranks of `enumeration` (which outlives the source) for which `is_alive` is true; empty: all of them.
[[nodiscard]] ReshapeSource source_of(const Enumeration& enumeration, std::vector<bool> is_alive = {});

struct PlannedEnd {
  std::uint32_t holder = 0;
  std::uint32_t buffer = 0;
  std::uint64_t offset = 0;  // of the box's first element, in elements of this end's dtype
  PerDimension stride{};
  bool operator==(const PlannedEnd&) const = default;
};

struct PlannedCopy {
  std::uint32_t tensor = 0;                 // in the target's layout
  ElementType from = ElementType::float32;  // unequal: cast (checkpoint/reshape/cast.h)
  ElementType to = ElementType::float32;
  Box box;                          // of the tensor
  std::vector<PlannedEnd> sources;  // one; or all versions in rank order: average(), then cast()
  PlannedEnd target;
};
using CopySink = std::function<void(const PlannedCopy&)>;

struct ReshapeOptions {
  bool may_drop_tensors = false;  // the source may have tensors that the target does not name
  bool prefer_own_rank = false;   // holders of the source are the target's ranks: what a rank has need not travel
};

// Of one of a source's tensors: boxes that somebody has room for, wherever that is. For targets without a layout.
struct WantedPieces {
  std::uint32_t source_tensor = 0;  // index in the source
  ElementType dtype = ElementType::float32;
  std::vector<TensorPiece> pieces = {};  // `tensor` is what the copies will say; boxes of the same shape's tensor
};

// The copies that fill all pieces, in the order given; none of a piece is planned twice, whatever others overlap it.
// Fails: `invalid` where a box leaves its tensor, a type can't be cast or averaged, or a packed type would be cut;
// `not_found` and `corrupt` as plan_rank. What the sink has got by then is no plan.
[[nodiscard]] Status plan_pieces(const ReshapeSource& source, std::span<const WantedPieces> wanted,
                                 const CopySink& sink);

class ReshapePlan {
 public:
  // Matches tensors by name and role. Both must outlive the plan. Fails: `invalid`, naming up to five tensors that are
  // unknown on one side, differ in shape (with both), or have dtypes that cannot be cast or averaged.
  [[nodiscard]] static Result<ReshapePlan> create(const ReshapeSource& source, const Enumeration& target,
                                                  ReshapeOptions options = {});

  // The copies that fill the buffers of one rank, or of all, tensor after tensor. Each call balances anew.
  // Fails: `not_found`, naming up to five tensors with a region that nobody holds; `corrupt` if pieces of one copy
  // overlap. What the sink has got by then is no plan.
  [[nodiscard]] Status plan_rank(std::uint32_t rank, const CopySink& sink) const;
  [[nodiscard]] Status plan_all(const CopySink& sink) const;

 private:
  ReshapePlan(const ReshapeSource& source, const Enumeration& target, ReshapeOptions options)
      : source_(&source), target_(&target), options_(options) {}
  [[nodiscard]] Status check_blocks() const;
  [[nodiscard]] Status plan_ranks(std::uint32_t first, std::uint32_t count, const CopySink& sink) const;
  void append_wanted(std::uint32_t tensor, std::uint32_t first, std::uint32_t count,
                     std::vector<TensorPiece>& out) const;

  const ReshapeSource* source_;
  const Enumeration* target_;
  ReshapeOptions options_;
  std::vector<std::uint32_t> source_of_;  // of each target tensor: its index in the source
};

}  // namespace pawl::checkpoint
