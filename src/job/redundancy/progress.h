// Progress: which steps every seat holds, which are void, and what may therefore be overwritten (the reuse gate).
//
// A seat HOLDS s when its own slot is sealed and every promised holder has acknowledged it. Step s is COMMITTED when
// every seat holds s: a fact, not a write. Daemons reduce SeatReports up a tree (combine), the root turns them into a
// Progress (advance), and that flows down. An old Progress is safe.
// The gate, for own and for peers' slots alike: a slot that holds j may be overwritten only if committed > j or j is
// known void. No such slot: the window is voided, never waited for. Hence at every instant a committed step lies
// complete within the policy's reach: dropping j needs a greater committed step, and nobody drops that one.
// Pure. job/recovery/protocol_model_test.cc tries this code on all orders of events of small jobs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "job/snapshot/slot_word.h"

namespace pawl::job {

// What everybody may know of one generation: the greatest committed step, and how many after it are void.
// The steps up to settled() will never be committed any more, except `committed` itself.
struct Progress {
  Step committed;
  std::uint32_t voided = 0;  // steps committed+1 .. committed+voided are void for ever in this generation; < 2^24

  constexpr bool operator==(const Progress&) const = default;
  [[nodiscard]] constexpr Step settled() const { return Step(committed.value + voided); }
  [[nodiscard]] bool is_void(Step step) const;
  // One word, of the trainer's page and on the wire: committed << 24 | voided.
  [[nodiscard]] std::uint64_t pack() const;
  [[nodiscard]] static Progress unpack(std::uint64_t bits);
};
inline constexpr std::uint32_t kVoidedMax = (1u << 24) - 1;

// Whether the reuse gate lets `word` be overwritten. A frozen slot never.
[[nodiscard]] bool may_overwrite(SlotWord word, Progress progress);

// The slot to use for a new step: an empty one, else the overwritable one with the least step. nullopt: none; void it.
// A slot that already holds (generation, step) as dirty is chosen again (a sender that came back); one that holds it
// sealed is never opened again, nor is another one beside it: nullopt.
[[nodiscard]] std::optional<std::uint32_t> choose_slot(std::span<const SlotWord> slots, Progress progress,
                                                       Generation generation, Step step);

// Whether a seat tries to capture `step` at all, which has a window. Some learn later than others that a slot is free again.
// Where that takes them longer than a step (a link is cut, and the control carries what is known) each would capture what
// others have void, for ever. So after some windows without a commit all take turns: the same few steps, further apart the
// longer it lasts. `fruitless`: windows of this seat since it last learned of a commit.
[[nodiscard]] bool is_in_turn(Step step, std::uint32_t fruitless);

// Which windows one seat tries.
class Turns {
 public:
  void open() { ++fruitless_; }  // the next window
  [[nodiscard]] bool takes(Generation generation, Step step, Progress known);

 private:
  Generation generation_;
  Step committed_;
  std::uint32_t fruitless_ = 0;
};

// What one seat or a whole subtree knows and sees of the steps known.settled()+1 .. known.settled()+64 (bit 0 first).
// held: every seat below holds it. voided: some seat below has reached that step and will never hold it.
struct SeatReport {
  Progress known;
  std::uint64_t held = 0;
  std::uint64_t voided = 0;
  constexpr bool operator==(const SeatReport&) const = default;
};

struct SlotView {
  SlotWord word;
  bool held_by_all = false;  // sealed, and every promised holder has acknowledged
};

// Of one seat, from its own slots. Read in this order: `reached` (the greatest step whose window this seat has resolved
// in this generation: slot dirty or sealed, or void), the slots, `known`. `known` must be no older than what the seat's
// trainer was told (its page's progress), or a step that it dropped rightly would look void. Slots of other generations
// do not count.
[[nodiscard]] SeatReport report_of(std::span<const SlotView> slots, Step reached, Generation generation,
                                   Progress known);
// Of two subtrees: what either knows, held by both, voided by either.
[[nodiscard]] SeatReport combine(const SeatReport& a, const SeatReport& b);
// Of one subtree at two moments, whichever came first: what it said once stays true for as long as the generation runs.
[[nodiscard]] SeatReport merge(const SeatReport& a, const SeatReport& b);
// The greater knowledge of two daemons of one generation. An old one may come late: it takes nothing back.
[[nodiscard]] Progress join(Progress a, Progress b);
// The root's next Progress. Never goes back.
[[nodiscard]] Progress advance(Progress known, const SeatReport& all_seats);

}  // namespace pawl::job
