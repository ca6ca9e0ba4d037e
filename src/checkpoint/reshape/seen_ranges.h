// SeenRanges: which bytes of some ranges of files a read has shown, and the checksums of these ranges: a source is proven
// with the bytes that are read anyway.
//
// What always holds: a byte that is shown twice in one process counts once. What was not shown is known exactly
// (gaps()); whoever reads these gaps and adds them has the checksum of the whole range. Several processes join what each
// has seen; where two of them saw the same byte, their sums can't be taken apart, and the range is doubtful.
// add() is thread-safe. Reads no file, and proves nothing: checkpoint/formats/read_proof.h compares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/range_checksums.h"

namespace pawl::checkpoint {

class SeenRanges {
 public:
  // Fails: as RangeChecksums::create().
  [[nodiscard]] static Result<std::unique_ptr<SeenRanges>> create(std::vector<FileRange> ranges, ChecksumKind kind);

  // Bytes outside of all ranges count nowhere.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  // What was seen, for join() in another process. Not while somebody adds; these are binary.
  [[nodiscard]] std::string words() const;
  // Fails: `invalid` if these are no words of the same ranges.
  [[nodiscard]] Status join(std::string_view words);

  // Of ranges()[index], not while somebody adds.
  [[nodiscard]] std::vector<FileRange> gaps(std::size_t index) const;  // that nobody has shown, ascending
  [[nodiscard]] bool is_doubtful(std::size_t index) const;
  [[nodiscard]] std::uint32_t value_at(std::size_t index) const { return sums_.value_at(index); }
  [[nodiscard]] const std::vector<FileRange>& ranges() const { return sums_.ranges(); }

 private:
  using Stretches = std::map<std::uint64_t, std::uint64_t>;  // begin, end; none touches the next

  explicit SeenRanges(RangeChecksums sums);
  // Takes note of a stretch. Returns what of it is new, ascending.
  static std::vector<std::pair<std::uint64_t, std::uint64_t>> claim(Stretches& stretches, std::uint64_t begin,
                                                                    std::uint64_t end);
  [[nodiscard]] static std::vector<FileRange> missing(const Stretches& stretches, const FileRange& range);

  RangeChecksums sums_;
  std::mutex mutex_;
  std::vector<Stretches> seen_;      // by file
  std::vector<Stretches> doubtful_;  // by file: seen by several processes
};

}  // namespace pawl::checkpoint
