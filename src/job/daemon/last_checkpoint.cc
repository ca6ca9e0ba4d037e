#include "job/daemon/last_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/log.h"
#include "base/text.h"
#include "job/persist/persist_record.h"
#include "job/recovery/lineage.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Duration kTogether = 1500ms;        // within which all nodes of a job are told to end
constexpr Duration kVerdictPatience = 10min;  // where nobody has said how long there is
constexpr Duration kGraceKept = 3s;           // of it, for the end itself
constexpr Duration kLastSwapPause = 50ms;
constexpr Duration kOthersPause = 1s;  // until others freeze the job where its root does not
constexpr std::uint32_t kTries = 3;
constexpr Duration kTryPause = 500ms;   // between them
constexpr Duration kOthersTurn = 30s;   // in which nothing becomes of what another has begun
constexpr Duration kLookAgain = 200ms;  // whether its time has passed

std::string order_key(const JobKeys& keys) {
  return keys.root + "stop_order";
}
std::string stopping_prefix(const JobKeys& keys) {
  return keys.root + "stopping/";
}
std::string told_prefix(const JobKeys& keys) {
  return keys.root + "last_part/";
}

std::uint64_t wall_ms(const NodeContext& context) {
  return static_cast<std::uint64_t>(context.clock->wall() / 1ms);
}

}  // namespace

bool LastCheckpoint::is_on() const {
  return store_ != nullptr && !context_.mirror.spec().checkpoints.path.empty();
}

void LastCheckpoint::on_key(const std::string& key, const std::string& value, Revision revision) {
  const JobKeys& keys = context_.mirror.keys();
  NodeId node;
  if (key == order_key(keys)) {
    if (auto order = parse_stop_order(value); order && !order_) {
      order_ = std::move(*order);
      ordered_at_ = context_.clock->now();
    }
  } else if (key == last_checkpoint_key(keys) && revision > revision_) {
    auto record = parse_last_record(value);
    if (!record) return log_warn("last_checkpoint_refused", "why", record.error().what);
    if (!record_ || record_->attempt != record->attempt) told_.clear();
    record_ = std::move(*record);
    revision_ = revision;
    changed_at_ = context_.clock->now();
  } else if (id_after(stopping_prefix(keys), key, node)) {
    if (const auto stopping = parse_stopping_node(value)) stopping_.insert_or_assign(node, *stopping);
  } else if (id_after(told_prefix(keys), key, node)) {
    if (auto told = parse_part_told(value)) told_.insert_or_assign(node, std::move(*told));
    changed_at_ = context_.clock->now();
  }
}

// --- Who asks

void LastCheckpoint::stop_node(int signal, Duration grace) {
  if (own_) return;
  own_ = Own{text(signal == 2 ? "SIGINT" : "SIGTERM", " at node ", context_.self.node), 128 + signal,
             context_.clock->now(), grace, false};
  context_.drive_soon(0ms);
}

// So there may be something to keep.
bool LastCheckpoint::has_run() const {
  return context_.mirror.has_state() && context_.mirror.state().ran > Generation(0);
}

// By now or soon all who are to end have said so.
void LastCheckpoint::consider_stop() {
  if (!own_) return;
  if (context_.mirror.is_over() || !is_on() || !has_run() || context_.is_evicted() || !context_.mirror.is_member())
    return hooks_.leave(own_->code);
  if (order_) return;
  if (!std::exchange(own_->told, true)) {
    const StoppingNode told{context_.self, own_->why, static_cast<std::uint64_t>(own_->patience / 1ms)};
    stopping_.insert_or_assign(context_.self.node, told);
    context_.control->put(text(stopping_prefix(context_.mirror.keys()), context_.self.node), to_json(told),
                          [this](const Status& put) {
                            if (put) return;
                            own_->told = false;
                            context_.drive_soon(kLastSwapPause);
                          });
  }
  std::vector<StoppingNode> stopping;
  Duration patience = own_->patience;
  for (const auto& [node, one] : stopping_) {
    stopping.push_back(one);
    patience = std::min<Duration>(patience, std::chrono::milliseconds(one.grace_ms));
  }
  const Duration waited = context_.clock->now() - own_->since;
  const Roster& roster = context_.mirror.roster();
  const std::size_t dead = roster.members().size() - roster.survivors().size();
  if (ends_job(roster.survivors(), dead, stopping, context_.mirror.spec().replica_count)) {
    if (!context_.mirror.is_root() && waited < kOthersPause) return context_.drive_soon(kOthersPause - waited);
    return order(text("stopped by ", own_->why), std::max<Duration>(patience - kGraceKept, patience / 2));
  }
  // Who does not say so may be dead, which is known after the deadline: then as many are left may end with us.
  const Duration half = own_->patience / 2;
  const Duration together =
      std::min<Duration>(kTogether + std::chrono::milliseconds(context_.mirror.spec().deadline_ms), half);
  if (waited >= half || (waited >= together && context_.mirror.is_in(JobPhase::running)))
    return hooks_.leave(own_->code);
  context_.drive_soon(waited < together ? together - waited : Duration(kLookAgain));
}

