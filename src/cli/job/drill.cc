// `pawl drill`: injects a fault into a running job. Nothing in the job is told: it must notice the fault.
//
// Processes are found by what they are and not by a number alone: a keeper by the launcher's record or its own
// registration, pawld and trainers as that keeper's children. All get a pidfd first, then the signal, one right after
// the other, the parent first, so that nobody is started again in between.
#include <signal.h>

#include <algorithm>
#include <cctype>
#include <fstream>

#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/job/namespaces.h"
#include "cli/output.h"
#include "env/clock.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {
namespace {

struct Victim {
  NodeId node;
  std::optional<std::uint32_t> local_index;  // of a trainer
  std::vector<pid_t> pids;                   // the parent first
  std::uint64_t start_time = 0;              // of pids.front(), where known
};

Result<std::uint32_t> index_of(const DrillOptions& options, const JobView& view) {
  std::uint32_t index = 0;
  if (options.which == "leader" && options.target != "trainer") {
    if (view.state) return view.state->leader.node.value;
    return Error{Code::not_found, "the job has no leader yet"};
  }
  if (parse_number(std::string_view(options.which), index)) return index;
  return Error{Code::invalid,
               text("drill ", options.action, " ", options.target, ": say which one, by its number (0, 1, ...)")};
}

pid_t parent_of(pid_t pid) {
  const std::string stat = read_file(text("/proc/", pid, "/stat"), 4096).value_or("");
  const std::size_t name_end = stat.rfind(')');
  return name_end == std::string::npos || name_end + 4 > stat.size() ? 0 : std::atoi(stat.c_str() + name_end + 4);
}

std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const std::string& name : real_files().list("/proc").value_or({}))
    if (std::uint32_t pid = 0;
        parse_number(std::string_view(name), pid) && parent_of(static_cast<pid_t>(pid)) == parent)
      children.push_back(static_cast<pid_t>(pid));
  return children;
}

Result<pid_t> keeper_of(const JobAccess& access, const JobView& view, NodeId node) {
  if (access.launcher)
    for (const LauncherNode& found : access.launcher->nodes) {
      const auto pid = static_cast<pid_t>(found.keeper_pid);
      if (found.node == node && pid != 0 && parent_of(pid) == static_cast<pid_t>(access.launcher->pid)) return pid;
    }
  for (const NodeView& found : view.nodes)
    if (found.record.life.node == node && found.registered && path_exists(found.record.local_path))
      return static_cast<pid_t>(found.record.keeper_pid);
  return Error{Code::not_found, text("node ", node, " does not run on this machine: run this command on its machine")};
}

const json* trainer_at(const JobView& view, const Member& member) {
  for (const NodeView& node : view.nodes)
    if (node.record.life.node == member.life.node)
      for (const json& trainer : array_in(node.answer, "trainers"))
        if (number_in(trainer, "local_index") == member.local_index) return &trainer;
  return nullptr;
}

Result<Victim> find_trainer(const JobView& view, std::uint32_t seat) {
  if (!view.state || seat >= view.state->seats.size())
    return Error{Code::not_found, text("the job has no seat ", seat)};
  const Member& member = view.state->seats[seat];
  const json* trainer = trainer_at(view, member);
  if (trainer == nullptr || number_in(*trainer, "pid") == 0)
    return Error{Code::not_found,
                 text("the trainer of seat ", seat, " is not known: node ", member.life.node, " does not answer")};
  return Victim{member.life.node,
                member.local_index,
                {static_cast<pid_t>(number_in(*trainer, "pid"))},
                number_in(*trainer, "start_time")};
}

Result<Victim> find_victim(const DrillOptions& options, const JobAccess& access, const JobView& view) {
  if (options.target == "control" || options.target == "launcher") {
    if (!access.launcher) return Error{Code::not_found, "the job's launcher does not run on this machine"};
    const bool control = options.target == "control";
    const auto pid = static_cast<pid_t>(control ? access.launcher->control_pid : access.launcher->pid);
    if (pid == 0)
      return Error{Code::not_found,
                   "the launcher did not start the control: run this command on the control's machine"};
    return Victim{{}, {}, {pid}, control ? 0 : access.launcher->start_time};
  }
  PAWL_ASSIGN(const std::uint32_t index, index_of(options, view));
  if (options.target == "trainer") return find_trainer(view, index);
  Victim victim;
  victim.node = NodeId(index);
  PAWL_ASSIGN(const pid_t keeper, keeper_of(access, view, victim.node));
  if (options.target == "node") {
    victim.pids = children_of(keeper);
    victim.pids.insert(victim.pids.begin(), keeper);
    return victim;
  }
  for (const NodeView& node : view.nodes)
    if (node.record.life.node == victim.node)
      victim.pids = {static_cast<pid_t>(member_of(node.answer, "pawld_pid").is_number()
                                            ? number_in(node.answer, "pawld_pid")
                                            : node.record.pawld_pid)};
  if (victim.pids.empty() || parent_of(victim.pids.front()) != keeper)
    return Error{Code::not_found, text("pawld of node ", victim.node, " is starting: try again")};
  return victim;
}

