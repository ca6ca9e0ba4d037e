// DcpOptimizers: names for an optimizer's state that a DCP tree keys by number, as torch.optim's own state dicts do.
//
// The groups' lists (objects of the tree) and the shapes of the model's parameters tell what the numbers mean. If no
// two parameters could be exchanged, or --param-names gives the names, paths get names
// (checkpoint/names/parameter_order.h).
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/dcp/dcp_objects.h"
#include "checkpoint/names/parameter_order.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// `keys`: of the checkpoint's tensors, in their order. Puts a parameter's name where its number was; what can't be told
// stays, and `view` says why. True: names were given with what leads to their model. Fails: `invalid` where the names
// that were given don't fit; as files do.
[[nodiscard]] Result<bool> name_numbered_parameters(const DcpCheckpoint& checkpoint,
                                                    const std::optional<ParameterNames>& given, DcpObjects& objects,
                                                    std::vector<StateKey>& keys, CheckpointView& view);

// Numbers that an optimizer keeps beside tensors are objects of the tree: they become tensors of the checkpoint and of
// `view`, whose tensors stand where the checkpoint's do. What has no form is `unsupported`. Fails: `full` where objects
// unpack to far more than is stored, or share far more than they say.
[[nodiscard]] Status take_state_numbers(DcpCheckpoint& checkpoint, DcpObjects& objects, CheckpointView& view);

}  // namespace pawl::checkpoint
