#include "job/persist/seat_share.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/crc32c.h"
#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/store/division.h"

namespace pawl::job {
namespace {

using checkpoint::StorePiece;
using Entries = std::vector<const LayoutEntry*>;

constexpr std::string_view kNotKeptRole = "nonpersistent_buffer";  // which a model's state_dict leaves out, too

// Of the seats along these axes of the mesh, as which this one counts.
struct Place {
  std::uint32_t holders = 1;
  std::uint32_t index = 0;
};

Place place_of(const Mesh& mesh, std::uint64_t axes, Seat seat) {
  const std::vector<std::uint64_t> coordinates = coordinates_of(mesh, seat.value);
  Place place;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    if ((axes >> i & 1) == 0) continue;
    place.index = static_cast<std::uint32_t>(place.index * mesh.axes[i].size + coordinates[i]);
    place.holders = static_cast<std::uint32_t>(place.holders * mesh.axes[i].size);
  }
  return place;
}

// `part` lies in the entry's box.
StorePiece piece_of(const LayoutEntry& entry, const Box& part, std::span<const std::byte> payload) {
  StorePiece piece{entry.name, entry.role, entry.dtype, entry.shape, part, nullptr, {}};
  if (volume(part) == 0) return piece;
  const std::uint64_t unit = size_bits(entry.dtype) / 8;
  const PerDimension stride = stride_in_payload(entry);
  std::uint64_t offset = entry.payload_offset;
  for (std::uint32_t d = 0; d < part.dimensions; ++d) {
    offset += (part.begin[d] - entry.box.begin[d]) * stride[d] * unit;
    piece.stride_bytes[d] = stride[d] * unit;
  }
  piece.memory = payload.data() + offset;
  return piece;
}

// Of entries that the same seats hold.
void add_group(const Entries& entries, const Place& place, std::span<const std::byte> payload,
               std::vector<StorePiece>& out) {
  std::vector<checkpoint::DivisionItem> items;
  std::uint64_t bytes = 0;
  for (const LayoutEntry* entry : entries) {
    items.push_back({entry->box, static_cast<std::uint32_t>(size_bits(entry->dtype) / 8)});
    bytes += entry->bytes;
  }
  const std::vector<std::uint64_t> rooms = checkpoint::equal_rooms(bytes, place.holders);
  for (const checkpoint::DividedBox& divided : checkpoint::divide_among(items, rooms))
    if (divided.holder == place.index) out.push_back(piece_of(*entries[divided.item], divided.box, payload));
  if (place.index != 0) return;
  for (const LayoutEntry* entry : entries)  // what is empty is there all the same
    if (volume(entry->box) == 0) out.push_back(piece_of(*entry, entry->box, payload));
}

StorePiece bytes_piece(Seat seat, std::string_view role, std::span<const std::byte> bytes) {
  StorePiece piece{seat_tensor_name(seat), std::string(role), ElementType::uint8, {bytes.size()}, {}, nullptr, {}};
  piece.box = whole_box(piece.shape);
  piece.memory = bytes.empty() ? nullptr : bytes.data();
  piece.stride_bytes[0] = 1;
  return piece;
}

// A tensor that all have, and nobody said that the bytes are equal on all: the lowest one writes it, whole, so that the others' sums can be
// compared. That some of them are said to be equal changes nothing.
bool comes_from_lowest(const SeatLayout& layout, const LayoutEntry& entry) {
  return entry.lifetime == Lifetime::stable && entry.placement == TensorPlacement::replicate &&
         place_of(layout.meshes[entry.mesh], entry.equal_axes, Seat(0)).holders != layout.world;
}

bool is_left_to_another(const SeatLayout& layout, const LayoutEntry& entry, Seat seat) {
  return comes_from_lowest(layout, entry) && seat != Seat(0);
}

std::vector<std::byte> row_major(const LayoutEntry& entry, std::span<const std::byte> payload) {
  const std::uint64_t unit = size_bits(entry.dtype) / 8;
  const PerDimension stride = stride_in_payload(entry);
  std::vector<std::byte> dense(entry.bytes);
  for (std::uint64_t i = 0; i < volume(entry.box); ++i) {
    std::uint64_t rest = i, from = entry.payload_offset;
    for (std::uint32_t d = entry.box.dimensions; d-- > 0; rest /= entry.box.size[d])
      from += rest % entry.box.size[d] * stride[d] * unit;
    std::memcpy(dense.data() + i * unit, payload.data() + from, unit);
  }
  return dense;
}

bool is_stored(const LayoutEntry& entry) {
  return entry.mesh != kNoMesh && entry.payload_offset != kNotCaptured && entry.role != kNotKeptRole;
}

}  // namespace

PerDimension stride_in_payload(const LayoutEntry& entry) {
  if (entry.order.empty()) return dense_stride(entry.box);
  PerDimension stride{};
  std::uint64_t step = 1;
  for (std::size_t i = entry.order.size(); i-- > 0;) {
    const std::size_t dimension = entry.order[i];
    stride[dimension] = step;
    step *= entry.box.size[dimension];
  }
  return stride;
}

std::string seat_tensor_name(Seat seat) {
  return text("seat", seat.value);
}

