#include "checkpoint/formats/read_proof.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "base/first_few.h"
#include "base/text.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kReadBytes = 1 << 20;

}  // namespace

Result<ReadProof> ReadProof::create(const CheckpointView& view) {
  PAWL_ASSIGN(StoredChecksums checksums, checksums_of(view));
  std::vector<std::size_t> number_of = plain_checksums(checksums);
  std::vector<FileRange> ranges;
  for (const std::size_t number : number_of) ranges.push_back(range_of(checksums.all[number]));
  PAWL_ASSIGN(std::unique_ptr<SeenRanges> seen, SeenRanges::create(std::move(ranges), checksums.kind));
  std::vector<std::uint32_t> path_of = paths_of_files(checksums, view.files);
  return ReadProof(std::move(checksums), std::move(number_of), std::move(seen), std::move(path_of));
}

ReadObserver ReadProof::observer() {
  return [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    if (file < path_of_.size() && path_of_[file] != kNoPath) seen_->add(path_of_[file], offset_bytes, bytes);
  };
}

// False: something can't be read.
bool ReadProof::read_gaps(std::size_t index) {
  const std::vector<FileRange> gaps = seen_->gaps(index);
  if (gaps.empty()) return true;
  const Result<std::unique_ptr<ByteSource>> source = open_bytes(checksums_.paths[gaps[0].file]);
  if (!source) return false;
  std::vector<std::byte> buffer(kReadBytes);
  for (const FileRange& gap : gaps)
    for (std::uint64_t at = gap.begin; at < gap.end;) {
      const std::span<std::byte> part =
          std::span(buffer).first(static_cast<std::size_t>(std::min(gap.end - at, kReadBytes)));
      if (!(*source)->read(at, part)) return false;
      seen_->add(gap.file, at, part);
      at += part.size();
    }
  return true;
}

Result<std::string> ReadProof::take_words() {
  std::string words = seen_->words();
  PAWL_ASSIGN(seen_, SeenRanges::create(seen_->ranges(), checksums_.kind));
  return words;
}

// In part or whole.
bool ReadProof::is_seen(std::size_t index) const {
  return seen_->gaps(index) != std::vector{seen_->ranges()[index]};
}

Result<std::vector<std::string>> ReadProof::damage(const CheckpointView& view, const Read& read,
                                                   const std::atomic<bool>* cancel) {
  std::vector<std::size_t> alone = checksums_meeting(checksums_, view, read.tensors, read.trusted_copy);
  std::vector<std::size_t> proven;  // by what was seen
  std::vector<std::string> wrong = checksums_.wrong;
  for (std::size_t index = 0; index < number_of_.size(); ++index) {
    if (cancel != nullptr && cancel->load()) return Error{Code::cancelled, "interrupted"};
    if (!is_seen(index)) continue;
    const std::size_t number = number_of_[index];
    if (seen_->is_doubtful(index) || !read_gaps(index)) {
      alone.push_back(number);
      continue;
    }
    proven.push_back(number);
    if (seen_->value_at(index) != checksums_.all[number].value) wrong.push_back(sentence_of_damage(checksums_, number));
  }
  std::ranges::sort(alone);
  const auto [again, end] = std::ranges::unique(alone);
  alone.erase(again, end);
  std::vector<std::size_t> rest;
  std::ranges::set_difference(alone, proven, std::back_inserter(rest));
  PAWL_ASSIGN(ChecksumReport report, prove_checksums(checksums_, rest, {.cancel = cancel}));
  std::ranges::move(report.wrong, std::back_inserter(wrong));
  return wrong;
}

Error damaged_source(const std::vector<std::string>& damage) {
  return Error{Code::corrupt, text("damaged: ", first_few(damage), "; copy the checkpoint again, or take another one")};
}

}  // namespace pawl::checkpoint
