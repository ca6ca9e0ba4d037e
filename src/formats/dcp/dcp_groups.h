// DcpGroups: the hyperparameters that a DCP tree keeps beside an optimizer's state, for CheckpointView::values.
//
// In the form of formats/states/hyperparameters.h. Reads the objects below "param_groups"; executes nothing.
#pragma once

#include "env/files.h"
#include "formats/dcp/dcp.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

// Sets the view's values, where there are any that are understood; appends notes. The view has its tensors' names.
void add_dcp_groups(const DcpCheckpoint& checkpoint, Files& files, CheckpointView& view);

}  // namespace pawl
