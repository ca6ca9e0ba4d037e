#include "job/recovery/classes.h"

#include <array>

namespace pawl::job {
namespace {

using enum FaultKind;
using enum FailureClass;
using enum Action;

// In the order of FaultKind.
constexpr std::array<ClassRow, 11> kClasses{{
    {FaultKind::none, transient_communication, roll_back_in_place, roll_back_in_place, 0, "nothing is wrong"},
    {node_lost, FailureClass::node, replace_node, stop, 8,
     "look at the machines' kernel logs and at `pawl events` for what ended them, and start sound nodes as spares"},
    {node_silent, FailureClass::node, replace_node, stop, 8,
     "look for stopped processes, an overloaded machine or a cut link between the nodes"},
    {trainer_exit, trainer_process, restart_trainer, replace_node, 2,
     "read the end of the trainer's output: the same step fails again and again"},
    {trainer_hang, trainer_process, restart_trainer, replace_node, 2,
     "look where the trainer hangs (a debugger on its pid); raise --hang-timeout if a step truly takes so long"},
    {trainer_stuck, trainer_process, restart_trainer, replace_node, 2,
     "the trainer cannot be freed from what it waits in: poll pawl_event_fd beside its sockets"},
    {communication, transient_communication, roll_back_in_place, replace_node, 3,
     "look at the links between the nodes and at the trainers' own time limits for collectives"},
    {corrupt_source, FailureClass::node, roll_back_in_place, roll_back_in_place, 0,
     "memory returned other bytes than were written: test the named nodes' memory"},
    {leader_lost, FailureClass::node, replace_node, stop, 8,
     "look at the machines' kernel logs and at `pawl events` for what ended them, and start sound nodes as spares"},
    {operator_stop, repeated, stop, stop, 0, "start the job again when it should go on"},
    {layout_conflict, repeated, stop, stop, 0,
     "declare the same meshes and replicated tensors on every rank; the detail names the first that differ"},
}};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kClasses.size(); ++i)
    if (static_cast<std::size_t>(kClasses[i].kind) != i) return false;
  return true;
}
static_assert(in_order() && kClasses.size() == static_cast<std::size_t>(layout_conflict) + 1);

}  // namespace

std::span<const ClassRow> failure_classes() {
  return kClasses;
}

const ClassRow& class_of(FaultKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return kClasses[index < kClasses.size() ? index : 0];
}

Action action_for(const Cause& cause, std::uint32_t attempts) {
  const ClassRow& row = class_of(cause.kind);
  if (row.attempts_max == 0 || attempts < row.attempts_max) return row.action;
  return attempts / 2 < row.attempts_max ? row.escalation : Action::stop;
}

}  // namespace pawl::job
