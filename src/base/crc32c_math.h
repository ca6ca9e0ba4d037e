// Arithmetic of CRC32C's polynomial, at compile time where the operands are constants: what kernels fold and shift with.
//
// A remainder is a number of 32 bits, reflected: bit 31 is x^0. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace pawl {

inline constexpr std::uint32_t kCrc32cPolynomial = 0x82F63B78;

// a * b modulo the polynomial.
constexpr std::uint32_t crc32c_multiply(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if ((a >> bit & 1) != 0) product ^= b;
    b = (b >> 1) ^ ((b & 1) != 0 ? kCrc32cPolynomial : 0);  // b * x
  }
  return product;
}

// x^exponent modulo the polynomial. Appending n zero bytes multiplies a CRC by x^(8n).
constexpr std::uint32_t crc32c_power(std::uint64_t exponent) {
  std::uint32_t result = 1u << 31;  // x^0
  std::uint32_t square = 1u << 30;  // x^1
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = crc32c_multiply(result, square);
    square = crc32c_multiply(square, square);
  }
  return result;
}

// [k][byte]: what `byte`, followed by k zero bytes, adds to a CRC.
constexpr std::array<std::array<std::uint32_t, 256>, 8> crc32c_byte_tables() {
  std::array<std::array<std::uint32_t, 256>, 8> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? kCrc32cPolynomial : 0);
    tables[0][byte] = rest;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::uint32_t byte = 0; byte < 256; ++byte)
      tables[k][byte] = (tables[k - 1][byte] >> 8) ^ tables[0][tables[k - 1][byte] & 255];
  }
  return tables;
}

}  // namespace pawl
