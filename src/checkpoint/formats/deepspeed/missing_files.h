// MissingFiles: which files a save should have and has not, by the numbers of its ranks, layers and experts.
//
// Pure: looks at names, and at what the files that are there say of the others.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/formats/deepspeed/degrees.h"
#include "checkpoint/formats/deepspeed/model.h"
#include "checkpoint/formats/deepspeed/save_folder.h"

namespace pawl::checkpoint::deepspeed {

// Their names: of layers, of experts, then of ranks. Of very many only the first.
[[nodiscard]] std::vector<std::string> missing_files(const SaveFolder& save, const SavedModel& model,
                                                     const ParallelDegrees& degrees, std::uint64_t expert_degree);

}  // namespace pawl::checkpoint::deepspeed
