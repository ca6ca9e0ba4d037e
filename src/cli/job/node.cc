// `pawl node cordon|uncordon|drain N`: whether a node may have seats. An order is a key of the job, which every pawld
// reads; the pawlds carry it out (job/recovery/draining.h).
#include <algorithm>
#include <optional>

#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/output.h"
#include "env/clock.h"
#include "job/recovery/draining.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(100);

// As a pawld tells events (job/daemon/events.h); best effort.
void tell_event(const JobAccess& access, const JobView& view, const char* kind, NodeId node) {
  const Duration wall = real_clock().wall();
  const json event = {{"kind", kind},
                      {"at_ms", static_cast<std::uint64_t>(wall / std::chrono::milliseconds(1))},
                      {"at_monotonic_ns", real_clock().now().count()},
                      {"node", node.value},
                      {"generation", view.state ? view.state->generation.value : 0}};
  const std::string key = JobKeys(access.job).event(static_cast<std::uint64_t>(wall.count()), node);
  (void)access.control->put(key, event.dump());
}

std::string numbers_of_nodes(const JobView& view) {
  std::string out;
  for (const NodeView& node : view.nodes) out += text(out.empty() ? "" : ", ", node.record.life.node);
  return out;
}

bool is_known(const JobView& view, NodeId node) {
  return std::ranges::any_of(view.nodes, [node](const NodeView& known) { return known.record.life.node == node; });
}

// The life of the node that has seats.
std::optional<NodeLife> member_life(const JobView& view, NodeId node) {
  if (!view.state) return std::nullopt;
  for (const NodeLife& life : survivors_of(*view.state))
    if (life.node == node) return life;
  return std::nullopt;
}

int unknown_node(const JobAccess& access, const JobView& view, NodeId node) {
  return report_error(
      {Code::not_found, text("job ", access.job, " has no node ", node, "; its nodes are ", numbers_of_nodes(view))});
}

int report(const NodeOptions& options, json fields, const std::string& sentence) {
  fields["action"] = options.action;
  fields["node"] = options.node;
  print((options.job.json ? fields.dump() : sentence) + "\n");
  return kExitOk;
}

Status put_cordon(const JobAccess& access, const JobView& view, NodeId node) {
  if (contains(view.cordoned, node)) return {};
  const auto put = access.control->put(JobKeys(access.job).cordon(node), "{}");
  if (!put) return put.error();
  tell_event(access, view, "node_cordoned", node);
  return {};
}

int cordon(const NodeOptions& options, const JobAccess& access, const JobView& view) {
  const NodeId node(options.node);
  if (!is_known(view, node)) return unknown_node(access, view, node);
  if (const Status put = put_cordon(access, view, node); !put) return report_error(put.error());
  const bool changed = !contains(view.cordoned, node);
  const bool seated = member_life(view, node).has_value();
  return report(options, {{"changed", changed}, {"has_seats", seated}},
                text("node ", node, changed ? " is cordoned: it gets no seat" : " was cordoned before",
                     seated ? "; it keeps the seats that it has" : ""));
}

int uncordon(const NodeOptions& options, const JobAccess& access, const JobView& view) {
  const NodeId node(options.node);
  const bool drains = std::ranges::any_of(view.leaving, [node](NodeLife life) { return life.node == node; });
  const bool changed = drains || contains(view.cordoned, node);
  if (!changed && !is_known(view, node)) return unknown_node(access, view, node);
  const JobKeys keys(access.job);
  if (drains) {
    if (const auto erased = access.control->erase(keys.drain(node)); !erased) return report_error(erased.error());
  }
  if (changed) {
    if (const auto erased = access.control->erase(keys.cordon(node)); !erased) return report_error(erased.error());
    tell_event(access, view, "node_uncordoned", node);
  }
  return report(options, {{"changed", changed}, {"has_seats", member_life(view, node).has_value()}},
                text("node ", node, changed ? " may get seats again" : " is not cordoned"));
}

// Why the pawlds have given the drain up; empty: they didn't say.
std::string why_given_up(const Listing& events, NodeLife leaving) {
  std::string why;
  for (const KeyValue& kv : events.kvs) {
    const json event = json::parse(kv.value, nullptr, false);
    if (string_in(event, "kind") == "drain_given_up" && number_in(event, "leaving") == leaving.node.value)
      why = string_in(event, "why");
  }
  return why;
}

// Steps that some seat had begun when the recoveries after `generation` froze it, beyond the resume step.
std::uint64_t steps_redone(const Listing& events, const JobState& state, Generation generation) {
  std::uint64_t begun = 0;
  for (const KeyValue& kv : events.kvs) {
    const json event = json::parse(kv.value, nullptr, false);
    const std::uint64_t of = number_in(event, "generation");
    if (string_in(event, "kind") == "frozen" && of > generation.value && of <= state.generation.value)
      begun = std::max(begun, number_in(event, "step"));
  }
  return begun - std::min(begun, state.resume.value);
}

