// Progress: which steps every seat holds, which are void, and what may therefore be overwritten (the reuse gate).
//
// A seat HOLDS s when its own slot is sealed and every promised holder has acknowledged it. Step s is COMMITTED when
// every seat holds s: a fact, not a write. Daemons reduce SeatReports up a tree (combine), the root turns them into a
// Progress (advance), and that flows down. An old Progress is safe.
// The gate, for own and for peers' slots alike: a slot that holds j may be overwritten only if committed > j or j is
// known void. No such slot: the window is voided, never waited for. Hence at every instant a committed step lies
// complete within the policy's reach: dropping j needs a greater committed step, and nobody drops that one.
// Pure. The exhaustive model (progress_model_test.cc) and the simulator run this code. Source: design section 5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "snapshot/slot_word.h"

namespace pawl {

// What everybody may know of one generation: the greatest committed step, and which of the next 24 are void.
struct Progress {
  Step committed;
  std::uint32_t voided = 0;  // bit i: step committed+1+i is void for ever in this generation

  constexpr bool operator==(const Progress&) const = default;
  [[nodiscard]] bool is_void(Step step) const;
  [[nodiscard]] std::uint64_t pack() const;  // one word of the trainer's page: committed << 24 | voided
  [[nodiscard]] static Progress unpack(std::uint64_t bits);
};
inline constexpr std::uint32_t kVoidSpan = 24;

// Whether the reuse gate lets `word` be overwritten. A frozen slot never.
[[nodiscard]] bool may_overwrite(SlotWord word, Progress progress);

// The slot to use for a new step: an empty one, else the overwritable one with the least step. nullopt: none; void it.
// A slot that already holds (generation, step) as dirty is chosen again (a sender that came back).
[[nodiscard]] std::optional<std::uint32_t> choose_slot(std::span<const SlotWord> slots, Progress progress,
                                                       Generation generation, Step step);

// Steps base+1 .. base+64 as seen by one seat or a whole subtree. held: every seat below holds it. voided: some seat
// below has reached that step and will never hold it.
struct SeatReport {
  Step base;
  std::uint64_t held = 0;
  std::uint64_t voided = 0;
  constexpr bool operator==(const SeatReport&) const = default;
};

struct SlotView {
  SlotWord word;
  bool held_by_all = false;  // sealed, and every promised holder has acknowledged
};

// `reached`: the greatest step whose window this seat has resolved (slot dirty or sealed, or void). Read it before the
// slots. Slots of older generations count only up to `committed`.
[[nodiscard]] SeatReport report_of(std::span<const SlotView> slots, Step reached, Generation generation,
                                   Progress known);
// AND of held, OR of voided, on the greater base.
[[nodiscard]] SeatReport combine(SeatReport a, SeatReport b);
// The root's next Progress. Never goes back.
[[nodiscard]] Progress advance(Progress known, SeatReport all_seats);

}  // namespace pawl