std::string to_json(const SeatInfo& info) {
  return json{{"samples", info.samples}, {"bucket_bytes", info.bucket_bytes}}.dump();
}

Result<SeatInfo> parse_seat_info(std::string_view text_of_it) {
  const json object = json::parse(text_of_it, nullptr, false);
  const json& samples = member_of(object, "samples");
  const json& bucket_bytes = member_of(object, "bucket_bytes");
  if (!samples.is_number_unsigned() || !bucket_bytes.is_number_unsigned() ||
      bucket_bytes.get<std::uint64_t>() > ~std::uint32_t{0})
    return Error{Code::corrupt, R"(a seat's info is not of the form {"samples": N, "bucket_bytes": N})"};
  return SeatInfo{samples.get<std::uint64_t>(), bucket_bytes.get<std::uint32_t>()};
}

std::vector<StorePiece> share_of(const SeatLayout& layout, Seat seat, std::span<const std::byte> payload,
                                 std::string_view layout_text, std::string_view info) {
  // By mesh and axes. What is whole here may be so on seats that are not alike, which then must cut it in the same places.
  std::map<std::tuple<std::uint32_t, std::uint64_t, bool>, Entries> groups;
  std::vector<StorePiece> pieces;
  for (const LayoutEntry& entry : layout.entries) {
    if (!is_stored(entry)) continue;
    if (is_left_to_another(layout, entry, seat)) continue;
    if (entry.equal_axes != 0 && !comes_from_lowest(layout, entry))
      groups[{entry.mesh, entry.equal_axes, entry.box == whole_box(entry.shape)}].push_back(&entry);
    else
      pieces.push_back(piece_of(entry, entry.box, payload));
  }
  for (auto& [key, entries] : groups) {
    std::ranges::sort(entries, {}, [](const LayoutEntry* entry) { return std::pair(entry->name, entry->role); });
    const auto& [mesh, axes, is_whole] = key;
    add_group(entries, place_of(layout.meshes[mesh], axes, seat), payload, pieces);
  }
  pieces.push_back(bytes_piece(seat, kSeatVolatileRole, payload.subspan(layout.stable_bytes)));
  pieces.push_back(bytes_piece(seat, kSeatLayoutRole, std::as_bytes(std::span(layout_text))));
  if (!info.empty()) pieces.push_back(bytes_piece(seat, kSeatInfoRole, std::as_bytes(std::span(info))));
  return pieces;
}

SeatBeside beside_of(const SeatLayout& layout, Seat seat, std::span<const std::byte> payload) {
  SeatBeside beside;
  for (const LayoutEntry& entry : layout.entries) {
    if (!is_stored(entry)) continue;
    if (entry.lifetime == Lifetime::volatile_) beside.own.emplace(entry.name, entry.role);
    if (!is_left_to_another(layout, entry, seat) || volume(entry.box) == 0) continue;
    std::vector<std::byte> dense;
    std::span<const std::byte> bytes = payload.subspan(entry.payload_offset, entry.bytes);
    if (!entry.order.empty()) bytes = dense = row_major(entry, payload);
    beside.sums.emplace(std::pair(entry.name, entry.role), crc32c(bytes));
  }
  return beside;
}

std::string text_of(const SeatBeside& beside) {
  std::string out;
  for (const auto& [name, role] : beside.own) out += text("own\t", name, '\t', role, '\n');
  for (const auto& [key, sum] : beside.sums) out += text("sum\t", key.first, '\t', key.second, '\t', sum, '\n');
  return out;
}

Result<SeatBeside> parse_beside(std::string_view rest) {
  const Error wrong{Code::corrupt, "what a seat says beside its share is damaged"};
  SeatBeside beside;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    if (end == std::string_view::npos) return wrong;
    std::vector<std::string> words;
    for (std::string_view line = rest.substr(0, end);;) {
      const std::size_t tab = line.find('\t');
      words.emplace_back(line.substr(0, tab));
      if (tab == std::string_view::npos) break;
      line.remove_prefix(tab + 1);
    }
    rest.remove_prefix(end + 1);
    std::uint32_t sum = 0;
    if (words.size() == 3 && words[0] == "own")
      beside.own.emplace(words[1], words[2]);
    else if (words.size() == 4 && words[0] == "sum" && parse_number(words[3], sum))
      beside.sums.emplace(std::pair(words[1], words[2]), sum);
    else
      return wrong;
  }
  return beside;
}

std::string_view values_in(const SeatLayout& layout, std::span<const std::byte> payload) {
  const auto found = std::ranges::find_if(layout.entries, [](const LayoutEntry& entry) {
    return entry.mesh == kNoMesh && entry.name == kValuesBlob && entry.bytes >= kBlobHeaderBytes;
  });
  if (found == layout.entries.end()) return {};
  std::uint64_t size = 0;
  std::memcpy(&size, payload.data() + found->payload_offset, sizeof size);
  size = std::min(size, found->bytes - kBlobHeaderBytes);
  return {reinterpret_cast<const char*>(payload.data()) + found->payload_offset + kBlobHeaderBytes, size};
}

}  // namespace pawl::job
