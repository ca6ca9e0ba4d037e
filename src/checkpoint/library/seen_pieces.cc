#include "checkpoint/library/seen_pieces.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <tuple>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

// Of what no reading shows: no stretches make it.
constexpr std::array<std::uint64_t, 3> kNeverSeen = {~std::uint64_t{0}, 1, 1};

template <typename Number>
bool take_number(std::string_view& from, Number& number) {
  const auto [end, error] = std::from_chars(from.data(), from.data() + from.size(), number);
  if (error != std::errc{}) return false;
  from.remove_prefix(static_cast<std::size_t>(end - from.data()));
  return true;
}

template <typename Number>
bool take_next(std::string_view& from, Number& number) {
  if (!from.starts_with(':')) return false;
  from.remove_prefix(1);
  return take_number(from, number);
}

}  // namespace

Result<std::unique_ptr<SeenPieces>> SeenPieces::create(const StoredChecksums& checksums,
                                                       std::span<const StoredFile> files) {
  const std::vector<std::size_t> plain = plain_checksums(checksums);
  std::vector<FileRange> ranges;
  for (const std::size_t number : plain) ranges.push_back(range_of(checksums.all[number]));
  PAWL_ASSIGN(RangeChecksums seen, RangeChecksums::create(std::move(ranges), checksums.kind));
  std::unique_ptr<SeenPieces> made(new SeenPieces(std::move(seen)));
  made->sums_.assign(checksums.all.size(), {0, kNeverSeen});
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const StoredChecksum& checksum = checksums.all[plain[i]];
    Sums& sums = made->sums_[plain[i]];
    sums.share = checksum.value ^ made->seen_.value_at(i);  // so far of nothing but zeros
    sums.places = places_of(0, checksum.end - checksum.begin);
  }
  made->places_.resize(plain.size());
  made->number_of_.assign(plain.begin(), plain.end());
  made->path_of_ = paths_of_files(checksums, files);
  return made;
}

SeenPieces::Places SeenPieces::places_of(std::uint64_t begin, std::uint64_t end) {
  return {end - begin, end * end - begin * begin, end * end * end - begin * begin * begin};
}

ReadObserver SeenPieces::observer() {
  return [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    if (file < path_of_.size() && path_of_[file] != kNoPath) add(path_of_[file], offset_bytes, bytes);
  };
}

void SeenPieces::add(std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
  seen_.add(file, offset_bytes, bytes);
  const std::vector<FileRange>& ranges = seen_.ranges();
  const std::uint64_t end = offset_bytes + bytes.size();
  auto range = std::ranges::partition_point(
      ranges, [&](const FileRange& one) { return std::tuple(one.file, one.end) <= std::tuple(file, offset_bytes); });
  for (; range != ranges.end() && range->file == file && range->begin < end; ++range) {
    const std::uint64_t from = std::max(offset_bytes, range->begin), to = std::min(end, range->end);
    if (from >= to) continue;
    const Places shown = places_of(from - range->begin, to - range->begin);
    Places& places = places_[static_cast<std::size_t>(range - ranges.begin())];
    for (std::size_t i = 0; i < shown.size(); ++i)
      std::atomic_ref(places[i]).fetch_add(shown[i], std::memory_order_relaxed);
  }
}

std::string SeenPieces::shares() const {
  std::string out;
  for (std::size_t i = 0; i < number_of_.size(); ++i) {
    const auto& [count, squares, cubes] = places_[i];
    if (count != 0)
      out += text(out.empty() ? "" : " ", number_of_[i], ':', seen_.share_at(i), ':', count, ':', squares, ':', cubes);
  }
  return out;
}

Result<std::vector<bool>> SeenPieces::proven_by(std::string_view given) const {
  std::vector<Sums> left = sums_;
  const Error bad{Code::invalid, "options: \"seen\": no texts of pawl_checkpoint_seen of this checkpoint"};
  while (!given.empty()) {
    if (given.front() == ' ') {
      given.remove_prefix(1);
      continue;
    }
    std::uint64_t number = 0;
    Sums sums;
    if (!take_number(given, number) || number >= left.size() || !take_next(given, sums.share)) return bad;
    for (std::uint64_t& place : sums.places)
      if (!take_next(given, place)) return bad;
    left[number].share ^= sums.share;
    for (std::size_t i = 0; i < sums.places.size(); ++i) left[number].places[i] -= sums.places[i];
  }
  std::vector<bool> proven;
  for (const Sums& rest : left) proven.push_back(rest.share == 0 && rest.places == Places{});
  return proven;
}

}  // namespace pawl::checkpoint
