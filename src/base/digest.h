// digest_of: FNV-1a, 64 bits, of a text. Tells texts apart by accident, not against an attacker. Pure.
#pragma once

#include <cstdint>
#include <string_view>

namespace pawl {

[[nodiscard]] constexpr std::uint64_t digest_of(std::string_view text) {
  std::uint64_t digest = 0xcbf29ce484222325ull;
  for (const char c : text) digest = (digest ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
  return digest;
}

}  // namespace pawl
