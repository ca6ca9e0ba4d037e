// Output shares: what an OutputPlan writes, cut over workers by bytes; and the digest by which workers know that they
// cut the same plan of the same source.
//
// Work goes to workers first and, in each, over its cores (checkpoint/reshape/execute.h). Worker k of n gets all
// between k/n and (k + 1)/n of the tensors' bytes, in order of files and places: few files a worker, and two neighbours
// meet in one. What always holds: the shares tile every tensor of the plan exactly; equal plans give equal shares, on
// any machine, without a word between workers. Each is less than cut_unit_max() longer or shorter than n-th of all, and
// where a cut could be anywhere it lies on a page of its file, so that no two workers write one page; where it can't (a
// number that lies across, a packed tensor, a block of a quantised one) two do, which a file system takes.
// Packed types (four and six bits) are never cut, block-scaled payloads on edges of their blocks only; their scales may
// be in another share, as both only go to their places in files. Checksums of ranges that a cut goes through are sums
// of what each worker saw (RangeChecksums::share_at).
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

inline constexpr std::uint64_t kCutPageBytes = 64 << 10;  // the largest page of any Linux

// One share a worker, some empty where there is little to do. `workers` is not 0.
[[nodiscard]] std::vector<OutputShare> cut_output(const OutputPlan& plan, const CheckpointView& view,
                                                  std::uint32_t workers);
// A page and the largest part of the plan's tensors that is not cut: an element, a row of blocks, a packed tensor.
[[nodiscard]] std::uint64_t cut_unit_max(const OutputPlan& plan, const CheckpointView& view);

// The same for things that are not cut: worker k gets those from answer[k] on, before answer[k + 1]. The answer has one
// more than there are workers. Shares differ from the n-th of all by less than the largest thing.
[[nodiscard]] std::vector<std::size_t> cut_in_order(std::span<const std::uint64_t> bytes, std::uint32_t workers);

// Of all that decides what is written: the view's tensors, their pieces and files, the plan's places and texts, and
// what the caller adds (`more`: sizes and times of the files that the view names, options). Finds differences by
// accident, not by an attacker. 16 hexadecimal digits.
[[nodiscard]] std::string digest_of(const CheckpointView& view, const OutputPlan& plan, const std::string& more);

}  // namespace pawl::checkpoint
