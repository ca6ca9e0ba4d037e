// SlotWord: the 64 bits that say what a slot is. Identity is (generation, step).
//
// The word is written last and changes only by compare-and-swap (or the freeze bit by fetch_or), so a trainer that
// seals in shared memory and a daemon that freezes cannot both win. Bits, low to high:
//   0-1 state   2 frozen   3-23 generation   24-63 step
// Record: docs/format.md. Who may overwrite what: job/redundancy/progress.h.
#pragma once

#include <cstdint>

#include "base/ids.h"

namespace pawl::job {

enum class SlotState : std::uint8_t {
  empty = 0,   // holds nothing
  dirty = 1,   // being written
  sealed = 2,  // whole, every checksum in its header
};

inline constexpr std::uint64_t kGenerationMax = (1u << 21) - 1;
inline constexpr std::uint64_t kStepMax = (std::uint64_t{1} << 40) - 1;

struct SlotWord {
  Generation generation;
  Step step;
  SlotState state = SlotState::empty;
  bool frozen = false;

  constexpr bool operator==(const SlotWord&) const = default;
  [[nodiscard]] constexpr std::uint64_t pack() const {
    return static_cast<std::uint64_t>(state) | (std::uint64_t{frozen} << 2) | (generation.value << 3) |
           (step.value << 24);
  }
  [[nodiscard]] static constexpr SlotWord unpack(std::uint64_t bits) {
    SlotWord word;
    word.state = static_cast<SlotState>(bits & 3);
    word.frozen = (bits >> 2 & 1) != 0;
    word.generation = Generation(bits >> 3 & kGenerationMax);
    word.step = Step(bits >> 24);
    return word;
  }
};

inline constexpr std::uint64_t kSlotFrozenBit = 1u << 2;

}  // namespace pawl::job
