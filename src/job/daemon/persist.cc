#include "job/daemon/persist.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "job/daemon/slot_writer.h"
#include "job/recovery/decide.h"
#include "job/transport/rate_limit.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// What this node writes in an attempt; `progress` has it, so outlives it.
std::function<void(std::uint64_t)> paced(std::uint64_t bytes_a_second, Clock& clock, const PartProgress& progress) {
  struct Shared {
    explicit Shared(std::uint64_t most) : limit(most) {}
    std::mutex mutex;
    RateLimit limit;
  };
  const auto shared = std::make_shared<Shared>(bytes_a_second);
  return [shared, &clock, &progress](std::uint64_t bytes) {
    while (!progress.cancel) {
      Duration wait{};
      {
        const std::lock_guard lock(shared->mutex);
        wait = shared->limit.take(bytes, clock.now());
      }
      if (wait == Duration::zero()) return;
      clock.sleep(std::min<Duration>(wait, 100ms));
    }
  };
}

}  // namespace

// --- What this node knows

bool Persist::is_on() const {
  return store_ != nullptr && !context_.mirror.spec().checkpoints.path.empty();
}

bool Persist::is_current() const {
  return context_.is_running() && context_.mirror.is_member() && known_.entered == context_.mirror.generation() &&
         known_.record.generation == known_.entered;
}

void Persist::on_key(const std::string& key, const std::string& value, Revision revision) {
  if (key != persist_key(context_.mirror.keys()) || revision <= known_.revision) return;
  auto record = parse_persist_record(value);
  if (!record) return log_warn("persist_record_refused", "why", record.error().what);
  if (*record != known_.record) root_.on_change();
  learn(std::move(*record), revision);
}

void Persist::learn(PersistRecord record, Revision revision) {
  known_.record = std::move(record);
  known_.revision = revision;
  hooks_.show_stored(known_.record.published);
  follow();
}

// The first word of a generation is what its pages may show already, where this daemon returned into it.
void Persist::before_show(Progress progress) {
  if (!is_on()) return;
  if (known_.entered != context_.mirror.generation()) {
    known_.shown = progress;
    enter();
  }
  if (is_current() && known_.record.phase != PersistPhase::idle && progress.settled() >= known_.record.step)
    pin_seats();
  known_.shown = progress;
  pass_on();
}

void Persist::enter() {
  known_.entered = context_.mirror.generation();
  children_.clear();
  passed_on_.reset();
  let_go();
  root_.enter();
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
  const PersistRecord& record = known_.record;
  if (!is_current() || record.phase == PersistPhase::idle) return let_go();
  if (attempt_.number != record.attempt) {
    let_go();
    attempt_.number = record.attempt;
    for (const Seat seat : context_.mirror.own_seats()) attempt_.seats[seat];
    adopt_pins();
  }
  if (known_.shown.settled() >= record.step) pin_seats();
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
      if (word.state != SlotState::sealed || word.step != known_.record.step || !held->arena.slot(i).pinned(word))
        continue;
      own = {held, i, word, Done::pinned};
    }
  }
}

// Before the pages show what is committed next: nobody overwrites the step while they do not show more than it.
void Persist::pin_seats() {
  const Step step = known_.record.step;
  for (auto& [seat, own] : attempt_.seats) {
    if (own.done != Done::nothing || !attempt_.failed.empty()) continue;
    if (may_pin(known_.shown, step))
      pin(seat, own);
    else
      fail(text("seat ", seat.value, ": step ", step.value, " was over before it could be kept"), true);
  }
  pass_on();
}

void Persist::pin(Seat seat, OwnSeat& own) {
  const Step step = known_.record.step;
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
  if (const std::uint64_t most = context_.mirror.spec().checkpoints.bytes_a_second; most > 0)
    attempt_.writes->pace = paced(most, context_.environment->clock, *attempt_.writes);
  writes_ = attempt_.writes;
  (void)context_.environment->tasks.start("pawl-persist", [this, slots = std::move(slots), writes = attempt_.writes,
                                                           folder = known_.record.folder, attempt = attempt_.number] {
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
  return known_.shown.committed > known_.record.step ||
         mirror.finishes().finished_count(mirror.generation()) >= mirror.state().seats.size();
}

// What has been found of a slot since it was written.
void Persist::look_again() {
  if (known_.record.phase != PersistPhase::writing) return;
  for (const auto& [seat, own] : attempt_.seats)
    if (own.done == Done::written && !is_still({seat, own.arena, own.slot, own.word}))
      fail(text("seat ", seat.value, ": step ", known_.record.step.value, " was written while it was copied"), true);
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
  tally.wanted = hooks_.wanted();
  return tally;
}

PersistTally Persist::tally() const {
  PersistTally all = own_tally();
  for (const auto& [node, told] : children_) {
    PersistTally theirs;
    if (told.attempt == known_.record.attempt)
      theirs = {told.pinned, told.written, told.proven, told.bytes, told.failed, told.unpinned, {}};
    theirs.wanted = told.wanted;
    add(all, theirs);
  }
  return all;
}

void Persist::pass_on() {
  const JobMirror& mirror = context_.mirror;
  if (!is_here() || !mirror.is_member()) return;
  const bool has_attempt = is_current() && attempt_.number != 0;
  if (has_attempt) look_again();
  const PersistTally all = tally();
  if (!has_attempt && all.wanted == Step(0)) return;
  if (mirror.is_root()) return root_.on_tally(all);
  PersistMessage news{known_.entered, known_.record.attempt, all.pinned, all.written, all.proven, all.bytes,
                      all.failed,     all.unpinned,          all.wanted};
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
  if (is_current() && known_.record.phase == PersistPhase::writing && attempt_.number == known_.record.attempt)
    begin_writing();
  // What trainers ask for is told again until it is ordered: whoever is above may not have entered the generation when it heard.
  if (passed_on_ && passed_on_->wanted > known_.record.tried) passed_on_.reset();
  pass_on();  // what is written grows; or no link stood
}

// --- At the root

bool Persist::may_end() const {
  return !is_on() || !is_here() || root_.may_end();
}

bool Persist::is_here() const {
  return context_.is_running() && known_.entered == context_.mirror.generation();
}

void Persist::drive() {
  if (is_on() && context_.mirror.has_state() && is_last(context_.mirror.state())) {  // LastCheckpoint has the folder
    let_go();
    return root_.drop_open();
  }
  if (!is_on() || context_.ending || !is_here() || !context_.mirror.is_root()) return;
  root_.drive();
}

}  // namespace pawl::job
