#include "checkpoint/library/seen_pieces.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <map>
#include <tuple>

#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kNoFile = ~std::uint32_t{0};

struct Numbered {
  FileRange range;
  std::uint64_t number = 0;
  std::uint32_t crc32c = 0;
};

std::vector<Numbered> pieces_of(const StoreManifest& manifest) {
  std::vector<Numbered> pieces;
  for (const StoreManifestTensor& tensor : manifest.tensors)
    for (const StoreManifestPiece& piece : tensor.pieces)
      pieces.push_back({{piece.file, piece.offset_bytes, piece.offset_bytes + piece_bytes(tensor, piece)},
                        pieces.size(),
                        piece.crc32c});
  std::ranges::sort(pieces, {}, &Numbered::range);
  return pieces;
}

std::vector<std::uint32_t> files_of(const StoreManifest& manifest, const std::string& folder,
                                    std::span<const StoredFile> files) {
  std::map<std::string, std::uint32_t> named;
  for (std::uint32_t i = 0; i < manifest.files.size(); ++i) named[join_path(folder, manifest.files[i].name)] = i;
  std::vector<std::uint32_t> found;
  for (const StoredFile& file : files) {
    const auto at = named.find(file.path);
    found.push_back(at != named.end() && file.codec == StoredFile::Codec::none ? at->second : kNoFile);
  }
  return found;
}

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

Result<std::unique_ptr<SeenPieces>> SeenPieces::create(const std::string& folder, std::span<const StoredFile> files) {
  PAWL_ASSIGN(const StoreManifest manifest, read_store_manifest(folder));
  const std::vector<Numbered> pieces = pieces_of(manifest);
  std::vector<FileRange> ranges;
  for (const Numbered& piece : pieces) ranges.push_back(piece.range);
  PAWL_ASSIGN(RangeChecksums seen, RangeChecksums::create(std::move(ranges), ChecksumKind::crc32c));
  std::unique_ptr<SeenPieces> made(new SeenPieces(std::move(seen)));
  made->sums_.resize(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    made->number_of_.push_back(pieces[i].number);
    Sums& sums = made->sums_[pieces[i].number];
    sums.share = pieces[i].crc32c ^ made->seen_.value_at(i);  // so far of nothing but zeros
    sums.places = places_of(0, pieces[i].range.end - pieces[i].range.begin);
  }
  made->places_.resize(pieces.size());
  std::uint64_t number = 0;
  for (const StoreManifestTensor& tensor : manifest.tensors) {
    made->first_.push_back(number);
    number += tensor.pieces.size();
  }
  made->file_of_ = files_of(manifest, folder, files);
  return made;
}

SeenPieces::Places SeenPieces::places_of(std::uint64_t begin, std::uint64_t end) {
  return {end - begin, end * end - begin * begin, end * end * end - begin * begin * begin};
}

ReadObserver SeenPieces::observer() {
  return [this](std::uint32_t file, std::uint64_t offset_bytes, std::span<const std::byte> bytes) {
    if (file < file_of_.size() && file_of_[file] != kNoFile) add(file_of_[file], offset_bytes, bytes);
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
