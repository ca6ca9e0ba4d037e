// DcpOptimizers: names for an optimizer's state that a DCP tree keys by number, as torch.optim's own state dicts do.
//
// The groups' lists (objects of the tree) and the model's parameters, in the order of the state, tell what the numbers
// mean. If they fit in only one way, or --param-names gives the names, paths get names
// (checkpoint/names/parameter_order.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/names/state_names.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `keys`: of the checkpoint's tensors, in their order. Puts a parameter's name where its number was; what can't be told
// stays, and `notes` say why. Fails: `invalid` where the names that were given don't fit; as files do.
[[nodiscard]] Status name_numbered_parameters(const DcpCheckpoint& checkpoint, const ReadOptions& options, Files& files,
                                              std::vector<StateKey>& keys, std::vector<std::string>& notes);

// An object's pickle; nothing where it can't be read.
[[nodiscard]] std::optional<Pickle> read_object(const DcpCheckpoint& checkpoint, const DcpPlace& place, Files& files);

}  // namespace pawl::checkpoint
