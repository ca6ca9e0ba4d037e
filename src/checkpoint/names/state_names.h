// StateNames: from where a tensor lay in a training program's state to the parameter's name and the tensor's role.
//
// A state is nested dicts and lists: {"model": {...}, "optim": {"state": {<parameter>: {"exp_avg": ...}}}}; what the
// top names are is the program's choice. An optimizer's state is known by its form (state.<parameter>.<word>, nested or
// flattened to one key); the names in it tell where the model's own dict is, whatever that is called, and below it
// names are the model's. Without such proof keys stay as they are stored: a "model." in front may be part of the name.
// Wrappers' parts (module., _orig_mod., _fsdp_wrapped_module., _checkpoint_wrapped_module.) are dropped.
//
// What always holds: (name, role) pairs of tensors differ; where a shorter name would merge two of them all keep longer
// ones, and a note says so. An optimizer's state that is keyed by number keeps its stored names: a caller that
// knows the order of the parameters puts their names into the paths first. Pure; linear in the keys.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pawl::checkpoint {

struct StateKey {
  // Dict keys, list indices and attributes from the top down. One step with dots in it: the nesting is not known.
  std::vector<std::string> path;
  bool is_tensor = true;  // else an object, which may still tell what its neighbours are (param_groups)
};

struct StateName {
  std::string name;
  std::string role = "weight";
  bool is_object = false;  // not of the model: a hyperparameter (param_groups), or not a tensor. The name is as stored
};

struct StateNames {
  std::vector<StateName> names;    // one for each key, in their order
  std::vector<std::string> notes;  // sentences
  bool is_indexed = false;         // an optimizer's state is keyed by number, and kept its stored names
};

struct StateNameOptions {
  // Without an optimizer's state: a dict called model, module, state_dict, ... that is the only one of its kind is the
  // model's. For files whose readers get the dict itself; not where readers ask for flat keys.
  bool trust_model_words = false;
};

[[nodiscard]] StateNames name_states(std::span<const StateKey> keys, const StateNameOptions& options = {});

// The steps, joined by dots: "model.layers.0.weight".
[[nodiscard]] std::string stored_name(std::span<const std::string> path);
// Whether that is a word that optimizers of torch, DeepSpeed or Megatron keep state under: "exp_avg",
// "momentum_buffer".
[[nodiscard]] bool is_optimizer_word(std::string_view word);

// "<name>/<role>": both as one key.
[[nodiscard]] std::string role_key(std::string_view name, std::string_view role);

}  // namespace pawl::checkpoint
