// PartWriter: writes what lies together in memory into a data file, in one pass.
//
// Each byte is loaded once: summed while it is copied to where the disk takes it from. So a sum is that of the bytes that the
// file gets, also if somebody writes the memory meanwhile. The file is written in whole chunks, past the page cache where
// that is possible, with many in flight, whatever the sizes of the pieces. What lies between them is zero.
// Does not make the file, nor sync it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/store/memory_sums.h"
#include "checkpoint/store/part_chunks.h"

namespace pawl::checkpoint {

// Into the file at `path`, which is there at its full size. Pieces are in order of the file, after its `head`, none into
// another. Of `options`: memory, threads, io_uring, direct, progress, cancel. `pace`: as StorePartOptions has it. Fails: `full`, `io`, `cancelled`.
[[nodiscard]] Result<WrittenPieces> write_dense_pieces(const TargetFile& file, std::span<const DensePiece> pieces,
                                                       const MemorySums* cut, const ExecuteOptions& options,
                                                       const std::function<void(std::uint64_t bytes)>& pace = {});

}  // namespace pawl::checkpoint
