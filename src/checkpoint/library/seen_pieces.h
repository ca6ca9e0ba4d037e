// SeenPieces: proves pieces that have checksums (checkpoint/formats/stored_checksums.h) with the bytes that a load reads
// anyway, on many ranks.
//
// What it buys: without it, a load that checks checksums reads every piece a second time. Each stretch of
// bytes that a read shows adds its share to the CRC32C of its piece, and to three sums of its position (the count of
// bytes, and the sums of differences of squares and of cubes). The shares of all processes are joined. If each byte of
// a piece was shown exactly once, whoever read it, all four equal those of the whole piece: it is proven. If bytes were
// shown twice (which cancels them in a CRC) or not at all, or are damaged, one of the four differs, and the caller
// reads the piece itself. So a mismatch costs time, never correctness.
// What it can't see: stretches that cover a piece wrongly, but have the same three sums, and by chance (1 in 2^32) the
// same CRC32C. Lists of stretches would be exact, but have to be exchanged among the processes, and strided reads have
// millions of them. It is no defence against somebody who chooses the bytes.
// Pieces have the numbers of their checksums in the list. Where one process reads for itself, gaps are exact
// (checkpoint/formats/read_proof.h). Reads no data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/stored_checksums.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/range_checksums.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

class SeenPieces {
 public:
  // `files`: those of the view that is read. Fails: as RangeChecksums::create().
  [[nodiscard]] static Result<std::unique_ptr<SeenPieces>> create(const StoredChecksums& checksums,
                                                                  std::span<const StoredFile> files);

  // For ExecuteOptions::observe_read. This must outlive it.
  [[nodiscard]] ReadObserver observer();
  // "number:share:sum:sum:sum" of each piece that something was seen of, with blanks between. Not while somebody reads.
  [[nodiscard]] std::string shares() const;
  // Of each piece whether these shares, of any number of processes, come to its checksum: `given` are texts of shares()
  // with blanks between. Fails: `invalid` if it is something else.
  [[nodiscard]] Result<std::vector<bool>> proven_by(std::string_view given) const;

 private:
  // How many bytes, and of their places (from the piece's begin on) the sums of the differences of squares and cubes,
  // modulo 2^64: those of 0 to n are n, n^2, n^3 if each was there once.
  using Places = std::array<std::uint64_t, 3>;
  struct Sums {
    std::uint32_t share = 0;
    Places places{};
  };

  explicit SeenPieces(RangeChecksums seen) : seen_(std::move(seen)) {}
  [[nodiscard]] static Places places_of(std::uint64_t begin, std::uint64_t end);
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  RangeChecksums seen_;
  std::vector<Places> places_;            // of each range; by std::atomic_ref
  std::vector<std::uint64_t> number_of_;  // of each range
  std::vector<Sums> sums_;                // by number: those that make the checksum of the list
  std::vector<std::uint32_t> path_of_;    // by the view's files: the list's
};

}  // namespace pawl::checkpoint
