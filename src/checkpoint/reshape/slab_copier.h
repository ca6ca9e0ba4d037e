// SlabCopier: copies the boxes of a slab to where they belong: to memory, to staged ranges, to other processes.
//
// Casts on the way, and counts the finite numbers that become infinite. What fails goes to Execution::fail, because a
// box more or less doesn't matter then. One thread at a time. Reads and writes no file (range_reader.h, range_writer.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/result.h"
#include "checkpoint/reshape/execution.h"
#include "checkpoint/reshape/peer_writes.h"
#include "checkpoint/reshape/staging.h"

namespace pawl::checkpoint {

class SlabCopier {
 public:
  explicit SlabCopier(Execution& execution) : execution_(execution), peer_writes_(execution.peers) {}

  // A box of one source of a part; its first element lies at `from`. The bytes stay until flush().
  void copy(const StagedSlab& slab, std::uint32_t part, std::uint32_t source, const Box& box, const std::byte* from);
  // The whole part; `bytes` are the decoded file. Fails: `corrupt` if it is too short.
  [[nodiscard]] Status copy_decoded(const StagedSlab& slab, const EncodedPart& encoded, std::string_view bytes);
  // Decodes what slab.encoded names, file after file. What peers get of it has been sent when this returns, since the
  // decoded bytes may be dropped then. Fails as DecodedFiles::get, copy_decoded and flush.
  [[nodiscard]] Status copy_encoded(StagedSlab& slab);
  // The means of the parts that have versions, which all have arrived.
  void average(const StagedSlab& slab);
  // Sends what other processes get. Fails: as PeerMemory::write.
  [[nodiscard]] Status flush() { return peer_writes_.flush(); }

  // Index of the tensor, and how many of its numbers became infinite.
  [[nodiscard]] const std::map<std::uint32_t, std::uint64_t>& overflows() const { return overflows_; }

 private:
  void deliver(const PlacedCopy& copy, const PlacedEnd& target, const BoxCopy& box);

  Execution& execution_;
  PeerWrites peer_writes_;
  std::map<std::uint32_t, std::uint64_t> overflows_;
};

}  // namespace pawl::checkpoint
