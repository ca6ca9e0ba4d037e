// Pawld answers questions: status, inventory, and the holds of a drill. JSON as in docs/protocol.md.
#include <unistd.h>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "env/files.h"
#include "env/process.h"
#include "job/daemon/pawld.h"

namespace pawl::job {

using namespace std::chrono_literals;
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

std::uint64_t resident_bytes(std::uint64_t pid) {
  auto statm = read_file(text("/proc/", pid, "/statm"), 256);
  if (!statm) return 0;
  const std::size_t blank = statm->find(' ');
  std::uint64_t pages = 0;
  if (blank == std::string::npos) return 0;
  const std::string_view rest = std::string_view(*statm).substr(blank + 1);
  if (!parse_number(rest.substr(0, rest.find(' ')), pages)) return 0;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

void Pawld::on_question(const std::shared_ptr<Connection>& connection, const Frame& frame, bool local) {
  connection->send(frame_of(AnswerMessage{answer(frame.payload, local)}, frame.id));
}

std::string Pawld::answer(const std::string& question, bool local) {
  const Json asked = Json::parse(question, nullptr, false);
  auto text_of = [&](const char* name) {
    return asked.is_object() && asked.contains(name) && asked[name].is_string() ? asked[name].get<std::string>()
                                                                                : std::string();
  };
  auto number_of = [&](const char* name) {
    return asked.is_object() && asked.contains(name) && asked[name].is_number_unsigned()
               ? asked[name].get<std::uint64_t>()
               : std::uint64_t{0};
  };
  if (!local && text_of("token") != token_) return R"({"error":"wrong token"})";
  const std::string ask = text_of("ask");
  if (ask == "status") return status_json();
  if (ask == "inventory") {
    Inventory inventory;
    inventory.life = self_;
    inventory.generation = state_ ? state_->generation : Generation(0);
    inventory.committed = progress_.committed;
    inventory.items = memory_->inventory();
    return to_json(inventory);
  }
  if (ask == "hold" || ask == "release") {
    if (!spec_.test_hooks) return R"({"error":"holds need a job started with --test-hooks"})";
    if (ask == "hold")
      return hold_json(text_of("phase"), static_cast<std::uint32_t>(number_of("local_index")), number_of("step"));
    release_holds();
    return R"({"ok":true})";
  }
  return Json{{"error", "unknown question '" + ask + "': status, inventory, hold, release"}}.dump();
}

std::string Pawld::status_json() {
  Json status;
  const bool member = is_member();
  status["node"] = self_.node.value;
  status["incarnation"] = self_.incarnation.value;
  status["role"] = member ? "member" : !state_ ? "joining" : "spare";
  status["generation"] = state_ ? state_->generation.value : 0;
  status["phase"] = state_ ? name_of(state_->phase) : "forming";
  status["committed"] = progress_.committed.value;
  status["resume"] = state_ ? state_->resume.value : 0;
  status["address"] = options_.address;
  status["keeper_pid"] = getppid();
  status["pawld_pid"] = getpid();
  status["lease_age_ms"] =
      ms_of(static_cast<std::uint64_t>(real_clock().boottime().count() - lease_renewed_ns_.load()));
  status["memory_bytes"] = memory_->bytes();
  status["wire_bytes"] = {{"sent", bytes_sent_.load()}, {"received", bytes_received_.load()}};
  status["trainers"] = Json::array();
  for (const TrainerProcess& place : trainers_->places()) {
    Json trainer{{"local_index", place.index},
                 {"seat", place.seat ? Json(place.seat->value) : Json()},
                 {"pid", place.pid + 1 == 0 ? 0 : place.pid},
                 {"start_time", place.start_time}};
    const bool running = state_ && running_ == state_->generation && place.seated == running_ && running_.value > 0;
    trainer["state"] = place.pid == 0 || place.dying        ? "dead"
                       : place.finished                     ? "finished"
                       : place.waits_for(MessageKind::join) ? (place.seat ? "joined" : "parked")
                       : place.page == nullptr              ? "starting"
                       : running                            ? "running"
                                                            : "restoring";
    if (place.page != nullptr) {
      const TrainerPage& page = *place.page;
      trainer["phase"] = phase_name(page.phase.load());
      trainer["step"] = page.step.load();
      trainer["updates"] = page.updates.load();
      trainer["reached"] = page.reached.load();
      trainer["nonce"] = text(page.nonce.load());
      trainer["samples"] = page.samples.load();
      trainer["held"] = page.held.load() != 0;
      trainer["rss_bytes"] = resident_bytes(place.pid);
      trainer["fence_wait_ms"] = {{"last", ms_of(page.fence_wait_ns_last.load())},
                                  {"max", ms_of(page.fence_wait_ns_max.load())},
                                  {"total", ms_of(page.fence_wait_ns_total.load())},
                                  {"count", page.fence_count.load()}};
      trainer["windows"] = {{"captured", page.windows_captured.load()}, {"voided", page.windows_voided.load()}};
      trainer["captured_bytes"] = page.captured_bytes_total.load();
      trainer["copy_ms_total"] = ms_of(page.copy_ns_total.load());
    }
    status["trainers"].push_back(trainer);
  }
  status["seats"] = Json::array();
  Json exposed = Json::array();
  for (const TrainerProcess& place : trainers_->places()) {
    if (!place.seat || !member) continue;
    Json seat{{"seat", place.seat->value}, {"sealed", 0}, {"held", 0}, {"holders", Json::array()}};
    const std::uint64_t every_holder = (std::uint64_t{1} << spec_.replica_count) - 1;
    if (const ArenaHandle arena = memory_->find(ArenaKind::own, *place.seat)) {
      for (std::uint32_t i = 0; i < arena->arena.slot_count(); ++i) {
        const Slot slot = arena->arena.slot(i);
        const SlotWord word = slot.word();
        if (word.state != SlotState::sealed) continue;
        seat["sealed"] = std::max(seat["sealed"].get<std::uint64_t>(), word.step.value);
        if ((slot.acknowledged() & every_holder) == every_holder)
          seat["held"] = std::max(seat["held"].get<std::uint64_t>(), word.step.value);
      }
    }
    for (std::uint32_t position : holder_positions(*place.seat, ring()))
      if (const auto node = node_at(position)) seat["holders"].push_back(node->value);
    if (running_.value > 0 && running_ == state_->generation && !memory_->find(ArenaKind::own, *place.seat))
      exposed.push_back(text("seat ", *place.seat, ": nothing is protected yet, its layout is not sealed"));
    if (spec_.replica_count == 0) exposed.push_back(text("seat ", *place.seat, ": no replica (--replicas 0)"));
    if (spec_.replica_count > 0 && running_.value > 0 && progress_.committed <= state_->resume &&
        state_->resume.value > 0)
      exposed.push_back(text("seat ", *place.seat, ": since the recovery no newer step is committed yet"));
    status["seats"].push_back(seat);
  }
  status["exposed"] = exposed;
  status["neighbours"] = Json::array();
  if (neighbours_)
    for (const Neighbours::View& view : neighbours_->view())
      status["neighbours"].push_back({{"node", view.node.value},
                                      {"state", view.state},
                                      {"heard_ms", ms_of(static_cast<std::uint64_t>(view.silent_for.count()))}});
  status["holds"] = Json::array();
  {
    std::lock_guard lock(hold_mutex_);
    for (const auto& [phase, held] : holds_) status["holds"].push_back({{"phase", phase}, {"held", held}});
  }
  return status.dump();
}

std::string Pawld::hold_json(const std::string& phase, std::uint32_t local_index, std::uint64_t step) {
  for (const char* known : {"suspect", "ack", "frozen", "decide", "import", "seated"}) {
    if (phase != known) continue;
    std::lock_guard lock(hold_mutex_);
    holds_[phase] = false;
    return R"({"ok":true})";
  }
  for (std::uint64_t i = 1; i < std::size(kTrainerPhases); ++i) {
    if (phase != kTrainerPhases[i]) continue;
    if (local_index >= trainers_->places().size() || trainers_->places()[local_index].page == nullptr)
      return R"({"error":"no such trainer"})";
    TrainerPage& page = *trainers_->places()[local_index].page;
    page.held.store(0);
    page.hold_step.store(step);
    page.hold_phase.store(i, std::memory_order_release);
    return R"({"ok":true})";
  }
  return Json{{"error", "unknown phase '" + phase + "'"}}.dump();
}

void Pawld::release_holds() {
  {
    std::lock_guard lock(hold_mutex_);
    holds_.clear();
  }
  hold_changed_.notify_all();
  for (TrainerProcess& place : trainers_->places())
    if (place.page != nullptr) place.page->hold_phase.store(0);
  drive_soon(0ms);
}

}  // namespace pawl::job
