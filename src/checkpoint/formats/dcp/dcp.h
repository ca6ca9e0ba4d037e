// Dcp: a folder of torch.distributed.checkpoint: which boxes of which tensors lie where. Executes nothing.
//
// Reads .metadata, or, of a save without collectives, every __<rank>.metadata, and joins them. What always holds of one
// that was read: every box lies inside its tensor and has a place; every place lies inside a file of the folder. That
// the boxes cover a tensor is not promised here: view_dcp says what is missing. What lies in files that are missing or
// cut is left out, and `problems` says so. Boxes that are there twice (replicas that several ranks listed) stay, as
// copies that should be equal. Files that the metadata don't name (older saves) are ignored.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "env/files.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct DcpPlace {
  std::uint32_t file = 0;          // index in DcpCheckpoint::files
  std::uint64_t offset_bytes = 0;  // of an item: a whole file of torch.save, or as `transforms` say
  std::uint64_t length_bytes = 0;
  std::vector<std::string> transforms;  // of the writer's stream: "stream.zstd/1"
};

struct DcpChunk {
  Box box;
  DcpPlace place;
};

struct DcpTensor {
  std::string key;                // flat: "model.layers.0.weight"
  std::vector<std::string> path;  // the keys it was made of, where the planner said; else empty
  ElementType type = ElementType::float32;
  Shape shape;
  std::vector<DcpChunk> chunks;
  std::uint32_t order = 0;  // in the state that was saved, where the planner said; else in the metadata
};

struct DcpObject {  // anything but a tensor: torch.save of it
  std::string key;
  std::vector<std::string> path;
  DcpPlace place;
};

// What the planner said of the nesting, or else the key as one step.
[[nodiscard]] inline std::vector<std::string> path_or_key(std::vector<std::string> path, const std::string& key) {
  return path.empty() ? std::vector<std::string>{key} : std::move(path);
}

struct DcpCheckpoint {
  std::vector<std::string> files;  // paths, as they can be opened
  std::vector<std::uint64_t> file_bytes;
  std::vector<DcpTensor> tensors;  // in the order of the metadata
  std::vector<DcpObject> objects;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> notes;
  std::vector<std::string> problems;  // files that are missing or too short
};

// Fails: `not_found` without metadata; `corrupt` with file, offset and reason; `invalid` for more than eight
// dimensions; `full`; `io`.
[[nodiscard]] Result<DcpCheckpoint> open_dcp(const std::string& folder, Files& files = real_files());

// What an item of one tensor has at most when it is decoded: its elements, and what a file of torch.save has beside
// them. Nothing where no number of bytes holds the chunk.
[[nodiscard]] std::optional<std::uint64_t> decoded_bytes_max(const DcpTensor& tensor, const DcpChunk& chunk);

// Where the elements of a chunk lie, by a look at its item. `source` is the chunk's file, whole.
// Fails: `corrupt` if the item is no single tensor of that type and shape; `invalid` behind a transform.
[[nodiscard]] Result<StoredPiece> locate(ByteSource& source, const DcpTensor& tensor, const DcpChunk& chunk);

// All tensors, located, with the parameters' names and roles (checkpoint/names/state_names.h). Reads both ends of every
// item; of packed ones all. An item that is damaged is a problem. Fails as open_dcp; `corrupt` where boxes overlap;
// `invalid` for a transform that isn't known.
[[nodiscard]] Result<CheckpointView> view_dcp(const std::string& folder, const ReadOptions& options = {},
                                              Files& files = real_files());
// One of several folders in which a training keeps its models and its optimizers.
struct DcpPart {
  std::string folder;
  std::string top;            // what its keys begin with, instead of their own first step; empty: as they are
  bool is_optimizer = false;  // the others are good without it: if it can't be read, that is a problem
};
// Several as one checkpoint. Fails as view_dcp, for parts that are no optimizer; `corrupt` where two have one key.
[[nodiscard]] Result<CheckpointView> view_dcp_parts(std::span<const DcpPart> parts, const ReadOptions& options = {},
                                                    Files& files = real_files());
// As view_dcp, with the keys as names and all roles "weight": for readers that know better what their writer's keys mean.
[[nodiscard]] Result<CheckpointView> view_dcp_keys(const std::string& folder, Files& files = real_files());
// Of one that was opened: files, tensors and objects of the view stand where they do in it.
[[nodiscard]] Result<CheckpointView> view_dcp_keys(const DcpCheckpoint& checkpoint, Files& files = real_files());

}  // namespace pawl::checkpoint
