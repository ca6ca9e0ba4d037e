// From frozen inventories to who sits where and reads what, or the verdict that it cannot be done.
#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "base/text.h"
#include "job/recovery/decide.h"
#include "job/recovery/members.h"
#include "job/recovery/paths.h"
#include "job/recovery/planner.h"
#include "job/recovery/spares.h"

namespace pawl::job {
namespace {

// Only these speak for this recovery: survivors' reports of this very generation.
bool is_valid(const JobState& state, const Roster& roster, const Inventory& inventory) {
  return inventory.generation == state.generation && roster.is_survivor(inventory.life);
}

bool is_registered(const QuiescingView& view, NodeLife life) {
  return std::ranges::any_of(view.nodes, [life](const NodeRecord& node) { return node.life == life; });
}

// Reports of this very generation by nodes that it has evicted and that still live.
std::vector<Inventory> lingering_inventories(const QuiescingView& view) {
  std::vector<Inventory> lingering;
  for (const Inventory& inventory : view.inventories)
    if (inventory.generation == view.state.generation && contains(view.state.evicted, inventory.life) &&
        is_registered(view, inventory.life))
      lingering.push_back(inventory);
  return lingering;
}

std::vector<NodeLife> lives_in(std::span<const Inventory> inventories) {
  std::vector<NodeLife> lives;
  for (const Inventory& inventory : inventories) lives.push_back(inventory.life);
  return lives;
}

// Evicted lives that may live, and have not reported.
std::vector<NodeLife> unheard_of(const QuiescingView& view, const std::vector<Inventory>& lingering) {
  std::vector<NodeLife> unheard;
  const std::vector<NodeLife> heard = lives_in(lingering);
  for (const NodeLife& life : view.state.evicted)
    if (is_registered(view, life) && !contains(heard, life)) unheard.push_back(life);
  return unheard;
}

std::vector<NodeLife> missing_of(const Roster& roster, std::span<const Inventory> inventories) {
  std::vector<NodeLife> reported = lives_in(inventories);
  std::ranges::sort(reported);
  std::vector<NodeLife> missing = roster.survivors();
  std::erase_if(missing, [&reported](NodeLife life) { return std::ranges::binary_search(reported, life); });
  return missing;
}

struct Seating {
  std::vector<Seat> moved;
  std::vector<Seat> unseated;  // no spare for these
};

void seat_at(std::vector<Member>& all, std::span<const Seat> seats, const NodeRecord& node) {
  for (const Seat seat : seats) {
    all[seat.value].life = node.life;
    all[seat.value].address = node.address;
    all[seat.value].domain = node.domain;
  }
}

// Of those with room: the first that answers and lets no copies share a failure domain, or the fewest; one that does not
// answer only if none else is left.
std::vector<NodeRecord>::iterator choose_spare(const QuiescingView& view, std::vector<NodeRecord>& spares,
                                               std::vector<Member>& seated, std::span<const Seat> seats,
                                               const Ring& ring) {
  const auto has_room = [&seats](const NodeRecord& node) { return node.parked >= seats.size(); };
  auto best = std::find_if(spares.begin(), spares.end(), has_room);
  if (best == spares.end() || view.spec.domains.empty()) return best;
  const std::uint32_t position = ring.position_of(seats.front());
  const std::string before = seated[seats.front().value].domain;
  const auto stand_in = [&](const std::string& domain) {
    for (const Seat seat : seats) seated[seat.value].domain = domain;
  };
  std::map<std::string, std::size_t> shared_in;  // of thousands of seats in a few domains: once for each domain
  const auto rank = [&](const NodeRecord& node) {
    const auto [known, is_new] = shared_in.try_emplace(node.domain);
    if (is_new) {
      stand_in(node.domain);
      known->second = shared_domains_at(seated, ring, position).size();
      stand_in(before);
    }
    return std::pair(contains(view.silent, node.life), known->second);
  };
  auto best_rank = rank(*best);
  for (auto other = best + 1; other != spares.end(); ++other) {
    if (!has_room(*other)) continue;
    const auto its = rank(*other);
    if (its >= best_rank) continue;
    best = other;
    best_rank = its;
  }
  return best;
}

// All seats of one dead node go to one spare, so that what shared a failure domain still shares just one.
// `seated`: the state's seats, in which they move.
Seating seat_spares(const QuiescingView& view, std::vector<Member>& seated) {
  Seating seating;
  std::vector<NodeRecord> spares = spares_of(view.state, view.nodes, view.cordoned, view.silent);
  const Roster roster(view.state);
  const Ring ring = ring_of(view.state.seats, view.spec.replica_count);
  for (const NodeLife& dead : roster.members()) {
    if (roster.is_survivor(dead)) continue;
    const std::vector<Seat> seats = seats_of(view.state, dead);
    const auto spare = choose_spare(view, spares, seated, seats, ring);
    std::vector<Seat>& list = spare == spares.end() ? seating.unseated : seating.moved;
    list.insert(list.end(), seats.begin(), seats.end());
    if (spare == spares.end()) continue;
    seat_at(seated, seats, *spare);
    spares.erase(spare);
  }
  return seating;
}

// Nodes that only their cordon keeps from being spares, said where one is missing.
std::vector<NodeLife> cordoned_spares(const QuiescingView& view) {
  std::vector<NodeLife> lives;
  for (const NodeRecord& node : spares_of(view.state, view.nodes))
    if (contains(view.cordoned, node.life.node)) lives.push_back(node.life);
  return lives;
}

// Seats that stay where they are and need a new process: asked for, or dead by their own node's account.
std::vector<Seat> restarts(const JobState& state, std::span<const Inventory> inventories, const Seating& seating) {
  std::map<NodeLife, const Inventory*> reports;
  for (const Inventory& inventory : inventories) reports.insert_or_assign(reports.end(), inventory.life, &inventory);
  const std::set<Seat> moved(seating.moved.begin(), seating.moved.end());
  const std::set<Seat> asked(state.restart.begin(), state.restart.end());
  std::vector<Seat> restart;
  auto report = reports.end();
  const Member* before = nullptr;
  for (const Member& member : state.seats) {
    if (before == nullptr || before->life != member.life) report = reports.find(member.life);
    before = &member;
    if (moved.contains(member.seat)) continue;
    const bool alive = report == reports.end() || contains(report->second->trainers_alive, member.seat);
    if (!alive || asked.contains(member.seat)) restart.push_back(member.seat);
  }
  return restart;
}

// Of checkpoints that were published, and proved wrong in this recovery; empty: there are none.
std::string wrong_in_storage(const QuiescingView& view) {
  std::string steps;
  for (const Step step : view.stored) steps += text(steps.empty() ? "" : ",", step);
  if (steps.empty()) return {};
  std::string why;
  for (const Cause& cause : view.state.causes)
    if (cause.kind == FaultKind::corrupt_source && !cause.node) why = cause.detail;
  return text("; nor can it go on from a checkpoint (step ", steps, "): ", why);
}

std::string beyond_recovery(const QuiescingView& view, const Plan& plan, bool anybody) {
  const JobSpec& spec = view.spec;
  const std::string storage = wrong_in_storage(view);
  if (!anybody)
    return text(
        "cannot recover: no member is left, so nobody holds the state or knows which step was committed", storage,
        "; start the job again from a checkpoint, and spread more replicas (--replicas) if so many can die at once");
  return text("cannot recover: step ", plan.committed,
              " was committed, and neither it nor any other step is whole: ", joined(plan.lost, "; "), storage,
              "; start the job again from a checkpoint, and ",
              spec.replica_count == 0 ? "keep a replica (--replicas 1)" : "raise --replicas",
              " to survive such a loss");
}

bool is_in_storage(const Plan& plan) {
  return !plan.sources.empty() && plan.sources.front().kind == SourceKind::storage;
}

std::string redone_steps(const Plan& plan) {
  if (plan.resume >= plan.committed) return "";
  return text("steps ", plan.resume.value + 1, " to ", plan.committed, " were committed and are redone",
              is_in_storage(plan) ? ", from the checkpoint in storage: " : ": ", joined(plan.lost, "; "));
}

std::vector<NodeLife> evicted_sources(const JobState& state) {
  std::vector<NodeLife> lives;
  for (const Source& source : state.sources)
    if (contains(state.evicted, source.from) && !contains(lives, source.from)) lives.push_back(source.from);
  return lives;
}

std::vector<NodeLife> silent_among(const QuiescingView& view, const std::vector<Member>& seats) {
  std::vector<NodeLife> lives = lives_of(seats);
  std::erase_if(lives, [&view](NodeLife life) { return !contains(view.silent, life); });
  return lives;
}

// What the spares that were taken have made worse.
std::string shared_sentence(const QuiescingView& view, const JobState& next, const Seating& seating) {
  if (view.spec.domains.empty() || seating.moved.empty()) return {};
  const Ring ring = ring_of(next.seats, view.spec.replica_count);
  std::vector<SharedDomain> before = shared_domains(view.state.seats, ring);
  std::vector<std::string> sentences;
  for (const SharedDomain& shared : shared_domains(next.seats, ring))
    if (!contains(before, shared)) sentences.push_back(to_text(shared, ring));
  return joined(sentences, "; ");
}

// Where no node is left that knew more, what the newest checkpoint has is not what was committed.
std::string whence(const Plan& plan) {
  std::string from = text("resume from step ", plan.resume, is_in_storage(plan) ? " in storage" : "");
  if (!is_in_storage(plan) || plan.committed > plan.resume) from += text(" (committed ", plan.committed, ")");
  return from;
}

std::string why_restoring(const QuiescingView& view, const JobState& next, const Plan& plan, const Seating& seating) {
  std::string why = text("generation ", next.generation, ": ");
  why += next.cold ? std::string("every trainer starts anew from step 0, nothing was committed yet") : whence(plan);
  if (!seating.moved.empty()) why += text("; seat ", numbers_of(seating.moved), " moved to spares");
  if (const std::vector<NodeLife> silent = silent_among(view, next.seats); !silent.empty())
    why += text(" (node ", numbers_of(silent), " does not answer on its data link, and no other is free)");
  if (const std::string shared = shared_sentence(view, next, seating); !shared.empty()) why += text("; ", shared);
  if (!next.restart.empty() && !next.cold) why += text("; new trainer for seat ", numbers_of(next.restart));
  if (const std::string nodes = numbers_of(evicted_sources(next)); !nodes.empty())
    why += text("; reads from node ", nodes, ", which was evicted and still has the only copies");
  if (!plan.single_copies.empty()) why += text("; one copy only of seat ", numbers_of(plan.single_copies));
  if (!next.verdict.empty()) why += text("; ", next.verdict);
  if (!plan.notes.empty()) why += text("; ", joined(plan.notes, "; "));
  return why;
}

std::vector<Unreached> unreached_sources(const JobState& state) {
  std::vector<Unreached> unreached;
  for (const Cause& cause : state.causes)
    if (cause.kind == FaultKind::source_unreached && cause.node && cause.seat)
      unreached.push_back({*cause.seat, *cause.node});
  return unreached;
}

// Valid as long as the view that they are of.
struct Reports {
  std::span<const Inventory> members;  // most often all of the view's: then they are not copied
  std::vector<Inventory> lingering;
  Step committed = {};  // as any who was evicted knew, also one who has gone or begun anew since
  std::vector<Inventory> kept = {};

