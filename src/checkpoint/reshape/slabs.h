// Slabs: a plan's copies, cut so that they fit in memory, and what each slab reads and writes.
//
// The pure half of the executor. A PlacedCopy is a PlannedCopy whose places are known: memory and files, with strides in
// bytes. The copies of one tensor are cut along its index space, all at the same indices. A *slab* has every part of a
// copy that reads or writes those elements, so no byte is read for two slabs. A slab reads ReadPieces, which are joined
// to ReadRanges, and writes FileRanges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"

namespace pawl::checkpoint {

struct PlacedEnd {
  std::byte* memory = nullptr;  // of the box's first element; null: it lies in a file
  std::uint32_t file = 0;
  std::uint64_t at = 0;  // of that element in the file's decoded bytes
  PerDimension stride{};
  ElementType stored = ElementType::uint8;  // what lies there: the copy's type; or float32, to be rounded to it
  bool swapped = false;
  std::uint32_t peer = BufferPlace::kThisProcess;  // whose memory it is
};

struct PlacedCopy {
  std::uint32_t tensor = 0;
  ElementType from = ElementType::uint8;
  ElementType to = ElementType::uint8;
  Box box;
  std::uint32_t first_source = 0;  // in Batch::sources
  std::uint32_t source_count = 0;  // more than one: their mean
  PlacedEnd target;
};

// Whole tensors, one after another.
struct Batch {
  std::vector<PlacedCopy> copies;
  std::vector<PlacedEnd> sources;
};

struct CopyPart {
  std::uint32_t copy = 0;  // in the batch
  Box box;                 // of the copy's
};

struct Slab {
  std::shared_ptr<const Batch> batch;
  std::vector<CopyPart> parts;
};

// Appends the copy, with its places. Packed types become bytes. Fails: `invalid` if it leaves a place, or is impossible.
[[nodiscard]] Status append_placed_copy(const PlannedCopy& copy, const CopySource& source, const CopyTarget& target,
                                        Batch& batch);
[[nodiscard]] std::uint64_t target_bytes(const PlacedCopy& placed, const Box& box);
// The end's place of the box's first element.
[[nodiscard]] PlacedEnd end_at(const PlacedEnd& end, const Box& of, const Box& box);

struct SlabLimits {
  std::uint64_t target_bytes = 0;
  std::uint64_t staged_bytes = 0;  // ranges to be written, and versions to be averaged
  std::uint64_t runs = 0;          // contiguous ranges in files
};
using SlabSink = std::function<void(Slab)>;
// All of the batch, in order. A slab passes a limit only if it is of one element.
void cut_into_slabs(const std::shared_ptr<const Batch>& batch, const SlabLimits& limits, const SlabSink& sink);

// The ranges of target files that the slab writes, each whole: in order of file and offset, none adjacent to another.
// Splits parts whose rows lie in several of them.
[[nodiscard]] std::vector<FileRange> plan_writes(Slab& slab);

// A box of a part whose bytes lie together in a source file.
struct ReadPiece {
  std::uint32_t file = 0;
  std::uint32_t part = 0;
  std::uint32_t source = 0;  // of the copy: which version
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Box box;
};
// A range of a source file that is read at once, and the pieces in it.
struct ReadRange {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t first_piece = 0;
  std::size_t last_piece = 0;  // one after
};

// How many bytes may be read that nobody needs: a fraction of what was needed so far.
class ReadAllowance {
 public:
  explicit ReadAllowance(double fraction) : fraction_(fraction) {}
  void need(std::uint64_t bytes) { room_ += fraction_ * static_cast<double>(bytes); }
  [[nodiscard]] bool spend(std::uint64_t bytes) {
    if (static_cast<double>(bytes) > room_) return false;
    room_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  double fraction_;
  double room_ = 0;
};

// Appends the pieces of one source of a part. A piece spans at most `span_bytes_max`, or is one element.
void append_read_pieces(const Slab& slab, std::uint32_t part, std::uint32_t source, std::uint64_t span_bytes_max,
                        ReadAllowance& allowance, std::vector<ReadPiece>& pieces);
// Sorts the pieces and joins them: a range is at most `bytes_max` long, or is one piece.
[[nodiscard]] std::vector<ReadRange> join_read_pieces(std::vector<ReadPiece>& pieces, std::uint64_t bytes_max,
                                                      ReadAllowance& allowance);

}  // namespace pawl::checkpoint
