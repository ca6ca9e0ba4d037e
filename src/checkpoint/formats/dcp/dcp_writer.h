// DcpWriter: a folder of torch.distributed.checkpoint that dcp.load reads, into plain tensors, FSDP2's and any others.
//
//   .metadata       torch's Metadata: every tensor is one chunk. Written last: without it, there is no checkpoint
//   __0_0.distcp    items one after another, each a file of torch.save with one tensor; further ones: __0_1.distcp, ...
//
// Keys are as torch's get_state_dict lays them out in {"model": ..., "optim": ...}: weights and buffers
// `model.<name>`, an optimizer's state `optim.state.<name>.<word>` (master too: programs that keep one ask for it by
// that word). A tied name is a key of its own that shows the same bytes, so that whichever a program asks for is there.
// Of weights alone nothing proves that "model." is no part of their names, and our own reader keeps it: flat_names
// then. Hyperparameters (param_groups) are not tensors and not in a view: the program that loads the folder keeps its
// own and passes allow_partial_load. Pure: checkpoint/output/output_plan.h writes it.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

inline constexpr const char* kDcpMetadataName = ".metadata";

// Fails: `not_found` where no tensor has a role, or there is none; `invalid`, naming the key, where one would be there
// twice, or its type is none that torch.save writes.
[[nodiscard]] Result<OutputPlan> plan_dcp(const CheckpointView& view, const WriteOptions& options);

}  // namespace pawl::checkpoint
