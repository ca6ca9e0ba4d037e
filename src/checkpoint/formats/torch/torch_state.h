// TorchState: what one file of torch.save says of a training state: its tensors as boxes, and its optimizers' groups.
//
// One step above TorchFile: DTensors and ShardedTensors are boxes of whole tensors (torch_state_shards.h), numbers that
// an optimizer kept are tensors of no dimensions, as torch's own would be; conjugated and negated views are values.
// Names are still paths; what several files make together is for rank_files.h.
//
// What always holds: a part's boxes lie in its shape, its bytes in its file. What has no plain bytes (sparse, nested,
// meta) is `unsupported`; its parts are tensors of their own.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

struct TorchPart {
  std::vector<PathStep> path;
  ElementType type = ElementType::float32;
  Shape shape;                      // the whole tensor's
  std::vector<StoredPiece> pieces;  // file: index in TorchState::files
  std::string layout;               // of DTensors and ShardedTensors: how it is cut; else empty: all of it is here
  bool is_held = false;             // a parameter that only an optimizer has: its name is a number
};

// A dict {"state": {key: {word: tensor}}, "param_groups": [{"params": [key, ...]}]}, wherever it lies. Or a flat one, as
// torch.distributed.checkpoint flattens it: {"state.<name>.<word>": tensor, "param_groups.<name>.lr": number}.
struct TorchOptimizer {
  struct Group {
    std::vector<std::string> keys;    // as steps of paths have them
    std::vector<std::string> names;   // param_names, where the optimizer was made with names; else empty
    HyperGroup hyperparameters = {};  // without parameters
  };
  std::vector<PathStep> path;
  std::vector<Group> groups;
  bool is_indexed = false;  // keys are numbers
  bool is_flat = false;     // and then its tensors are parts like any others
};

struct TorchState {
  std::string path;
  std::string format;  // TorchFile::format
  std::uint64_t size_bytes = 0;
  std::vector<StoredFile> files;  // 0: the file itself
  std::vector<TorchPart> parts;   // in the order of the object
  std::vector<TorchOptimizer> optimizers;
  std::vector<std::string> objects;                          // other things at the top of the object
  std::vector<std::pair<std::string, std::string>> numbers;  // step, epoch, ... at the top
  std::vector<std::string> notes;
  std::vector<std::string> unsupported;
  std::vector<std::string> problems;
  std::string layout;       // of the first sharded tensor
  std::uint64_t world = 0;  // the job has at least so many ranks, where a sharded tensor says it
};

// Fails: as TorchFile::open; `invalid` for a Megatron-LM checkpoint of parallel ranks, which is not read.
[[nodiscard]] Result<TorchState> read_torch_state(const std::string& path, Files& files = real_files());

}  // namespace pawl::checkpoint
