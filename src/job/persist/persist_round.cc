#include "job/persist/persist_round.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::job {
namespace {

using Kind = PersistMove::Kind;

constexpr std::uint64_t kAheadMax = 64;

// So far ahead of what is committed that every node knows the order in time.
Step ahead(const PersistView& view) {
  return Step(view.progress.settled().value +
              std::min(std::uint64_t{2} << std::min(view.record.failures, 5u), kAheadMax));
}

bool is_ours(const PersistView& view) {
  return view.record.generation == view.running;
}

PersistMove order_last(const PersistView& view) {
  const bool was_tried = is_ours(view) && view.record.step == *view.last && view.record.tries >= kLastTries;
  if (view.record.published >= *view.last || was_tried) return {};
  return {Kind::order, *view.last, "", false};
}

// Of what trainers have asked for nothing was published, and nothing tried that storage refused. What was asked for in a history that was left, far
// ahead, waits until the job comes there: what is due before is written meanwhile.
bool is_wanted(const PersistView& view) {
  return view.tally.wanted > view.record.tried && view.tally.wanted <= ahead(view);
}

PersistMove order_next(const PersistView& view) {
  if (view.last) return order_last(view);
  const PersistRecord& record = view.record;
  if (is_wanted(view)) return {Kind::order, ahead(view), "", false};
  if (view.policy.every_steps > 0) {
    const Step due((record.tried.value / view.policy.every_steps + 1) * view.policy.every_steps);
    return {Kind::order, due > view.progress.settled() ? due : ahead(view), "", false};
  }
  const Duration pause = view.policy.is_auto ? kAutoPause : view.policy.every;
  if (pause > Duration::zero() && (view.since_ended >= pause || record.tried < record.step))
    return {Kind::order, ahead(view), "", false};
  return {};
}

PersistMove give_up(std::string why, bool again) {
  return {Kind::give_up, Step(0), std::move(why), again};
}

PersistMove go_on_pinning(const PersistView& view) {
  const PersistRecord& record = view.record;
  if (!view.tally.failed.empty()) return give_up(view.tally.failed, true);
  if (view.last && record.step > *view.last) return give_up("", true);
  if (is_wanted(view) && record.step > ahead(view)) return give_up("", true);
  if (view.tally.pinned >= view.seat_count) return {Kind::write, Step(0), "", false};
  if (view.progress.settled() >= record.step && view.since_change > kPersistPatience)
    return give_up(text("of ", view.seat_count, " seats only ", view.tally.pinned, " have kept the step"), true);
  return {};
}

PersistMove go_on_writing(const PersistView& view) {
  if (!view.tally.failed.empty()) return give_up(view.tally.failed, view.tally.unpinned);
  if (!view.has_folder) return give_up("the daemon that began it was restarted", true);
  if (view.tally.proven >= view.seat_count) return {Kind::publish, Step(0), "", false};
  if (view.tally.written >= view.seat_count) return {};  // for as long as the step takes
  if (view.since_change > kPersistPatience)
    return give_up(text("nothing was written for ", kPersistPatience / std::chrono::seconds(1), " s, and of ",
                        view.seat_count, " seats ", view.tally.written, " are written: is the storage slow, or away?"),
                   false);
  return {};
}

}  // namespace

void add(PersistTally& all, const PersistTally& more) {
  all.pinned += more.pinned;
  all.written += more.written;
  all.proven += more.proven;
  all.bytes += more.bytes;
  all.wanted = std::max(all.wanted, more.wanted);
  if (all.failed.empty() && !more.failed.empty()) all.failed = more.failed, all.unpinned = more.unpinned;
}

PersistMove next_persist_move(const PersistView& view) {
  if (view.seat_count == 0) return {};
  if (!is_ours(view) || view.record.phase == PersistPhase::idle) return order_next(view);
  return view.record.phase == PersistPhase::pinning ? go_on_pinning(view) : go_on_writing(view);
}

PersistRecord going_on_from(const PersistRecord& record, Step resume) {
  PersistRecord next = record;
  next.tried = record.attempt == 0 ? resume : std::min(record.tried, resume);
  if (record.published <= resume) return next;
  std::erase_if(next.older, [resume](Step step) { return step > resume; });
  next.published = next.older.empty() ? Step(0) : next.older.front();
  if (!next.older.empty()) next.older.erase(next.older.begin());
  return next;
}

PersistRecord after_order(const PersistRecord& record, Generation running, Step step) {
  PersistRecord next = record;
  ++next.attempt;
  next.phase = PersistPhase::pinning;
  next.tries = record.step == step && record.generation == running ? record.tries + 1 : 1;
  next.generation = running;
  next.step = step;
  next.folder.clear();
  return next;
}

PersistRecord after_begin(const PersistRecord& record, std::string folder) {
  PersistRecord next = record;
  next.phase = PersistPhase::writing;
  next.folder = std::move(folder);
  return next;
}

PersistRecord after_publish(const PersistRecord& record, std::uint64_t wall_ms) {
  PersistRecord next = record;
  next.phase = PersistPhase::idle;
  next.folder.clear();
  if (record.published > Step(0) && record.published != record.step)
    next.older.insert(next.older.begin(), record.published);
  if (next.older.size() > kOlderMax) next.older.resize(kOlderMax);
  next.published = record.step;
  next.tried = std::max(next.tried, record.step);
  const std::uint64_t before = record.published_wall_ms;
  next.interval_ms = before > 0 && wall_ms > before ? wall_ms - before : 0;
  next.published_wall_ms = next.ended_wall_ms = wall_ms;
  next.failures = 0;
  next.why.clear();
  return next;
}

PersistRecord after_give_up(const PersistRecord& record, const PersistMove& move, std::uint64_t wall_ms) {
  PersistRecord next = record;
  next.phase = PersistPhase::idle;
  next.folder.clear();
  next.ended_wall_ms = wall_ms;
  if (!move.again) next.tried = std::max(next.tried, record.step);
  if (move.why.empty()) return next;
  ++next.failures;
  next.why = move.why;
  return next;
}

bool may_end(const PersistView& view) {
  if (view.policy.every_steps == 0 && view.policy.every == Duration::zero() && !view.policy.is_auto) return true;
  const bool idle = view.record.phase == PersistPhase::idle || !is_ours(view);
  return idle && view.last && order_last(view).kind == Kind::none;
}

}  // namespace pawl::job
