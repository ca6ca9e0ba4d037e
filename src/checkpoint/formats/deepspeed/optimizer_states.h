// OptimizerStates: what one ZeRO rank's *_optim_states.pt file keeps: flat tensors of each group, and their facts.
//
// ZeRO-1 and 2, with states that are padded (rigid) or not (elastic); BF16_Optimizer, which says no stage; ZeRO-3,
// whose groups are sub-groups. What the flat tensors mean is zero_flat.h's. Nothing is compared across files here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/names/hyperparameters.h"

namespace pawl::checkpoint::deepspeed {

struct GroupState {
  std::optional<FlatTensor> master;
  std::vector<std::pair<std::string, FlatTensor>> states;  // by the optimizer's own word; not the step
  std::optional<double> step;
  std::optional<std::uint64_t> padding;          // elements at the partition's end that are no parameter's
  std::optional<std::uint64_t> partition_count;  // over how many ranks the group is cut
  std::vector<std::uint64_t> gaps;               // after each parameter; empty: none
  std::optional<std::size_t> parameter_group;    // in OptimizerStates::hyperparameters; nothing: not told
};

struct OptimizerStates {
  std::uint64_t stage = 1;
  bool master_has_padding = false;  // BF16_Optimizer, ZeRO-3
  std::vector<GroupState> groups;
  std::vector<HyperGroup> hyperparameters;  // of the optimizer's groups; ZeRO-3 cuts one into several of `groups`
  std::optional<double> loss_scale;
  std::string writer_version;
  std::string class_name;  // of DeepSpeed's wrapper
  bool has_autoep = false;
  std::vector<std::string> unsupported;  // sentences: what of the state has no form here
};

[[nodiscard]] Result<OptimizerStates> read_optimizer_states(const ShardFile& file);

// Of what an optimizer keeps under a word, and is not read there: "has the shape (2)", "is a list of 3". Nothing where it
// keeps no numbers: None, flags, words, empty dicts.
[[nodiscard]] std::optional<std::string> unread_form(const ShardFile& file, Pickle::Value value);

// Where a state keyed by numbers keeps number `index`; and the numbers that the groups list, in order.
[[nodiscard]] Pickle::Value state_of(const Pickle& pickle, Pickle::Value states, std::uint64_t index);

}  // namespace pawl::checkpoint::deepspeed
