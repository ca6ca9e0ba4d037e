#include "job/daemon/seats.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/digest.h"
#include "base/log.h"
#include "job/layout/equal_state.h"
#include "job/layout/seat_layout.h"
#include "job/redundancy/memory_plan.h"
#include "pawl/pawl.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

constexpr std::uint32_t kInvalidStatus = PAWL_INVALID;
constexpr std::uint32_t kIoStatus = PAWL_IO;

// Under a key of pawld's own: trainers' keys have a prefix.
RendezvousRequest about_layout(RendezvousOp op, std::string layout = {}) {
  RendezvousRequest request;
  request.op = op;
  request.key = "pawl/layout";
  request.value = std::move(layout);
  return request;
}

std::vector<std::string> shared_differences(const std::string& first, const std::string& mine) {
  auto a = parse_layout(first);
  auto b = parse_layout(mine);
  if (!a) return {"seat 0's layout: " + a.error().what};
  if (!b) return {"this seat's layout: " + b.error().what};
  return first_differences(shared_text(*a), shared_text(*b));
}

std::vector<GroupShare> shares_in(const std::string& layout, Seat seat) {
  std::vector<GroupShare> shares;
  const auto parsed = parse_layout(layout);
  if (!parsed || seat.value >= parsed->world) return shares;
  for (const EqualState& state : equal_state_of(*parsed, seat))
    shares.push_back({state.group, seat, state.bytes, state.digest});
  return shares;
}

// The first seat of a group that comes puts its share there; the others read it.
RendezvousRequest about_share(const GroupShare& share, Generation generation) {
  RendezvousRequest request;
  request.op = RendezvousOp::compare_set;
  request.key = text("pawl/equal/", generation, '/', share.group);
  request.value = text(share.seat, ' ', share.bytes, ' ', share.digest);
  return request;
}

std::optional<GroupShare> share_in(const std::string& group, std::string_view value) {
  GroupShare share{group, {}, 0, 0};
  const std::size_t first = value.find(' ');
  const std::size_t second = value.rfind(' ');
  if (first == std::string_view::npos || second == first) return std::nullopt;
  if (!parse_number(value.substr(0, first), share.seat.value) ||
      !parse_number(value.substr(first + 1, second - first - 1), share.bytes) ||
      !parse_number(value.substr(second + 1), share.digest))
    return std::nullopt;
  return share;
}

template <class Message>
Message message_of(const Frame& frame) {  // what is missing is 0 or empty, and fits nothing
  Message message;
  (void)decode(frame.payload, message);
  return message;
}

}  // namespace

void Seats::take() {
  std::vector<TrainerProcess>& trainers = parts_.trainers.places();
  for (TrainerProcess& trainer : trainers) trainer.seat.reset();
  for (const Member& member : parts_.context.mirror.state().seats)
    if (member.life == parts_.context.self && member.local_index < trainers.size())
      trainers[member.local_index].seat = member.seat;
}

void Seats::on_request(TrainerProcess& trainer, const Frame& frame) {
  const MessageKind kind = kind_of(frame);
  switch (kind) {
    case MessageKind::join:
      parts_.watch.count_parked();
      return parts_.context.drive();
    case MessageKind::layout:
      return on_layout(trainer, frame);
    case MessageKind::restore:
      trainer.line.restores_as_it_fills = message_of<RestoreMessage>(frame).as_it_fills;
      return answer_restores();
    case MessageKind::restore_bad:
      trainer.line.waiting.erase(kind);
      return on_restore_bad(trainer, message_of<RestoreBadMessage>(frame));
    case MessageKind::done:
      return on_done(trainer, message_of<DoneMessage>(frame).generation);
    case MessageKind::fault: {
      const auto fault = message_of<FaultMessage>(frame);
      parts_.trainers.answer(trainer, kind, NotedMessage{});
      return parts_.watch.on_fault(trainer, fault.generation, fault.what, fault.lost);
    }
    case MessageKind::rendezvous:
      return on_rendezvous(trainer, frame);
    case MessageKind::stop_after: {
      const auto asked = message_of<StopAfterMessage>(frame);
      trainer.last_steps.stop_wanted = asked.step;
      if (asked.generation == parts_.context.mirror.generation()) parts_.job_end.consider_stop();
      return;
    }
    case MessageKind::finish: {
      const auto finish = message_of<FinishMessage>(frame);
      trainer.last_steps.commit_first = finish.commit_first;
      trainer.last_steps.last = finish.last_step;
      return parts_.job_end.consider_finish();
    }
    default:
      trainer.line.waiting.erase(kind);
      return;
  }
}

