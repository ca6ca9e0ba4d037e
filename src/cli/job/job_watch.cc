#include "cli/job/job_watch.h"

#include <poll.h>

#include "base/check.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr int kLookEveryMs = 300;

Event make_event() {
  Result<Event> event = Event::make();
  PAWL_CHECK(event, event.error().what);
  return std::move(event).value();
}

}  // namespace

JobWatch::JobWatch(Control& control, const std::string& job)
    : control_(control), keys_(job), stop_(make_event()), thread_([this] { run(); }) {}

JobWatch::~JobWatch() {
  stopping_ = true;
  stop_.raise();
  thread_.join();
}

JobSeen JobWatch::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

JobSeen JobWatch::look() {
  JobSeen now = seen();
  const Result<KeyValue> state = control_.get(keys_.state());
  now.answered = state || state.error().code == Code::not_found;
  now.why_not = now.answered ? "" : state.error().what;
  if (state) {
    Result<JobState> parsed = parse_job_state(state->value);
    if (parsed)
      now.state = std::move(parsed).value();
    else
      now.why_not = parsed.error().what;
  }
  // Who is registered matters to people only while the job can't go on.
  if (now.answered && (!now.state || now.state->phase == JobPhase::forming)) {
    if (const Result<Listing> nodes = control_.list(keys_.nodes())) {
      now.registered.clear();
      for (const KeyValue& kv : nodes->kvs)
        if (const Result<NodeRecord> record = parse_node_record(kv.value)) now.registered.push_back(record->life.node);
    }
  }
  const std::lock_guard lock(mutex_);
  return seen_ = now;
}

void JobWatch::run() {
  while (!stopping_) {
    (void)look();
    pollfd entry{stop_.fd(), POLLIN, 0};
    (void)poll(&entry, 1, kLookEveryMs);
  }
}

}  // namespace pawl::job
