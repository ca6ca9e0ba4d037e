// DcpGroups: the hyperparameters that a DCP tree keeps beside an optimizer's state, for CheckpointView::values.
//
// In the form of checkpoint/names/hyperparameters.h. Reads the objects below "param_groups"; executes nothing.
#pragma once

#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Sets the view's values, where there are any that are understood; appends notes. The view has its tensors' names.
void add_dcp_groups(const DcpCheckpoint& checkpoint, Files& files, CheckpointView& view);

}  // namespace pawl::checkpoint
