#include "checkpoint/reshape/seen_ranges.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace pawl::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little);

void append(std::string& out, std::uint64_t number) {
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

bool take(std::string_view& from, std::uint64_t& number) {
  if (from.size() < sizeof number) return false;
  std::memcpy(&number, from.data(), sizeof number);
  from.remove_prefix(sizeof number);
  return true;
}

}  // namespace

SeenRanges::SeenRanges(RangeChecksums sums) : sums_(std::move(sums)) {
  const std::size_t files = sums_.ranges().empty() ? 0 : sums_.ranges().back().file + std::size_t{1};
  seen_.resize(files);
  doubtful_.resize(files);
}

Result<std::unique_ptr<SeenRanges>> SeenRanges::create(std::vector<FileRange> ranges, ChecksumKind kind) {
  PAWL_ASSIGN(RangeChecksums sums, RangeChecksums::create(std::move(ranges), kind));
  return std::unique_ptr<SeenRanges>(new SeenRanges(std::move(sums)));
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> SeenRanges::claim(Stretches& stretches, std::uint64_t begin,
                                                                       std::uint64_t end) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> fresh;
  std::uint64_t from = begin, joined_begin = begin, joined_end = end;
  auto at = stretches.upper_bound(begin);
  if (at != stretches.begin() && std::prev(at)->second >= begin) --at;
  while (at != stretches.end() && at->first <= end) {
    if (at->first > from) fresh.emplace_back(from, at->first);
    from = std::max(from, at->second);
    joined_begin = std::min(joined_begin, at->first);
    joined_end = std::max(joined_end, at->second);
    at = stretches.erase(at);
  }
  if (from < end) fresh.emplace_back(from, end);
  stretches.emplace(joined_begin, joined_end);
  return fresh;
}

void SeenRanges::add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  if (file >= seen_.size() || bytes.empty()) return;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> fresh;
  {
    const std::lock_guard lock(mutex_);
    fresh = claim(seen_[file], offset_bytes, offset_bytes + bytes.size());
  }
  for (const auto& [begin, end] : fresh) sums_.add(file, begin, bytes.subspan(begin - offset_bytes, end - begin));
}

std::string SeenRanges::words() const {
  std::string out;
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < ranges().size(); ++i) count += sums_.share_at(i) != 0;
  append(out, ranges().size());
  append(out, count);
  for (std::size_t i = 0; i < ranges().size(); ++i) {
    if (sums_.share_at(i) == 0) continue;
    append(out, i);
    append(out, sums_.share_at(i));
  }
  for (std::size_t file = 0; file < seen_.size(); ++file)
    for (const auto& [begin, end] : seen_[file]) {
      append(out, file);
      append(out, begin);
      append(out, end);
    }
  return out;
}

Status SeenRanges::join(std::string_view words) {
  const Error bad{Code::invalid, "what was seen of checksums is not of this checkpoint"};
  std::uint64_t all = 0, count = 0;
  if (!take(words, all) || all != ranges().size() || !take(words, count)) return bad;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t index = 0, share = 0;
    if (!take(words, index) || index >= all || !take(words, share) || share > ~std::uint32_t{0}) return bad;
    sums_.add_share(index, static_cast<std::uint32_t>(share));
  }
  while (!words.empty()) {
    std::uint64_t file = 0, begin = 0, end = 0;
    if (!take(words, file) || file >= seen_.size() || !take(words, begin) || !take(words, end) || begin >= end)
      return bad;
    std::uint64_t at = begin;
    for (const auto& [from, to] : claim(seen_[file], begin, end)) {
      if (at < from) (void)claim(doubtful_[file], at, from);
      at = to;
    }
    if (at < end) (void)claim(doubtful_[file], at, end);
  }
  return {};
}

std::vector<FileRange> SeenRanges::missing(const Stretches& stretches, const FileRange& range) {
  std::vector<FileRange> out;
  std::uint64_t from = range.begin;
  auto at = stretches.upper_bound(range.begin);
  if (at != stretches.begin()) --at;
  for (; at != stretches.end() && at->first < range.end; ++at) {
    if (at->first > from) out.push_back({range.file, from, at->first});
    from = std::max(from, at->second);
  }
  if (from < range.end) out.push_back({range.file, from, range.end});
  return out;
}

std::vector<FileRange> SeenRanges::gaps(std::size_t index) const {
  return missing(seen_[ranges()[index].file], ranges()[index]);
}

bool SeenRanges::is_doubtful(std::size_t index) const {
  const FileRange& range = ranges()[index];
  const std::vector<FileRange> sure = missing(doubtful_[range.file], range);
  return range.begin != range.end && (sure.size() != 1 || sure[0] != range);
}

}  // namespace pawl::checkpoint
