// Random numbers of two kinds, both equal on every machine.
//
// mix64: counter-based, no state: the n-th number of a stream is mix64(key + n * kGolden). Used for what must be
// computable for any position: initial weights, which text a sample begins at.
// Xoshiro: a stream with state, xoshiro256++. Used for dropout, so that its state must be restored after a recovery.
#pragma once

#include <cstdint>

namespace charlm {

inline constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;

// The finisher of SplitMix64: a bijection that spreads every input bit over the output.
[[nodiscard]] constexpr std::uint64_t mix64(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

[[nodiscard]] constexpr std::uint64_t random_at(std::uint64_t key, std::uint64_t index) {
  return mix64(key + (index + 1) * kGolden);
}

// [-1, 1), exact in float.
[[nodiscard]] constexpr float to_symmetric(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int32_t>(bits >> 40) - (1 << 23)) * (1.0f / (1 << 23));
}

struct Xoshiro {
  std::uint64_t state[4] = {};

  static constexpr Xoshiro seeded(std::uint64_t seed) {
    Xoshiro made;
    for (std::uint64_t i = 0; i < 4; ++i) made.state[i] = random_at(seed, i);
    return made;
  }
  constexpr std::uint64_t next() {
    const std::uint64_t result = rotated(state[0] + state[3], 23) + state[0];
    const std::uint64_t shifted = state[1] << 17;
    state[2] ^= state[0];
    state[3] ^= state[1];
    state[1] ^= state[2];
    state[0] ^= state[3];
    state[2] ^= shifted;
    state[3] = rotated(state[3], 45);
    return result;
  }

 private:
  static constexpr std::uint64_t rotated(std::uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }
};

}  // namespace charlm
