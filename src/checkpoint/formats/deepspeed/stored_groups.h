// What pawl's own store says of an optimizer's param groups, for DeepSpeed's universal folder.
//
// The store keeps them as JSON (docs/format.md: "values", "param_groups"); DeepSpeed's loader takes them from a pickle,
// by their place, and goes on with them. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/containers/pickle_writer.h"

namespace pawl::checkpoint::deepspeed {

// A group's hyperparameters, each as the JSON that it was stored as; without the parameters themselves.
using StoredGroup = std::map<std::string, std::string>;

// The groups that `values` has, in their order; none where it has none, or is no JSON.
std::vector<StoredGroup> read_stored_groups(std::string_view values);

// What all of them agree on.
StoredGroup common_to(const std::vector<StoredGroup>& groups);

// Pushes a dict of it. Lists become tuples, as optimizers have them.
void write_stored_group(const StoredGroup& group, PickleWriter& to);

}  // namespace pawl::checkpoint::deepspeed
