#include "job/daemon/persist_root.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/log.h"
#include "env/files.h"
#include "job/daemon/retention.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Duration kSwapPause = 50ms;
constexpr Duration kTaskPatience = 5min;    // with a folder that it begins or publishes
constexpr std::uint32_t kToldFailures = 3;  // of a step that could not be kept: now and then one is void

// From what the job has gone on since that generation: later steps of it are of another history. Where that was in storage the lineage
// has the step before; so of a generation that is over one step more may be taken for its own.
Step resumed_since(const JobState& state, Generation generation) {
  Step resume(kStepMax);
  for (const LineageEntry& entry : state.lineage)
    if (entry.generation > generation) resume = std::min(resume, Step(entry.resume.value + 1));
  const bool is_decided = state.phase != JobPhase::quiescing && state.generation > generation;
  return is_decided ? std::min(resume, state.resume) : resume;
}

void remove_later(Tasks& tasks, std::shared_ptr<OpenCheckpoint> open) {
  if (open) (void)tasks.start("pawl-persist", [open = std::move(open)]() mutable { open.reset(); });
}

}  // namespace

void PersistRoot::enter() {
  busy_ = false;
  task_since_.reset();
  // What was published, and the key does not say so yet, stays to be said.
  if (pending_ && pending_->published <= known_.record.published) pending_.reset();
  changed_at_ = context_.clock->now();
  if (ran_at_ == Duration::zero()) ran_at_ = context_.clock->now();
  drop_open();
}

void PersistRoot::on_change() {
  changed_at_ = context_.clock->now();
}

void PersistRoot::on_tally(const PersistTally& tally) {
  PersistTally before = std::exchange(last_, tally);
  before.wanted = tally.wanted;  // who asks does nothing for the attempt
  if (before != tally) changed_at_ = context_.clock->now();
}

// --- What is in storage

// Of this job's own, or of those beside the one with which it began.
std::string PersistRoot::path_of(Step stored) const {
  const CheckpointSpec& checkpoints = context_.mirror.spec().checkpoints;
  const PersistRecord& record = known_.record;
  const bool is_own = stored == record.published || contains(record.older, stored) ||
                      (pending_ && stored == pending_->published) || checkpoints.resume_path.empty();
  return checkpoint_path(is_own ? checkpoints.path : parent_path(checkpoints.resume_path), stored);
}

// As the history has it with which the job goes on; with what is published, and the key does not say so yet.
PersistRecord PersistRoot::record_here() const {
  const PersistRecord& record = pending_ ? *pending_ : known_.record;
  if (record.generation == known_.entered) return record;
  return going_on_from(record, resumed_since(context_.mirror.state(), record.generation));
}

// After the newest one that the job has published in its history; before that, after the one with which it began.
CheckpointOrder PersistRoot::order_of(std::uint64_t attempt, Step step) const {
  const JobSpec& spec = context_.mirror.spec();
  CheckpointOrder order{checkpoint_path(spec.checkpoints.path, step), attempt, claim_text(spec.job, spec.token_digest),
                        ""};
  if (const Step last = going_on_from(record_here(), step).published; last > Step(0)) {
    order.before = checkpoint_path(spec.checkpoints.path, last);
    return order;
  }
  std::vector<Step> first = spec.checkpoints.resume_older;
  first.push_back(spec.checkpoints.resume_step);
  const Step since = std::min(step, resumed_since(context_.mirror.state(), Generation(0)));
  std::erase_if(first, [since](Step one) { return one > since; });
  if (const Step last = first.empty() ? Step(0) : std::ranges::max(first); last > Step(0))
    order.before = checkpoint_path(parent_path(spec.checkpoints.resume_path), last);
  return order;
}

std::vector<Step> PersistRoot::stored() const {
  std::vector<Step> steps = known_.record.older;
  for (const Step step : {known_.record.published, pending_ ? pending_->published : Step(0)})
    if (step > Step(0) && !contains(steps, step)) steps.push_back(step);
  const JobSpec& spec = context_.mirror.spec();
  std::vector<Step> before = spec.checkpoints.resume_older;
  if (spec.checkpoints.resume_step > Step(0)) before.push_back(spec.checkpoints.resume_step);
  for (const Step step : before)
    if (!contains(steps, step)) steps.push_back(step);
  std::ranges::sort(steps, std::greater());
  return steps;
}

// --- Moves

PersistView PersistRoot::view() const {
  const JobMirror& mirror = context_.mirror;
  const JobSpec& spec = mirror.spec();
  const Duration now = context_.clock->now();
  const auto wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  PersistView view;
  view.policy = {spec.checkpoints.every_steps, std::chrono::milliseconds(spec.checkpoints.every_ms),
                 spec.checkpoints.every_auto};
  view.record = record_here();
  view.running = known_.entered;
  view.progress = known_.shown;
  view.seat_count = static_cast<std::uint32_t>(mirror.state().seats.size());
  view.tally = hooks_.tally();
  view.since_change = now - changed_at_;
  const std::uint64_t ended_ms = known_.record.ended_wall_ms;
  view.since_ended =
      ended_ms == 0 ? now - ran_at_ : std::chrono::milliseconds(wall_ms > ended_ms ? wall_ms - ended_ms : 0);
  if (mirror.finishes().finished_count(mirror.generation()) >= view.seat_count) view.last = known_.shown.committed;
  view.has_folder = open_ != nullptr && open_attempt_ == known_.record.attempt;
  return view;
}

