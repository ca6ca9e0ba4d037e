// JobWatch: what the control says of the job, looked at by a thread of its own, because the control may be slow or
// away.
//
// Reads only. The launcher needs it to speak to people and to know the end; it decides nothing.
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
#include "env/poller.h"
#include "job/control/control.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct JobSeen {
  bool answered = false;  // the last look was answered
  std::string why_not;
  std::optional<JobState> state;  // the last that was read
  std::vector<NodeId> registered;
  std::map<NodeId, std::string> unhealthy;  // of those, with the reason
};

class JobWatch {
 public:
  // `control` is borrowed until the destructor returns.
  JobWatch(Control& control, const std::string& job);
  ~JobWatch();
  JobWatch(const JobWatch&) = delete;
  JobWatch& operator=(const JobWatch&) = delete;

  [[nodiscard]] JobSeen seen() const;
  [[nodiscard]] JobSeen look();  // now, on this thread; as long as the control's deadline
  // What the job's daemons have told since the last call, in order.
  [[nodiscard]] std::vector<json> take_events();

 private:
  void run();
  Control& control_;
  const JobKeys keys_;
  mutable std::mutex mutex_;
  JobSeen seen_;
  std::vector<json> events_;
  std::atomic<bool> stopping_{false};
  Event stop_;
  std::thread thread_;
  std::unique_ptr<Watch> watch_;  // of the events
};

}  // namespace pawl::job
