#include "job/daemon/questions.h"

#include <algorithm>

#include "base/json_access.h"
#include "base/text.h"
#include "job/daemon/paths_watch.h"

namespace pawl::job {

using Json = nlohmann::json;

namespace {

double ms_of(std::uint64_t ns) {
  return static_cast<double>(ns) / 1e6;
}

constexpr const char* kTrainerPhases[] = {"none", "compute", "allreduce", "fence",  "update",  "allgather",
                                          "join", "restore", "aside",     "finish", "exchange"};

const char* phase_name(std::uint64_t phase) {
  return phase < std::size(kTrainerPhases) ? kTrainerPhases[phase] : "unknown";
}

void add_page(Json& json, const TrainerPage& page) {
  json["phase"] = phase_name(page.phase.load());
  json["step"] = page.step.load();
  json["updates"] = page.updates.load();
  json["reached"] = page.reached.load();
  json["nonce"] = text(page.nonce.load());
  json["samples"] = page.samples.load();
  json["held"] = page.held.load() != 0;
  json["fence_wait_ms"] = {{"last", ms_of(page.fence_wait_ns_last.load())},
                           {"max", ms_of(page.fence_wait_ns_max.load())},
                           {"total", ms_of(page.fence_wait_ns_total.load())},
                           {"count", page.fence_count.load()}};
  json["windows"] = {{"captured", page.windows_captured.load()}, {"voided", page.windows_voided.load()}};
  json["captured_bytes"] = page.captured_bytes_total.load();
  json["copy_ms_total"] = ms_of(page.copy_ns_total.load());
}

Json trainer_json(Processes& processes, const TrainerProcess& trainer, Generation running) {
  Json json{{"local_index", trainer.index},
            {"seat", trainer.seat ? Json(trainer.seat->value) : Json()},
            {"pid", trainer.trainer().pid == kPidNotKnownYet ? 0 : trainer.trainer().pid},
            {"start_time", trainer.trainer().start_time}};
  json["state"] = trainer.pid == 0 || trainer.dying                ? "dead"
                  : trainer.finished                               ? "finished"
                  : trainer.line.waits_for(MessageKind::join)      ? (trainer.seat ? "joined" : "parked")
                  : trainer.shared.page == nullptr                 ? "starting"
                  : running.value > 0 && trainer.seated == running ? "running"
                                                                   : "restoring";
  if (trainer.shared.page == nullptr) return json;
  add_page(json, *trainer.shared.page);
  json["rss_bytes"] = processes.resident_bytes(static_cast<pid_t>(trainer.trainer().pid));
  return json;
}

// The greatest steps that the seat's own arena has sealed, and that all its holders have as well.
void add_steps(Json& json, const Arena& arena) {
  Step sealed;
  Step held;
  for (const SlotView& slot : slots_of(arena)) {
    if (slot.word.state == SlotState::sealed) sealed = std::max(sealed, slot.word.step);
    if (slot.held_by_all) held = std::max(held, slot.word.step);
  }
  json["sealed"] = sealed.value;
  json["held"] = held.value;
}

Json seat_json(const JobMirror& mirror, Seat seat, const ArenaHandle& arena) {
  Json json{{"seat", seat.value}, {"sealed", 0}, {"held", 0}, {"holders", Json::array()}};
  if (arena) add_steps(json, arena->arena);
  for (std::uint32_t position : mirror.ring().holders_of(seat))
    if (const auto node = mirror.node_at(position)) json["holders"].push_back(node->value);
  return json;
}

// Why a death now would cost more than the last step; for a member.
std::vector<std::string> exposures(const NodeContext& context, Seat seat, bool has_arena, Step committed) {
  std::vector<std::string> sentences;
  const JobMirror& mirror = context.mirror;
  const Generation running = context.followed.running;
  const std::uint32_t replica_count = mirror.spec().replica_count;
  if (running.value > 0 && running == mirror.generation() && !has_arena)
    sentences.push_back(text("seat ", seat, ": nothing is protected yet, its layout is not sealed"));
  if (replica_count == 0) sentences.push_back(text("seat ", seat, ": no replica (--replicas 0)"));
  const Ring& ring = mirror.ring();
  for (const SharedDomain& shared : shared_domains_of(mirror.state().seats, ring, ring.position_of(seat)))
    sentences.push_back(to_text(shared, ring));
  const Step resume = mirror.state().resume;
  if (replica_count > 0 && running.value > 0 && committed <= resume && resume.value > 0)
    sentences.push_back(text("seat ", seat, ": since the recovery no newer step is committed yet"));
  return sentences;
}

Json checkpoint_json(const JobSpec& spec, const std::pair<PersistRecord, PersistTally>& known) {
  const auto& [record, tally] = known;
  return {{"path", spec.checkpoints.path},
          {"every_steps", spec.checkpoints.every_steps},
          {"every_ms", spec.checkpoints.every_ms},
          {"every_auto", spec.checkpoints.every_auto},
          {"interval_ms", record.interval_ms},
          {"published", record.published.value},
          {"phase", name_of(record.phase)},
          {"step", record.step.value},
          {"bytes_here", tally.bytes},
          {"ended_wall_ms", record.ended_wall_ms},
          {"failures", record.failures},
          {"why", record.why}};
}

}  // namespace

std::string Questions::answer(const std::string& question, bool local) {
  const Json asked = Json::parse(question, nullptr, false);
  if (!local && string_in(asked, "token") != token_) return R"({"error":"wrong token"})";
  const std::string ask = string_in(asked, "ask");
  if (ask == "status") return status_json();
  if (ask == "inventory") return inventory_json();
  if (ask == "hold" || ask == "release") {
    if (!parts_.context.mirror.spec().test_hooks) return R"({"error":"holds need a job started with --test-hooks"})";
    if (ask == "hold")
      return hold_json(string_in(asked, "phase"), static_cast<std::uint32_t>(number_in(asked, "local_index")),
                       number_in(asked, "step"));
    release_holds();
    return R"({"ok":true})";
  }
  return Json{{"error", "unknown question '" + ask + "': status, inventory, hold, release"}}.dump();
}

std::string Questions::inventory_json() const {
  Inventory inventory;
  inventory.life = parts_.context.self;
  inventory.generation = parts_.context.mirror.generation();
  inventory.committed = hooks_.progress().committed;
  inventory.items = parts_.memory.inventory();
  inventory.equal = parts_.memory.equal_offers();
  return Json{{"inventory", to_text(inventory)}}.dump();
}

std::string Questions::status_json() const {
  const NodeContext& context = parts_.context;
  const JobMirror& mirror = context.mirror;
  const bool formed = mirror.has_state();
  const Step committed = hooks_.progress().committed;
  Json status;
  status["node"] = context.self.node.value;
  status["incarnation"] = context.self.incarnation.value;
  status["role"] = mirror.is_member() ? "member" : !formed ? "joining" : "spare";
  status["generation"] = mirror.generation().value;
  status["phase"] = formed ? name_of(mirror.state().phase) : "forming";
  status["committed"] = committed.value;
  status["resume"] = formed ? mirror.state().resume.value : 0;
  status["unhealthy"] = hooks_.unhealthy ? hooks_.unhealthy() : "";
  status["wall_ms"] = static_cast<std::uint64_t>(context.clock->wall() / std::chrono::milliseconds(1));
  status["address"] = context.address;
  status["keeper_pid"] = context.environment->processes.parent_pid();
  status["pawld_pid"] = context.environment->processes.own_pid();
  const std::optional<Duration> lease_age = hooks_.lease_age();
  status["lease_age_ms"] = lease_age ? Json(ms_of(static_cast<std::uint64_t>(lease_age->count()))) : Json();
  status["memory_bytes"] = parts_.memory.bytes() + parts_.memory.ready_bytes();
  status["ready_bytes"] = parts_.memory.ready_bytes();  // of a spare, for arenas to come
  if (mirror.spec().memory_bytes > 0) status["memory_budget_bytes"] = mirror.spec().memory_bytes;
  if (mirror.spec().replica_bytes_a_second > 0) status["replica_bytes_a_second"] = mirror.spec().replica_bytes_a_second;
  if (const JobSpec& spec = mirror.spec(); !spec.checkpoints.path.empty() && hooks_.checkpoints)
    status["checkpoint"] = checkpoint_json(spec, hooks_.checkpoints());
  status["arenas"] = Json::array();
  for (const ArenaHandle& arena : parts_.memory.arenas())
    status["arenas"].push_back({{"name", segment_name(arena->arena.spec().kind, arena->arena.spec().seat)},
                                {"bytes", arena->mapping.size_bytes()},
                                {"pages", name_of(arena->pages)}});
  status["wire_bytes"] = {
      {"sent", hooks_.bytes_sent()}, {"received", hooks_.bytes_received()}, {"spared", hooks_.bytes_spared()}};
  const Generation running =
      formed && context.followed.running == mirror.generation() ? mirror.generation() : Generation(0);
  status["trainers"] = Json::array();
  status["seats"] = Json::array();
  Json exposed = Json::array();
  for (const TrainerProcess& trainer : parts_.trainers.places()) {
    status["trainers"].push_back(trainer_json(context.environment->processes, trainer, running));
    if (!trainer.seat || !mirror.is_member()) continue;
    const ArenaHandle arena = parts_.memory.find(ArenaKind::own, before_of(mirror, *trainer.seat));
    status["seats"].push_back(seat_json(mirror, *trainer.seat, arena));
    for (const std::string& why : exposures(context, *trainer.seat, arena != nullptr, committed))
      exposed.push_back(why);
  }
  for (const std::string& why : hooks_.stopped_by()) exposed.push_back(why);
  status["exposed"] = exposed;
  status["stragglers"] = Json::array();
  for (const Straggler& one : hooks_.stragglers ? hooks_.stragglers() : std::vector<Straggler>())
    status["stragglers"].push_back({{"seat", one.seat.value},
                                    {"own_ms", static_cast<double>(one.own_us) / 1e3},
                                    {"median_ms", static_cast<double>(one.median_us) / 1e3}});
  status["differing"] = Json::array();
  for (const Compared& one : hooks_.differing ? hooks_.differing() : std::vector<Compared>())
    status["differing"].push_back(Json::parse(json_of(one)));
  status["waits"] = Json::array();
  for (const RecoveryWatch::Wait& one : hooks_.waits ? hooks_.waits() : std::vector<RecoveryWatch::Wait>())
    status["waits"].push_back(
        {{"seat", one.seat ? Json(one.seat->value) : Json()},
         {"what", one.wait.what},
         {"for_ms", one.wait.age / std::chrono::milliseconds(1)},
         {"deadline_ms", one.wait.deadline ? Json(*one.wait.deadline / std::chrono::milliseconds(1)) : Json()}});
  status["neighbours"] = Json::array();
  for (const Neighbours::View& view : hooks_.neighbours())
    status["neighbours"].push_back({{"node", view.node.value},
                                    {"state", view.state},
                                    {"lifeline", view.lifeline},
                                    {"heard_ms", ms_of(static_cast<std::uint64_t>(view.silent_for.count()))}});
  const LoopTurns turns = hooks_.loop_turns ? hooks_.loop_turns() : LoopTurns{};
  status["loop"] = {{"long_turns", turns.long_count},
                    {"crowded_turns", turns.crowded_count},
                    {"longest_ms", ms_of(static_cast<std::uint64_t>(turns.longest.count()))},
                    {"longest_in", turns.longest_in}};
  status["holds"] = Json::array();
  for (const auto& [phase, held] : parts_.holds.view()) status["holds"].push_back({{"phase", phase}, {"held", held}});
  return status.dump();
}

std::string Questions::hold_json(const std::string& phase, std::uint32_t local_index, std::uint64_t step) {
  if (Holds::is_phase(phase)) {
    parts_.holds.set(phase);
    return R"({"ok":true})";
  }
  const std::vector<TrainerProcess>& trainers = parts_.trainers.places();
  for (std::uint64_t i = 1; i < std::size(kTrainerPhases); ++i) {
    if (phase != kTrainerPhases[i]) continue;
    if (local_index >= trainers.size() || trainers[local_index].shared.page == nullptr)
      return R"({"error":"no such trainer"})";
    TrainerPage& page = *trainers[local_index].shared.page;
    page.held.store(0);
    page.hold_step.store(step);
    page.hold_phase.store(i, std::memory_order_release);
    return R"({"ok":true})";
  }
  return Json{{"error", "unknown phase '" + phase + "'"}}.dump();
}

void Questions::release_holds() {
  parts_.holds.release_all();
  for (TrainerProcess& trainer : parts_.trainers.places())
    if (trainer.shared.page != nullptr) trainer.shared.page->hold_phase.store(0);
  parts_.context.drive_soon(std::chrono::nanoseconds(0));
}

}  // namespace pawl::job