bool PersistRoot::may_end() const {
  return !busy_ && !pending_ && job::may_end(view());
}

void PersistRoot::drive() {
  give_up_stuck_task();
  if (busy_) return;
  if (pending_ && pending_->attempt != known_.record.attempt) pending_.reset();  // others went on
  // The job has gone back behind it: it is of another history.
  if (pending_ && pending_->step > resumed_since(context_.mirror.state(), pending_->generation)) pending_.reset();
  if (pending_) return swap(PersistRecord(*pending_));
  const PersistView now = view();
  act(next_persist_move(now), now.record);
}

void PersistRoot::act(const PersistMove& move, const PersistRecord& record) {
  switch (move.kind) {
    case PersistMove::Kind::none:
      return;
    case PersistMove::Kind::order:
      return swap(after_order(record, known_.entered, move.step));
    case PersistMove::Kind::write:
      return begin_folder();
    case PersistMove::Kind::publish:
      return publish();
    case PersistMove::Kind::give_up:
      return give_up(move);
  }
}

void PersistRoot::swap(const PersistRecord& next) {
  busy_ = true;
  context_.control->compare_and_swap(persist_key(context_.mirror.keys()), known_.revision, to_json(next), {},
                                     [this, next, of = known_.entered](const Result<Swapped>& swap) {
                                       if (of != known_.entered) return;
                                       busy_ = false;
                                       if (!swap) return context_.drive_soon(kSwapPause);
                                       pending_.reset();
                                       if (swap->won) {
                                         changed_at_ = context_.clock->now();
                                         hooks_.on_swap(next, swap->revision);
                                       } else if (swap->current) {
                                         hooks_.on_other(*swap->current);
                                       }
                                       context_.drive_soon(Duration::zero());
                                     });
}

std::uint64_t PersistRoot::begin_task() {
  busy_ = true;
  task_since_ = context_.clock->now();
  return ++task_;
}

bool PersistRoot::end_task(std::uint64_t task) {
  if (task != task_ || !task_since_) return false;
  task_since_.reset();
  busy_ = false;
  return true;
}

// Whatever it still does: it publishes what all have written, or nothing.
void PersistRoot::give_up_stuck_task() {
  if (!task_since_ || context_.clock->now() - *task_since_ <= kTaskPatience) return;
  (void)end_task(task_);
  give_up({PersistMove::Kind::give_up, Step(0), "the storage does not answer", false});
}

void PersistRoot::begin_folder() {
  // The control was away when it was to be told.
  if (open_ && open_attempt_ == known_.record.attempt) return swap(after_begin(known_.record, open_->folder()));
  begun_at_ = context_.clock->now();
  const PersistRecord record = known_.record;
  (void)context_.environment->tasks.start(
      "pawl-persist", [this, record, task = begin_task(), order = order_of(record.attempt, record.step)] {
        auto begun = std::make_shared<Result<std::unique_ptr<OpenCheckpoint>>>(store_->begin(order));
        context_.post([this, record, task, begun] {
          if (!end_task(task))
            return remove_later(context_.environment->tasks,
                                begun->has_value() ? std::shared_ptr<OpenCheckpoint>(std::move(**begun)) : nullptr);
          if (!*begun) return give_up({PersistMove::Kind::give_up, Step(0), begun->error().what, false});
          open_ = std::move(**begun);
          open_attempt_ = record.attempt;
          swap(after_begin(record, open_->folder()));
        });
      });
}

void PersistRoot::publish() {
  const auto seat_count = static_cast<std::uint32_t>(context_.mirror.state().seats.size());
  (void)context_.environment->tasks.start(
      "pawl-persist", [this, open = open_, task = begin_task(), of = known_.record, seat_count] {
        auto published = std::make_shared<Status>(open->publish(seat_count));
        context_.post([this, task, of, published] {
          const bool in_time = end_task(task);
          if (!*published && !in_time) return;
          if (!*published) return give_up({PersistMove::Kind::give_up, Step(0), published->error().what, false});
          if (in_time) drop_open();
          pending_ = after_retention(after_publish(of, static_cast<std::uint64_t>(context_.clock->wall() / 1ms)),
                                     retention_of(context_.mirror.spec().checkpoints));
          tell_published(of);
          drive();
        });
      });
}

void PersistRoot::give_up(const PersistMove& move) {
  drop_open();
  const PersistRecord of = known_.record;
  pending_ = after_give_up(of, move, static_cast<std::uint64_t>(context_.clock->wall() / 1ms));
  if (!move.why.empty()) {
    log_warn("checkpoint_given_up", "step", of.step, "again", move.again, "why", move.why);
    if (!move.again || of.failures >= kToldFailures)
      events_.tell("checkpoint_failed", Json{{"step", of.step.value}, {"detail", move.why}}.dump());
  }
  drive();
}

void PersistRoot::tell_published(const PersistRecord& of) {
  const auto took_ms = static_cast<std::uint64_t>((context_.clock->now() - begun_at_) / 1ms);
  const std::string path = checkpoint_path(context_.mirror.spec().checkpoints.path, of.step);
  log_info("checkpoint_published", "step", of.step, "path", path, "bytes", last_.bytes, "ms", took_ms);
  events_.tell("checkpoint_published",
               Json{{"step", of.step.value}, {"path", path}, {"bytes", last_.bytes}, {"ms", took_ms}}.dump());
}

void PersistRoot::drop_open() {
  remove_later(context_.environment->tasks, std::exchange(open_, nullptr));
}

}  // namespace pawl::job
