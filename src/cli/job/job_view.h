// JobView: a job as it is now, from the control and from every node's daemon.
//
// The daemons are asked all at once, each within a deadline: one that is stopped is told by its silence.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_access.h"
#include "base/result.h"
#include "cli/job/run_directory.h"
#include "job/control/control.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct NodeView {
  NodeRecord record;
  bool registered = true;  // false: a member whose lease has ended
  json answer;             // what its daemon said; null if nothing
  std::string why_not;
};
struct JobView {
  JobSpec spec;
  std::optional<JobState> state;
  std::vector<NodeView> nodes;
  std::vector<NodeId> cordoned;
  std::vector<NodeLife> leaving;  // that are being drained
};

// A question (docs/protocol.md) to one daemon: by its Unix path if that exists here, else by TCP with the token.
// Fails: `unreachable`, `timeout`; `invalid` with the daemon's own sentence.
[[nodiscard]] Result<json> ask_daemon(const NodeRecord& record, const std::string& token, json question);

// The job's state, again and again. The topology that it names is large and seldom another one: it is kept. One thread.
class StateReader {
 public:
  StateReader(Control& control, const JobKeys& keys) : control_(control), keys_(keys) {}
  // `there`: the state's key, as a watch has told it; none: it is read. Fails: `not_found` if the job has no state yet;
  // `corrupt`, `stale` if it can't be read; as Control.
  [[nodiscard]] Result<JobState> read(std::optional<KeyValue> there = {});
  [[nodiscard]] Revision revision() const { return revision_; }  // of what was read last

 private:
  Status learn_topology_of(const KeyValue& state);
  Status learn_sheet_of(const KeyValue& state);

  Control& control_;
  const JobKeys keys_;
  std::optional<Topology> topology_;
  std::optional<Sheet> sheet_;
  Revision revision_ = 0;
};
[[nodiscard]] Result<JobState> read_job_state(Control& control, const JobKeys& keys);  // once

// From the control alone: no daemon is asked. Fails: `not_found` if the control knows no such job; as Control.
[[nodiscard]] Result<JobView> read_job(const JobAccess& access);
// And what every node answers to `question`. Fails: as read_job.
[[nodiscard]] Result<JobView> view_job(const JobAccess& access, const char* question);

// All that is known in one document, as `pawl status -o json` prints it.
[[nodiscard]] json status_document(const JobView& view);
// How state is kept, and by which plan: as a document, and as a sentence without an end.
[[nodiscard]] json redundancy_document(const JobView& view);
[[nodiscard]] std::string redundancy_line(const JobView& view);
// Why the job is not as safe as it was asked to be; empty: it is.
[[nodiscard]] std::vector<std::string> degradations(const JobView& view, const json& document);

}  // namespace pawl::job
