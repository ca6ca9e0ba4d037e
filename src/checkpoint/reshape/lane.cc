#include "checkpoint/reshape/lane.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/memory_kernel.h"
#include "checkpoint/reshape/strided.h"

namespace pawl::checkpoint {
namespace {

constexpr double kGapFraction = 0.015;  // of the needed bytes; with alignment less than 5 %

}  // namespace

Lane::Lane(Execution& execution, const LaneMemory& memory)
    : execution_(execution),
      memory_(memory),
      staging_(memory.staged_bytes),
      copier_(execution),
      reader_(execution, memory),
      writer_(execution),
      allowance_(kGapFraction) {}

void Lane::run() {
  const auto stopped = [this] { return execution_.stopped(); };
  while (std::optional<Slab> slab = execution_.slabs.pop(stopped)) {
    if (Status done = process(std::move(*slab)); !done) return execution_.fail(std::move(done).error());
    slab_.slab = {};  // its batch is not needed any more
  }
}

DiskQueue& Lane::queue() {
  if (!queue_) queue_ = make_disk_queue(kRequestsMax, execution_.options.io_uring);
  return *queue_;
}

DiskQueue& Lane::reading_queue() {
  if (!execution_.has_addresses) return queue();
  if (!address_queue_) address_queue_ = make_disk_queue(kRequestsMax, false);
  return *address_queue_;
}

Status Lane::process(Slab slab) {
  PAWL_TRY(staging_.begin(std::move(slab), slab_));
  PAWL_TRY(sort_sources());
  if (!slab_.pieces.empty()) {
    const std::vector<ReadRange> ranges = join_read_pieces(slab_.pieces, memory_.range_bytes_max(), allowance_);
    PAWL_TRY(reader_.read(slab_, ranges, reading_queue(), copier_));
  }
  PAWL_TRY(copier_.copy_encoded(slab_));
  copier_.average(slab_);
  PAWL_TRY(copier_.flush());
  memory_fence();
  if (!slab_.ranges.empty()) PAWL_TRY(writer_.write(slab_.ranges, queue()));
  std::uint64_t done = 0;
  for (const CopyPart& part : slab_.slab.parts) done += target_bytes(slab_.slab.batch->copies[part.copy], part.box);
  if (!execution_.stopped()) execution_.add_done(done);
  return {};
}

// Copies what lies in memory; the rest becomes pieces to be read and encoded parts.
Status Lane::sort_sources() {
  const std::uint64_t piece_bytes_max = std::max<std::uint64_t>(memory_.range_bytes_max() / 2, 1);
  for (std::uint32_t i = 0; i < slab_.slab.parts.size() && !execution_.stopped(); ++i) {
    const Box& box = slab_.slab.parts[i].box;
    const PlacedCopy& copy = slab_.copy_of(i);
    for (std::uint32_t s = 0; s < copy.source_count; ++s) {
      const PlacedEnd& end = slab_.source_of(i, s);
      if (end.memory != nullptr) {
        copier_.copy(slab_, i, s, box, end_at(end, copy.box, box).memory);
        continue;
      }
      switch (const StoredFile& file = (*execution_.stored)[end.file]; file.codec) {
        case StoredFile::Codec::none:
        case StoredFile::Codec::bfloat16:
        case StoredFile::Codec::float16:
          append_read_pieces(slab_.slab, i, s, piece_bytes_max, allowance_, slab_.pieces);
          break;
        case StoredFile::Codec::content:
          PAWL_TRY(copier_.copy_decoded(slab_, {end.file, i, s}, file.content));
          break;
        default:
          slab_.encoded.push_back({end.file, i, s});
      }
    }
  }
  return {};
}

}  // namespace pawl::checkpoint
