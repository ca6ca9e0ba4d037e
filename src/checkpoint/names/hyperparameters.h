// Hyperparameters: what optimizers' param_groups say beside their parameters, for CheckpointView::values.
//
// {"param_groups": [{"params": ["layers.0.weight"], "lr": 0.001, "betas": [0.9, 0.95]}]}, as pawl's own store has them
// (docs/format.md). Only what is certain is said: of parameters that have an optimizer's state in the view, under the
// names that they have there, or of groups that keep no state, and values that JSON has a word for: numbers, texts,
// None, short lists of them. A tensor of one element is its number. What is left out is named in a note. Pure; executes nothing.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/containers/pickle.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

using HyperValues = std::map<std::string, std::string>;  // name -> JSON

struct HyperGroup {
  std::vector<std::string> parameters = {};
  HyperValues values = {};
  std::vector<std::string> left_out = {};  // names of those that have no word in JSON
  bool is_stateless = false;               // no parameter of it has a state: they are known as weights
};

// The number that a tensor of one element is; nothing where the value is none. Readers of files know it.
using TensorNumber = std::function<std::optional<double>(Pickle::Value)>;

// One of a group's items. What says which group it is ("params", "name") is no hyperparameter, and passed over.
void add_hyperparameter(HyperGroup& group, std::string_view key, const Pickle& pickle, Pickle::Value value,
                        const TensorNumber& number = {});
void add_hyperparameter(HyperGroup& group, std::string_view key, double value);

// The groups of a list of dicts, in its order; their parameters are for whoever can name them. Linear in the pickle:
// one dict may be named by many groups, and a list that is longer for that, or says more than 16 MiB, has no groups.
[[nodiscard]] std::vector<HyperGroup> read_hyper_groups(const Pickle& pickle, Pickle::Value list,
                                                        const TensorNumber& number = {});

// Of such a list: why a group of it is not read, where it has more entries than records have (Pickle::kRecordItemsMax).
[[nodiscard]] std::optional<std::string> oversized_group(const Pickle& pickle, Pickle::Value list);

// Groups that were told parameter by parameter ("param_groups.<name>.lr"): neighbours that say the same are one.
[[nodiscard]] std::vector<HyperGroup> joined_groups(std::vector<HyperGroup> of_parameters);

// Which of those groups lists each number below `count` among its "params". Nothing: none does, or several do.
[[nodiscard]] std::vector<std::optional<std::size_t>> groups_of_numbers(const Pickle& pickle, Pickle::Value list,
                                                                        std::size_t count);

// Sets the view's values; to nothing where two groups claim one parameter for different values. Appends notes.
void add_hyper_groups(const std::vector<HyperGroup>& groups, CheckpointView& view);

}  // namespace pawl::checkpoint
