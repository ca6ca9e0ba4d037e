// ParameterOrder: which parameter is number i of an optimizer's state, when the state does not say.
//
// torch numbers an optimizer's parameters group by group, in the order in which the program gave them. That is often
// the model's order, but not always (sorted by name, the head first), and nothing in the state says it. So a shape
// that only one parameter has is a name (name_by_shape), and nothing else is: parameters of equal shape could be
// exchanged. A person who gives the names gives their order, too. Then numbers are names if there is exactly one way to
// deal the given names, in their order, to the groups so that all shapes fit (order_parameters): some go into one group
// and some into another (decayed or not), and frozen ones into none. Otherwise an error asks for the names.
// ZeroRedundancyOptimizer then deals each group's parameters to the ranks: the largest first, each to the rank that has
// the fewest elements so far. deal_parameters follows that and proves it by the shapes on every rank.
// Pure. Does not read files or know which name is a parameter's; names that can't be one should not be given.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/box.h"

namespace pawl::checkpoint {

struct NamedShape {
  std::string name;
  std::optional<Shape> shape;  // nothing: not known, fits any
};

// A group of an optimizer: the shape of each of its numbers' state, in their order. Nothing: no state tells it.
using IndexedGroup = std::vector<std::optional<Shape>>;
using NameIndices = std::vector<std::vector<std::uint32_t>>;  // of each group's numbers: which name

// Whatever the order of the names: each number has the one name of its shape. A number without a shape has the one name
// that is left.
// Fails: `invalid`, saying why and what to do.
[[nodiscard]] Result<NameIndices> name_by_shape(std::span<const NamedShape> names,
                                                std::span<const IndexedGroup> groups);
// Names that were given, in the order that was given. Fails: likewise.
[[nodiscard]] Result<NameIndices> order_parameters(std::span<const NamedShape> names,
                                                   std::span<const IndexedGroup> groups);
// Each rank's own groups, as many on each. Returns each rank's.
[[nodiscard]] Result<std::vector<NameIndices>> deal_parameters(std::span<const NamedShape> names,
                                                               std::span<const std::vector<IndexedGroup>> ranks);

// What a user gives (--param-names FILE): one name a line, in the optimizer's order; or a JSON list of strings. After a
// name may follow its shape, "24x24", for files that don't tell it. Sections say which group a name is in: an empty line
// between two groups, or a JSON list of lists. Of several optimizers: a JSON object, {"optG": [...], "optD": [...]}, by
// what leads to each; or a list of such lists of lists, where the fit tells which is whose. In the object a string says
// which model an optimizer has whose state is named: {"optG": "netG"}.
struct ParameterNames {
  struct Entry {
    std::string name;
    std::optional<Shape> shape;
  };
  std::vector<std::vector<Entry>> sections = {};
  bool says_groups = false;                     // a section is a group, even where there is one
  std::string optimizer = {};                   // of which these are; empty: not said
  std::string model = {};                       // what leads to its model; then without sections
  std::vector<ParameterNames> optimizers = {};  // of several; then nothing of the above
};
// Fails: `invalid` with the line, or as JSON does; a name twice.
[[nodiscard]] Result<ParameterNames> parse_parameter_names(std::string_view text);

// A list that says no groups, for groups of these sizes: it goes by number, group after group, as torch numbers them.
// Of one group it stays one, and may have more names. Fails: `invalid` where it has another number of names.
[[nodiscard]] Result<std::vector<std::vector<NamedShape>>> sections_by_number(
    std::vector<std::vector<NamedShape>> sections, std::span<const std::size_t> group_sizes);

// As above, where each group's names are known: counts and shapes have to agree.
[[nodiscard]] Result<NameIndices> order_parameters_in(std::span<const std::vector<NamedShape>> sections,
                                                      std::span<const IndexedGroup> groups);
// The names are numbered through all sections.
[[nodiscard]] Result<std::vector<NameIndices>> deal_parameters_in(std::span<const std::vector<NamedShape>> sections,
                                                                  std::span<const std::vector<IndexedGroup>> ranks);

}  // namespace pawl::checkpoint
