#include "job/daemon/job_end.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

void JobEnd::consider_stop() {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.is_member()) return;
  const StopDuties duties = decide_stop(mirror.state(), mirror.stop(), context_.self);
  if (duties.acknowledge) acknowledge_stop();
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.line.waits_for(MessageKind::stop_after)) continue;
    if (duties.answer)
      trainers_.answer(trainer, MessageKind::stop_after, StoppingMessage{mirror.stop().stop_step});
    else if (duties.propose)
      propose_stop(trainer.last_steps.stop_wanted);
  }
}

void JobEnd::acknowledge_stop() {
  JobMirror& mirror = context_.mirror;
  mirror.note_own_stop_ack(true);
  context_.control->put(mirror.keys().stop_ack(mirror.generation(), context_.self.node), "{}",
                        [this](const Status& put) {
                          if (put) return;
                          context_.mirror.note_own_stop_ack(false);
                          context_.drive_soon(20ms);
                        });
}

void JobEnd::propose_stop(Step step) {
  if (std::exchange(proposing_stop_, true)) return;
  context_.control->compare_and_swap(context_.mirror.keys().stop(), 0, Json{{"step", step.value}}.dump(), {},
                                     [this](const Result<Swapped>& swap) {
                                       proposing_stop_ = false;  // what won, ours or another's, comes as any key does
                                       if (!swap) context_.drive_soon(20ms);
                                     });
}

void JobEnd::consider_finish() {
  if (!context_.is_running()) return;
  const JobMirror& mirror = context_.mirror;
  const std::vector<SeatStep> ended = mirror.finishes().earliest(mirror.generation());
  for (TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.shared.page == nullptr || trainer.seated != mirror.generation()) continue;
    const Decision apart =
        decide_apart(mirror.state(), ended, {*trainer.seat, Step(trainer.shared.page->step.load())}, context_.self);
    if (const StateMove* move = std::get_if<StateMove>(&apart)) return mover_.move(move->next, move->why);
    if (!trainer.line.waits_for(MessageKind::finish)) continue;
    put_finish(trainer);
    redo_if_given_up(trainer);
  }
  const std::size_t finished = mirror.finishes().finished_count(mirror.generation());
  if (!mirror.is_root() || finished < mirror.state().seats.size()) return;
  if (last_windows_.may_end && !last_windows_.may_end()) return;
  const Decision decision =
      decide_finished(mirror.state(), mirror.finishes().finished_seats(mirror.generation()), context_.self);
  if (const StateMove* move = std::get_if<StateMove>(&decision)) mover_.move(move->next, move->why);
}

// No later window comes that could be committed in its place: its steps are done again.
void JobEnd::redo_if_given_up(TrainerProcess& trainer) {
  if (progress_().committed >= trainer.last_steps.commit_first || !last_windows_.is_given_up(trainer)) return;
  const Generation now = context_.mirror.generation();
  if (std::exchange(redone_[*trainer.seat], now) != now) last_windows_.do_again(trainer);
}

// Twice: when the trainer has ended its steps, and when the last of them is committed.
void JobEnd::put_finish(TrainerProcess& trainer) {
  const Seat seat = *trainer.seat;
  const SeatFinish finish{context_.mirror.generation(), trainer.last_steps.last,
                          progress_().committed >= trainer.last_steps.commit_first};
  if (const SeatFinish* told = context_.mirror.finishes().of(seat); told != nullptr && *told == finish) return;
  context_.mirror.note_finish(seat, finish);
  const Json value{
      {"generation", finish.generation.value}, {"step", finish.step.value}, {"committed", finish.committed}};
  context_.control->put(context_.mirror.keys().finish(seat), value.dump(), [this, seat](const Status& put) {
    if (!put) context_.mirror.forget_finish(seat);
  });
}

}  // namespace pawl::job
