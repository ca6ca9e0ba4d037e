// Admission to a job: the first `pawl run` writes the spec; the others must have the same.
#include "base/text.h"
#include "cli/job/commands.h"
#include "cli/job/job_view.h"
#include "cli/job/launcher.h"
#include "env/clock.h"

namespace pawl::job {
namespace {

constexpr Duration kOldNodeWait = std::chrono::seconds(15);

template <class Value>
void differ(std::string& out, const char* what, const Value& ours, const Value& theirs) {
  if (ours == theirs) return;
  out += text(out.empty() ? "" : "; ", what, " is ", theirs, " there and ", ours, " here");
}

std::string shown(const std::string& domains) {
  return domains.empty() ? "not given" : domains;
}

// A keeper that was started again finds its own old registration until the lease ends.
Status wait_until_unregistered(Control& control, const LaunchPlan& plan) {
  const JobKeys keys(plan.spec.job);
  for (const NodePlan& node : plan.nodes) {
    const Deadline deadline = Deadline::in(kOldNodeWait);
    bool said = false;
    for (;;) {
      const Result<KeyValue> there = control.get(keys.node(node.node));
      if (!there && there.error().code == Code::not_found) break;
      PAWL_TRY(there);
      const Result<NodeRecord> record = parse_node_record(there->value);
      const std::string where = record ? record->address : "an unknown address";
      if (deadline.passed())
        return Error{Code::invalid, text("node ", node.node, " of job ", plan.spec.job, " is already registered at ",
                                         where, ": use another --node-rank, or another --job")};
      if (!said)
        say(text("node ", node.node, " is still registered at ", where, "; waiting for that registration to end"));
      said = true;
      real_clock().sleep(std::chrono::milliseconds(200));
    }
  }
  return {};
}

Status check_same_job(Control& control, const LaunchPlan& plan, const KeyValue& there) {
  const std::string& job = plan.spec.job;
  const Result<JobSpec> theirs = parse_job_spec(there.value);
  if (!theirs)
    return Error{Code::invalid, text("job ", job, " on this control was written by another version of pawl (",
                                     theirs.error().what, "): use the same version, or another --job")};
  if (!plan.may_join)
    return Error{Code::invalid, text("a job ", job, " already exists on this control: choose another --job")};
  if (const std::string difference = spec_difference(plan.spec, *theirs); !difference.empty())
    return Error{Code::invalid, text("job ", job, " already exists on this control and is not the same: ", difference,
                                     ". Start every node with the same flags and token, or choose another --job")};
  const Result<JobState> state = read_job_state(control, JobKeys(job));
  if (state && (state->phase == JobPhase::finished || state->phase == JobPhase::failed))
    return Error{Code::invalid,
                 text("job ", job, " has ended already (", name_of(state->phase), "): choose another --job")};
  return wait_until_unregistered(control, plan);
}

}  // namespace

// With which checkpoint a job begins is decided by whoever starts it: later there may be newer ones.
std::string spec_difference(const JobSpec& ours, const JobSpec& theirs) {
  std::string out;
  differ(out, "the protocol version", ours.version, theirs.version);
  if (ours.token_digest != theirs.token_digest) out += text(out.empty() ? "" : "; ", "the token differs");
  differ(out, "--nnodes", ours.node_count, theirs.node_count);
  differ(out, "--nproc-per-node", ours.seats_per_node, theirs.seats_per_node);
  differ(out, "--spares", ours.spare_count, theirs.spare_count);
  differ(out, "--replicas", ours.replica_count, theirs.replica_count);
  differ(out, "--domains", shown(ours.domains), shown(theirs.domains));
  differ(out, "--fewer-domains", ours.fewer_domains, theirs.fewer_domains);
  differ(out, "--memory (bytes)", ours.memory_bytes, theirs.memory_bytes);
  differ(out, "--replica-bandwidth (bytes a second)", ours.replica_bytes_a_second, theirs.replica_bytes_a_second);
  differ(out, "--checkpoint", shown(ours.checkpoints.path), shown(theirs.checkpoints.path));
  differ(out, "--every (steps)", ours.checkpoints.every_steps, theirs.checkpoints.every_steps);
  differ(out, "--every (ms)", ours.checkpoints.every_ms, theirs.checkpoints.every_ms);
  differ(out, "--every auto", ours.checkpoints.every_auto, theirs.checkpoints.every_auto);
  differ(out, "--persist-bandwidth (bytes a second)", ours.checkpoints.bytes_a_second,
         theirs.checkpoints.bytes_a_second);
  differ(out, "--keep-last", ours.checkpoints.keep_last, theirs.checkpoints.keep_last);
  differ(out, "--keep-every", ours.checkpoints.keep_every, theirs.checkpoints.keep_every);
  differ(out, "--no-wait", !ours.wait_for_spare, !theirs.wait_for_spare);
  differ(out, "--test-hooks", ours.test_hooks, theirs.test_hooks);
  differ(out, "--gate-off", ours.gate_off, theirs.gate_off);
  differ(out, "--deadline-ms", ours.deadline_ms, theirs.deadline_ms);
  differ(out, "--hang-ms", ours.hang_ms, theirs.hang_ms);
  differ(out, "--start-timeout (ms)", ours.start_ms, theirs.start_ms);
  return out;
}

Status admit(Control& control, const LaunchPlan& plan) {
  const Result<Swapped> swap = control.compare_and_swap(JobKeys(plan.spec.job).spec(), 0, to_json(plan.spec));
  if (!swap) {
    const bool away = swap.error().code == Code::unreachable || swap.error().code == Code::timeout;
    const bool token = swap.error().what.find("auth token") != std::string::npos;
    const char* remedy = away    ? ": start it there (`pawl control` or etcd), or check --control and the network"
                         : token ? ": it was started with another token: use the same --token-file"
                                 : "";
    return Error{swap.error().code, text("control ", plan.own_endpoints, ": ", swap.error().what, remedy)};
  }
  if (swap->won) return {};
  if (!swap->current) return Error{Code::stale, "the job was created and removed at the same moment: try again"};
  // Ours, if an earlier answer was lost on the way.
  if (!plan.may_join && swap->current->value == to_json(plan.spec)) return {};
  return check_same_job(control, plan, *swap->current);
}

}  // namespace pawl::job