bool LastCheckpoint::comes_before(const JobState& failed) {
  if (!is_on() || ended_ || !has_run() || std::max(context_.committed, failed.committed) == Step(0)) return false;
  if (context_.mirror.roster().survivors().empty()) return false;  // nobody is left who could freeze
  if (!order_) order(failed.verdict, kVerdictPatience);
  return true;
}

void LastCheckpoint::order(std::string why, Duration patience) {
  if (std::exchange(ordering_, true)) return;
  const StopOrder order{std::move(why), wall_ms(context_), static_cast<std::uint64_t>(patience / 1ms)};
  context_.control->compare_and_swap(order_key(context_.mirror.keys()), 0, to_json(order), {},
                                     [this, order](const Result<Swapped>& swap) {
                                       ordering_ = false;
                                       if (swap && swap->won) {
                                         order_ = order;
                                         ordered_at_ = context_.clock->now();
                                         log_info("stop_ordered", "why", order.why, "patience_ms", order.patience_ms);
                                       } else if (swap && swap->current) {
                                         on_key(swap->current->key, swap->current->value, swap->current->mod_revision);
                                       }
                                       context_.drive_soon(swap ? 0ms : Duration(kLastSwapPause));
                                     });
}

// --- What each node does

void LastCheckpoint::drive() {
  if (!is_on() || context_.ending) return;
  if (!order_ || context_.mirror.is_over()) return;
  if (!is_last(context_.mirror.state())) return freeze_all();
  if (!context_.mirror.is_in(JobPhase::quiescing)) return;
  write_parts();
  const JobState& state = context_.mirror.state();
  if (!ended_ && !leading_.busy && state.leader == context_.self && is_late())
    end(text("its newest step could not be written to storage within ", order_->patience_ms / 1000, " s: waiting for ",
             state.waiting.empty() ? "the others" : state.waiting));
}

// The root asks for it; where it is away, whoever is there.
void LastCheckpoint::freeze_all() {
  const JobMirror& mirror = context_.mirror;
  if (!mirror.is_member() || mirror.is_in(JobPhase::forming)) return;
  const Duration since = context_.clock->now() - ordered_at_;
  if (!mirror.is_root() && since < kOthersPause) return context_.drive_soon(kOthersPause - since);
  hooks_.report({FaultKind::last_checkpoint, std::nullopt, std::nullopt, order_->why, wall_ms(context_)}, {});
}

void LastCheckpoint::write_parts() {
  const JobMirror& mirror = context_.mirror;
  if (!record_ || record_->phase != LastPhase::writing || record_->generation != mirror.generation()) return;
  if (writing_.attempt == record_->attempt || context_.followed.frozen != mirror.generation()) return;
  if (writing_.progress) writing_.progress->cancel = true;
  writing_ = {record_->attempt, {record_->attempt, {}, {}}, std::make_shared<PartProgress>(), 0};
  std::vector<std::pair<SlotToWrite, SourceKind>> slots;
  for (const PartToWrite& part : parts_of(*record_, mirror.state().seats, context_.self)) {
    std::optional<SlotToWrite> slot = slot_of(part);
    if (slot) {
      slots.emplace_back(std::move(*slot), part.kind);
    } else {
      writing_.told.failed = text("node ", context_.self.node, " has no step ", record_->step, " of seat ", part.seat);
      return tell();
    }
  }
  if (slots.empty()) return;
  writing_.seat_count = slots.size();
  (void)context_.environment->tasks.start(
      "pawl-last", [this, slots = std::move(slots), folder = record_->folder, progress = writing_.progress,
                    attempt = record_->attempt, generation = record_->generation] {
        for (const auto& one : slots) {
          const SlotToWrite& slot = one.first;
          const SourceKind kind = one.second;
          Status status = progress->cancel ? Status(Error{Code::cancelled, "the attempt has ended"})
                                           : write_slot(*store_, folder, slot, *progress);
          const bool is_written = status.has_value();
          context_.post([this, attempt, generation, slot, kind, status = std::move(status)] {
            wrote(attempt, generation, slot, kind, status);
          });
          if (!is_written) return;
        }
      });
}

