// OptimizerNames: names for the numbers of optimizers, found in the dicts of tensors beside them.
//
// Every dict may be a model's. An optimizer's numbers are looked for in the only one that may hold them: by their shapes,
// or by the names that were given. Of several that may, it is the one whose key goes with the optimizer's, or the only
// one that is no average (checkpoint/names/model_pairs.h); else nothing is told. In the dict, numbers get names as
// checkpoint/names/parameter_order.h says. Pure: works on what rank_files_join.h holds.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/names/parameter_order.h"

namespace pawl::checkpoint {

// Names that may be parameters: those of one dict, in its order.
struct NameDict {
  std::string root;  // what leads to it
  std::vector<NamedShape> names = {};
  std::vector<std::size_t> items = {};  // of each name: index in Join::items
  std::unordered_map<std::string, std::size_t> by_bare_name = {};
  std::map<Shape, std::size_t> shapes = {};  // how many names have it
};

// One optimizer, or its parts on the ranks.
struct NumberedOptimizer {
  std::vector<PathStep> path;
  std::vector<std::vector<IndexedGroup>> ranks = {};
  bool alike = false;                        // all ranks have the same groups
  std::size_t numbers = 0;                   // names that are needed
  std::map<Shape, std::size_t> shapes = {};  // of them: how many have it

  // Of each rank its groups; at least one rank.
  NumberedOptimizer(std::vector<PathStep> its_path, std::vector<std::vector<IndexedGroup>> its_ranks);
  [[nodiscard]] std::string key() const { return name_of(path); }
  [[nodiscard]] std::string label() const;  // for people
};

// An answer: a dict, and of each rank the names in the order of its numbers.
struct NameFit {
  const NameDict* dict = nullptr;
  std::vector<std::vector<std::string>> names = {};
  bool says_root = false;  // the names were given with what leads to the dict
  // Which of the join's items has the name; kNoItem: none.
  [[nodiscard]] std::size_t item_of(std::string_view name) const;
};

class OptimizerNames {
 public:
  // Both outlive this.
  OptimizerNames(const Join& join, const std::optional<ParameterNames>& given);

  // By shapes that only one parameter has. Fails: `invalid`, with what to do.
  [[nodiscard]] Result<NameFit> by_shapes(const NumberedOptimizer& optimizer) const;
  // The names that were given, to those whose they are: by their key, or where only one fits. Nothing for others.
  // Fails: `invalid` where names fit none, or several.
  [[nodiscard]] Result<std::vector<std::optional<NameFit>>> as_given(std::span<const NumberedOptimizer> all) const;
  // The only item of that name: in a dict, below a top name, by all that leads to it. kNoItem where none has it, or
  // several.
  [[nodiscard]] std::size_t find_item(std::string_view name) const;

 private:
  [[nodiscard]] std::array<std::span<const NameDict>, 3> kinds() const;  // as in dicts_
  void add_to(std::map<std::string, std::size_t>& index, std::string key, std::string root, std::string name,
              std::size_t item);
  [[nodiscard]] Result<NameFit> fit(const NumberedOptimizer& optimizer, const ParameterNames& given) const;
  [[nodiscard]] Result<const NameDict*> choose(const NumberedOptimizer& optimizer, const ParameterNames* given) const;
  Status share(std::span<const NumberedOptimizer> all, const std::vector<const ParameterNames*>& lists,
               std::vector<std::optional<NameFit>>& out) const;

  const Join& join_;
  const std::optional<ParameterNames>& given_;
  std::vector<NameDict> dicts_;  // dicts first; then what lies below one top name; then all
  std::size_t plain_ = 0;        // how many of the first kind
  std::size_t tops_ = 0;         // and of the first two
  NameDict nothing_;
};

}  // namespace pawl::checkpoint
