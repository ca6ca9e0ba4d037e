// GF(2^8), the field of bytes that Reed-Solomon parity is computed in: polynomial 0x11d, which ISA-L uses too.
//
// A sum is an exclusive or, so a number is its own negative. Pure; at compile time where the operands are constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pawl::job {

inline constexpr unsigned kGaloisPolynomial = 0x11d;  // x^8 + x^4 + x^3 + x^2 + 1

constexpr std::uint8_t galois_multiply(std::uint8_t a, std::uint8_t b) {
  unsigned product = 0, shifted = a;
  for (int bit = 0; bit < 8; ++bit) {
    if ((b >> bit & 1) != 0) product ^= shifted;
    shifted = shifted << 1 ^ ((shifted & 0x80) != 0 ? kGaloisPolynomial : 0);
  }
  return static_cast<std::uint8_t>(product);
}

// Of 0, which has none: 0.
constexpr std::uint8_t galois_inverse(std::uint8_t a) {
  std::uint8_t result = 1;  // a^254, since a^255 = 1
  for (int i = 0; i < 7; ++i) {
    a = galois_multiply(a, a);
    result = galois_multiply(result, a);
  }
  return result;
}

// The products of one coefficient with each half of a byte: c * x = low[x & 15] ^ high[x >> 4].
struct NibbleProducts {
  alignas(16) std::array<std::uint8_t, 16> low;
  alignas(16) std::array<std::uint8_t, 16> high;
};

inline constexpr std::array<NibbleProducts, 256> kNibbleProducts = [] {
  std::array<NibbleProducts, 256> all{};
  for (unsigned c = 0; c < 256; ++c) {
    for (unsigned x = 0; x < 16; ++x) {
      all[c].low[x] = galois_multiply(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(x));
      all[c].high[x] = galois_multiply(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(x << 4));
    }
  }
  return all;
}();

// Multiplication by a coefficient as a matrix of 8 x 8 bits, as the instruction gf2p8affineqb reads it: byte 7-i has the row
// that gives bit i.
inline constexpr std::array<std::uint64_t, 256> kBitMatrices = [] {
  std::array<std::uint64_t, 256> all{};
  for (unsigned c = 0; c < 256; ++c) {
    for (int in = 0; in < 8; ++in) {
      const unsigned product = galois_multiply(static_cast<std::uint8_t>(c), static_cast<std::uint8_t>(1U << in));
      for (int out = 0; out < 8; ++out) {
        if ((product >> out & 1) != 0) all[c] |= std::uint64_t{1} << (8 * (7 - out) + in);
      }
    }
  }
  return all;
}();

}  // namespace pawl::job
