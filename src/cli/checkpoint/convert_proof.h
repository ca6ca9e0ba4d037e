// The source's checksums, proven by what a conversion reads of it anyway (checkpoint/formats/read_proof.h): around the
// output that is written, so that damage is found before anything has the target's name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "cli/checkpoint/commands.h"
#include "cli/checkpoint/convert_output.h"

namespace pawl::checkpoint {

// Works as `output` does. Each worker leaves what it has seen with its report; finish() proves, and fails as `corrupt`
// with the damaged records. With --despite-problems they are left in `damage` instead. `plan`, `view`, `options` and
// `damage` outlive it. Fails: as ReadProof::create().
[[nodiscard]] Result<std::unique_ptr<ConvertOutput>> proven_output(std::unique_ptr<ConvertOutput> output,
                                                                   const OutputPlan& plan, const CheckpointView& view,
                                                                   const ConvertOptions& options,
                                                                   std::vector<std::string>& damage);

}  // namespace pawl::checkpoint
