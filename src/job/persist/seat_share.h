// SeatShare: what one seat writes of a checkpoint of the job, straight from a sealed slot.
//
// Tensors have the names, roles and logical shapes that were declared. What was declared equal on several seats is written
// once, cut by bytes over those. A replicated tensor that was not declared equal on all comes whole from the lowest seat; a
// volatile one, which is each seat's own (buffers), from all that have it (the store keeps the lowest's,
// checkpoint/store/store_folder.h). Derived entries are not stored, nor buffers that a model does not keep. Besides, each
// seat's volatile part and its layout's text go with roles that only this job reads (`seat_...`), so that a job of the same
// world goes on bit for bit. Each seat knows its share from its own layout alone. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "checkpoint/store/store_folder.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {

// All is_set_aside().
inline constexpr std::string_view kSeatVolatileRole = "seat_volatile";  // uint8: the payload from stable_bytes on
inline constexpr std::string_view kSeatLayoutRole = "seat_layout";      // uint8: the layout's text
inline constexpr std::string_view kSeatInfoRole = "seat_info";          // uint8: a SeatInfo's text
[[nodiscard]] std::string seat_tensor_name(Seat seat);                  // "seat3"

// What else its slot has to be as it was.
struct SeatInfo {
  std::uint64_t samples = 0;  // the slot's
  std::uint32_t bucket_bytes = 0;
  bool operator==(const SeatInfo&) const = default;
};
[[nodiscard]] std::string to_json(const SeatInfo& info);
[[nodiscard]] Result<SeatInfo> parse_seat_info(std::string_view json);  // fails: `corrupt`

// `layout` was parsed or built, and `seat` is one of its world. `payload` is the slot's, `layout_text` the layout's, `info`
// a SeatInfo's text; all must outlive the pieces. Cost: O(n log n) in entries.
[[nodiscard]] std::vector<checkpoint::StorePiece> share_of(const SeatLayout& layout, Seat seat,
                                                           std::span<const std::byte> payload,
                                                           std::string_view layout_text, std::string_view info = {});

// What of a seat's state no share says: which of what it writes is its own, and may differ on other seats; and the sums of what it
// holds and leaves to another seat to write, since all hold it under one name. By name and role.
struct SeatBeside {
  std::set<std::pair<std::string, std::string>> own;
  std::map<std::pair<std::string, std::string>, std::uint32_t> sums;  // CRC32C of the tensor, row-major
  bool operator==(const SeatBeside&) const = default;
};
[[nodiscard]] SeatBeside beside_of(const SeatLayout& layout, Seat seat, std::span<const std::byte> payload);
[[nodiscard]] std::string text_of(const SeatBeside& beside);
[[nodiscard]] Result<SeatBeside> parse_beside(std::string_view text);  // fails: `corrupt`

// Elements between neighbours along each dimension of an entry's box, as it lies in the payload.
[[nodiscard]] PerDimension stride_in_payload(const LayoutEntry& entry);

// What the blob named kValuesBlob holds of a payload; empty: there is none.
[[nodiscard]] std::string_view values_in(const SeatLayout& layout, std::span<const std::byte> payload);

}  // namespace pawl::job
