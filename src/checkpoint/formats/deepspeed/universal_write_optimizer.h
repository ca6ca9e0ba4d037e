// UniversalOptimizer: zero/optimizer_state.pt: hyperparameters of the param groups, the loss scaler, and a step.
//
// DeepSpeed opens different keys of it by the stage that it loads into, so all forms are written. What is known comes
// from a DeepSpeed source's own files, or from what pawl's store says of the groups (stored_groups.h); of other sources
// nothing is known: then the training keeps its own, and a note says so. Plans only; reads the source's small files.
#pragma once

#include "base/result.h"
#include "checkpoint/formats/deepspeed/universal_write_output.h"
#include "checkpoint/formats/deepspeed/universal_write_source.h"
#include "checkpoint/formats/deepspeed/universal_write_states.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

// Fails: `corrupt`, `io` for the source's file; as add_torch_file.
[[nodiscard]] Status plan_optimizer_file(const UniversalSource& source, const StepCounts& steps, Files& files,
                                         UniversalOutput& out);

}  // namespace pawl::checkpoint::deepspeed
