// UniversalParameters: zero/<parameter>/<state>.pt, each tensor whole, with the rule by which DeepSpeed cuts it again.
//
// The rules are those of the source's own job, in the words of DeepSpeed's converter. Plans only.
#pragma once

#include "base/result.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"
#include "checkpoint/formats/deepspeed/universal_write_output.h"
#include "checkpoint/formats/deepspeed/universal_write_states.h"

namespace pawl::checkpoint::deepspeed {

// Fails: `invalid` for sub-parameters that don't fit the shape; as add_torch_file.
[[nodiscard]] Status plan_parameter_files(const UniversalStates& states, const StepCounts& steps,
                                          const TensorParallelInfo& rules, UniversalOutput& out);

}  // namespace pawl::checkpoint::deepspeed
