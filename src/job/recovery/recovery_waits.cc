#include "job/recovery/recovery_waits.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

// "412 MiB"; of little "900 KiB".
std::string size_text(std::uint64_t bytes) {
  constexpr std::uint64_t kMebi = std::uint64_t{1} << 20;
  return bytes >= kMebi ? text(bytes / kMebi, " MiB") : text((bytes + 1023) / 1024, " KiB");
}

std::string ordinal(std::uint32_t number) {
  const bool teen = number % 100 / 10 == 1;
  const char* const ending = teen || number % 10 > 3 || number % 10 == 0 ? "th"
                             : number % 10 == 1                          ? "st"
                             : number % 10 == 2                          ? "nd"
                                                                         : "rd";
  return text(number, ending);
}

std::string fetch_text(const FetchState& fetch, const std::string& source) {
  std::string what = fetch.total == 0      ? text("its state from ", source)
                     : fetch.received == 0 ? text(size_text(fetch.total), " from ", source)
                                           : text(size_text(fetch.total - std::min(fetch.total, fetch.received)),
                                                  " of ", size_text(fetch.total), " from ", source);
  if (fetch.tries > 1) what += text(", ", ordinal(fetch.tries), " try");
  if (!fetch.failed.empty()) what += text(": ", fetch.failed);
  return what;
}

WaitKind kind_of(const SeatView& view) {
  if (!view.begun) return WaitKind::copies;
  if (!view.here && view.arena_taken) return WaitKind::trainer_leave;
  if (!view.here) return view.fetch ? WaitKind::fetch : WaitKind::source_address;
  switch (view.trainer) {
    case SeatTrainer::absent:
      return WaitKind::trainer_start;
    case SeatTrainer::dying:
      return WaitKind::trainer_end;
    case SeatTrainer::leaves:
      return WaitKind::trainer_leave;
    case SeatTrainer::joins:
      return WaitKind::seating;
    case SeatTrainer::declares:
      return WaitKind::arena;
    case SeatTrainer::rendezvous:
      return WaitKind::rendezvous;
    case SeatTrainer::restores:
      return WaitKind::trainer_restore;
    case SeatTrainer::restored:
      return WaitKind::ready;
  }
  return WaitKind::none;
}

std::string text_of(WaitKind kind, const SeatView& view) {
  switch (kind) {
    case WaitKind::copies:
      return "copies of the last generation to end on this node";
    case WaitKind::trainer_end:
      return "its killed trainer to end";
    case WaitKind::trainer_start:
      return "its trainer to start";
    case WaitKind::trainer_leave:
      return "its trainer to join";
    case WaitKind::source_address:
      return view.in_storage ? std::string("its trainer to declare its state, which is in storage")
                             : text("the address of node ", view.source, ", which has its state");
    case WaitKind::fetch:
      return fetch_text(*view.fetch, view.in_storage ? "storage" : text("node ", view.source));
    case WaitKind::seating:
      return "the daemon to give its trainer the seat";
    case WaitKind::arena:
      return text("an arena for its state", view.bytes > 0 ? text(" (", size_text(view.bytes), ")") : "");
    case WaitKind::rendezvous:
      return "its trainer, which waits for others at the rendezvous";
    case WaitKind::trainer_restore:
      return "its trainer to restore";
    case WaitKind::ready:
      return "the other seats of its node, or the control, to take that it is ready";
    case WaitKind::none:
      break;
  }
  return {};
}

std::optional<Duration> deadline_of(WaitKind kind, const SeatView& view, const Deadlines& deadlines) {
  if (kind == WaitKind::fetch) return fetch_deadline(view.fetch->total > 0 ? view.fetch->total : view.bytes, deadlines);
  const bool own_task = kind == WaitKind::copies || (kind == WaitKind::arena && !view.fresh);
  return own_task ? std::optional(fetch_deadline(view.bytes, deadlines)) : std::nullopt;
}

void note_bytes(const FetchState& fetch, WaitNotes& notes, Duration now) {
  if (fetch.received > notes.most) {
    notes.most = fetch.received;
    notes.most_try = fetch.tries;
  }
  const bool counts = fetch.tries - std::min(notes.most_try, fetch.tries) <= kFruitlessTriesMax;
  if (fetch.received > notes.received && counts) notes.moved_at = now;
  notes.received = fetch.received;
}

}  // namespace

bool is_due(const WaitNotes& notes, Duration now) {
  return notes.told_at == Duration::zero() ? now - notes.since >= kWaitToldAfter
                                           : now - notes.told_at >= notes.told_pause;
}

void note_told(WaitNotes& notes, Duration now) {
  notes.told_pause =
      notes.told_at == Duration::zero() ? kWaitToldEvery : std::min(2 * notes.told_pause, kWaitToldEveryMax);
  notes.told_at = now;
}

Duration fetch_deadline(std::uint64_t bytes, const Deadlines& deadlines) {
  return deadlines.restore + time_to_move(bytes);
}

WaitVerdict judge_wait(const SeatView& view, WaitNotes notes, Duration now, const Deadlines& deadlines) {
  if (view.ready) return {};
  const WaitKind kind = kind_of(view);
  if (notes.kind != kind) notes = {.kind = kind, .since = now, .moved_at = now};
  if (kind == WaitKind::fetch) note_bytes(*view.fetch, notes, now);
  WaitVerdict verdict;
  verdict.tell = is_due(notes, now);
  verdict.notes = notes;
  verdict.wait = SeatWait{text_of(kind, view), now - notes.since, deadline_of(kind, view, deadlines)};
  SeatWait& wait = *verdict.wait;
  if (wait.deadline) *wait.deadline += notes.moved_at - notes.since;
  const Duration stands_for = now - notes.moved_at;
  if (wait.deadline && wait.age > *wait.deadline)
    verdict.give_up = text("seat ", view.seat, " has waited ", stands_for / 1s, " s for ", wait.what);
  return verdict;
}

}  // namespace pawl::job
