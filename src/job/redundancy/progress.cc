#include "job/redundancy/progress.h"

#include <algorithm>
#include <bit>

namespace pawl::job {
namespace {

constexpr std::uint64_t kWindow = 64;
constexpr std::uint32_t kFruitlessBeforeTurns = 8;
// A power of two. The greater it is, the more a seat may know later than another; and the longer a job waits when what was
// in its way is gone.
constexpr std::uint32_t kTurnMax = 32;

// A Progress whose settled() is `settled`, or as far as it can be said in 24 bits.
Progress settled_at(Step committed, Step settled) {
  Progress progress{committed, 0};
  if (settled > committed) {
    progress.voided = static_cast<std::uint32_t>(std::min<std::uint64_t>(settled.value - committed.value, kVoidedMax));
  }
  return progress;
}

// `bits` relative to `from`, made relative to `to`, which is not before it. What leaves is settled; what enters,
// unknown.
std::uint64_t shifted(std::uint64_t bits, Step from, Step to) {
  const std::uint64_t distance = to.value - from.value;
  return distance < kWindow ? bits >> distance : 0;
}

bool is_live(SlotWord word, Generation generation, Step settled) {
  return (word.state == SlotState::dirty || word.state == SlotState::sealed) && word.generation == generation &&
         word.step > settled;
}

// The seat's own knowledge: all that it reached before its least live step is void, because it does not have it.
Progress settle(std::span<const SlotView> slots, Step reached, Generation generation, Progress known) {
  Step end = reached;
  for (const SlotView& slot : slots) {
    if (is_live(slot.word, generation, known.settled())) end = std::min(end, Step(slot.word.step.value - 1));
  }
  return settled_at(known.committed, std::max(known.settled(), end));
}

}  // namespace

bool Progress::is_void(Step step) const {
  return step > committed && step <= settled();
}

std::uint64_t Progress::pack() const {
  return committed.value << 24 | voided;
}

Progress Progress::unpack(std::uint64_t bits) {
  return Progress{Step(bits >> 24), static_cast<std::uint32_t>(bits & kVoidedMax)};
}

bool may_overwrite(SlotWord word, Progress progress) {
  if (word.frozen) return false;
  switch (word.state) {
    case SlotState::empty:
      return true;
    case SlotState::dirty:
    case SlotState::sealed:
      return word.step < progress.committed || progress.is_void(word.step);
  }
  return false;  // no state at all: flipped bits. Left for whoever looks into it
}

std::optional<std::uint32_t> choose_slot(std::span<const SlotWord> slots, Progress progress, Generation generation,
                                         Step step) {
  std::optional<std::uint32_t> chosen;
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    const SlotWord& word = slots[i];
    if (word.state != SlotState::empty && word.generation == generation && word.step == step) {
      if (word.state == SlotState::dirty && !word.frozen) return i;
      return std::nullopt;
    }
  }
  for (std::uint32_t i = 0; i < slots.size(); ++i) {
    if (!may_overwrite(slots[i], progress)) continue;
    if (slots[i].state == SlotState::empty) return i;
    if (!chosen || slots[i].step < slots[*chosen].step) chosen = i;
  }
  return chosen;
}

// Multiples of the golden ratio lie evenly between whole numbers, whichever steps have windows. With distances that are
// powers of two, whoever counts fewer windows takes the same steps, and some besides.
bool is_in_turn(Step step, std::uint32_t fruitless) {
  if (fruitless < kFruitlessBeforeTurns) return true;
  const std::uint32_t distance = std::min(std::bit_floor(fruitless / 4), kTurnMax);
  return step.value * 0x9e3779b97f4a7c15u < ~std::uint64_t{0} / distance;
}

bool Turns::takes(Generation generation, Step step, Progress known) {
  if (generation != generation_ || known.committed != committed_) fruitless_ = 0;
  generation_ = generation;
  committed_ = known.committed;
  return is_in_turn(step, fruitless_);
}

SeatReport report_of(std::span<const SlotView> slots, Step reached, Generation generation, Progress known) {
  SeatReport report{settle(slots, reached, generation, known), 0, 0};
  const Step settled = report.known.settled();
  if (reached > settled) {
    const std::uint64_t count = std::min(reached.value - settled.value, kWindow);
    report.voided = ~std::uint64_t{0} >> (kWindow - count);  // unless a slot below has it
  }
  for (const SlotView& slot : slots) {
    if (!is_live(slot.word, generation, settled)) continue;
    const std::uint64_t place = slot.word.step.value - settled.value - 1;
    if (place >= kWindow) continue;
    report.voided &= ~(std::uint64_t{1} << place);
    if (slot.held_by_all && slot.word.state == SlotState::sealed) report.held |= std::uint64_t{1} << place;
  }
  return report;
}

Progress join(Progress a, Progress b) {
  // Each says that nothing between its committed and its settled step will ever be committed; so does the join.
  return settled_at(std::max(a.committed, b.committed), std::max(a.settled(), b.settled()));
}

SeatReport combine(const SeatReport& a, const SeatReport& b) {
  SeatReport both{join(a.known, b.known), 0, 0};
  // The join may say less than both (24 bits): then its window begins earlier than theirs, and is unknown.
  const Step settled = both.known.settled();
  if (settled < a.known.settled() || settled < b.known.settled()) return both;
  both.held = shifted(a.held, a.known.settled(), settled) & shifted(b.held, b.known.settled(), settled);
  both.voided = shifted(a.voided, a.known.settled(), settled) | shifted(b.voided, b.known.settled(), settled);
  return both;
}

SeatReport merge(const SeatReport& a, const SeatReport& b) {
  SeatReport both{join(a.known, b.known), 0, 0};
  const Step settled = both.known.settled();
  if (settled < a.known.settled() || settled < b.known.settled())  // as in combine
    return a.known.settled() < b.known.settled() ? b : a;
  both.held = shifted(a.held, a.known.settled(), settled) | shifted(b.held, b.known.settled(), settled);
  both.voided = shifted(a.voided, a.known.settled(), settled) | shifted(b.voided, b.known.settled(), settled);
  return both;
}

Progress advance(Progress known, const SeatReport& all_seats) {
  const SeatReport all = combine(SeatReport{known, ~std::uint64_t{0}, 0}, all_seats);
  const Step settled = all.known.settled();
  // Held by all and void contradict each other; should they ever meet, the copies are kept.
  const std::uint64_t held = all.held & ~all.voided;
  Step committed = all.known.committed;
  Step end = settled;
  if (held != 0) end = committed = Step(settled.value + static_cast<std::uint64_t>(std::bit_width(held)));
  const std::uint64_t above = shifted(all.voided, settled, end);
  return settled_at(committed, Step(end.value + static_cast<std::uint64_t>(std::countr_one(above))));
}

}  // namespace pawl::job
