// ValueParts: what a pickled value holds, each part with the step that leads from the value to it.
//
// A dict's values by their keys (dict_keys.h); items of lists, tuples and sets by their places; an object's attributes,
// also those of __slots__, the items that were appended to it or set on it, and what its call was given: a named tuple's
// fields, by their places, since no pickle says their names. Executes nothing. Pure.
#pragma once

#include <vector>

#include "base/result.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"

namespace pawl::checkpoint {

struct ValuePart {
  PathStep step;
  Pickle::Value value = Pickle::kNothing;
};

// Appends the parts of a value. Fails: `full` where their steps' texts are more than `copies` has left.
[[nodiscard]] Status add_parts(const Pickle& pickle, Pickle::Value value, CopyBudget& copies,
                               std::vector<ValuePart>& out);
// Likewise of an object's state alone, as BUILD got it: a dict of attributes, or a pair of two (with __slots__). What a
// class of its own makes of anything else only the class knows: those parts are state_0, state_1, ...
[[nodiscard]] Status add_state_parts(const Pickle& pickle, Pickle::Value state, CopyBudget& copies,
                                     std::vector<ValuePart>& out);

}  // namespace pawl::checkpoint
