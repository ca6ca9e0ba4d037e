// Failure classes and what is done about each: a table in one place, each with an escalation. Pure.
//
// Source: DEADPOOL section III.
#pragma once

#include <cstdint>
#include <span>

#include "job/membership/job_state.h"

namespace pawl::job {

enum class FailureClass : std::uint8_t { transient_communication, trainer_process, node, repeated };
enum class Action : std::uint8_t {
  roll_back_in_place,  // nobody is replaced
  restart_trainer,     // a new process in its seat, from its own arena
  replace_node,        // its seats go to a spare
  stop,                // persist what can be, then a clear verdict
};

struct ClassRow {
  FaultKind kind;
  FailureClass failure_class;
  Action action;
  Action escalation;           // after `attempts_max` recoveries of this kind in the same place without a new commit
  std::uint32_t attempts_max;  // after twice as many: stop. 0: never escalates
  const char* remedy;          // for the operator, a sentence
};
[[nodiscard]] std::span<const ClassRow> failure_classes();
[[nodiscard]] const ClassRow& class_of(FaultKind kind);

// What to do about `cause` after `attempts` earlier recoveries of the same kind and place without progress.
[[nodiscard]] Action action_for(const Cause& cause, std::uint32_t attempts);

}  // namespace pawl::job
