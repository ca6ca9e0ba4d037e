// What the tests of this room share: random fragments, and the plainest way to encode them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "job/erasure/erasure_code.h"
#include "job/erasure/galois.h"
#include "job/erasure/parity.h"

namespace pawl::job {

using ByteVector = std::vector<std::byte>;

inline ByteVector random_bytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  ByteVector bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

inline std::vector<ByteVector> random_fragments(std::uint32_t count, std::size_t size, std::uint64_t seed) {
  std::vector<ByteVector> fragments;
  for (std::uint32_t i = 0; i < count; ++i) fragments.push_back(random_bytes(size, seed + std::uint64_t{1000} * i));
  return fragments;
}

inline std::vector<FragmentBytes> bytes_of(const std::vector<ByteVector>& fragments) {
  return {fragments.begin(), fragments.end()};
}

inline std::vector<FragmentRoom> rooms_of(std::vector<ByteVector>& fragments) {
  return {fragments.begin(), fragments.end()};
}

// Bit by bit.
inline std::byte times(std::uint8_t coefficient, std::byte byte) {
  return static_cast<std::byte>(galois_multiply(coefficient, static_cast<std::uint8_t>(byte)));
}

// Data and parities, encoded without kernels and tables.
inline std::vector<ByteVector> plainly_encoded(const ErasureCode& code, std::vector<ByteVector> fragments) {
  const std::size_t size = fragments[0].size();
  for (std::uint32_t parity = 0; parity < code.parity_count(); ++parity) {
    ByteVector sum(size);
    for (std::uint32_t j = 0; j < code.data_count(); ++j) {
      for (std::size_t i = 0; i < size; ++i) sum[i] ^= times(code.coefficients_of(parity)[j], fragments[j][i]);
    }
    fragments.push_back(std::move(sum));
  }
  return fragments;
}

}  // namespace pawl::job
