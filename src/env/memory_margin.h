// Memory margin: what whoever takes memory ahead of need leaves to the others of the machine. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pawl {

// Of so many bytes that are available: a GiB or a twentieth of them, whichever is more, but no more than a quarter.
[[nodiscard]] constexpr std::uint64_t memory_margin_bytes(std::uint64_t available_bytes) {
  return std::min(std::max(std::uint64_t{1} << 30, available_bytes / 20), available_bytes / 4);
}

}  // namespace pawl