  void keep(std::vector<Inventory> some) {
    kept = std::move(some);
    members = kept;
  }
};

Reports reports_of(const QuiescingView& view, const Roster& roster) {
  Reports reports{view.inventories, lingering_inventories(view)};
  const auto valid = [&](const Inventory& inventory) { return is_valid(view.state, roster, inventory); };
  if (!std::ranges::all_of(view.inventories, valid)) {
    std::vector<Inventory> some;
    std::ranges::copy_if(view.inventories, std::back_inserter(some), valid);
    reports.keep(std::move(some));
  }
  for (const Inventory& inventory : view.inventories)
    if (inventory.generation == view.state.generation && contains(view.state.evicted, inventory.life))
      reports.committed = std::max(reports.committed, inventory.committed);
  return reports;
}

struct Ask {
  bool unproven = false;
  std::optional<std::span<const Seat>> world = {};  // none: the state's
};

Plan plan_of(const QuiescingView& view, std::span<const Inventory> inventories, const Reports& reports,
             std::span<const NodeLife> evicted, std::span<const NodeLife> lingering, Ask ask = {}) {
  PlanInput input;
  input.unproven = ask.unproven;
  input.wished = ask.world;
  input.seat_count = static_cast<std::uint32_t>(view.state.seats.size());
  input.inventories = inventories;
  input.lineage = view.state.lineage;
  input.struck = view.state.struck;
  input.evicted = evicted;
  input.lingering = lingering;
  // Whoever knows of more, knows it whether he is read from or not.
  input.committed = std::max(view.state.committed, reports.committed);
  input.seats = view.state.seats;
  input.replica_count = view.spec.replica_count;
  const std::vector<Unreached> unreached = unreached_sources(view.state);
  input.unreached = unreached;
  return plan_restore(input);
}

// Step 0 needs no source, but only who was there can say that nothing was committed.
bool is_beyond_recovery(const Plan& plan, bool anybody) {
  return plan.resume == Step(0) && (plan.committed > Step(0) || !anybody);
}

// Whoever knows at all.
bool is_anybody_there(const QuiescingView& view, const Reports& reports) {
  return !reports.members.empty() || !reports.lingering.empty() || view.state.ran == Generation(0);
}

// No step that was committed is lost, or done again.
bool is_enough(const Plan& plan, bool anybody) {
  return !is_beyond_recovery(plan, anybody) && plan.resume >= plan.committed;
}

// With what lies at lingering nodes.
Plan plan_of_all(const QuiescingView& view, const Reports& reports, std::span<const NodeLife> evicted, Ask ask = {}) {
  const std::vector<NodeLife> lingering = lives_in(reports.lingering);
  std::vector<NodeLife> gone(evicted.begin(), evicted.end());
  std::erase_if(gone, [&lingering](NodeLife life) { return contains(lingering, life); });
  std::vector<Inventory> all(reports.members.begin(), reports.members.end());
  all.insert(all.end(), reports.lingering.begin(), reports.lingering.end());
  return plan_of(view, all, reports, gone, lingering, ask);
}

// From the members' memory alone if that is enough: they are there for longer.
Plan best_plan(const QuiescingView& view, const Reports& reports, std::span<const NodeLife> evicted, Ask ask = {}) {
  Plan plan = plan_of(view, reports.members, reports, evicted, {}, ask);
  if (reports.lingering.empty() || is_enough(plan, is_anybody_there(view, reports))) return plan;
  Plan more = plan_of_all(view, reports, evicted, ask);
  return more.resume > plan.resume ? more : plan;
}

// Where the job would end, and everybody who may have more was heard or had the time: seats of which nothing is left go on
// from what others have declared equal. Any step that is proven is better, an earlier one too.
Plan with_last_resort(const QuiescingView& view, const Reports& reports, bool anybody, bool all_heard, Plan plan) {
  if (!is_beyond_recovery(plan, anybody) || (!all_heard && !view.lingering_late)) return plan;
  Plan unproven = plan_of_all(view, reports, view.state.evicted, {.unproven = true});
  return is_beyond_recovery(unproven, anybody) ? plan : unproven;
}

// Where nothing in memory will do: the newest checkpoint that did not prove wrong.
Plan with_storage(const QuiescingView& view, bool anybody, Plan plan) {
  if (!is_beyond_recovery(plan, anybody)) return plan;
  for (const Step step : view.stored) {
    const bool wrong = std::ranges::any_of(view.state.struck, [step](const Struck& struck) {
      return struck.kind == SourceKind::storage && struck.step == step;
    });
    if (wrong || step == Step(0)) continue;
    plan.resume = step;
    plan.committed = std::max(plan.committed, step);
    plan.sources = sources_in_storage(view.state, step);
    plan.single_copies.clear();
    plan.notes.clear();
    return plan;
  }
  return plan;
}

// Who is a suspect again before a step after this one is committed is one without progress (open_generation).
void count_suspects_from(JobState& next, const JobState& before) {
  for (const Cause& cause : before.causes) {
    if (cause.kind != FaultKind::communication || !cause.node) continue;
    for (Attempt& attempt : next.attempts)
      if (attempt.kind == cause.kind && attempt.seat == lowest_seat_of(before, *cause.node))
        attempt.resume = next.resume;
  }
}

// `next`: as the state, with whom the seats are others' now.
void begin_restoring(JobState& next, const QuiescingView& view, const Plan& plan, std::vector<Seat> restart,
                     NodeLife self) {
  next.phase = JobPhase::restoring;
  next.leader = self;
  next.resume = plan.resume;
  next.committed = plan.committed;
  next.sources = plan.sources;
  next.restart = std::move(restart);
  next.cold = plan.resume == Step(0);
  if (next.cold) {
    next.sources.clear();
    next.restart.clear();
    for (Member& member : next.seats) {
      member.before.reset();
      next.sources.push_back({member.seat, SourceKind::nothing, {}, {}, {}});
      next.restart.push_back(member.seat);
    }
  }
  count_suspects_from(next, view.state);
  std::erase_if(next.attempts, [&next](const Attempt& past) { return brought_progress(next, past); });
  // What memory still has of a step in storage may have come by another way to it: only what is read is that step.
  append_lineage(next.lineage, {next.generation, is_in_storage(plan) ? Step(next.resume.value - 1) : next.resume});
  next.plan_digest = digest_of(next.sources, next.resume);
  next.waiting.clear();
  next.verdict = redone_steps(plan);
}

// --- Another world

constexpr std::size_t kSeatsNamedMax = 16;

struct World {
  Plan plan;
  JobState state;  // as it is, with the world's seats where they can sit before any spare has taken one
  Seating seating;
  std::vector<Member> seats;  // and then
};

Error refused(std::string why) {
  return {Code::invalid, std::move(why)};
}

Status check_wished(std::span<const Seat> wished) {
  if (wished.empty() || wished.size() > kSeatsMax) return refused(text("it has ", wished.size(), " seats"));
  std::set<Seat> taken;
  for (const Seat before : wished)
    if (before.value >= kSeatsMax || !taken.insert(before).second)
      return refused(text("two seats can't go on from seat ", before, ", or there is no such seat"));
  return {};
}

// Each where the seat before it sits. One that nobody has now sits nowhere: as at a dead node, of which as many as a node takes are
// one. Who sits nowhere is `evicted` of the state that is asked for spares.
std::vector<Member> seats_in(const QuiescingView& view, std::span<const Seat> wished, std::vector<NodeLife>& nowhere) {
  std::map<Seat, const Member*> now;
  for (const Member& member : view.state.seats) now.emplace(before_of(member), &member);
  std::vector<Member> seats;
  for (const Seat before : wished) {
    const Seat seat(static_cast<std::uint32_t>(seats.size()));
    const auto found = now.find(before);
    Member member = found != now.end() ? *found->second : Member{};
    if (found == now.end()) {
      const bool follows = !nowhere.empty() && seats.back().life == nowhere.back() &&
                           seats.back().local_index + 1 < view.spec.seats_per_node;
      if (!follows)
        nowhere.push_back({NodeId(std::numeric_limits<std::uint32_t>::max()), Incarnation(nowhere.size() + 1)});
      member.life = nowhere.back();
      member.local_index = follows ? seats.back().local_index + 1 : 0;
    }
    member.seat = seat;
    member.before = before != seat ? std::optional(before) : std::nullopt;
    seats.push_back(std::move(member));
  }
  return seats;
}

// The places of what is counted, in the world's numbers.
void renumber(std::vector<Attempt>& attempts, std::span<const Member> from, std::span<const Member> to) {
  std::erase_if(attempts, [&](Attempt& attempt) {
    if (!attempt.seat) return false;
    attempt.seat = seat_after(to, before_of(from, *attempt.seat));
    return !attempt.seat;
  });
}

// Places that have all of it. Of a seat that sits nowhere a plan names them all.
std::size_t copies_of(const Plan& plan, Seat seat) {
  std::set<NodeLife> places;
  for (const Source& source : sources_of(plan.sources, seat))
    if (source.extent.is_whole()) places.insert(source.from);
  return places.size();
}

// Nothing is read from who leaves with his seats, so nothing is lost if he is gone at once.
// Fails: `invalid`, why the job has to go on in its own world.
Result<World> world_of(const QuiescingView& view, const Reports& reports, bool anybody, const Plan& own) {
  const std::span<const Seat> wished(*view.wished);
  PAWL_TRY(check_wished(wished));
  World world;
  world.state = view.state;
  JobState& state = world.state;
  std::vector<NodeLife> nowhere;
  state.seats = seats_in(view, wished, nowhere);
  for (const NodeLife& life : survivors_of(view.state))
    if (!lowest_seat_of(state, life)) state.evicted.push_back(life);
  world.plan = best_plan(view, reports, state.evicted, {.world = wished});
  world.plan.committed = std::max(world.plan.committed, own.committed);  // who leaves may alone know it
  const Plan& plan = world.plan;
  if (!is_enough(plan, anybody))
    return refused(
        text("step ", plan.committed, " was committed, and it can't go on from there: ", joined(plan.lost, "; ")));
  if (!is_beyond_recovery(own, anybody) && plan.resume < own.resume)
    return refused(text("it would go back to step ", plan.resume, ", and this one goes on from step ", own.resume));
  std::size_t changes = 0;
  for (std::size_t i = 0; i < state.seats.size(); ++i)
    changes += i == 0 || state.seats[i].life != state.seats[i - 1].life ? 1 : 0;
  if (changes != lives_of(state.seats).size()) return refused("the seats of a node don't follow each other");
  const Ring ring = ring_of(state.seats, view.spec.replica_count);
  const Ring ring_now = ring_of(view.state.seats, view.spec.replica_count);
  if (ring.replica_count() != ring_now.replica_count())
    return refused(text("each seat would have ", ring.replica_count(), " copies, not ", ring_now.replica_count()));
  for (const Member& member : state.seats)
    if (contains(nowhere, member.life) && plan.resume > Step(0) && copies_of(plan, member.seat) <= ring.replica_count())
      return refused(text("of seat ", before_of(member), ", which nobody has now, there are ",
                          copies_of(plan, member.seat), " copies, and ", ring.replica_count() + 1,
                          " are kept of each"));
  renumber(state.attempts, view.state.seats, state.seats);
  JobState asking = state;
  asking.evicted.insert(asking.evicted.end(), nowhere.begin(), nowhere.end());
  world.seats = state.seats;
  world.seating = seat_spares({view.spec, asking, {}, view.nodes, view.cordoned, view.silent}, world.seats);
  if (!world.seating.unseated.empty())
    return refused(text("no spare is free for seat ", numbers_of(world.seating.unseated)));
  for (Member& member : world.seats)
    if (contains(nowhere, state.seats[member.seat.value].life)) member.plan_domain = member.domain;
  return world;
}

StateMove into_world(const QuiescingView& view, World world, NodeLife self) {
  std::vector<Seat> restart;
  for (const Member& member : world.seats)
    if (!contains(world.seating.moved, member.seat)) restart.push_back(member.seat);
  JobState next = world.state;
  next.seats = world.seats;
  const QuiescingView from{view.spec, world.state, {}, view.nodes, view.cordoned, view.silent};
  begin_restoring(next, from, world.plan, std::move(restart), self);
  if (contains(next.evicted, next.leader)) next.leader = next.seats.front().life;  // who leaves, leads no more
  std::string before;
  for (const Member& member : std::span(next.seats).first(std::min(next.seats.size(), kSeatsNamedMax)))
    before += text(before.empty() ? "" : ",", before_of(member));
  if (next.seats.size() > kSeatsNamedMax) before += " and so on";
  std::string why = text(why_restoring(from, next, world.plan, world.seating), "; a world of ", next.seats.size(),
                         " seats instead of ", view.state.seats.size(), ", which go on from seats ", before);
  return {std::move(next), std::move(why)};
}

bool wishes_another(const QuiescingView& view) {
  if (!view.wished) return false;
  return !std::ranges::equal(*view.wished, view.state.seats, {}, {},
                             [](const Member& member) { return before_of(member); });
}

// Who of two that linger stays for longer. A drained one gets no seat, so it is of no use elsewhere. All agree: who drains
// is known before a recovery begins.
bool stays_longer(const JobState& state, NodeLife one, NodeLife other) {
  const auto is_drained = [&state](NodeLife life) {
    return std::ranges::any_of(
        state.causes, [life](const Cause& cause) { return cause.kind == FaultKind::drain && cause.node == life; });
  };
  const bool drained = is_drained(one);
  return drained != is_drained(other) ? drained : one < other;
}

}  // namespace

bool can_restore_without(const QuiescingView& view, std::span<const NodeLife> late) {
  std::vector<NodeLife> evicted = view.state.evicted;
  evicted.insert(evicted.end(), late.begin(), late.end());
  Reports reports = reports_of(view, Roster(view.state));
  std::vector<Inventory> others;
  std::ranges::copy_if(reports.members, std::back_inserter(others),
                       [&late](const Inventory& inventory) { return !contains(late, inventory.life); });
  reports.keep(std::move(others));
  return !is_beyond_recovery(best_plan(view, reports, evicted), is_anybody_there(view, reports));
}

bool must_linger(const QuiescingView& view, NodeLife evicted) {
  const JobState& state = view.state;
  if (!contains(state.evicted, evicted)) return false;
  if (state.phase == JobPhase::restoring) return !state.cold;
  if (state.phase != JobPhase::quiescing) return false;
  const bool anybody =
      !survivors_of(state).empty() || std::ranges::any_of(view.nodes, [&state](const NodeRecord& node) {
        return !contains(state.evicted, node.life) && !contains(state.departed, node.life);
      });
  if (!anybody) return false;
  const Roster roster(state);
  Reports others = reports_of(view, roster);
  const auto own = std::ranges::find(others.lingering, evicted, &Inventory::life);
  if (own == others.lingering.end()) return true;
  // What it knows to be committed is not reported in a further generation, when it has begun anew.
  if (state.committed < own->committed || !missing_of(roster, others.members).empty()) return true;
  // Any of them may know of a step that nobody else knows to be committed.
  if (!view.lingering_late && !unheard_of(view, others.lingering).empty()) return true;
  std::erase_if(others.lingering,
                [&](const Inventory& inventory) { return !stays_longer(state, inventory.life, evicted); });
  const bool enough = is_enough(best_plan(view, others, state.evicted), is_anybody_there(view, others));
  if (!enough) return true;
  std::vector<Member> seated = state.seats;
  return seat_spares(view, seated).unseated.empty();
}

std::vector<Struck> gone_sources(const JobState& state, std::span<const NodeLife> ready,
                                 std::span<const NodeLife> gone) {
  std::vector<Struck> struck;
  if (state.phase != JobPhase::restoring) return struck;
  const auto is_read = [&](Seat seat) {
    return seat.value < state.seats.size() && contains(ready, state.seats[seat.value].life);
  };
  if (gone.empty()) return struck;
  const auto is_gone = [&](const Source& source) {
    return contains(gone, source.from) && contains(state.evicted, source.from);
  };
  for (const Source& source : state.sources) {
    if (!is_gone(source) || is_read(source.seat)) continue;
    const std::span<const Source> all = sources_of(state.sources, source.seat);
    std::vector<Source> left;  // a seat that can still read all of its stream elsewhere goes on
    std::ranges::copy_if(all, std::back_inserter(left), [&](const Source& other) { return !is_gone(other); });
    if (!are_enough(left, all))
      struck.push_back({source.from, before_of(state.seats, source.seat), source.kind, source.slot_generation,
                        source.step, source.extent, source.of});
  }
  return struck;
}

static std::optional<Wait> wait_for_members(const JobState& state, const Roster& roster, const Reports& reports) {
  std::vector<NodeLife> late = missing_of(roster, reports.members);
  if (late.empty()) return std::nullopt;
  std::string what = wait_for_reports(state.phase, late);
  return Wait{std::move(what), std::move(late), false};
}

static Wait wait_for_evicted(const std::vector<NodeLife>& unheard, bool without_deadline) {
  return {text("inventory of node ", numbers_of(unheard), ", which was evicted and may hold the only copies"),
          {},
          without_deadline};
}

// One that has all of it, of each seat; lingering nodes' after all others, as the plan has them.
static std::vector<Source> whole_sources(const Plan& plan, std::size_t seat_count) {
  std::vector<Source> whole;
  for (Seat seat(0); seat.value < seat_count; ++seat.value) {
    const std::span<const Source> all = sources_of(plan.sources, seat);
    const auto found = std::ranges::find_if(all, [](const Source& source) {
      return source.extent.is_whole() && (source.kind == SourceKind::own_arena || source.kind == SourceKind::replica);
    });
    if (found != all.end()) whole.push_back(*found);
  }
  return whole;
}

std::variant<Wait, LastStep> decide_last(const QuiescingView& view) {
  const JobState& state = view.state;
  const Roster roster(state);
  const Reports reports = reports_of(view, roster);
  if (std::optional<Wait> wait = wait_for_members(state, roster, reports)) return std::move(*wait);
  const bool anybody = is_anybody_there(view, reports);
  const Plan plan = best_plan(view, reports, state.evicted);
  const std::vector<NodeLife> unheard = unheard_of(view, reports.lingering);
  if (!unheard.empty() && !is_enough(plan, anybody) && !view.lingering_late) return wait_for_evicted(unheard, false);
  LastStep last{plan.resume, plan.committed, {}, {}};
  if (is_beyond_recovery(plan, anybody)) {
    last.why_not = plan.lost.empty() ? "no member is left" : joined(plan.lost, "; ");
  } else if (plan.resume == Step(0)) {
    last.why_not = "nothing was committed yet";
  } else {
    last.sources = whole_sources(plan, state.seats.size());
    if (last.sources.size() == state.seats.size()) return last;
    last.step = Step(0);
    last.why_not = "the state of a seat lies on several nodes, each of which has a part of it";
  }
  return last;
}

Decision decide_restore(const QuiescingView& view, NodeLife self) {
  const JobState& state = view.state;
  if (state.phase != JobPhase::quiescing)
    return Wait{text("a fault (the job is ", name_of(state.phase), ")"), {}, true};
  const Roster roster(state);
  const Reports reports = reports_of(view, roster);
  if (std::optional<Wait> wait = wait_for_members(state, roster, reports)) return std::move(*wait);

  const bool anybody = is_anybody_there(view, reports);
  const std::vector<NodeLife> unheard = unheard_of(view, reports.lingering);
  // A checkpoint is proven, what others declared equal is not.
  const Plan best = best_plan(view, reports, state.evicted);
  const bool is_stored = is_in_storage(with_storage(view, anybody, best));
  const Plan plan = is_stored ? best : with_last_resort(view, reports, anybody, unheard.empty(), best);
  const bool may_wait = !view.lingering_late || (is_beyond_recovery(plan, anybody) && !is_stored);
  if (!unheard.empty() && !is_enough(plan, anybody) && may_wait) return wait_for_evicted(unheard, view.lingering_late);
  std::string why_not;
  if (wishes_another(view)) {
    Result<World> world = world_of(view, reports, anybody, plan);
    if (world) return into_world(view, std::move(*world), self);
    why_not = text("the world of ", view.wished->size(), " seats that was wished is refused: ", world.error().what);
  }
  const Plan restored = with_storage(view, anybody, plan);
  if (is_beyond_recovery(restored, anybody) && !is_in_storage(restored)) {
    JobState ended = failed(state, self, beyond_recovery(view, restored, anybody));
    std::string why = ended.verdict;
    return StateMove{std::move(ended), std::move(why)};
  }

  JobState next = state;
  const Seating seating = seat_spares(view, next.seats);
  if (!seating.unseated.empty()) {
    std::string what = text("a spare for seat ", numbers_of(seating.unseated));
    if (const std::vector<NodeLife> barred = cordoned_spares(view); !barred.empty())
      what += text(" (node ", numbers_of(barred), " is cordoned; `pawl node uncordon` lets it take seats)");
    if (view.spec.wait_for_spare) return Wait{what, {}, true, restored.committed};
    std::string verdict =
        text("cannot go on: no healthy node is free to be ", what,
             ", and --no-wait forbids to wait for one; start with more --spares, or without --no-wait");
    return StateMove{failed(state, self, verdict), verdict};
  }
  begin_restoring(next, view, restored, restarts(state, reports.members, seating), self);
  std::string why = why_restoring(view, next, restored, seating);
  if (!why_not.empty()) {
    why += "; " + why_not;
    next.verdict += text(next.verdict.empty() ? "" : "; ", why_not);
  }
  return StateMove{std::move(next), std::move(why)};
}

}  // namespace pawl::job
