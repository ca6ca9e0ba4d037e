// UniversalStates: which tensors of a view become which file of zero/, and at which step the training was.
//
// What always holds: fp32 is the master where there is one, else the weight; every name is one of a folder. Buffers
// have no folder. Pure, but for the first step, whose bytes are read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/containers/torch_writer.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

using ParameterStates = std::map<std::string, std::uint32_t>;  // state ("fp32", "exp_avg") -> tensor of the view

struct UniversalStates {
  std::map<std::string, ParameterStates> parameters;  // by name
  bool has_optimizer = false;                         // any state but fp32
  std::uint64_t left_out = 0;                         // tensors whose types are no floats

  // Something trains it: without any optimizer state in the checkpoint, all are taken to be trained.
  [[nodiscard]] bool is_trained(const ParameterStates& states, const CheckpointView& view) const {
    return !has_optimizer || states.size() > 1 || view.tensors[states.begin()->second].role == "master";
  }
};

// Fails: `invalid` for names that can't be folders; `not_found` without any weight.
[[nodiscard]] Result<UniversalStates> choose_states(const CheckpointView& view, const WriteOptions& options);

struct StepCounts {
  std::optional<std::uint64_t> job;
  std::optional<double> optimizer;  // its own count, which may be less: skipped steps

  [[nodiscard]] double of_optimizer() const { return optimizer.value_or(static_cast<double>(job.value_or(0))); }
};

[[nodiscard]] StepCounts find_steps(const CheckpointView& view, Files& files);

// Pushes the optimizer's step: a tensor of one float32.
void append_step(const StepCounts& steps, TorchWriter& writer);

}  // namespace pawl::checkpoint::deepspeed
