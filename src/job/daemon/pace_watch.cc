#include "job/daemon/pace_watch.h"

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

using Json = nlohmann::json;

bool is_own(std::uint64_t phase) {
  return phase == PAWL_PHASE_COMPUTE || phase == PAWL_PHASE_UPDATE;
}

}  // namespace

void PaceWatch::enter() {
  const Generation now = context_.mirror.generation();
  if (std::exchange(watched_, now) == now) return;
  windows_.clear();
  paces_.clear();
  children_.clear();
  notes_ = {};
}

void PaceWatch::tick() {
  if (context_.ending || !context_.is_running() || !context_.mirror.is_member()) return;
  enter();
  if (look()) pass_on();
}

// Whether a window is full.
bool PaceWatch::look() {
  const Duration now = context_.clock->now();
  bool any = false;
  for (const TrainerProcess& trainer : trainers_.places()) {
    if (!trainer.seat || trainer.shared.page == nullptr || trainer.seated != watched_) continue;
    const TrainerPage& page = *trainer.shared.page;
    PaceWindow& window = windows_[*trainer.seat];
    window.look(Step(page.step.load(std::memory_order_relaxed)), is_own(page.phase.load(std::memory_order_relaxed)),
                now);
    if (!window.full(now)) continue;
    paces_[*trainer.seat] = {*trainer.seat, window.take_us(now)};
    any = true;
  }
  return any;
}

void PaceWatch::pass_on() {
  PaceSummary all;
  for (const auto& [seat, pace] : paces_) add(all, pace);
  for (const auto& [child, summary] : children_) add(all, summary);
  const JobMirror& mirror = context_.mirror;
  if (mirror.is_root()) return judge(all);
  if (const auto parent = mirror.node_at((mirror.my_position() - 1) / 2))
    hooks_.send(*parent, frame_of(PaceMessage{watched_, to_text(all)}));
}

void PaceWatch::on_paces(NodeId child, Generation generation, const std::string& paces) {
  if (!context_.is_running() || generation != context_.mirror.generation()) return;
  enter();
  if (const auto summary = parse_paces(paces)) children_[child] = *summary;
}

void PaceWatch::judge(const PaceSummary& all) {
  StragglerVerdict verdict = judge_stragglers(all, std::move(notes_));
  notes_ = std::move(verdict.notes);
  for (const Straggler& one : verdict.begun) tell("straggler", one);
  for (const Straggler& one : verdict.ended) tell("straggler_ended", one);
}

void PaceWatch::tell(const char* kind, const Straggler& straggler) {
  const double own_ms = static_cast<double>(straggler.own_us) / 1e3;
  const double median_ms = static_cast<double>(straggler.median_us) / 1e3;
  const std::vector<Member>& seats = context_.mirror.state().seats;
  const std::uint32_t node = straggler.seat.value < seats.size() ? seats[straggler.seat.value].life.node.value : 0;
  log_info(kind, "seat", straggler.seat, "on", node, "own_ms", own_ms, "median_ms", median_ms);
  events_.tell(
      kind,
      Json{{"seat", straggler.seat.value}, {"seat_node", node}, {"own_ms", own_ms}, {"median_ms", median_ms}}.dump());
}

}  // namespace pawl::job
