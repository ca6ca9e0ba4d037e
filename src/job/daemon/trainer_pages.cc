#include "job/daemon/trainer_pages.h"

#include <algorithm>

#include "pawl/pawl.h"

namespace pawl::job {

void TrainerPages::write(TrainerProcess& trainer) {
  if (trainer.shared.page == nullptr) return;
  const bool formed = context_.mirror.generation().value > 0;
  trainer.shared.page->world.store(context_.mirror.ring().seat_count());
  trainer.shared.page->role.store(!formed ? PAWL_ROLE_UNKNOWN : trainer.seat ? PAWL_ROLE_SEATED : PAWL_ROLE_SPARE);
  const bool stores = !context_.mirror.spec().checkpoints.path.empty();
  trainer.shared.page->stored.store(stores ? stored_.value + 1 : 0);
  trainer.shared.page->stop_step.store(context_.mirror.stop().stop_step.value, std::memory_order_release);
}

void TrainerPages::write_all() {
  for (TrainerProcess& trainer : trainers_.places()) write(trainer);
}

void TrainerPages::show(Progress progress, bool committed) {
  for (TrainerProcess& trainer : trainers_.places()) {
    if (trainer.shared.page == nullptr || !trainer.seat) continue;
    trainer.shared.page->progress.store(progress.pack(), std::memory_order_release);
    if (committed && trainer.shared.event) trainer.shared.event->raise();
  }
}

void TrainerPages::show_stored(Step newest) {
  if (newest == stored_) return;
  stored_ = newest;
  write_all();
}

Step TrainerPages::persist_wanted() const {
  Step wanted;
  for (const TrainerProcess& trainer : trainers_.places())
    if (trainer.seat && trainer.shared.page != nullptr)
      wanted = std::max(wanted, Step(trainer.shared.page->persist_wanted.load()));
  return wanted;
}

void TrainerPages::open_windows(bool gate_off) {
  const JobState& state = context_.mirror.state();
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.shared.page == nullptr) continue;
    trainer.shared.page->gate_off.store(gate_off ? 1 : 0);
    trainer.shared.page->resume_step.store(state.resume.value);
    // Asked for in a step that is to be done again: it is written as soon as it can be.
    std::atomic<std::uint64_t>& wanted = trainer.shared.page->persist_wanted;
    if (wanted.load() > state.resume.value) wanted.store(state.resume.next().value);
    trainer.shared.page->generation.store(state.generation.value, std::memory_order_release);
    trainers_.answer(trainer, MessageKind::done, RunningMessage{state.generation});
  }
}

Step TrainerPages::known_committed(Progress progress) const {
  Step known = progress.committed;
  const Generation ran = context_.mirror.has_state() ? context_.mirror.state().ran : Generation(0);
  const auto learn = [&known, ran](TrainerPageNotes notes) {
    if (notes.generation >= ran) known = std::max(known, notes.committed);
  };
  for (const TrainerProcess& trainer : trainers_.places()) {
    learn(trainer.shared.adopted);
    if (trainer.shared.page != nullptr) learn(notes_of(*trainer.shared.page));
  }
  return known;
}

Progress TrainerPages::rejoin(Progress progress) {
  const Generation generation = context_.mirror.generation();
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.shared.page == nullptr || trainer.shared.page->generation.load() != generation.value)
      continue;
    progress = join(progress, Progress::unpack(trainer.shared.page->progress.load()));
    trainer.seated = trainer.done = generation;
  }
  return progress;
}

SeatReport TrainerPages::report(Progress known) const {
  std::optional<SeatReport> all;
  const Generation generation = context_.mirror.generation();
  for (const TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat) continue;
    SeatReport report{known, 0, 0};
    const ArenaHandle arena = memory_.find(ArenaKind::own, before_of(context_.mirror, *trainer.seat));
    if (arena && trainer.shared.page != nullptr && trainer.seated == generation) {
      const Step reached(trainer.shared.page->reached.load(std::memory_order_acquire));  // before the slots
      report = report_of(slots_of(arena->arena), reached, generation, known);
    }
    all = all ? combine(*all, report) : report;
  }
  return all.value_or(SeatReport{known, 0, 0});
}

bool TrainerPages::has_given_up_last(const TrainerProcess& trainer) const {
  if (!trainer.seat || trainer.shared.page == nullptr) return false;
  const ArenaHandle arena = memory_.find(ArenaKind::own, before_of(context_.mirror, *trainer.seat));
  if (!arena) return false;
  const Generation generation = context_.mirror.generation();
  const Step last = trainer.last_steps.commit_first;
  // A step that is not of this generation was committed, or restored.
  if (last <= context_.mirror.state().resume || Step(trainer.shared.page->reached.load()) < last) return false;
  return std::ranges::none_of(slots_of(arena->arena), [&](const SlotView& slot) {
    return slot.word.state != SlotState::empty && slot.word.generation == generation && slot.word.step == last;
  });
}

}  // namespace pawl::job
