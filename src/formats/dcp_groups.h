// DcpGroups: the hyperparameters that a DCP tree keeps beside an optimizer's state, for CheckpointView::values.
//
// In the form of formats/hyperparameters.h. Reads the objects below "param_groups"; executes nothing.
#pragma once

#include <string>

#include "env/files.h"
#include "formats/dcp.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

// Empty where there is none, or none that is understood.
[[nodiscard]] std::string group_values(const DcpCheckpoint& checkpoint, const CheckpointView& view, Files& files);

}  // namespace pawl
