// What a conversion writes: which tensors, under which names, as which types, into which files. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/checkpoints/commands.h"
#include "formats/safetensors_writer.h"
#include "reshape/checkpoint_view.h"

namespace pawl {

struct ConvertedTensor {
  std::uint32_t tensor = 0;  // in the view
  std::string key;
  ElementType type = ElementType::float32;
  std::uint32_t file = 0;
  std::uint64_t offset_bytes = 0;  // in that file
  std::uint64_t size_bytes = 0;
};

struct ConvertedFile {
  std::string name;    // in the folder; of a conversion to one file that file's own
  std::string header;  // its first bytes
  std::uint64_t size_bytes = 0;
};

struct ConvertPlan {
  std::vector<ConvertedTensor> tensors;  // in the order of the view
  std::vector<ConvertedFile> files;
  std::string index;             // of several files of Hugging Face; else empty
  std::uint64_t data_bytes = 0;  // all tensors
  std::uint64_t all_bytes = 0;   // all files, the index too
  std::vector<std::string> notes;
};

// The problems of a view that stand in the way of these options: what is wrong with an optimizer's state alone does no
// harm to weights and buffers.
[[nodiscard]] std::vector<std::string> problems_for(const CheckpointView& view, const ConvertOptions& options);

// `view` has its final names. Fails: `not_found` where no tensor has a role, or none is left; `invalid` for a type that
// is none, and where two tensors would get one name; `full`.
[[nodiscard]] Result<ConvertPlan> plan_conversion(const CheckpointView& view, const ConvertOptions& options);

}  // namespace pawl
