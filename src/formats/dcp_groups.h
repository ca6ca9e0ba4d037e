// DcpGroups: the hyperparameters that a DCP tree keeps beside an optimizer's state, for CheckpointView::values.
//
// {"param_groups": [{"params": ["layers.0.weight"], "lr": 0.001, "betas": [0.9, 0.95]}]}, as pawl's own store has them
// (docs/format.md). What is told for sure only: groups whose parameters have the names that they have in the view, and
// values that JSON has a word for. Executes nothing.
#pragma once

#include <string>

#include "env/files.h"
#include "formats/dcp.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

// Empty where there is none, or none that is understood.
[[nodiscard]] std::string group_values(const DcpCheckpoint& checkpoint, const CheckpointView& view, Files& files);

}  // namespace pawl
