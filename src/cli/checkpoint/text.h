// How checkpoints are written down, for people and as JSON. Pure.
//
// Names come from files that strangers wrote: what is no plain text in them (control characters, broken UTF-8) is shown
// escaped, so a name can do nothing to a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_access.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

[[nodiscard]] std::string printable(std::string_view text);
[[nodiscard]] std::string json_text(const json& document);  // one line; broken UTF-8 becomes U+FFFD

[[nodiscard]] std::uint64_t count_of(const StoredTensor& tensor);  // elements
[[nodiscard]] std::uint64_t bytes_of(const StoredTensor& tensor);  // of its value, not of what is stored
[[nodiscard]] std::uint32_t copies_of(const StoredTensor& tensor);

struct RoleTotal {
  std::string role;
  std::uint64_t tensors = 0, elements = 0, bytes = 0;
};
// In the order weight, master, exp_avg, exp_avg_sq, step, buffer, then the others as they come.
[[nodiscard]] std::vector<RoleTotal> totals_of(const CheckpointView& view);

// What inspect prints. `shown_max`: so many tensors, objects and notes; nothing: all.
[[nodiscard]] std::string inspect_text(const CheckpointView& view, const std::string& path,
                                       std::optional<std::size_t> shown_max);
[[nodiscard]] json inspect_json(const CheckpointView& view, const std::string& path);

// "1 GiB", "512MiB", "5GB", "1048576": nothing where it is no size.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace pawl::checkpoint
