#include "job/daemon/persist.h"

#include <algorithm>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/log.h"
#include "base/text.h"
#include "env/files.h"
#include "job/daemon/retention.h"
#include "job/daemon/slot_writer.h"
#include "job/recovery/decide.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Duration kSwapPause = 50ms;
constexpr Duration kTaskPatience = 5min;    // of the root, with a folder that it begins or publishes
constexpr std::uint32_t kToldFailures = 3;  // of a step that could not be kept: now and then one is void

void remove_later(Tasks& tasks, std::shared_ptr<OpenCheckpoint> open) {
  if (open) (void)tasks.start("pawl-persist", [open = std::move(open)]() mutable { open.reset(); });
}

}  // namespace

// --- What this node knows

bool Persist::is_on() const {
  return store_ != nullptr && !context_.mirror.spec().checkpoints.path.empty();
}

bool Persist::is_current() const {
  return context_.is_running() && context_.mirror.is_member() && entered_ == context_.mirror.generation() &&
         told_.record.generation == entered_;
}

void Persist::on_key(const std::string& key, const std::string& value, Revision revision) {
  if (key != persist_key(context_.mirror.keys()) || revision <= told_.revision) return;
  auto record = parse_persist_record(value);
  if (!record) return log_warn("persist_record_refused", "why", record.error().what);
  if (*record != told_.record) root_.changed_at = context_.clock->now();
  told_ = {std::move(*record), revision};
  follow();
}

// The first word of a generation is what its pages may show already, where this daemon returned into it.
void Persist::before_show(Progress progress) {
  if (!is_on()) return;
  if (entered_ != context_.mirror.generation()) {
    shown_ = progress;
    enter();
  }
  if (is_current() && told_.record.phase != PersistPhase::idle && progress.settled() >= told_.record.step) pin_seats();
  shown_ = progress;
  pass_on();
}

void Persist::enter() {
  entered_ = context_.mirror.generation();
  children_.clear();
  passed_on_.reset();
  let_go();
  root_.busy = false;
  root_.task_since.reset();
  // What was published, and the key does not say so yet, stays to be said.
  if (root_.pending && root_.pending->published <= told_.record.published) root_.pending.reset();
  root_.changed_at = context_.clock->now();
  if (root_.ran_at == Duration::zero()) root_.ran_at = context_.clock->now();
  drop_open();
  follow();
  // What an earlier attempt has pinned, here or by the daemon before this one.
  for (const ArenaHandle& held : memory_.arenas())
    for (std::uint32_t i = 0; held->arena.spec().kind == ArenaKind::own && i < held->arena.slot_count(); ++i)
      if (const Slot slot = held->arena.slot(i); !is_pinned_for_attempt(*held, i)) slot.unpin();
}

bool Persist::is_pinned_for_attempt(const HeldArena& held, std::uint32_t slot) const {
  for (const auto& [seat, own] : attempt_.seats)
    if (own.arena.get() == &held && own.slot == slot && own.done != Done::nothing) return true;
  return false;
}

// Goes on with what the record says, from what this node has done.
void Persist::follow() {
  if (!is_on()) return;
  const PersistRecord& record = told_.record;
  if (!is_current() || record.phase == PersistPhase::idle) return let_go();
  if (attempt_.number != record.attempt) {
    let_go();
    attempt_.number = record.attempt;
    for (const Seat seat : context_.mirror.own_seats()) attempt_.seats[seat];
    adopt_pins();
  }
  if (shown_.settled() >= record.step) pin_seats();
  if (record.phase == PersistPhase::writing) begin_writing();
  pass_on();
}

void Persist::let_go() {
  if (attempt_.writes) attempt_.writes->cancel = true;
  for (const auto& [seat, own] : attempt_.seats)
    if (own.arena) own.arena->arena.slot(own.slot).unpin();
  attempt_ = {};
}

// --- Pins

// Of the daemon before this one.
void Persist::adopt_pins() {
  for (auto& [seat, own] : attempt_.seats) {
    const ArenaHandle held = memory_.find(ArenaKind::own, before_of(context_.mirror, seat));
    for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) {
      const SlotWord word = held->arena.slot(i).word();
      if (word.state != SlotState::sealed || word.step != told_.record.step || !held->arena.slot(i).pinned(word))
        continue;
      own = {held, i, word, Done::pinned};
    }
  }
}

// Before the pages show what is committed next: nobody overwrites the step while they do not show more than it.
void Persist::pin_seats() {
  const Step step = told_.record.step;
  for (auto& [seat, own] : attempt_.seats) {
    if (own.done != Done::nothing || !attempt_.failed.empty()) continue;
    if (may_pin(shown_, step))
      pin(seat, own);
    else
      fail(text("seat ", seat.value, ": step ", step.value, " was over before it could be kept"), true);
  }
  pass_on();
}

