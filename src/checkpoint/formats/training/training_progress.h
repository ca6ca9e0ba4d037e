// TrainingProgress: how far a training was, by each of the files that say so, and whether they agree.
//
// trainer_state.json (Trainer) or meta.pt (Lightning), the optimizers' own steps, the scheduler's, and the folder's name.
// Reads these small files, and the optimizers' steps; no other tensor's bytes.
#pragma once

#include <string>

#include "checkpoint/formats/training/training_parts.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Adds the facts step and epoch to a view that has its tensors, and says where the files contradict each other: an
// optimizer that is ahead of its training is a problem; what may have a reason is a note.
void add_progress(const std::string& folder, const TrainingParts& parts, CheckpointView& view, Files& files);

}  // namespace pawl::checkpoint
