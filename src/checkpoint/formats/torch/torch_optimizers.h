// TorchOptimizers: where optimizers lie in a file of torch.save, and what they hold of the model.
//
// A state dict ({"state": ..., "param_groups": ...}), or an optimizer that was saved as an object. Such a one has no
// numbers: its groups, and the keys of its state, are the parameters themselves. Where the file has the model, too,
// those are the model's tensors, so their names are certain; state dicts whose groups hold parameters likewise.
//
// Or a flat state dict, as torch.distributed.checkpoint flattens it ({"state.<name>.<word>": tensor,
// "param_groups.<name>.lr": number}).
//
// Pure: looks at the values of a pickle, at no tensor's bytes.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/containers/torch_file.h"

namespace pawl::checkpoint {

inline constexpr std::string_view kFlatGroups = "param_groups.";  // what such keys begin with

struct FoundOptimizer {
  std::vector<PathStep> path;
  PathStep::Kind kind = PathStep::Kind::key;      // of the steps "state" and "param_groups" below it
  Pickle::Value state = Pickle::kNothing;         // a dict, or an object with pairs
  Pickle::Value param_groups = Pickle::kNothing;  // a list
  Pickle::Value value = Pickle::kNothing;         // what has these two
  Pickle::Value flat = Pickle::kNothing;          // a dict with keys "param_groups.<name>.<word>", instead of these two

  [[nodiscard]] bool is_flat() const { return flat != Pickle::kNothing; }
};

// From the object's root down, each value once.
[[nodiscard]] std::vector<FoundOptimizer> find_optimizers(const Pickle& pickle);

struct HeldParameters {
  std::unordered_map<Pickle::Value, std::size_t> number_of;  // of a parameter: its place in all groups
  std::vector<std::string> names;                            // of each; none unless all are the model's
  struct State {
    Pickle::Value tensor = Pickle::kNothing;
    std::vector<PathStep> path;  // with the number where the parameter was the key
  };
  std::vector<State> states;
  std::vector<State> parameters;  // where they have no names: "parameters", number
};

// Of each optimizer. Nothing where its groups hold numbers or names. `by_value`: the file's tensors.
// Fails: `full` where names and paths are more than `copies` has left.
using TensorsByValue = std::unordered_map<Pickle::Value, const TorchTensor*>;
[[nodiscard]] Result<std::vector<std::optional<HeldParameters>>> held_parameters(
    const TorchFile& file, std::span<const FoundOptimizer> optimizers, const TensorsByValue& by_value,
    CopyBudget& copies);

[[nodiscard]] bool has_step(const std::vector<PathStep>& path, std::string_view text);

// The parts of a pickled module (not of its state) lie under these attributes: _modules, _parameters, _buffers.
[[nodiscard]] bool is_module_part(const PathStep& step);

}  // namespace pawl::checkpoint