void Seats::on_restore_bad(TrainerProcess& trainer, const RestoreBadMessage& bad) {
  if (!trainer.seat) return;
  const Seat before = before_of(parts_.context.mirror, *trainer.seat);
  const ArenaHandle arena = parts_.memory.find(ArenaKind::own, before);
  if (!arena || bad.slot >= arena->arena.slot_count()) return;
  const SlotWord word = arena->arena.slot(bad.slot).word();
  const NodeLife self = parts_.context.self;
  parts_.mover.report({FaultKind::corrupt_source, self, trainer.seat, "own arena: " + bad.why, 0},
                      {{self, before, SourceKind::own_arena, word.generation, word.step}});
}

// --- Joining and restoring

void Seats::answer_waiting() {
  answer_joins();
  answer_layouts();
  answer_restores();
  consider_ready();
}

void Seats::answer_joins() {
  const JobState& state = parts_.context.mirror.state();
  for (TrainerProcess& trainer : parts_.trainers.places()) {
    if (!trainer.seat || trainer.dying || trainer.seated == state.generation ||
        !trainer.line.waits_for(MessageKind::join))
      continue;
    // What it has trained counts for nothing, and from step 0 it restores nothing: only a new process begins there.
    if (must_begin_anew(trainer, state)) {
      parts_.watch.kill(trainer, state.cold ? "cold restart: no step was committed yet" : "its seat begins anew");
      continue;
    }
    if (parts_.holds.is_held_at("seated")) return;
    trainer.seated = state.generation;
    parts_.watch.on_seated(trainer);
    parts_.trainers.answer(trainer, MessageKind::join,
                           SeatedMessage{.generation = state.generation,
                                         .seat = *trainer.seat,
                                         .world = static_cast<std::uint32_t>(state.seats.size()),
                                         .local_rank = trainer.index,
                                         .resume = state.resume,
                                         .rendezvous_prefix = text("g", state.generation)});
  }
}

void Seats::answer_restores() {
  if (!parts_.context.is_restoring()) return;
  for (TrainerProcess& trainer : parts_.trainers.places()) {
    if (!trainer.seat || !trainer.line.waits_for(MessageKind::restore)) continue;
    const bool whole = parts_.imports.has(*trainer.seat);
    if (!whole && !(trainer.line.restores_as_it_fills && parts_.imports.fills(*trainer.seat))) continue;
    const Source* source = parts_.context.mirror.source_of(*trainer.seat);
    const ArenaHandle arena = parts_.memory.find(ArenaKind::own, before_of(parts_.context.mirror, *trainer.seat));
    Slot slot;
    std::uint32_t index = 0;
    const bool there =
        source != nullptr && arena &&
        (whole ? find_sealed : find_filling)(arena->arena, source->slot_generation, source->step, slot, index);
    if (there) {
      parts_.trainers.answer(trainer, MessageKind::restore, SlotMessage{index, source->slot_generation, source->step});
    } else if (whole) {
      parts_.trainers.answer(trainer, MessageKind::restore,
                             RefusedMessage{kInvalidStatus, "there is no step to restore"});
    }
  }
}

void Seats::on_done(TrainerProcess& trainer, Generation generation) {
  NodeContext& context = parts_.context;
  if (!context.mirror.has_state() || generation != context.mirror.generation()) return;
  trainer.done = generation;
  if (context.is_running())  // we were away when the others went on
    return parts_.trainers.answer(trainer, MessageKind::done, RunningMessage{generation});
  consider_ready();
}

