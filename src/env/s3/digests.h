// Digests that S3's protocol is made of, by OpenSSL's libcrypto, and the texts that they travel as.
//
// Pure and thread-safe. Our own data is summed with CRC32C (base/crc32c.h); these are for what a server wants to see.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace pawl::s3 {

using Sha256 = std::array<unsigned char, 32>;
using Md5 = std::array<unsigned char, 16>;

[[nodiscard]] Sha256 sha256(std::span<const std::byte> bytes);
[[nodiscard]] Sha256 hmac_sha256(std::string_view key, std::string_view message);
[[nodiscard]] Md5 md5(std::span<const std::byte> bytes);

[[nodiscard]] std::string hex(std::span<const unsigned char> bytes);     // lower case
[[nodiscard]] std::string base64(std::span<const unsigned char> bytes);  // with padding
[[nodiscard]] std::string base64_of(std::uint32_t crc);                  // its four bytes, the highest first

}  // namespace pawl::s3
