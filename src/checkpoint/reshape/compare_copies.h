// Comparing copies: replicas in files that should be equal are read and compared, so that nobody trusts a wrong one.
//
// Bit for bit. If copies of a tensor cover different parts, the common part is compared. Each copy is read once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

struct CopyDifference {
  std::uint32_t tensor = 0;                                   // index in the view
  std::uint32_t version = 0;                                  // of a tensor that is averaged
  std::uint32_t first = 0, second = 0;                        // the copies' numbers: what FileSourceOptions trusts
  std::uint32_t first_rank = kNoRank, second_rank = kNoRank;  // that wrote the element
  std::uint32_t first_file = 0, second_file = 0;              // likewise
  Shape element;                                              // the first that differs
  std::uint64_t elements = 0;                                 // how many differ
};
// "tensor h.0.attn.weight (exp_avg) differs between copy 0 (rank 1, a.pt) and copy 1 (rank 3, b.pt): 12 elements, ..."
// [0,7]"
[[nodiscard]] std::string sentence_of(const CopyDifference& difference, const CheckpointView& view);

// Whether any tensor has more than one copy of something.
[[nodiscard]] bool has_copies(const CheckpointView& view);

// Compares all copies of these tensors (indices in the view) with the first one; at most one difference for each
// tensor, version and copy. Of the options memory_bytes, threads, io_uring, direct, progress and cancel count.
// Fails as execute() does.
[[nodiscard]] Result<std::vector<CopyDifference>> compare_copies(const CheckpointView& view,
                                                                 const std::vector<std::uint32_t>& tensors,
                                                                 const ExecuteOptions& options = {});

}  // namespace pawl::checkpoint
