// DcpGroups: the hyperparameters that a DCP tree keeps beside an optimizer's state, for CheckpointView::values.
//
// In the form of checkpoint/names/hyperparameters.h. Reads the objects below "param_groups", nested as torch.optim's
// state dicts are ("param_groups", 0, "lr") or flattened ("param_groups.layers.0.weight.lr"). Executes nothing.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/dcp/dcp_objects.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// What naming the tensors has found out.
struct DcpFound {
  // What leads to an optimizer, and a parameter as its state's keys have it: the name in the view.
  std::map<std::pair<std::string, std::string>, std::string> names;
  std::vector<std::pair<std::vector<std::string>, double>> numbers;  // hyperparameters that are tensors: path, value
};

// Sets the view's values, where there are any that are understood; appends notes. The view has its tensors' names.
void add_dcp_groups(const DcpCheckpoint& checkpoint, const DcpFound& found, DcpObjects& objects, CheckpointView& view);

}  // namespace pawl::checkpoint