// Of the history that the job goes on with, wherever it was captured.
std::optional<SlotToWrite> LastCheckpoint::slot_of(const PartToWrite& part) const {
  const ArenaKind kind = part.kind == SourceKind::replica ? ArenaKind::replica : ArenaKind::own;
  const ArenaHandle held = memory_.find(kind, before_of(context_.mirror, part.seat));
  for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) {
    const Slot slot = held->arena.slot(i);
    const SlotWord word = slot.word();
    if (word.state == SlotState::sealed && word.step == record_->step && word.frozen && !slot.torn(word) &&
        in_lineage(context_.mirror.state().lineage, word.generation, word.step))
      return SlotToWrite{part.seat, held, i, word, false};
  }
  return std::nullopt;
}

void LastCheckpoint::wrote(std::uint64_t attempt, Generation generation, const SlotToWrite& what, SourceKind kind,
                           const Status& status) {
  if (attempt != writing_.attempt || context_.mirror.generation() != generation) return;
  if (status) {
    writing_.told.seats.push_back(what.seat);
    if (writing_.told.seats.size() < writing_.seat_count) return;  // told once
  } else if (status.error().code == Code::corrupt && !context_.is_evicted()) {
    const Struck struck{context_.self, before_of(context_.mirror, what.seat), kind, what.word.generation,
                        what.word.step};
    return hooks_.report({FaultKind::corrupt_source, context_.self, what.seat,
                          text(name_of(kind), " at node ", context_.self.node, ": ", status.error().what), 0},
                         {struck});
  } else {
    writing_.told.failed = text("seat ", what.seat, ": ", status.error().what);
  }
  tell();
}

void LastCheckpoint::tell() {
  told_.insert_or_assign(context_.self.node, writing_.told);
  context_.control->put(text(told_prefix(context_.mirror.keys()), context_.self.node), to_json(writing_.told),
                        [this, attempt = writing_.attempt](const Status& put) {
                          if (put || attempt != writing_.attempt) return;
                          context_.after(kLastSwapPause, [this, attempt] {
                            if (attempt == writing_.attempt) tell();
                          });
                        });
  context_.drive_soon(0ms);
}

// --- Who leads

// By this node's clock: nodes' clocks differ.
bool LastCheckpoint::is_late(Duration beyond) const {
  return context_.clock->now() - ordered_at_ > std::chrono::milliseconds(order_->patience_ms) + beyond;
}

void LastCheckpoint::lead(const LastStep& last) {
  if (!order_) return;
  if (last.step == Step(0)) return end(text("no step was written to storage: ", last.why_not));
  if (const std::string path = hooks_.stored_at(last.step); !path.empty())
    return end(text("step ", last.step, " is in ", path));
  const bool is_ours = record_ && record_->generation == context_.mirror.generation();
  const bool is_told = record_ && record_->phase == LastPhase::published && record_->step == last.step;
  if (is_told || leading_.published == last.step)
    return end(
        text("step ", last.step, " is in ", checkpoint_path(context_.mirror.spec().checkpoints.path, last.step)));
  if (leading_.busy && !is_late(kGraceKept / 3)) return context_.drive_soon(kLookAgain);
  if (is_late())
    return end(text("step ", last.step, " could not be written to storage within ", order_->patience_ms / 1000,
                    " s: give it more time (--grace)"));
  if (leading_.failures >= kTries)
    return end(text("step ", last.step, " could not be written to storage: ", record_ ? record_->why : ""));
  context_.drive_soon(kLookAgain);
  const bool by_another =
      is_ours && record_->by != context_.self && contains(context_.mirror.roster().survivors(), record_->by);
  if (by_another && context_.clock->now() - changed_at_ < kOthersTurn) return drop_open();  // who leads may change
  if (context_.clock->now() < leading_.not_before) return;
  const bool has_folder = leading_.open != nullptr && is_ours && leading_.attempt == record_->attempt;
  if (!has_folder || record_->phase != LastPhase::writing) return begin(last);
  std::string why;
  if (all_told(why)) return publish();
  if (!why.empty()) failed(why);
}