// A node is ready when each of its trainers has restored, and the step that they restored lies in their arenas: once it
// runs, that is where the next recovery looks for it, and nothing fills a slot any more.
void Seats::consider_ready() {
  NodeContext& context = parts_.context;
  const Generation generation = context.mirror.generation();
  if (!context.is_restoring() || ready_put_ == generation) return;
  const std::vector<TrainerProcess>& trainers = parts_.trainers.places();
  const bool all = std::all_of(trainers.begin(), trainers.end(), [&](const TrainerProcess& t) {
    return !t.seat || (t.done == generation && parts_.imports.has(*t.seat));
  });
  if (!all) return;
  ready_put_ = generation;
  const auto on_put = [this, generation](const Status& put) {
    JobMirror& mirror = parts_.context.mirror;
    if (put && mirror.generation() == generation) mirror.reports.note_ready(parts_.context.self);
    if (put || parts_.context.ending) return;
    ready_put_ = Generation(0);
    parts_.context.after(20ms, [this] { consider_ready(); });
  };
  parts_.reports.report(ReportKind::ready, ready_record(context.self), on_put);
}

// --- Layouts

void Seats::on_layout(TrainerProcess& trainer, const Frame& frame) {
  late_layouts_.erase(trainer.index);
  LayoutMessage declared;
  if (!decode(frame.payload, declared) || !trainer.seat)
    return parts_.trainers.answer(trainer, MessageKind::layout,
                                  RefusedMessage{kInvalidStatus, "a layout before a seat"});
  if (declared.layout_digest != digest_of(declared.layout))  // holders would refuse each step of it
    return parts_.trainers.answer(trainer, MessageKind::layout,
                                  RefusedMessage{kInvalidStatus, "the layout's digest is not that of its text"});
  ArenaSpec spec;
  spec.job = parts_.context.job;
  spec.kind = ArenaKind::own;
  spec.slot_count = own_slot_count(parts_.context.mirror.spec());
  spec.payload_bytes = declared.payload_bytes;
  spec.stable_bytes = declared.stable_bytes;
  spec.bucket_bytes = declared.bucket_bytes;
  spec.layout_digest = declared.layout_digest;
  spec.layout = std::move(declared.layout);
  spec.seat = before_of(parts_.context.mirror, *trainer.seat);
  spec.shelf_count = parts_.context.mirror.ring().replica_count();
  if (awaits_snapshot(*trainer.seat, spec)) {
    parts_.imports.declare(*trainer.seat, spec);
    late_layouts_[trainer.index] = {std::move(spec), frame.id};
    parts_.context.drive();
    return;
  }
  give_arena(trainer, std::move(spec), frame.id);
}

// The arena of a snapshot comes with it. Another one, made before, would be replaced by it under the trainer's eyes.
bool Seats::awaits_snapshot(Seat seat, const ArenaSpec& spec) const {
  const NodeContext& context = parts_.context;
  return context.is_restoring() && context.mirror.state().resume.value > 0 && !parts_.memory.find_equal(spec) &&
         !parts_.imports.has(seat) && !parts_.imports.fills(seat);
}

void Seats::answer_layouts() {
  std::map<std::uint32_t, LateLayout> late;
  late.swap(late_layouts_);
  for (auto& [index, layout] : late) {
    TrainerProcess& trainer = parts_.trainers.places()[index];
    const auto waiting = trainer.line.waiting.find(MessageKind::layout);
    if (waiting == trainer.line.waiting.end() || waiting->second != layout.id || !trainer.seat ||
        before_of(parts_.context.mirror, *trainer.seat) != layout.spec.seat)
      continue;
    if (awaits_snapshot(*trainer.seat, layout.spec)) {
      parts_.imports.declare(*trainer.seat, layout.spec);
      late_layouts_[index] = std::move(layout);
    } else {
      give_arena(trainer, std::move(layout.spec), layout.id);
    }
  }
}

// A process that begins anew may declare blobs of another capacity, as it knows less of their state, or others to be equal on
// other seats, as what it declares before its first step. What is restored has the layout that it was captured with. But what
// came from another seat alone has nothing that proves it: there the declaration must be the very same.
ArenaSpec Seats::in_layout_of_snapshot(ArenaSpec spec) const {
  const ArenaHandle held = parts_.memory.find(ArenaKind::own, spec.seat);
  if (parts_.context.mirror.state().resume.value == 0 || !held || is_from_paths_alone(spec.seat)) return spec;
  const ArenaSpec& there = held->arena.spec();
  if (there.layout == spec.layout) return spec;
  const auto declared = parse_layout(spec.layout);
  const auto captured = parse_layout(there.layout);
  if (!declared || !captured || !have_same_state(*captured, *declared)) return spec;
  spec.payload_bytes = there.payload_bytes;
  spec.layout_digest = there.layout_digest;
  spec.layout = there.layout;
  return spec;
}

