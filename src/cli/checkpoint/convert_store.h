// A conversion into pawl's own store: as many parts as memory and the sharing out need, read one after another and
// written each from there. What writes them: store_output() (convert_output.h).
#pragma once

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "cli/checkpoint/commands.h"

namespace pawl::checkpoint {

// What would be written: tensors, keys (<name>/<role>) and types. Its files are the store's own business, and not
// named.
[[nodiscard]] Result<OutputPlan> plan_store(const CheckpointView& view, const WriteOptions& options);

}  // namespace pawl::checkpoint