std::uint64_t step_of(const JobView& view, const Victim& victim) {
  std::uint64_t step = 0;
  for (const NodeView& node : view.nodes)
    if (node.record.life.node == victim.node)
      for (const json& trainer : array_in(node.answer, "trainers"))
        if (!victim.local_index || number_in(trainer, "local_index") == *victim.local_index)
          step = std::max(step, number_in(trainer, "step"));
  return step;
}

const NodeView* node_view(const JobView& view, NodeId node) {
  for (const NodeView& found : view.nodes)
    if (found.record.life.node == node) return &found;
  return nullptr;
}

bool is_trainer_phase(const std::string& phase) {
  static const std::vector<std::string> kPhases = {"compute",  "allreduce", "fence", "update",
                                                   "exchange", "allgather", "join",  "restore"};
  return std::find(kPhases.begin(), kPhases.end(), phase) != kPhases.end();
}

bool is_parked(const json& status, const std::string& phase, std::uint32_t local_index) {
  if (is_trainer_phase(phase))
    for (const json& trainer : array_in(status, "trainers"))
      if (number_in(trainer, "local_index") == local_index) return flag_in(trainer, "held");
  for (const json& hold : array_in(status, "holds"))
    if (string_in(hold, "phase") == phase && flag_in(hold, "held")) return true;
  return false;
}

// Parks the victim: afterwards it stands in `phase`, and only the release (or its death) lets it go on.
Status park(const DrillOptions& options, const JobAccess& access, const NodeRecord& record, const Victim& victim) {
  json hold = {{"ask", "hold"}, {"phase", options.phase}};
  if (is_trainer_phase(options.phase)) hold["local_index"] = victim.local_index.value_or(0);
  if (options.at_step) hold["step"] = *options.at_step;
  PAWL_TRY(ask_daemon(record, access.token, hold));
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(options.timeout_ms));
  while (!deadline.passed()) {
    const Result<json> status = ask_daemon(record, access.token, {{"ask", "status"}});
    if (status && is_parked(*status, options.phase, victim.local_index.value_or(0))) return {};
    real_clock().sleep(std::chrono::milliseconds(2));
  }
  (void)ask_daemon(record, access.token, {{"ask", "release"}});
  return Error{Code::timeout,
               text("node ", victim.node, " did not come to ", options.phase, " within ", options.timeout_ms, " ms")};
}

Status await_step(const DrillOptions& options, const JobAccess& access, const NodeRecord& record,
                  const Victim& victim) {
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(options.timeout_ms));
  while (!deadline.passed()) {
    JobView view;
    view.nodes.push_back({record, true, {}, ""});
    if (Result<json> status = ask_daemon(record, access.token, {{"ask", "status"}}))
      view.nodes.front().answer = std::move(status).value();
    if (step_of(view, victim) >= *options.at_step) return {};
    real_clock().sleep(std::chrono::milliseconds(2));
  }
  return Error{Code::timeout, text("node ", victim.node, " did not reach step ", *options.at_step, " within ",
                                   options.timeout_ms, " ms")};
}

Status wait_for_moment(const DrillOptions& options, const JobAccess& access, const JobView& view,
                       const Victim& victim) {
  if (options.phase.empty() && !options.at_step) return {};
  const NodeView* node = node_view(view, victim.node);
  if (node == nullptr || !node->registered || options.target == "control" || options.target == "launcher")
    return Error{Code::invalid,
                 "--at-step and --phase need a victim that is a node, a trainer or a daemon, and answers"};
  return options.phase.empty() ? await_step(options, access, node->record, victim)
                               : park(options, access, node->record, victim);
}

int signal_of(const std::string& action) {
  return action == "kill" ? SIGKILL : action == "stop" ? SIGSTOP : SIGCONT;
}

struct Blow {
  std::vector<pid_t> pids;
  Duration at{};  // Clock::now() right before the first signal
  Duration at_wall{};
};

