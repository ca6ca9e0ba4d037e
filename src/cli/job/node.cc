// `pawl node cordon|uncordon N`: whether a node may get seats. An order is a key of the job, which every pawld reads.
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/output.h"
#include "env/clock.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

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
  for (const NodeView& known : view.nodes)
    if (known.record.life.node == node) return true;
  return false;
}

bool has_seats(const JobView& view, NodeId node) {
  if (!view.state) return false;
  for (const Member& member : view.state->seats)
    if (member.life.node == node) return true;
  return false;
}

int report(const NodeOptions& options, const JobAccess& access, const JobView& view, bool changed,
           const std::string& sentence) {
  const NodeId node(options.node);
  if (options.job.json)
    print(json{{"job", access.job},
               {"action", options.action},
               {"node", options.node},
               {"changed", changed},
               {"has_seats", has_seats(view, node)}}
              .dump() +
          "\n");
  else
    print(sentence + "\n");
  return kExitOk;
}

int cordon(const NodeOptions& options, const JobAccess& access, const JobView& view) {
  const NodeId node(options.node);
  if (!is_known(view, node))
    return report_error({Code::not_found, text("job ", access.job, " has no node ", node, "; its nodes are ",
                                               numbers_of_nodes(view))});
  const bool changed = !contains(view.cordoned, node);
  if (changed) {
    if (const auto put = access.control->put(JobKeys(access.job).cordon(node), "{}"); !put)
      return report_error(put.error());
    tell_event(access, view, "node_cordoned", node);
  }
  return report(options, access, view, changed,
                text("node ", node, changed ? " is cordoned: it gets no seat" : " was cordoned before",
                     has_seats(view, node) ? "; it keeps the seats that it has" : ""));
}

int uncordon(const NodeOptions& options, const JobAccess& access, const JobView& view) {
  const NodeId node(options.node);
  const bool changed = contains(view.cordoned, node);
  if (!changed && !is_known(view, node))
    return report_error({Code::not_found, text("job ", access.job, " has no node ", node, "; its nodes are ",
                                               numbers_of_nodes(view))});
  if (changed) {
    if (const auto erased = access.control->erase(JobKeys(access.job).cordon(node)); !erased)
      return report_error(erased.error());
    tell_event(access, view, "node_uncordoned", node);
  }
  return report(options, access, view, changed,
                text("node ", node, changed ? " may get seats again" : " is not cordoned"));
}

}  // namespace

int command_node(const NodeOptions& options) {
  const Result<JobAccess> access = find_job(options.job);
  if (!access) return report_error(access.error());
  const Result<JobView> view = read_job(*access);
  if (!view) return report_error(view.error());
  return options.action == "cordon" ? cordon(options, *access, *view) : uncordon(options, *access, *view);
}

}  // namespace pawl::job
