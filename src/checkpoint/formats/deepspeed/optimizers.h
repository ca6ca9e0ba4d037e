// Optimizers: the states of a save's optimizers, from whichever files have them, into the table of parameters.
//
// With ZeRO each rank has a file of flat tensors (zero_states.h). Without, the state lies in the model_states file, or,
// with experts, in a file for each expert-parallel rank (plain_optimizer.h); BF16_Optimizer without ZeRO names its
// files as ZeRO does. Steps are compared with the model's own count: files of two steps in one folder are a problem.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/model.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/save_folder.h"
#include "checkpoint/formats/deepspeed/weights.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/names/parameter_order.h"

namespace pawl::checkpoint::deepspeed {

// What the optimizers' files say beside tensors.
struct OptimizerFacts {
  std::uint64_t stage = 0;  // of ZeRO
  std::uint64_t expert_degree = 1;
  std::string class_name;  // of DeepSpeed's wrapper
  std::string writer_version;
  std::optional<double> loss_scale;
  std::vector<HyperGroup> param_groups;  // of all ranks
};

// What names the parameters of states that are keyed by number.
struct ParameterNaming {
  FileWeights weights;
  std::optional<ParameterNames> given;  // by a person
};

[[nodiscard]] OptimizerFacts add_optimizers(SaveFolder& save, const SavedModel& model, const ParallelDegrees& degrees,
                                            const ParameterNaming& naming, ParameterTable& table);

}  // namespace pawl::checkpoint::deepspeed
