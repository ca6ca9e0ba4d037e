// Staging: the slab in hand, and the memory in which its ranges of target files are put together.
//
// StagedSlab is a value: all that a lane knows of one slab. Its vectors are used again for the next slab. Staging owns
// the memory, and lays a slab out in it. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <tuple>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/pinned_buffer.h"
#include "checkpoint/reshape/slabs.h"

namespace pawl::checkpoint {

// A range of a target file, and its bytes before they are written.
struct StagedRange {
  FileRange range;
  std::byte* memory = nullptr;
};

// A part of a copy whose source is an encoded file.
struct EncodedPart {
  std::uint32_t file = 0;
  std::uint32_t part = 0;
  std::uint32_t source = 0;
};

// Strides, in bytes, of the box's elements without gaps.
[[nodiscard]] inline PerDimension dense_bytes(const Box& box, std::uint64_t element_bytes) {
  PerDimension stride = dense_stride(box);
  for (std::uint32_t d = 0; d < box.dimensions; ++d) stride[d] *= element_bytes;
  return stride;
}

struct StagedSlab {
  Slab slab;
  std::vector<StagedRange> ranges;   // in order of file and begin
  std::vector<std::byte*> versions;  // of each part with several sources: their dense boxes, one after another
  std::vector<ReadPiece> pieces;     // to be read
  std::vector<EncodedPart> encoded;  // to be decoded

  [[nodiscard]] const PlacedCopy& copy_of(std::uint32_t part) const {
    return slab.batch->copies[slab.parts[part].copy];
  }
  [[nodiscard]] const PlacedEnd& source_of(std::uint32_t part, std::uint32_t source) const {
    return slab.batch->sources[copy_of(part).first_source + source];
  }
  // Where the copy's target of this box is in memory: its own, or that of the staged range that has it.
  [[nodiscard]] PlacedEnd target_of(const PlacedCopy& copy, const Box& box) const {
    PlacedEnd end = end_at(copy.target, copy.box, box);
    if (end.memory != nullptr) return end;
    const auto after = std::ranges::upper_bound(
        ranges, std::tuple(end.file, end.at), {},
        [](const StagedRange& staged) { return std::tuple(staged.range.file, staged.range.begin); });
    const StagedRange& staged = *(after - 1);
    end.memory = staged.memory + (end.at - staged.range.begin);
    return end;
  }
  // Where a box of one source of a part goes now: its target, or the place of its version.
  [[nodiscard]] PlacedEnd arrival_of(std::uint32_t part, std::uint32_t source, const Box& box) const {
    const PlacedCopy& copy = copy_of(part);
    if (copy.source_count == 1) return target_of(copy, box);
    const Box& all = slab.parts[part].box;
    const std::uint64_t element_bytes = size_bits(copy.from) / 8;
    PlacedEnd end;
    end.memory = versions[part] + source * volume(all) * element_bytes;
    end.stride = dense_bytes(all, element_bytes);
    return end_at(end, all, box);
  }
};

class Staging {
 public:
  explicit Staging(std::uint64_t bytes) : bytes_min_(bytes) {}
  // Lays out `slab`: what it writes to files, and its versions. `out` is of this slab from now on, without pieces.
  // Fails: `full`.
  [[nodiscard]] Status begin(Slab slab, StagedSlab& out);
  [[nodiscard]] std::uint64_t buffer_bytes() const { return bytes_; }

 private:
  [[nodiscard]] std::byte* take(std::uint64_t bytes, std::uint64_t congruent_to);

  std::uint64_t bytes_min_;  // that it takes when it takes any
  std::uint64_t bytes_ = 0;  // that it has
  std::uint64_t used_ = 0;   // by the slab in hand
  PinnedBuffer memory_;
};

}  // namespace pawl::checkpoint
