// RankFiles: checkpoints of plain torch.save: one file, or a folder with one file from each rank.
//
// What the ranks hold together: DTensors and ShardedTensors are boxes of one tensor; what every rank saved whole are
// copies, which should be equal. An optimizer's numbers become names where shapes are a parameter's own
// (parameter_order.h): one optimizer on all ranks, or a ZeroRedundancyOptimizer's dealt ones. FSDP's flat parameters are joined; the shapes
// in them are not in such files and must be given with --param-names, else tensors stay flat and a problem says so.
//
// What always holds of a view: see checkpoint/view/checkpoint_view.h. If an optimizer's names are not known, weights
// stay readable: the optimizer's tensors keep their stored names, and `unnamed` says the remedy. Executes nothing.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// Fails: as torch_file.h; `invalid` for options that are wrong, and for a rank of Megatron-LM's "torch" format.
[[nodiscard]] Result<CheckpointView> view_torch_file(const std::string& path, const ReadOptions& options = {},
                                                     Files& files = real_files());

// The files of torch.save in a folder: several that differ in one number, which is the rank; or one. Other names may
// lie beside them; a note says so. Two sets (model_rank0.pt, optim_rank0.pt) are read together. Fails: `not_found`
// without such files; `invalid` where they are several checkpoints, or nothing shows that the number is a rank; and as
// the files do. A rank that is missing is a problem.
[[nodiscard]] Result<CheckpointView> view_rank_files(const std::string& folder, const ReadOptions& options = {},
                                                     Files& files = real_files());

// Names that are equal but for one number.
struct RankFileSet {
  std::string pattern;                                       // "rank#.pt"
  std::vector<std::pair<std::uint64_t, std::string>> files;  // number, name; ascending by number: 10 comes after 9
};
// Pure. Names without a number, and such as nothing else resembles, are in no set, unless the number follows "rank".
[[nodiscard]] std::vector<RankFileSet> rank_file_sets(std::span<const std::string> names);

}  // namespace pawl::checkpoint
