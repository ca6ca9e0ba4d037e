// ReadProof: proves a source's checksums with the bytes that are read of it anyway, so that no damage is passed on.
//
//   create(view) -> observer() for ExecuteOptions::observe_read -> everything is read -> damage(view, tensors)
//
// What always holds: where damage() finds nothing, every checksum that the format has of bytes that were read agrees.
// What reading did not show (padding, packed records, what several processes saw) is read by damage(), and nothing else.
// Processes that read together join what they saw: take_words() of each, join() in the one that proves.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/stored_checksums.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/seen_ranges.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

class ReadProof {
 public:
  // Keeps nothing of the view. Fails: as checksums_of().
  [[nodiscard]] static Result<ReadProof> create(const CheckpointView& view);

  [[nodiscard]] ReadObserver observer();  // this must outlive it, and stay where it is
  // What was seen here since the last call, for join(): it no longer counts here. Not while somebody reads.
  [[nodiscard]] Result<std::string> take_words();
  [[nodiscard]] Status join(std::string_view words) { return seen_->join(words); }

  struct Read {
    std::vector<std::uint32_t> tensors;         // of the view: whose bytes may have been read
    std::optional<std::uint32_t> trusted_copy;  // of them
  };
  // After all was read and joined; once. Sentences: which file and record is damaged, or can't be read any more. Fails:
  // `cancelled`.
  [[nodiscard]] Result<std::vector<std::string>> damage(const CheckpointView& view, const Read& read,
                                                        const std::atomic<bool>* cancel = nullptr);

 private:
  ReadProof(StoredChecksums checksums, std::vector<std::size_t> number_of, std::unique_ptr<SeenRanges> seen,
            std::vector<std::uint32_t> path_of)
      : checksums_(std::move(checksums)),
        number_of_(std::move(number_of)),
        seen_(std::move(seen)),
        path_of_(std::move(path_of)) {}
  [[nodiscard]] bool is_seen(std::size_t index) const;
  [[nodiscard]] bool read_gaps(std::size_t index);

  StoredChecksums checksums_;
  std::vector<std::size_t> number_of_;  // of each range that is watched: its checksum
  std::unique_ptr<SeenRanges> seen_;
  std::vector<std::uint32_t> path_of_;  // of the view's files
};

// What a command says of it: the first few, and what to do.
[[nodiscard]] Error damaged_source(const std::vector<std::string>& damage);

}  // namespace pawl::checkpoint
