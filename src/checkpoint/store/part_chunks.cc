#include "checkpoint/store/part_chunks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {
namespace {

// Bytes [at, at + size) of a piece as it is in the file, out of memory in which it has strides.
void gather(const StorePiece& piece, std::uint64_t at, std::uint64_t size, std::byte* to) {
  std::uint64_t run = size_bits(piece.type) / 8;
  std::uint32_t outer = piece.box.dimensions;  // dimensions of which neighbours don't lie together
  while (outer > 0 && (piece.box.size[outer - 1] == 1 || piece.stride_bytes[outer - 1] == run))
    run *= piece.box.size[--outer];
  while (size > 0) {
    const std::byte* from = piece.memory + at % run;
    std::uint64_t rest = at / run;
    for (std::uint32_t d = outer; d-- > 0;) {
      from += rest % piece.box.size[d] * piece.stride_bytes[d];
      rest /= piece.box.size[d];
    }
    const std::uint64_t count = std::min(size, run - at % run);
    std::memcpy(to, from, count);
    at += count;
    to += count;
    size -= count;
  }
}

// Bytes [at, end) of the file, which are that piece's.
void copy(const PartBytes& file, std::size_t number, std::uint64_t at, std::uint64_t end, std::byte* to,
          std::vector<SummedPiece>& summed) {
  const DensePiece& piece = file.pieces[number];
  if (piece.strided != nullptr) {
    gather(*piece.strided, at - piece.offset_bytes, end - at, to);
    summed.push_back({number, at - piece.offset_bytes, {nullptr, end - at, crc32c(std::span(to, end - at))}});
    return;
  }
  while (at < end) {
    const std::byte* const from = piece.memory + (at - piece.offset_bytes);
    std::uint64_t size = end - at;
    if (file.cut != nullptr)
      size = std::min<std::uint64_t>(
          size, reinterpret_cast<std::uintptr_t>(bucket_end(*file.cut, from)) - reinterpret_cast<std::uintptr_t>(from));
    summed.push_back({number, at - piece.offset_bytes, {from, size, copy_crc32c(to, from, size)}});
    at += size;
    to += size;
  }
}

}  // namespace

std::optional<std::uint64_t> fill_chunk(const PartBytes& file, std::uint64_t begin, std::span<std::byte> into,
                                        std::vector<SummedPiece>& summed) {
  const std::uint64_t chunk_end = begin + into.size();
  std::uint64_t at = begin, data_bytes = 0;
  const auto zero_until = [&](std::uint64_t end) {
    if (end > at) std::memset(into.data() + (at - begin), 0, end - at);
    at = std::max(at, end);
  };
  if (at < file.head.size()) {
    const std::uint64_t end = std::min<std::uint64_t>(chunk_end, file.head.size());
    std::memcpy(into.data(), file.head.data() + at, end - at);
    at = end;
  }
  bool any = at > begin;
  const auto first = std::ranges::partition_point(
      file.pieces, [&](const DensePiece& one) { return one.offset_bytes + one.size_bytes <= begin; });
  for (auto piece = first; piece != file.pieces.end() && piece->offset_bytes < chunk_end; ++piece) {
    zero_until(piece->offset_bytes);
    const std::uint64_t end = std::min(chunk_end, piece->offset_bytes + piece->size_bytes);
    copy(file, static_cast<std::size_t>(piece - file.pieces.begin()), at, end, into.data() + (at - begin), summed);
    data_bytes += end - at;
    any = any || end > at;
    at = end;
  }
  zero_until(chunk_end);
  return any ? std::optional(data_bytes) : std::nullopt;
}

WrittenPieces joined_pieces(std::vector<SummedPiece> summed, std::size_t piece_count) {
  std::ranges::sort(summed, {}, [](const SummedPiece& one) { return std::pair(one.piece, one.at); });
  WrittenPieces out;
  out.crc32c.assign(piece_count, 0);
  for (const SummedPiece& one : summed) {
    std::uint32_t& crc = out.crc32c[one.piece];
    crc = one.at == 0 ? one.range.crc32c : crc32c_combine(crc, one.range.crc32c, one.range.size_bytes);
    if (one.range.memory != nullptr) out.ranges.push_back(one.range);
  }
  return out;
}

}  // namespace pawl::checkpoint
