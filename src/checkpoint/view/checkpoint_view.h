// CheckpointView: what a checkpoint holds, whatever its format: tensors by name and role, and where their bytes lie.
//
// All readers (checkpoint/formats) produce it; the planner, the executor and the commands use it. A tensor is a set of
// pieces. A piece is a box of the tensor, and a strided place in a file. Every sharding scheme can be written that way,
// flat intervals too (append_interval in checkpoint/view/pieces.h). What always holds of a view that a reader returned:
//  * (name, role) pairs are unique, and an alias names a tensor that exists;
//  * a piece's box is not empty and lies inside its tensor; its bytes lie inside its file;
//  * packed types (four and six bits) have one dense piece, which is all of the tensor;
//  * pieces of one version and copy don't overlap. Together they tile the tensor, or `problems` says what is missing.
// Nothing here opens a file. Plain values; boxes are in the tensor's own index space, row-major (tensor/box.h).
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

// Bytes that pieces lie in. Piece offsets count in the decoded bytes.
struct StoredFile {
  enum class Codec : std::uint8_t {
    none,      // the file as it is
    zstd,      // one range of the file is a zstd frame
    deflate,   // one range of the file is a raw deflate stream (a zip member)
    content,   // no file: the bytes are here, e.g. a number that a pickle held; `path` says where it was found
    bfloat16,  // one range of the file is float32 numbers, little-endian: these bytes are them rounded (cast.h)
    float16,   // likewise. For weights that are only stored as their masters
  };
  std::string path;  // as it can be opened
  Codec codec = Codec::none;
  std::uint64_t offset_bytes = 0;   // zstd, deflate: of the encoded range in the file
  std::uint64_t length_bytes = 0;   // likewise
  std::uint64_t decoded_bytes = 0;  // likewise: what it must decode to; else nothing
  std::string content = {};
};

inline constexpr std::uint32_t kNoRank = ~0u;

struct StoredPiece {
  Box box;
  std::uint32_t file = 0;          // index in CheckpointView::files
  std::uint64_t offset_bytes = 0;  // of its first element
  PerDimension stride{};           // in elements, of one step along each dimension (dense_stride: row-major)
  bool swapped = false;            // the file's byte order is big-endian
  std::uint32_t version = 0;       // of a tensor that is the mean of several: which, in rank order
  std::uint32_t copy = 0;          // which replica: those of one version should be equal, bit for bit
  std::uint32_t rank = kNoRank;    // the rank that wrote it, where the format says
};

// Of a block-quantised tensor: its scales name their payload.
struct BlockScales {
  std::string payload;  // name of the tensor that this one scales; empty: it scales none
  Shape block;          // elements of the payload that share one scale, one extent a dimension
};

struct StoredTensor {
  std::string name;
  std::string role = "weight";  // weight, master, exp_avg, exp_avg_sq, step, buffer, or the optimizer's own word
  ElementType type = ElementType::float32;
  Shape shape;  // the whole tensor's, without any padding that the format can tell
  std::vector<StoredPiece> pieces = {};
  std::uint32_t versions = 1;  // > 1: the value is their mean (checkpoint/reshape/cast.h)
  BlockScales scales = {};
};

// Problems that begin so leave weights and buffers whole: who wants no other role may go on.
inline constexpr const char* kOfOptimizerState = "optimizer state";

struct CheckpointView {
  std::string format;  // "DeepSpeed ZeRO-2", "PyTorch DCP", "safetensors": one line for people
  // What else is known, in this order where it is: writer, step, world, layout ("pp=2 tp=2 dp=2"), optimizer, ...
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<StoredFile> files;
  std::vector<StoredTensor> tensors;
  std::vector<std::pair<std::string, std::string>> aliases;  // tied names: alias, the name that is kept
  std::vector<std::string> objects;                          // what else is stored: names of no tensors
  std::string values;                                        // what else is stored, as JSON; empty: not known
  std::vector<std::string> notes;                            // sentences: what is odd, and does no harm
  std::vector<std::string> unnamed;  // sentences: optimizers whose state keeps its numbers, since nothing names them
  // Sentences: tensors that are there and have no plain values (quantised, sparse, without data): they are not among
  // `tensors`. convert, diff and a load refuse unless they are told to do without them.
  std::vector<std::string> unsupported;
  std::vector<std::string> problems;  // sentences: what is missing or damaged; convert refuses, inspect shows
};

// Bytes from a piece's first element to its last, both included.
[[nodiscard]] inline std::uint64_t span_bytes(const StoredPiece& piece, ElementType type) {
  std::uint64_t last = 0;
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) {
    if (piece.box.size[d] == 0) return 0;
    last += (piece.box.size[d] - 1) * piece.stride[d];
  }
  return size_bits(type) % 8 != 0 ? volume(piece.box) * size_bits(type) / 8 : (last + 1) * (size_bits(type) / 8);
}

// A piece that is all of a tensor, row-major and dense.
[[nodiscard]] inline StoredPiece whole_piece(const Shape& shape, std::uint32_t file, std::uint64_t offset_bytes) {
  const Box box = whole_box(shape);
  return {box, file, offset_bytes, dense_stride(box)};
}

}  // namespace pawl::checkpoint