void Persist::pin(Seat seat, OwnSeat& own) {
  const Step step = told_.record.step;
  const ArenaHandle held = memory_.find(ArenaKind::own, before_of(context_.mirror, seat));
  for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) {
    const Slot slot = held->arena.slot(i);
    const SlotWord word = slot.word();
    if (word.state != SlotState::sealed || word.frozen || word.step != step) continue;
    if (slot.torn(word))
      return fail(text("seat ", seat.value, ": step ", step.value, " was written while it was copied"), true);
    slot.pin(word.generation, word.step);
    own = {held, i, word, Done::pinned};
    return;
  }
  fail(text("seat ", seat.value, " did not capture step ", step.value), true);
}

void Persist::fail(std::string why, bool unpinned) {
  if (!attempt_.failed.empty()) return;
  attempt_.failed = std::move(why);
  attempt_.unpinned = unpinned;
  if (attempt_.writes) attempt_.writes->cancel = true;
}

// --- Writing

void Persist::begin_writing() {
  if (attempt_.writes || !attempt_.failed.empty()) return;
  std::vector<SlotToWrite> slots;
  for (const auto& [seat, own] : attempt_.seats) {
    if (own.done != Done::pinned) return;
    slots.push_back({seat, own.arena, own.slot, own.word});
  }
  if (!writes_.expired()) return;  // an earlier attempt's task writes yet: tick() looks again
  attempt_.writes = std::make_shared<PartProgress>();
  writes_ = attempt_.writes;
  (void)context_.environment->tasks.start("pawl-persist", [this, slots = std::move(slots), writes = attempt_.writes,
                                                           folder = told_.record.folder, attempt = attempt_.number] {
    for (const SlotToWrite& slot : slots) {
      Status status = writes->cancel ? Status(Error{Code::cancelled, "the attempt has ended"})
                                     : write_slot(*store_, folder, slot, *writes);
      const bool failed = !status.has_value();
      context_.post([this, attempt, seat = slot.seat, status = std::move(status)] { wrote(attempt, seat, status); });
      if (failed) return;
    }
  });
}

void Persist::wrote(std::uint64_t attempt, Seat seat, const Status& status) {
  const auto own = attempt_.seats.find(seat);
  if (attempt != attempt_.number || own == attempt_.seats.end()) return;
  if (status)
    own->second.done = Done::written;
  else
    fail(text("seat ", seat.value, ": ", status.error().what), status.error().code == Code::stale);
  pass_on();
  context_.drive();
}

// --- Up the tree

// Of the attempt's step, on all seats: a later one is committed, or none comes.
bool Persist::is_window_over() const {
  const JobMirror& mirror = context_.mirror;
  return shown_.committed > told_.record.step ||
         mirror.finishes().finished_count(mirror.generation()) >= mirror.state().seats.size();
}

// What has been found of a slot since it was written.
void Persist::look_again() {
  if (told_.record.phase != PersistPhase::writing) return;
  for (const auto& [seat, own] : attempt_.seats)
    if (own.done == Done::written && !is_still({seat, own.arena, own.slot, own.word}))
      fail(text("seat ", seat.value, ": step ", told_.record.step.value, " was written while it was copied"), true);
}

PersistTally Persist::own_tally() const {
  PersistTally tally;
  for (const auto& [seat, own] : attempt_.seats) {
    tally.pinned += own.done == Done::pinned || own.done == Done::written ? 1 : 0;
    tally.written += own.done == Done::written ? 1 : 0;
    tally.proven += own.done == Done::written && is_window_over() ? 1 : 0;
  }
  tally.bytes = attempt_.writes ? attempt_.writes->bytes.load() : 0;
  tally.failed = attempt_.failed;
  tally.unpinned = attempt_.unpinned;
  return tally;
}

PersistTally Persist::tally() const {
  PersistTally all = own_tally();
  for (const auto& [node, told] : children_)
    if (told.attempt == told_.record.attempt)
      add(all, {told.pinned, told.written, told.proven, told.bytes, told.failed, told.unpinned});
  return all;
}

void Persist::pass_on() {
  if (!is_current() || attempt_.number == 0) return;
  look_again();
  const PersistTally all = tally();
  const JobMirror& mirror = context_.mirror;
  if (mirror.is_root()) {
    if (std::exchange(root_.last, all) != all) root_.changed_at = context_.clock->now();
    return;
  }
  PersistMessage news{entered_,   attempt_.number, all.pinned, all.written,
                      all.proven, all.bytes,       all.failed, all.unpinned};
  if (passed_on_ == news) return;
  const auto parent = mirror.node_at((mirror.my_position() - 1) / 2);
  if (parent && hooks_.send(*parent, frame_of(PersistMessage(news)))) passed_on_ = std::move(news);
}

