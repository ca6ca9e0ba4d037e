// StateNames: from where a tensor lay in a training program's state to the parameter's name and the tensor's role.
//
// A state is nested dicts and lists: {"model": {...}, "optim": {"state": {<parameter>: {"exp_avg": ...}}}}; what the
// top names are is the program's choice. An optimizer's state is known by its form (state.<parameter>.<word>, nested or
// flattened to one key); the names in it tell where the model's own dict is, whatever that is called, and below it
// names are the model's. Of several models that have them it is the one whose shapes agree, too, or whose key is the
// optimizer's (checkpoint/names/model_pairs.h). Without such proof keys stay as they are stored: a "model." in front may be part of the name.
// Wrappers' parts (module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module.) are dropped.
//
// What always holds: (name, role) pairs of tensors differ; where a shorter name would merge two of them all keep longer
// ones, and a note says so. An optimizer's state that is keyed by number keeps its stored names: a caller that
// knows the order of the parameters puts their names into the paths first. Pure; linear in the keys.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/names/parameter_order.h"
#include "tensor/box.h"

namespace pawl::checkpoint {

struct StateKey {
  // Dict keys, list indices and attributes from the top down. One step with dots in it: the nesting is not known.
  std::vector<std::string> path;
  bool is_tensor = true;                  // else an object, which may still tell what its neighbours are (param_groups)
  const Shape* shape = nullptr;           // of a tensor, where it is known
  std::optional<std::string> model = {};  // of an optimizer's state: what leads to its model, where that is known
};

// A key of an optimizer's state, taken apart.
struct OptimizerKey {
  std::string root;  // what leads to the optimizer: "optim"
  std::string parameter;
  std::string role;
};

struct StateName {
  std::string name;
  std::string role = "weight";
  bool is_object = false;  // not of the model: a hyperparameter (param_groups), or not a tensor. The name is as stored
  std::optional<OptimizerKey> key = {};  // of an optimizer's state
};

struct StateNames {
  std::vector<StateName> names;      // one for each key, in their order
  std::vector<std::string> notes;    // sentences
  std::vector<std::string> unnamed;  // likewise: optimizers that several models fit, so that theirs is not known
  bool is_indexed = false;           // an optimizer's state is keyed by number, and kept its stored names
};

struct StateNameOptions {
  // Without an optimizer's state: a dict called model, module, state_dict, ... that is the only one of its kind is the
  // model's. For files whose readers get the dict itself; not where readers ask for flat keys.
  bool trust_model_words = false;
  // Names begin with what leads to their model, also where shorter ones would do: as somebody gave them.
  bool keep_roots = false;
};

[[nodiscard]] StateNames name_states(std::span<const StateKey> keys, const StateNameOptions& options = {});

// Sets the models that a person gave ({"optG": "netG"}, or names that begin so) in the keys of those optimizers whose
// state is named. Fails: `not_found` where there is no such optimizer, or no tensor lies under the model.
[[nodiscard]] Status tell_models(const ParameterNames& given, std::span<StateKey> keys);

// A key of an optimizer's state by its form alone, nested or flattened; and what leads to the optimizer whose
// hyperparameters a key is one of. Nothing: it has another form.
[[nodiscard]] std::optional<OptimizerKey> optimizer_key(const std::vector<std::string>& path);
[[nodiscard]] std::optional<std::string> groups_root(const std::vector<std::string>& path);

// The steps, joined by dots: "model.layers.0.weight".
[[nodiscard]] std::string stored_name(std::span<const std::string> path);
// Whether that is a word that optimizers of torch, DeepSpeed or Megatron keep state under: "exp_avg",
// "momentum_buffer".
[[nodiscard]] bool is_optimizer_word(std::string_view word);
// Whether they keep a tensor of the parameter's own shape under it.
[[nodiscard]] bool has_parameter_shape(std::string_view word);

// "<name>/<role>": both as one key.
[[nodiscard]] std::string role_key(std::string_view name, std::string_view role);

}  // namespace pawl::checkpoint
