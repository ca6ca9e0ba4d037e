// Hyperparameters: what optimizers' param_groups say beside their parameters, for CheckpointView::values.
//
// {"param_groups": [{"params": ["layers.0.weight"], "lr": 0.001, "betas": [0.9, 0.95]}]}, as pawl's own store has them
// (docs/format.md). What is told for sure only: of parameters that have an optimizer's state in the view, under the
// names that they have there, and values that JSON has a word for. Pure.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/pickle.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

using HyperValues = std::map<std::string, std::string>;  // name -> JSON

struct HyperGroup {
  std::vector<std::string> parameters;
  HyperValues values;
};

// One of a group's items; those that are no hyperparameter ("params") or have no word in JSON are left out.
void add_hyperparameter(HyperValues& values, std::string_view key, const Pickle& pickle, Pickle::Value value);

// Empty where nothing is told, and where two groups claim one parameter for different values.
[[nodiscard]] std::string values_of_groups(const std::vector<HyperGroup>& groups, const CheckpointView& view);

}  // namespace pawl