void LastCheckpoint::begin(const LastStep& last) {
  leading_.busy = true;
  drop_open();
  LastRecord record;
  record.attempt = std::max(record_ ? record_->attempt : 0, kLastAttempts) + 1;
  record.generation = context_.mirror.generation();
  record.by = context_.self;
  record.step = last.step;
  record.parts = parts_elsewhere(last.sources, context_.mirror.state().seats);
  (void)context_.environment->tasks.start(
      "pawl-last", [this, record, order = hooks_.order_of(record.attempt, record.step)] {
        auto open = std::make_shared<Result<std::unique_ptr<OpenCheckpoint>>>(store_->begin(order));
        context_.post([this, record, open] { begun(record, std::move(*open)); });
      });
}

void LastCheckpoint::begun(const LastRecord& record, Result<std::unique_ptr<OpenCheckpoint>> open) {
  if (!open) {
    leading_.busy = false;
    leading_.not_before = context_.clock->now() + kTryPause;
    if (open.error().code == Code::stale) return context_.drive_soon(kTryPause);  // who writes there gives way
    LastRecord next = record;
    next.phase = LastPhase::failed;
    next.why = open.error().what;
    count_failure();
    return swap(std::move(next));
  }
  leading_.open = std::move(*open);
  leading_.attempt = record.attempt;
  LastRecord next = record;
  next.folder = leading_.open->folder();
  swap(std::move(next));
}

bool LastCheckpoint::all_told(std::string& failed) const {
  std::set<Seat> written;
  for (const auto& [node, told] : told_) {
    if (told.attempt != record_->attempt) continue;
    written.insert(told.seats.begin(), told.seats.end());
    if (failed.empty()) failed = told.failed;
  }
  return written.size() >= context_.mirror.state().seats.size();
}

void LastCheckpoint::publish() {
  leading_.busy = true;
  const auto seat_count = static_cast<std::uint32_t>(context_.mirror.state().seats.size());
  (void)context_.environment->tasks.start("pawl-last", [this, open = leading_.open, record = *record_, seat_count] {
    auto published = std::make_shared<Status>(open->publish(seat_count));
    context_.post([this, record, published] {
      if (*published) leading_.published = record.step;
      if (record_->attempt != record.attempt) return void(leading_.busy = false);
      if (!*published) return failed(published->error().what);
      LastRecord next = record;
      next.phase = LastPhase::published;
      const std::string path = checkpoint_path(context_.mirror.spec().checkpoints.path, record.step);
      events_.tell("checkpoint_published", Json{{"step", record.step.value}, {"path", path}, {"last", true}}.dump());
      swap(std::move(next));
    });
  });
}

void LastCheckpoint::count_failure() {
  ++leading_.failures;
  leading_.not_before = context_.clock->now() + kTryPause;
}

// What is not published is removed, which takes time.
void LastCheckpoint::drop_open() {
  if (!leading_.open) return;
  (void)context_.environment->tasks.start("pawl-last",
                                          [open = std::exchange(leading_.open, nullptr)]() mutable { open.reset(); });
}

void LastCheckpoint::failed(const std::string& why) {
  count_failure();
  LastRecord next = *record_;
  next.phase = LastPhase::failed;
  next.why = why;
  events_.tell("checkpoint_failed", Json{{"step", next.step.value}, {"detail", why}}.dump());
  swap(std::move(next));
}

void LastCheckpoint::swap(LastRecord next) {
  leading_.busy = true;
  std::string value = to_json(next);
  context_.control->compare_and_swap(last_checkpoint_key(context_.mirror.keys()), revision_, std::move(value), {},
                                     [this, next = std::move(next)](const Result<Swapped>& swap) {
                                       leading_.busy = false;
                                       if (swap && swap->won) {
                                         if (!record_ || record_->attempt != next.attempt) told_.clear();
                                         record_ = next;
                                         revision_ = swap->revision;
                                         changed_at_ = context_.clock->now();
                                       } else if (swap && swap->current) {
                                         drop_open();
                                         on_key(swap->current->key, swap->current->value, swap->current->mod_revision);
                                       }
                                       context_.drive_soon(swap ? 0ms : Duration(kLastSwapPause));
                                     });
}

void LastCheckpoint::end(const std::string& what) {
  ended_ = true;
  const std::string verdict = text(order_->why, "; ", what);
  hooks_.end(job::failed(context_.mirror.state(), context_.self, verdict), verdict);
}

}  // namespace pawl::job
