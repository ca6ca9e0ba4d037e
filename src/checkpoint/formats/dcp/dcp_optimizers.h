// DcpOptimizers: names for an optimizer's state that a DCP tree keys by number, as torch.optim's own state dicts do.
//
// The groups' lists (objects of the tree) and the shapes of the model's parameters tell what the numbers mean. If no
// two parameters could be exchanged, or --param-names gives the names, paths get names
// (checkpoint/names/parameter_order.h).
#pragma once

#include <optional>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/names/parameter_order.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `keys`: of the checkpoint's tensors, in their order. Puts a parameter's name where its number was; what can't be told
// stays, and `view` says why. Fails: `invalid` where the names that were given don't fit; as files do.
[[nodiscard]] Status name_numbered_parameters(const DcpCheckpoint& checkpoint,
                                              const std::optional<ParameterNames>& given, Files& files,
                                              std::vector<StateKey>& keys, CheckpointView& view);

// An object's pickle; nothing where it can't be read.
[[nodiscard]] std::optional<Pickle> read_object(const DcpCheckpoint& checkpoint, const DcpPlace& place, Files& files);

}  // namespace pawl::checkpoint
