// TensorParallel: how the tensor-parallel ranks' parts of a parameter are joined.
//
// The job describes it in its client state, `universal_checkpoint_info`: lists of patterns for names (replicated,
// averaged, sub-parameters, cut along dimension 1, vocabulary), and, in newer versions, an affine map with each rank's
// boxes. The map goes first, then the lists in the order above; other parameters are joined along dimension 0. Patterns
// are matched from the start of the name, as Python's re.match does, and at most one in a list may match.
//
// What always holds of a merged parameter: the parts of one version and copy tile it, and none lies in its padding:
// rows past the vocabulary's original size are cut away. What can't be told for sure is an error, never a guess.
// Pure. Does not look at files or compare copies.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {
namespace deepspeed {
struct TensorParallelInfo;
}

struct MergedPart {
  Box local;                    // of the rank's tensor, never empty
  Box whole;                    // where that is in the whole one: equal extents
  std::uint32_t version = 0;    // of an averaged parameter: the tensor-parallel rank
  std::uint32_t copy = 0;       // the first copy that it belongs to, and then every
  std::uint32_t copy_step = 1;  // so many: a part that one rank alone holds belongs to all copies
};

struct MergedParameter {
  Shape shape;  // the whole, without padding
  std::uint32_t versions = 1;
  std::uint32_t copies = 1;
  std::vector<std::vector<MergedPart>> ranks = {};  // of each tensor-parallel rank
  std::string rule = {};                            // for people: "replicated", "joined along dimension 1"
};

class TensorParallelRules {
 public:
  TensorParallelRules();  // of a job that said nothing: enough for one tensor-parallel rank
  ~TensorParallelRules();
  TensorParallelRules(TensorParallelRules&&) noexcept;
  TensorParallelRules& operator=(TensorParallelRules&&) noexcept;

  // `info` is the value of `universal_checkpoint_info`; Pickle::kNothing and None: it said nothing. Used during the
  // call. Fails: `corrupt` if it is not what it should be; `invalid`, naming it, for a pattern that our engine can't
  // match (look-around, back references) or a version that we don't know; `full` past a limit.
  [[nodiscard]] static Result<TensorParallelRules> read(const Pickle& pickle, Pickle::Value info);

  // `local_shapes`: of each tensor-parallel rank's tensor, in rank order; a rank without any part has an extent of 0.
  // Fails: `invalid`, naming the parameter and the shapes, if the rules don't fit, or if there are several ranks and
  // the job said nothing, or if the job said that it can't be converted.
  [[nodiscard]] Result<MergedParameter> merge(std::string_view name, std::span<const Shape> local_shapes) const;

  // Tied modules: later stages' copies may differ, and the first stage's is the one to take.
  [[nodiscard]] bool is_pipeline_replicated(std::string_view name) const;

  [[nodiscard]] bool said_nothing() const;
  [[nodiscard]] double version() const;  // 0 where it isn't said

 private:
  std::unique_ptr<const deepspeed::TensorParallelInfo> info_;
};

// `piece` lies in the index space of the local tensor of `rank`; what it holds of the whole is appended, with versions
// and copies as the rule says (the piece's own are not looked at). Nothing is appended for padding.
void append_merged(const MergedParameter& merged, std::uint32_t rank, const StoredPiece& piece, ElementType type,
                   std::vector<StoredPiece>& out);

}  // namespace pawl::checkpoint
