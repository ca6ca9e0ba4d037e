// Failure classes and what is done about each: a table in one place, each with an escalation. And signs by which the end
// of a trainer tells its class: a second table, which users extend. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "job/membership/job_state.h"

namespace pawl::job {

enum class FailureClass : std::uint8_t {
  transient_communication,
  trainer_process,
  node,
  repeated,
  permanent,  // a new process would end the same way, on any node
  numerical,  // the training itself went wrong: what is held may be wrong, too
};
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
  bool stops = true;           // false: it escalates for as long as it lasts
};
[[nodiscard]] std::span<const ClassRow> failure_classes();
[[nodiscard]] const ClassRow& class_of(FaultKind kind);

// A failed exchange whose suspect is named: its node is replaced after so few, not after attempts_max.
inline constexpr std::uint32_t kSuspectAttemptsMax = 1;

// What to do about `cause` after `attempts` earlier recoveries of the same kind and place without progress.
[[nodiscard]] Action action_for(const Cause& cause, std::uint32_t attempts);

// A text that shows in how a trainer ended ("exited 78", "killed by SIGBUS") or in what it said last, and what it means.
struct FailureSign {
  std::string text;
  FailureClass failure_class = FailureClass::trainer_process;
  std::string remedy;  // for the operator; may be empty
};
// Exit codes, exceptions, messages of CUDA, its driver (Xid) and NCCL that mean the same on every machine.
[[nodiscard]] std::span<const FailureSign> known_signs();
// One a line: the class (network, trainer, node, permanent, numerical), then the text; blank lines and lines that begin
// with # are left out. Fails: `invalid`, naming the line.
[[nodiscard]] Result<std::vector<FailureSign>> parse_signs(std::string_view lines);
// The first that shows, of `users` before the known ones; nullptr: none, so it is the process's own affair.
// `failure`: failure_in of what the trainer said.
[[nodiscard]] const FailureSign* sign_of(std::string_view how, std::string_view failure,
                                         std::span<const FailureSign> users = {});

// What a trainer's output says of its failure: the last exception of its last lines, else its last line. One line.
[[nodiscard]] std::string failure_in(std::string_view said);
// Whether two failures are the same but for addresses in memory and process numbers.
[[nodiscard]] bool same_failure(std::string_view a, std::string_view b);

[[nodiscard]] const char* name_of(FailureClass failure_class);
[[nodiscard]] std::optional<FailureClass> failure_class_named(std::string_view name);

}  // namespace pawl::job
