// Slabs: a plan's copies, cut into parts that fit in memory, and what each of them reads and writes.
//
// The pure half of the executor. A *move* is a copy with resolved places: bytes and strides in bytes. Moves of one
// tensor are cut along its index space, all at the same indices: a *slab* has all that reads or writes those elements,
// so nothing is read for two slabs. Within a slab, *items* are what its parts need of files, *extents* the ranges that
// are read, *windows* the ranges that are written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"

namespace pawl::checkpoint {

struct MoveEnd {
  std::byte* memory = nullptr;  // of the box's first element; null: it lies in a file
  std::uint32_t file = 0;
  std::uint64_t at = 0;  // of that element in the file's decoded bytes
  PerDimension stride{};
  ElementType stored = ElementType::uint8;  // what lies there: the move's type; or float32, to be rounded to it
  bool swapped = false;
  std::uint32_t peer = BufferPlace::kThisProcess;  // whose memory it is
};

struct CopyMove {
  std::uint32_t tensor = 0;
  ElementType from = ElementType::uint8;
  ElementType to = ElementType::uint8;
  Box box;
  std::uint32_t first_source = 0;  // in Batch::sources
  std::uint32_t source_count = 0;  // more than one: their mean
  MoveEnd target;
};

// Whole tensors, one after another.
struct Batch {
  std::vector<CopyMove> moves;
  std::vector<MoveEnd> sources;
};

struct Part {
  std::uint32_t move = 0;  // in the batch
  Box box;                 // of the move's
};

struct Slab {
  std::shared_ptr<const Batch> batch;
  std::vector<Part> parts;
};

// Appends the copy as a move. Packed types become bytes. Fails: `invalid` if it leaves a place, or can't be done.
[[nodiscard]] Status append_move(const ReshapeCopy& copy, const CopySource& source, const CopyTarget& target,
                                 Batch& batch);
[[nodiscard]] std::uint64_t target_bytes(const CopyMove& move, const Box& box);
// The end's place of the box's first element.
[[nodiscard]] MoveEnd end_at(const MoveEnd& end, const Box& of, const Box& box);

struct SlabLimits {
  std::uint64_t target_bytes = 0;
  std::uint64_t staged_bytes = 0;  // windows, and versions to be averaged
  std::uint64_t runs = 0;          // contiguous ranges in files
};
using SlabSink = std::function<void(Slab)>;
// All of the batch, in order. A slab passes a limit only if it is of one element.
void cut_into_slabs(const std::shared_ptr<const Batch>& batch, const SlabLimits& limits, const SlabSink& sink);

// A range of a target file, all of it written by the slab.
struct Window {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
// The windows, in order of file and offset, none adjacent to another. Parts whose rows fall into several are split.
[[nodiscard]] std::vector<Window> plan_windows(Slab& slab);

// A box of a part whose bytes lie together in a source file.
struct Item {
  std::uint32_t file = 0;
  std::uint32_t part = 0;
  std::uint32_t source = 0;  // of the move: which version
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  Box box;
};
// A range that is read at once, and the items in it.
struct Extent {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::size_t first_item = 0;
  std::size_t last_item = 0;  // one after
};

// How many bytes may be read that nobody needs: a share of what was needed so far.
class ReadAllowance {
 public:
  explicit ReadAllowance(double share) : share_(share) {}
  void need(std::uint64_t bytes) { room_ += share_ * static_cast<double>(bytes); }
  [[nodiscard]] bool spend(std::uint64_t bytes) {
    if (static_cast<double>(bytes) > room_) return false;
    room_ -= static_cast<double>(bytes);
    return true;
  }

 private:
  double share_;
  double room_ = 0;
};

// Appends the items of one source of a part. An item spans at most `span_bytes_max`, or is one element.
void append_items(const Slab& slab, std::uint32_t part, std::uint32_t source, std::uint64_t span_bytes_max,
                  ReadAllowance& allowance, std::vector<Item>& items);
// Sorts the items and joins them: an extent is at most `bytes_max` long, or is one item.
[[nodiscard]] std::vector<Extent> join_items(std::vector<Item>& items, std::uint64_t bytes_max,
                                             ReadAllowance& allowance);

}  // namespace pawl::checkpoint