void Seats::give_arena(TrainerProcess& trainer, ArenaSpec declared, std::uint64_t id) {
  parts_.memory.note_declared(declared);
  const ArenaSpec spec = in_layout_of_snapshot(std::move(declared));
  if (Status enough = check_room(spec); !enough) return on_arena(trainer.index, spec, std::move(enough).error());
  // It may take long to make, and the trainer may ask for something else meanwhile.
  parts_.arenas.own(spec, [this, spec, index = trainer.index, id](const Result<ArenaHandle>& arena) {
    const TrainerProcess& asking = parts_.trainers.places()[index];
    const auto waiting = asking.line.waiting.find(MessageKind::layout);
    if (waiting != asking.line.waiting.end() && waiting->second == id && asking.seat &&
        before_of(parts_.context.mirror, *asking.seat) == spec.seat)
      on_arena(index, spec, arena);
  });
}

// Before anything is committed: later a job with fewer copies than its policy wants is better than none. What there is is
// asked once, for the first seat: while its arena is being made nobody can tell what is left for the others. The budget
// is asked for each, with the largest arena that is known of any seat, as a spare will ask.
Status Seats::check_room(const ArenaSpec& spec) {
  const NodeContext& context = parts_.context;
  if (context.mirror.has_state() && context.mirror.state().committed.value > 0) return {};
  const Ring& ring = context.mirror.ring();
  const std::uint64_t arena_bytes = Arena::size_bytes(spec);
  MemoryPlan plan{arena_bytes, spec.slot_count, ring.seats_per_node_max(), ring.replica_count(),
                  ring.wards_per_node_max()};
  if (context.mirror.spec().memory_bytes > 0) {
    MemoryPlan of_largest = plan;
    of_largest.budget_bytes = context.mirror.spec().memory_bytes;
    of_largest.arena_bytes = std::max(arena_bytes, parts_.memory.own_bytes_max());
    for (const auto& [node, record] : context.mirror.registrations().nodes)
      of_largest.arena_bytes = std::max(of_largest.arena_bytes, record.arena_bytes);
    PAWL_TRY(check_memory(of_largest, std::numeric_limits<std::uint64_t>::max()));
  }
  if (parts_.memory.bytes() > 0 || has_room_) return {};
  const std::uint64_t available = bytes_for_segments(context.environment->memory.available(), arena_bytes);
  Status room = check_memory(plan, available + parts_.memory.ready_bytes());
  has_room_ = room.has_value();
  return room;
}

void Seats::on_arena(std::uint32_t index, const ArenaSpec& spec, const Result<ArenaHandle>& arena) {
  TrainerProcess& trainer = parts_.trainers.places()[index];
  if (!arena) {
    log_error("layout_refused", "seat", spec.seat, "why", arena.error().what);
    if (is_from_paths_alone(spec.seat))
      strike_paths(spec.seat, arena.error().what);
    else
      parts_.watch.note_layout_refusal(arena.error().what);
    const std::uint32_t status = arena.error().code == Code::invalid ? kInvalidStatus : kIoStatus;
    return parts_.trainers.answer(trainer, MessageKind::layout, RefusedMessage{status, arena.error().what});
  }
  // Seats must agree on what they share. A snapshot that is restored has its layout with it; at a fresh start seat 0's
  // is the yardstick.
  const bool fresh = parts_.context.mirror.state().resume.value == 0;
  if (!fresh || spec.seat.value == 0) {
    if (!fresh) return grant(trainer, *arena);
    parts_.rendezvous.ask(about_layout(RendezvousOp::set, spec.layout), [](const RendezvousAnswer&) {});
    return compare_shares(index, shares_in(spec.layout, spec.seat), 0, *arena);
  }
  parts_.rendezvous.ask(about_layout(RendezvousOp::get),
                        [this, index = trainer.index, mine = spec.layout, held = *arena](
                            const RendezvousAnswer& first) { compare_layouts(index, first.value, mine, held); });
}

