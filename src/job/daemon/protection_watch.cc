#include "job/daemon/protection_watch.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

}  // namespace

void ProtectionWatch::begin() {
  const Generation generation = parts_.context.mirror.generation();
  if (std::exchange(watched_, generation) != generation) check(generation);
}

void ProtectionWatch::check(Generation generation) {
  NodeContext& context = parts_.context;
  if (context.ending || !context.is_running() || context.mirror.generation() != generation) return;
  const ProtectionView now = view();
  const ProtectionVerdict verdict = judge_protection(now, notes_, context.deadlines);
  notes_ = verdict.notes;
  if (verdict.change != ProtectionChange::none) tell(verdict.change, now);
  context.after(context.deadlines.silence / 2, [this, generation] { check(generation); });
}

void ProtectionWatch::on_given_up(const GivenUpStep& step) {
  given_up_.add();
  const std::string why = to_text(step);
  log_warn("step_given_up", "seat", step.seat, "step", step.step, "why", why);
  parts_.events.tell("step_given_up", Json{{"seat", step.seat.value},
                                           {"step", step.step.value},
                                           {"bucket", step.bucket},
                                           {"own_is_wrong", step.is_own_wrong},
                                           {"holder", step.holder.value},
                                           {"why", why}}
                                          .dump());
}

ProtectionView ProtectionWatch::view() const {
  const JobMirror& mirror = parts_.context.mirror;
  ProtectionView view;
  view.now = parts_.context.clock->now();
  view.generation = mirror.generation();
  view.committed = progress_().committed;
  view.is_root = mirror.is_root();
  if (cut_) view.cut = cut_();
  for (const TrainerProcess& trainer : parts_.trainers.places()) {
    const ArenaHandle arena =
        trainer.seat ? parts_.memory.find(ArenaKind::own, before_of(mirror, *trainer.seat)) : nullptr;
    if (!arena || trainer.shared.page == nullptr || trainer.seated != view.generation) continue;
    SeatProtection seat;
    seat.seat = *trainer.seat;
    seat.reached = Step(trainer.shared.page->reached.load(std::memory_order_acquire));
    seat.obstacles = parts_.streams.obstacles(seat.seat);
    for (const SlotView& slot : slots_of(arena->arena)) {
      seat.slots.push_back(slot.word);
      if (slot.held_by_all) seat.held = std::max(seat.held, slot.word.step);
    }
    view.bytes += arena->mapping.bytes().size();
    view.seats.push_back(std::move(seat));
  }
  return view;
}

std::vector<std::string> ProtectionWatch::stopped_by() const {
  std::vector<std::string> sentences;
  if (!notes_.stopped || !parts_.context.is_running()) return sentences;
  const ProtectionView now = view();
  for (const NodeId node : now.cut)
    sentences.push_back(text("nothing after step ", now.committed, " is committed: ", why_cut(node)));
  for (const SeatProtection& seat : now.seats)
    if (const auto obstacle = obstacle_of(seat, now.generation, now.committed))
      sentences.push_back(
          text("seat ", seat.seat, ": nothing after step ", now.committed, " is protected: ", obstacle->why));
  return sentences;
}

void ProtectionWatch::tell(ProtectionChange change, const ProtectionView& view) {
  if (change == ProtectionChange::resumed) {
    log_info("protection_resumed", "committed", view.committed);
    return parts_.events.tell("protection_resumed", Json{{"committed", view.committed.value}}.dump());
  }
  Json seats = Json::array();
  for (const SeatProtection& seat : view.seats) {
    const auto obstacle = obstacle_of(seat, view.generation, view.committed);
    if (!obstacle) continue;
    log_warn("protection_stopped", "seat", seat.seat, "committed", view.committed, "reached", seat.reached, "why",
             obstacle->why);
    seats.push_back({{"seat", seat.seat.value}, {"reached", seat.reached.value}, {"why", obstacle->why}});
  }
  Json cuts = Json::array();
  for (const NodeId node : view.cut) {
    log_warn("protection_stopped", "committed", view.committed, "why", why_cut(node));
    cuts.push_back(why_cut(node));
  }
  if (seats.empty() && cuts.empty())
    log_warn("protection_stopped", "committed", view.committed, "why", "other nodes say");
  parts_.events.tell("protection_stopped", Json{{"committed", view.committed.value},
                                                {"for_ms", (view.now - notes_.since) / 1ms},
                                                {"seats", seats},
                                                {"cut", cuts}}
                                               .dump());
}

}  // namespace pawl::job