int drained(const NodeOptions& options, const JobAccess& access, const JobState& before, const JobState& now,
            NodeLife leaving) {
  const Result<Listing> events = access.control->list(JobKeys(access.job).events());
  const std::uint64_t redone = events ? steps_redone(*events, now, before.generation) : 0;
  json moved = json::array();
  std::string where;
  for (const Seat seat : seats_of(before, leaving)) {
    const NodeId to = now.seats[seat.value].life.node;
    moved.push_back({{"seat", seat.value}, {"to", to.value}});
    where += text(where.empty() ? "" : ", ", "seat ", seat, " is on node ", to);
  }
  return report(options,
                {{"changed", true},
                 {"done", true},
                 {"moved", moved},
                 {"generation", now.generation.value},
                 {"resume", now.resume.value},
                 {"redone", redone}},
                text("node ", leaving.node, " is drained: ", where, "; resumed after step ", now.resume, ", ", redone,
                     redone == 1 ? " step" : " steps", " done again. The node may be stopped; `pawl node uncordon ",
                     leaving.node, "` makes it a spare"));
}

// What is said while it lasts; each once.
std::string progress_of(const JobView& view, NodeLife leaving) {
  if (view.state->phase != JobPhase::running)
    return view.state->waiting.empty() ? text("generation ", view.state->generation, ": the seats move")
                                       : text("waiting for ", view.state->waiting);
  return text("waiting until every trainer has done the same step and the copies of node ", leaving.node,
              "'s seats are complete");
}

int wait_drained(const NodeOptions& options, const JobAccess& access, const JobState& before, NodeLife leaving) {
  const Deadline deadline = Deadline::in(std::chrono::milliseconds(options.timeout_ms));
  std::string said;
  for (;;) {
    const Result<JobView> view = read_job(access);
    if (!view && view.error().code != Code::unreachable && view.error().code != Code::timeout)
      return report_error(view.error());
    if (view && view->state) {
      const JobState& state = *view->state;
      const bool seated = is_survivor(state, leaving);
      if (state.phase == JobPhase::failed)
        return report_error({Code::invalid, text("the job has failed: ", state.verdict)});
      if (state.phase == JobPhase::finished)
        return report(options, {{"changed", true}, {"done", true}, {"moved", json::array()}},
                      "the job has finished before; no node has seats any more");
      if (!seated && state.phase == JobPhase::running) return drained(options, access, before, state, leaving);
      if (seated && state.phase == JobPhase::running && !contains(view->leaving, leaving)) {
        const Result<Listing> events = access.control->list(JobKeys(access.job).events());
        const std::string why = events ? why_given_up(*events, leaving) : "";
        const bool cordoned = contains(view->cordoned, leaving.node);
        return report_error(
            {Code::cancelled,
             text("node ", leaving.node, " keeps its seats: ", why.empty() ? "the drain was withdrawn" : why,
                  cordoned ? "; it is still cordoned: drain it again, or `pawl node uncordon` it" : "")});
      }
      if (std::string now = progress_of(*view, leaving); now != said) say(said = std::move(now));
    }
    if (deadline.passed())
      return report_error(
          {Code::timeout, text("node ", leaving.node, " still has its seats; the order stands: drain it ",
                               "again to wait, or withdraw it with `pawl node uncordon ", leaving.node, "`")});
    real_clock().sleep(kLookEvery);
  }
}

int drain(const NodeOptions& options, const JobAccess& access, const JobView& view) {
  const NodeId node(options.node);
  if (!is_known(view, node)) return unknown_node(access, view, node);
  if (!view.state)
    return report_error({Code::invalid, "the job has not formed yet: nobody has seats; cordon the node"});
  const JobState& state = *view.state;
  if (state.phase == JobPhase::finished || state.phase == JobPhase::failed)
    return report_error({Code::invalid, text("the job has ", name_of(state.phase), ": nobody has seats")});
  const std::optional<NodeLife> leaving = member_life(view, node);
  if (!leaving) {
    if (const Status put = put_cordon(access, view, node); !put) return report_error(put.error());
    return report(options, {{"changed", !contains(view.cordoned, node)}, {"done", true}, {"moved", json::array()}},
                  text("node ", node, " has no seats; it is cordoned, and may be stopped"));
  }
  const bool ordered = contains(view.leaving, *leaving);
  if (!ordered) {
    std::vector<NodeRecord> nodes;
    for (const NodeView& known : view.nodes)
      if (known.registered) nodes.push_back(known.record);
    if (const Status may = may_drain(view.spec, state, nodes, view.cordoned, view.leaving, *leaving); !may)
      return report_error(may.error());
    // First: what comes back of the node must not be its own spare.
    if (const Status put = put_cordon(access, view, node); !put) return report_error(put.error());
    const json order = {{"incarnation", leaving->incarnation.value}};
    if (const auto put = access.control->put(JobKeys(access.job).drain(node), order.dump()); !put)
      return report_error(put.error());
    tell_event(access, view, "node_drain_ordered", node);
  }
  if (!options.no_wait) return wait_drained(options, access, state, *leaving);
  return report(options, {{"changed", !ordered}, {"done", false}, {"moved", json::array()}},
                text("node ", node, " is being drained; `pawl status` shows when it has no seats any more"));
}

}  // namespace

int command_node(const NodeOptions& options) {
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  const Result<JobView> view = read_job(*access);
  if (!view) return report_error(view.error());
  if (options.action == "cordon") return cordon(options, *access, *view);
  return options.action == "uncordon" ? uncordon(options, *access, *view) : drain(options, *access, *view);
}

}  // namespace pawl::job
