// PlainOptimizer: an optimizer's state without ZeRO: torch's own, keyed by number, or in a wrapper with fp32 masters.
//
// Names are not stored. Where each number has a shape that only one parameter of the model has, that is its name
// (checkpoint/names/parameter_order.h); else an error asks for names (--param-names). Groups of experts get
// the experts' names. Reads its file's pickle and steps; adds pieces to a table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/names/parameter_order.h"

namespace pawl::checkpoint::deepspeed {

struct PlainOptimizer {
  struct Group {
    std::vector<std::uint64_t> numbers;
    bool is_expert = false;
    std::uint64_t expert_degree = 0;               // by the group's name; 0: it doesn't say
    std::vector<Pickle::Value> masters;            // of a wrapper: one tensor for each number
    Pickle::Value flat_master = Pickle::kNothing;  // of a fused one: one for all; numbers has one then
    HyperGroup hyperparameters;                    // without parameters
  };
  Pickle::Value states = Pickle::kNothing;
  std::vector<Group> groups;
  bool is_fused = false;
  std::optional<double> loss_scale;
  std::string class_name;  // of the wrapper; empty without
};

// Fails: `corrupt`, naming the file.
[[nodiscard]] Result<PlainOptimizer> read_plain_optimizer(const ShardFile& file, Pickle::Value optimizer);

struct PlainNames {
  std::vector<NamedShape> dense;        // in the model's order, of this model-parallel rank
  std::vector<NamedShape> experts;      // of this expert-parallel rank, under their names in the whole model
  std::optional<ParameterNames> given;  // by a person, or by the model_states file
};

struct PlainOptions {
  ModelPosition position;
  bool skips_dense = false;  // another expert-parallel rank's file has them
  std::uint32_t rank = kNoRank;
};

// What its groups say, with their parameters' names in the model. Fails: `invalid` where names can't be told for sure,
// with what to do; `corrupt`, naming the file. `unsupported` gets sentences: what of the states has no form here.
[[nodiscard]] Result<std::vector<HyperGroup>> add_plain_optimizer(const ShardFile& file,
                                                                  const PlainOptimizer& optimizer,
                                                                  const PlainNames& names, const PlainOptions& options,
                                                                  ParameterTable& table,
                                                                  std::vector<std::string>& unsupported);

}  // namespace pawl::checkpoint::deepspeed