Result<Blow> strike(const DrillOptions& options, const Victim& victim) {
  std::vector<Fd> pidfds;
  Blow blow;
  for (const pid_t pid : victim.pids) {
    Result<Fd> pidfd = open_pidfd(pid);
    if (!pidfd && pid != victim.pids.front()) continue;  // a child that has just ended
    if (!pidfd) return std::move(pidfd).error();
    if (pid == victim.pids.front() && victim.start_time != 0 &&
        process_start_time(pid).value_or(0) != victim.start_time)
      return Error{Code::not_found, text("process ", pid, " has ended and its number is used again: try again")};
    if (pid != victim.pids.front() && parent_of(pid) != victim.pids.front()) continue;
    pidfds.push_back(std::move(pidfd).value());
    blow.pids.push_back(pid);
  }
  blow.at = real_clock().now();
  blow.at_wall = real_clock().wall();
  for (std::size_t i = 0; i < pidfds.size(); ++i) {
    Status sent = send_signal(pidfds[i].get(), signal_of(options.action));
    if (!sent && i == 0) return std::move(sent).error().within(text("process ", blow.pids[i]));
  }
  return blow;
}

json seen_before(const JobAccess& access, const JobView& view, const Victim& victim) {
  const NodeView* node = node_view(view, victim.node);
  json phases = json::array();
  if (node == nullptr || !node->registered) return phases;
  const Result<json> status = ask_daemon(node->record, access.token, {{"ask", "status"}});
  if (!status) return phases;
  for (const json& trainer : array_in(*status, "trainers"))
    phases.push_back({{"seat", member_of(trainer, "seat")},
                      {"phase", string_in(trainer, "phase")},
                      {"step", number_in(trainer, "step")}});
  return phases;
}

int report(const DrillOptions& options, const Victim& victim, const Blow& blow, const json& observed) {
  if (options.job.json) {
    const json document = {
        {"action", options.action},        {"target", options.target},        {"which", options.which},
        {"node", victim.node.value},       {"phase", options.phase},          {"pids", blow.pids},
        {"monotonic_ns", blow.at.count()}, {"wall_ns", blow.at_wall.count()}, {"observed", observed}};
    print(document.dump() + "\n");
    return kExitOk;
  }
  std::string pids;
  for (const pid_t pid : blow.pids) pids += text(pids.empty() ? "" : ",", pid);
  std::string where;
  for (const json& one : observed)
    if (!string_in(one, "phase").empty())
      where += text(where.empty() ? "" : "; ", string_in(one, "phase"), " of step ", number_in(one, "step"));
  print(text(options.action, " ", options.target, options.which.empty() ? "" : " ", options.which,
             pids.empty() ? "" : text(": processes ", pids), " at ", blow.at.count(), " ns",
             where.empty() ? "" : text(" (seen just before: ", where, ")"), "\n"));
  return kExitOk;
}

Result<Blow> move_cable(const DrillOptions& options, const JobAccess& access, NodeId node) {
  if (!access.launcher) return Error{Code::not_found, "the job's launcher does not run on this machine"};
  for (const LauncherNode& found : access.launcher->nodes) {
    if (found.node != node) continue;
    if (access.launcher->netns.empty() || found.link.empty())
      return Error{Code::io,
                   "the nodes share this machine's network, so there is no link to cut: run the job with namespaces"};
    Blow blow{{}, real_clock().now(), real_clock().wall()};
    PAWL_TRY(set_link(access.launcher->netns, found.link, options.action == "heal"));
    return blow;
  }
  return Error{Code::not_found, text("node ", node, " does not run on this machine")};
}

}  // namespace

int command_drill(const DrillOptions& options) {
  const bool cable = options.action == "cut" || options.action == "heal";
  if (cable && options.target != "node")
    return usage_error(text("drill ", options.action, ": only a node has a cable (a network link)"));
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  // Without the control there is still a launcher's record to go by.
  Result<JobView> view = view_job(*access, "status");
  if (!view && options.target != "control" && options.target != "launcher") return report_error(view.error());
  if (!view) view = JobView{};
  Victim victim;
  if (cable) {
    const Result<std::uint32_t> node = index_of(options, *view);
    if (!node) return usage_error(node.error().what);
    victim.node = NodeId(*node);
  } else {
    Result<Victim> found = find_victim(options, *access, *view);
    if (!found)
      return found.error().code == Code::invalid ? usage_error(found.error().what) : report_error(found.error());
    victim = std::move(found).value();
  }
  if (Status ready = wait_for_moment(options, *access, *view, victim); !ready) return report_error(ready.error());
  const bool of_node = options.target != "control" && options.target != "launcher";
  const json observed = of_node && options.action != "continue" && options.action != "heal"
                            ? seen_before(*access, *view, victim)
                            : json::array();
  const Result<Blow> blow = cable ? move_cable(options, *access, victim.node) : strike(options, victim);
  if (!options.phase.empty() && of_node)
    if (const NodeView* node = node_view(*view, victim.node))
      (void)ask_daemon(node->record, access->token, {{"ask", "release"}});  // a dead one has nothing to release
  if (!blow) return report_error(blow.error());
  return report(options, victim, *blow, observed);
}

}  // namespace pawl::job
