// PartChunks: any range of a data file, put together from its header and from memory, and summed in the same pass.
//
// A byte of memory is loaded once: the sum is that of the byte that was copied, so it is right for what is written,
// whatever happens to the memory meanwhile. Several threads may fill chunks of one file, each with sums of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/store/memory_sums.h"
#include "checkpoint/store/store_folder.h"

namespace pawl::checkpoint {

// A piece where it lies in the file.
struct DensePiece {
  const std::byte* memory = nullptr;
  std::uint64_t offset_bytes = 0;  // in the file
  std::uint64_t size_bytes = 0;
  const StorePiece* strided = nullptr;  // set: its bytes don't lie in memory as in the file, and are gathered
};

struct WrittenPieces {
  std::vector<std::uint32_t> crc32c;  // of each piece
  std::vector<SummedRange> ranges;    // all that was read but what was gathered; cut at the buckets of `cut`
};

// A file: its head, and behind it pieces in order of the file, none into another. What lies between them is zero.
struct PartBytes {
  std::string_view head;
  std::span<const DensePiece> pieces;
  const MemorySums* cut = nullptr;  // sums end at its buckets; may be null
};

// What is summed at once.
struct SummedPiece {
  std::size_t piece = 0;
  std::uint64_t at = 0;  // in the piece
  SummedRange range;     // without memory: a gathered one
};

// The bytes of the file from `begin` on; the answer is how many of them are pieces'. Nothing: neither head nor piece is
// there, and `into` is zero.
[[nodiscard]] std::optional<std::uint64_t> fill_chunk(const PartBytes& file, std::uint64_t begin,
                                                      std::span<std::byte> into, std::vector<SummedPiece>& summed);
// Of all chunks together.
[[nodiscard]] WrittenPieces joined_pieces(std::vector<SummedPiece> summed, std::size_t piece_count);

}  // namespace pawl::checkpoint