void Persist::on_tally(NodeId child, const PersistMessage& told) {
  if (!context_.is_running() || told.generation != context_.mirror.generation()) return;
  const auto [known, first] = children_.try_emplace(child, told);
  if (!first && told.attempt >= known->second.attempt) known->second = told;
  pass_on();
  if (context_.mirror.is_root()) context_.drive();
}

void Persist::on_link_up(NodeId node) {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.is_member() || mirror.is_root() || mirror.node_at((mirror.my_position() - 1) / 2) != node) return;
  passed_on_.reset();
  pass_on();
}

void Persist::tick() {
  if (!is_on()) return;
  if (is_current() && told_.record.phase == PersistPhase::writing && attempt_.number == told_.record.attempt)
    begin_writing();
  pass_on();  // what is written grows; or no link stood
}

// Of this job's own, or of those beside the one with which it began.
std::string Persist::path_of(Step stored) const {
  const CheckpointSpec& checkpoints = context_.mirror.spec().checkpoints;
  const PersistRecord& record = told_.record;
  const bool is_own = stored == record.published || contains(record.older, stored) ||
                      (root_.pending && stored == root_.pending->published) || checkpoints.resume_path.empty();
  return checkpoint_path(is_own ? checkpoints.path : parent_path(checkpoints.resume_path), stored);
}

std::vector<Step> Persist::stored() const {
  std::vector<Step> steps = told_.record.older;
  for (const Step step : {told_.record.published, root_.pending ? root_.pending->published : Step(0)})
    if (step > Step(0) && !contains(steps, step)) steps.push_back(step);
  const JobSpec& spec = context_.mirror.spec();
  std::vector<Step> before = spec.checkpoints.resume_older;
  if (spec.checkpoints.resume_step > Step(0)) before.push_back(spec.checkpoints.resume_step);
  for (const Step step : before)
    if (!contains(steps, step)) steps.push_back(step);
  std::ranges::sort(steps, std::greater());
  return steps;
}

// --- The root

PersistView Persist::view() const {
  const JobMirror& mirror = context_.mirror;
  const JobSpec& spec = mirror.spec();
  const Duration now = context_.clock->now();
  const auto wall_ms = static_cast<std::uint64_t>(context_.clock->wall() / 1ms);
  PersistView view;
  view.policy = {spec.checkpoints.every_steps, std::chrono::milliseconds(spec.checkpoints.every_ms)};
  view.record = told_.record;
  if (view.record.generation != entered_) view.record = going_on_from(view.record, mirror.state().resume);
  view.running = entered_;
  view.progress = shown_;
  view.seat_count = static_cast<std::uint32_t>(mirror.state().seats.size());
  view.tally = tally();
  view.since_change = now - root_.changed_at;
  const std::uint64_t ended_ms = told_.record.ended_wall_ms;
  view.since_ended =
      ended_ms == 0 ? now - root_.ran_at : std::chrono::milliseconds(wall_ms > ended_ms ? wall_ms - ended_ms : 0);
  if (mirror.finishes().finished_count(mirror.generation()) >= view.seat_count) view.last = shown_.committed;
  view.has_folder = root_.open != nullptr && root_.open_attempt == told_.record.attempt;
  return view;
}

bool Persist::may_end() const {
  return !is_on() || !is_here() || (!root_.busy && !root_.pending && job::may_end(view()));
}

bool Persist::is_here() const {
  return context_.is_running() && entered_ == context_.mirror.generation();
}

void Persist::drive() {
  if (is_on() && context_.mirror.has_state() && is_last(context_.mirror.state())) {  // LastCheckpoint has the folder
    let_go();
    return drop_open();
  }
  if (!is_on() || context_.ending || !is_here() || !context_.mirror.is_root()) return;
  give_up_stuck_task();
  if (root_.busy) return;
  if (root_.pending && root_.pending->attempt != told_.record.attempt) root_.pending.reset();  // others went on
  if (root_.pending) return swap(PersistRecord(*root_.pending));
  const PersistView now = view();
  act(next_persist_move(now), now.record);
}

void Persist::act(const PersistMove& move, const PersistRecord& record) {
  switch (move.kind) {
    case PersistMove::Kind::none:
      return;
    case PersistMove::Kind::order:
      return swap(after_order(record, entered_, move.step));
    case PersistMove::Kind::write:
      return begin_folder();
    case PersistMove::Kind::publish:
      return publish();
    case PersistMove::Kind::give_up:
      return give_up(move);
  }
}

