// Keys of a pickled dict, as steps of the paths that lead to its values: each key has a step of its own.
//
// A string is a step as it is; anything else is written as Python shows it: 7, 2.5, True, None, b'x', (0, 'a'),
// numpy.int64(3), module.Color(1). Keys of two kinds with one text get their types: {1: ..., "1": ...} has the steps
// int(1) and 1. What can't be told apart by its text (tensors, long tuples) gets its number in the dict. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/copy_budget.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"

namespace pawl::checkpoint {

// Of one key by itself; of a string no more than its first `bytes_max` bytes.
[[nodiscard]] PathStep step_of_key(const Pickle& pickle, Pickle::Value key, std::size_t bytes_max = ~std::size_t{0});
using KeySteps = std::vector<std::optional<PathStep>>;
// Of all keys of a dict, whose items are key, value, key, value, ...; nothing for a key that a later one replaces.
// Fails: `full` where the texts are more than `copies` has left.
[[nodiscard]] Result<KeySteps> steps_of_keys(const Pickle& pickle, std::span<const Pickle::Value> items,
                                             CopyBudget& copies);

}  // namespace pawl::checkpoint
