#include "checkpoint/reshape/slab_copier.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/strided.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kMeanElements = 1024;  // averaged at once

}  // namespace

void SlabCopier::copy(const StagedSlab& slab, std::uint32_t part, std::uint32_t source, const Box& box,
                      const std::byte* from) {
  const PlacedCopy& copy = slab.copy_of(part);
  const PlacedEnd& source_end = slab.source_of(part, source);
  const PlacedEnd target = slab.arrival_of(part, source, box);
  deliver(copy, target,
          {.dimensions = box.dimensions,
           .size = box.size,
           .from = from,
           .from_stride = source_end.stride,
           .from_type = source_end.stored,
           .by_type = copy.from,
           .swapped = source_end.swapped,
           .to = target.memory,
           .to_stride = target.stride,
           .to_type = copy.source_count > 1 ? copy.from : copy.to});
}

void SlabCopier::deliver(const PlacedCopy& copy, const PlacedEnd& target, const BoxCopy& box) {
  std::uint64_t overflows = 0;
  if (target.peer == BufferPlace::kThisProcess) {
    overflows = copy_box(box);
  } else if (Result<std::uint64_t> written = peer_writes_.add(target.peer, box); written) {
    overflows = *written;
  } else {
    execution_.fail(std::move(written).error());
  }
  if (overflows != 0) overflows_[copy.tensor] += overflows;
}

Status SlabCopier::copy_decoded(const StagedSlab& slab, const EncodedPart& encoded, std::string_view bytes) {
  const Box& box = slab.slab.parts[encoded.part].box;
  const PlacedCopy& placed = slab.copy_of(encoded.part);
  const PlacedEnd end = end_at(slab.source_of(encoded.part, encoded.source), placed.box, box);
  std::uint64_t last = size_bits(placed.from) / 8;
  for (std::uint32_t d = 0; d < box.dimensions; ++d) last += (box.size[d] - 1) * end.stride[d];
  if (end.at > bytes.size() || last > bytes.size() - end.at)
    return Error{Code::corrupt, text((*execution_.stored)[encoded.file].path, ": ", bytes.size(),
                                     " bytes when decoded, and ", end.at, " + ", last, " are wanted")};
  copy(slab, encoded.part, encoded.source, box, reinterpret_cast<const std::byte*>(bytes.data()) + end.at);
  return {};
}

Status SlabCopier::copy_encoded(StagedSlab& slab) {
  std::vector<EncodedPart>& encoded = slab.encoded;
  std::ranges::sort(encoded, {}, [](const EncodedPart& one) { return std::tuple(one.file, one.part, one.source); });
  for (std::size_t i = 0; i < encoded.size() && !execution_.stopped();) {
    const std::uint32_t file = encoded[i].file;
    PAWL_ASSIGN(const DecodedFiles::Bytes bytes, execution_.decoded.get(file));
    for (; i < encoded.size() && encoded[i].file == file; ++i) PAWL_TRY(copy_decoded(slab, encoded[i], *bytes));
    PAWL_TRY(flush());  // writes to peers read from `bytes`, which may be dropped after this turn
  }
  return {};
}

void SlabCopier::average(const StagedSlab& slab) {
  std::vector<const std::byte*> versions;
  alignas(64) std::array<std::byte, kMeanElements * 16> mean;
  for (std::uint32_t i = 0; i < slab.slab.parts.size() && !execution_.stopped(); ++i) {
    std::byte* const first = slab.versions[i];
    if (first == nullptr) continue;
    const Box& box = slab.slab.parts[i].box;
    const PlacedCopy& copy = slab.copy_of(i);
    const std::uint64_t unit = size_bits(copy.from) / 8, count = volume(box);
    for (std::uint64_t done = 0; done < count; done += kMeanElements) {
      const std::size_t n = std::min<std::uint64_t>(kMeanElements, count - done);
      versions.clear();
      for (std::uint32_t s = 0; s < copy.source_count; ++s) versions.push_back(first + (s * count + done) * unit);
      checkpoint::average(copy.from, versions, n, mean.data());
      std::memcpy(first + done * unit, mean.data(), n * unit);
    }
    const PlacedEnd target = slab.target_of(copy, box);
    deliver(copy, target,
            {.dimensions = box.dimensions,
             .size = box.size,
             .from = first,
             .from_stride = dense_bytes(box, unit),
             .from_type = copy.from,
             .by_type = copy.from,
             .to = target.memory,
             .to_stride = target.stride,
             .to_type = copy.to});
  }
}

}  // namespace pawl::checkpoint
