// A conversion into pawl's own store: as many parts as memory needs, read one after another and written each from
// there.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "cli/checkpoints/commands.h"
#include "formats/output_plan.h"
#include "reshape/checkpoint_view.h"
#include "reshape/execute.h"

namespace pawl {

// What would be written: tensors, keys (<name>/<role>) and types. Its files are the store's own business, and not
// named.
[[nodiscard]] Result<OutputPlan> plan_store(const CheckpointView& view, const WriteOptions& options);

// Writes and publishes (store/store_folder.h). The report counts what was read, and what casts made infinite.
// Fails as PortionReader and StoreFolder do; then nothing is left at the target.
[[nodiscard]] Result<ExecuteReport> write_store(const OutputPlan& plan, const CheckpointView& view,
                                                const ConvertOptions& options);

}  // namespace pawl