void Persist::swap(const PersistRecord& next) {
  root_.busy = true;
  context_.control->compare_and_swap(persist_key(context_.mirror.keys()), told_.revision, to_json(next), {},
                                     [this, next, of = entered_](const Result<Swapped>& swap) {
                                       if (of != entered_) return;
                                       root_.busy = false;
                                       if (!swap) return context_.drive_soon(kSwapPause);
                                       root_.pending.reset();
                                       if (swap->won) {
                                         root_.changed_at = context_.clock->now();
                                         told_ = {next, swap->revision};
                                         follow();
                                       } else if (swap->current) {
                                         on_key(swap->current->key, swap->current->value, swap->current->mod_revision);
                                       }
                                       context_.drive_soon(Duration::zero());
                                     });
}

std::uint64_t Persist::begin_task() {
  root_.busy = true;
  root_.task_since = context_.clock->now();
  return ++root_.task;
}

bool Persist::end_task(std::uint64_t task) {
  if (task != root_.task || !root_.task_since) return false;
  root_.task_since.reset();
  root_.busy = false;
  return true;
}

// Whatever it still does: it publishes what all have written, or nothing.
void Persist::give_up_stuck_task() {
  if (!root_.task_since || context_.clock->now() - *root_.task_since <= kTaskPatience) return;
  (void)end_task(root_.task);
  give_up({PersistMove::Kind::give_up, Step(0), "the storage does not answer", false});
}

void Persist::begin_folder() {
  // The control was away when it was to be told.
  if (root_.open && root_.open_attempt == told_.record.attempt)
    return swap(after_begin(told_.record, root_.open->folder()));
  root_.begun_at = context_.clock->now();
  const PersistRecord record = told_.record;
  (void)context_.environment->tasks.start(
      "pawl-persist", [this, record, task = begin_task(),
                       owner = claim_text(context_.mirror.spec().job, context_.mirror.spec().token_digest),
                       path = checkpoint_path(context_.mirror.spec().checkpoints.path, record.step)] {
        auto begun =
            std::make_shared<Result<std::unique_ptr<OpenCheckpoint>>>(store_->begin(path, record.attempt, owner));
        context_.post([this, record, task, begun] {
          if (!end_task(task))
            return remove_later(context_.environment->tasks,
                                begun->has_value() ? std::shared_ptr<OpenCheckpoint>(std::move(**begun)) : nullptr);
          if (!*begun) return give_up({PersistMove::Kind::give_up, Step(0), begun->error().what, false});
          root_.open = std::move(**begun);
          root_.open_attempt = record.attempt;
          swap(after_begin(record, root_.open->folder()));
        });
      });
}

void Persist::publish() {
  const auto seat_count = static_cast<std::uint32_t>(context_.mirror.state().seats.size());
  (void)context_.environment->tasks.start(
      "pawl-persist", [this, open = root_.open, task = begin_task(), of = told_.record, seat_count] {
        auto published = std::make_shared<Status>(open->publish(seat_count));
        context_.post([this, task, of, published] {
          const bool in_time = end_task(task);
          if (!*published && !in_time) return;
          if (!*published) return give_up({PersistMove::Kind::give_up, Step(0), published->error().what, false});
          if (in_time) drop_open();
          root_.pending = after_retention(after_publish(of, static_cast<std::uint64_t>(context_.clock->wall() / 1ms)),
                                          retention_of(context_.mirror.spec().checkpoints));
          tell_published(of);
          drive();
        });
      });
}

void Persist::give_up(const PersistMove& move) {
  drop_open();
  const PersistRecord of = told_.record;
  root_.pending = after_give_up(of, move, static_cast<std::uint64_t>(context_.clock->wall() / 1ms));
  if (!move.why.empty()) {
    log_warn("checkpoint_given_up", "step", of.step, "again", move.again, "why", move.why);
    if (!move.again || of.failures >= kToldFailures)
      events_.tell("checkpoint_failed", Json{{"step", of.step.value}, {"detail", move.why}}.dump());
  }
  drive();
}

void Persist::tell_published(const PersistRecord& of) {
  const auto took_ms = static_cast<std::uint64_t>((context_.clock->now() - root_.begun_at) / 1ms);
  const std::string path = checkpoint_path(context_.mirror.spec().checkpoints.path, of.step);
  log_info("checkpoint_published", "step", of.step, "path", path, "bytes", root_.last.bytes, "ms", took_ms);
  events_.tell("checkpoint_published",
               Json{{"step", of.step.value}, {"path", path}, {"bytes", root_.last.bytes}, {"ms", took_ms}}.dump());
}

// What is not published is removed, which takes time.
void Persist::drop_open() {
  remove_later(context_.environment->tasks, std::exchange(root_.open, nullptr));
}

}  // namespace pawl::job
