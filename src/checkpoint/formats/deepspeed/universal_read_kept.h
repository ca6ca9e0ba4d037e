// UniversalKept: what only the copies of model_states keep as it was: weights, buffers, frozen parameters.
//
// The converter wrote some of them again as float32 below zero/, or not at all; those here are the training's own.
#pragma once

#include <map>
#include <set>
#include <string>

#include "checkpoint/formats/deepspeed/universal_read_model.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint::deepspeed {

struct KeptTensors {
  std::set<std::string> names;
  std::map<std::string, ElementType> placeholder_types;  // the training's own, where ZeRO-3 left empty tensors
};

// Appends them to the view. What doesn't fit is a problem of the view.
[[nodiscard]] KeptTensors append_kept(const UniversalModel& model, CheckpointView& view);

}  // namespace pawl::checkpoint::deepspeed
