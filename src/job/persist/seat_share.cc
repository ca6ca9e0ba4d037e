#include "job/persist/seat_share.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "base/json_access.h"
#include "base/text.h"
#include "checkpoint/store/division.h"

namespace pawl::job {
namespace {

using checkpoint::StorePiece;
using Entries = std::vector<const LayoutEntry*>;

constexpr std::string_view kNotKeptRole = "nonpersistent_buffer";  // which a model's state_dict leaves out, too

// Of the seats along these axes of the mesh, as which this one counts; and whether it is the first on all others.
struct Place {
  std::uint32_t holders = 1;
  std::uint32_t index = 0;
  bool first_on_others = true;
};

Place place_of(const Mesh& mesh, std::uint64_t axes, Seat seat) {
  const std::vector<std::uint64_t> coordinates = coordinates_of(mesh, seat.value);
  Place place;
  for (std::size_t i = 0; i < mesh.axes.size(); ++i) {
    if ((axes >> i & 1) == 0) {
      place.first_on_others = place.first_on_others && coordinates[i] == 0;
      continue;
    }
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
  std::map<std::pair<std::uint32_t, std::uint64_t>, Entries> groups;  // by mesh and axes
  std::vector<StorePiece> pieces;
  for (const LayoutEntry& entry : layout.entries) {
    if (!is_stored(entry)) continue;
    const Place place = place_of(layout.meshes[entry.mesh], entry.equal_axes, seat);
    if (entry.placement == TensorPlacement::replicate && !place.first_on_others) continue;
    if (entry.equal_axes != 0)
      groups[{entry.mesh, entry.equal_axes}].push_back(&entry);
    else
      pieces.push_back(piece_of(entry, entry.box, payload));
  }
  for (auto& [key, entries] : groups) {
    std::ranges::sort(entries, {}, [](const LayoutEntry* entry) { return std::pair(entry->name, entry->role); });
    add_group(entries, place_of(layout.meshes[key.first], key.second, seat), payload, pieces);
  }
  pieces.push_back(bytes_piece(seat, kSeatVolatileRole, payload.subspan(layout.stable_bytes)));
  pieces.push_back(bytes_piece(seat, kSeatLayoutRole, std::as_bytes(std::span(layout_text))));
  if (!info.empty()) pieces.push_back(bytes_piece(seat, kSeatInfoRole, std::as_bytes(std::span(info))));
  return pieces;
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
