// CRC32C (Castagnoli, reflected 0x82F63B78): the checksum of every bucket, header and message.
//
// What always holds: every kernel (base/memory_kernel.h) answers what crc32c_reference answers.
// Sums can be joined without their bytes (crc32c_combine), because CRC is linear over GF(2).
// Pure and thread-safe. Reads and writes exactly [from, from + size): pages beyond may be unmapped.
// Finds accidents, not attackers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace pawl {

// The CRC of what `seed` is the CRC of, followed by `bytes`. Seed 0: of `bytes` alone.
[[nodiscard]] std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// One table, one byte at a time: what everything else is compared with.
[[nodiscard]] std::uint32_t crc32c_reference(std::span<const std::byte> bytes, std::uint32_t seed = 0);

// The CRC of a first part followed by a second one of `second_bytes` bytes, from the CRCs of both. O(log second_bytes),
// which are fewer than 2^61.
[[nodiscard]] std::uint32_t crc32c_combine(std::uint32_t first, std::uint32_t second, std::uint64_t second_bytes);

// memcpy with the sum fused: returns the CRC of what `seed` is the CRC of, followed by exactly the bytes stored (each is
// loaded once). No overlap. Much of it may bypass the cache; it is ordered before any later store of this thread.
std::uint32_t copy_crc32c(std::byte* to, const std::byte* from, std::size_t size, std::uint32_t seed = 0);

}  // namespace pawl
