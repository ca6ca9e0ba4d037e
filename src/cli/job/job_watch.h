// JobWatch: what the control says of the job, followed by a thread of its own, because the control may be slow or away.
//
// Reads only. The launcher needs it to speak to people and to know the end; it decides nothing. There may be a launcher on
// each of thousands of machines, so each follows one small key. What grows with the nodes, all events and who is
// registered, is read by one launcher, that of node 0; the others read no more than their own nodes' registrations.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/json_access.h"
#include "cli/job/job_view.h"
#include "env/poller.h"
#include "job/control/control.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct JobSeen {
  bool answered = false;  // the last look was answered
  std::string why_not;
  std::shared_ptr<const JobState> state;  // the last that was read; nullptr: none yet
  std::vector<NodeId> registered;
  std::map<NodeId, std::string> unhealthy;  // of those, with the reason
};

class JobWatch {
 public:
  // `control` is borrowed until the destructor returns. `nodes`: of this launcher; with node 0 among them it reads of all.
  JobWatch(Control& control, const std::string& job, const std::vector<NodeId>& nodes);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  [[nodiscard]] bool reads_all() const { return reads_all_; }
  [[nodiscard]] JobSeen seen() const;
  [[nodiscard]] JobSeen look();  // now, on this thread; as long as the control's deadline
  // What the job's daemons have told since the last call, in order. Nothing unless reads_all().
  [[nodiscard]] std::vector<json> take_events();

 private:
  void run();
  JobSeen look_at(std::optional<KeyValue> state);
  void note_registered(JobSeen& now);
  [[nodiscard]] Result<std::vector<KeyValue>> registrations();
  [[nodiscard]] std::optional<KeyValue> take_told();

  Control& control_;
  const JobKeys keys_;
  const std::vector<NodeId> nodes_;
  const bool reads_all_;
  std::mutex look_mutex_;  // one look at a time
  StateReader reader_;
  mutable std::mutex mutex_;
  JobSeen seen_;
  std::vector<json> events_;
  std::optional<KeyValue> told_;  // the state, newer than `seen_`
  std::atomic<bool> stopping_{false};
  Event wake_;
  std::thread thread_;
  std::unique_ptr<Watch> state_watch_;
  std::unique_ptr<Watch> event_watch_;
};

}  // namespace pawl::job