// By the order of its sources the first one is a path only where nothing else is among them.
bool Seats::is_from_paths_alone(Seat seat) const {
  const Source* source = parts_.context.mirror.source_of(seat);
  return parts_.context.is_restoring() && source != nullptr && source->kind == SourceKind::path;
}

// They have declared equal to this seat's what it says itself is not.
void Seats::strike_paths(Seat seat, const std::string& why) {
  const Source& first = *parts_.context.mirror.source_of(seat);
  std::vector<Struck> struck;
  for (const Source& source : sources_of(parts_.context.mirror.state().sources, seat))
    struck.push_back(struck_for_difference(source));
  // What was imported from one of them.
  struck.push_back({parts_.context.self, seat, SourceKind::own_arena, first.slot_generation, first.step});
  parts_.mover.report({FaultKind::corrupt_source, first.from, seat, "path: " + why, 0}, std::move(struck));
}

void Seats::compare_layouts(std::uint32_t index, const std::string& first, const std::string& mine,
                            const ArenaHandle& arena) {
  TrainerProcess& asking = parts_.trainers.places()[index];
  const std::vector<std::string> differences = shared_differences(first, mine);
  if (differences.empty()) return compare_shares(index, shares_in(mine, arena->arena.spec().seat), 0, arena);
  std::string why = "the seats declare different shared state (seat 0 first):";
  for (const std::string& difference : differences) why += " " + difference + ";";
  refuse_layout(asking, arena->arena.spec().seat, why);
}

void Seats::compare_shares(std::uint32_t index, std::vector<GroupShare> mine, std::size_t next,
                           const ArenaHandle& arena) {
  if (next == mine.size()) return grant(parts_.trainers.places()[index], arena);
  const RendezvousRequest request = about_share(mine[next], parts_.context.mirror.generation());
  parts_.rendezvous.ask(request, [this, index, mine = std::move(mine), next, arena](const RendezvousAnswer& first) {
    const GroupShare& share = mine[next];
    const std::optional<GroupShare> other = share_in(share.group, first.value);
    if (other && other->seat != share.seat)
      if (const auto joined = join_shares(std::array{*other, share}); !joined)
        return refuse_layout(parts_.trainers.places()[index], share.seat, joined.error().what);
    compare_shares(index, mine, next + 1, arena);
  });
}

void Seats::refuse_layout(TrainerProcess& trainer, Seat seat, const std::string& why) {
  log_error("layout_refused", "seat", seat, "why", why);
  parts_.trainers.answer(trainer, MessageKind::layout, RefusedMessage{kInvalidStatus, why});
  parts_.mover.report({FaultKind::layout_conflict, std::nullopt, seat, why, 0});
}

void Seats::grant(TrainerProcess& trainer, const ArenaHandle& arena) {
  (void)parts_.memory.equal_offers();  // reads the layout now, so that no recovery has to
  const int fds[] = {arena->fd.get()};
  parts_.trainers.answer(trainer, MessageKind::layout, ArenaMessage{arena->mapping.size_bytes()}, fds);
  if (parts_.context.followed.running == parts_.context.mirror.generation()) parts_.streams.start();
}

// --- The rendezvous

void Seats::on_rendezvous(TrainerProcess& trainer, const Frame& frame) {
  const std::uint64_t id = frame.id;
  RendezvousMessage asked;
  auto refuse = [&](const char* why) {
    parts_.trainers.answer_rendezvous(trainer, id, RefusedMessage{kInvalidStatus, why});
  };
  if (!decode(frame.payload, asked)) return refuse("not a request to the store");
  const JobMirror& mirror = parts_.context.mirror;
  if (!mirror.has_state() || !trainer.seat || trainer.shared.page == nullptr)
    return refuse("the store is for who has a seat");
  if (asked.generation != mirror.generation()) {
    // It is over: the trainer will see that in its page, and waits no more.
    trainer.line.rendezvous_waiting.erase(id);
    return;
  }
  asked.request.client = trainer.shared.page->nonce.load();
  asked.request.number = id;
  parts_.rendezvous.ask(std::move(asked.request), [this, index = trainer.index, id](const RendezvousAnswer& answer) {
    parts_.trainers.answer_rendezvous(parts_.trainers.places()[index], id, ValueMessage{answer});
  });
}

}  // namespace pawl::job
