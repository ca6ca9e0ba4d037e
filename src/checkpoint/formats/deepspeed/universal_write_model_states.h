// UniversalModelStates: the *_model_states.pt files of a universal folder: counters, buffers, the job's own state.
//
// DeepSpeed opens mp_rank_MM... or zero_pp_rank_D_mp_rank_MM..., by the stage that it loads into. Of a DeepSpeed source
// its own files are carried over byte for byte, and beside each rank's first one lies a small twin under the other
// name, without weights. Of another source one file and its twin are made of what the view says. Plans only.
#pragma once

#include "base/result.h"
#include "checkpoint/formats/deepspeed/universal_write_output.h"
#include "checkpoint/formats/deepspeed/universal_write_source.h"
#include "checkpoint/formats/deepspeed/universal_write_states.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

// For a DeepSpeed source. Fails: `corrupt`, `io` for its files; as add_torch_file.
[[nodiscard]] Status carry_model_states(const UniversalSource& source, Files& files, UniversalOutput& out);

// For another one (universal_write_made_states.cc). Fails: as add_torch_file.
[[nodiscard]] Status make_model_states(const UniversalStates& states, const StepCounts& steps, UniversalOutput& out);

}  // namespace pawl::checkpoint::deepspeed
