// CheckpointView: what any reader says a checkpoint holds: tensors by name and role, and where their bytes lie.
//
// The one vocabulary between the readers here and src/reshape, which plans copies from it. A tensor's pieces cover what
// the checkpoint has of it; two pieces with one region are copies that should be equal. Nothing here opens a file.
// Pure values; regions are in the tensor's own index space, row-major (tensor/region.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/element_type.h"
#include "tensor/region.h"

namespace pawl {

// One box of a tensor, somewhere in a file.
struct StoredPiece {
  Region region;
  std::uint32_t file = 0;              // index in CheckpointView::files
  std::uint64_t offset_bytes = 0;      // of its first element, in that file
  std::uint64_t length_bytes = 0;      // from its first element to its last, both included
  std::vector<std::uint64_t> strides;  // in elements, one a dimension; empty: row-major and dense
  bool swapped = false;                // the file's byte order is big-endian
};

struct StoredTensor {
  std::string name;
  std::string role = "weight";  // weight, master, exp_avg, exp_avg_sq, step, buffer
  ElementType type = ElementType::float32;
  Shape shape;  // global
  std::vector<StoredPiece> pieces;
};

struct CheckpointView {
  std::vector<std::string> files;  // paths, as they can be opened
  std::vector<StoredTensor> tensors;
  std::vector<std::string> notes;  // sentences for people: what is odd, missing or not understood
};

}  // namespace pawl
