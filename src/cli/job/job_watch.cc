#include "cli/job/job_watch.h"

#include <poll.h>

#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "cli/job/job_view.h"

namespace pawl::job {
namespace {

constexpr int kLookEveryMs = 300;
constexpr std::size_t kEventsMax = 10'000;  // that nobody takes

Event make_event() {
  Result<Event> event = Event::make();
  PAWL_CHECK(event, event.error().what);
  return std::move(event).value();
}

}  // namespace

JobWatch::JobWatch(Control& control, const std::string& job)
    : control_(control), keys_(job), stop_(make_event()), thread_([this] { run(); }) {
  watch_ = control.watch(keys_.events(), {}, [this](const WatchEvent& event) {
    if (event.kind != WatchEvent::Kind::put) return;
    json told = json::parse(event.kv.value, nullptr, false);
    const std::lock_guard lock(mutex_);
    if (told.is_object() && events_.size() < kEventsMax) events_.push_back(std::move(told));
  });
}

JobWatch::~JobWatch() {
  watch_.reset();
  stopping_ = true;
  stop_.raise();
  thread_.join();
}

JobSeen JobWatch::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

std::vector<json> JobWatch::take_events() {
  const std::lock_guard lock(mutex_);
  return std::exchange(events_, {});
}

JobSeen JobWatch::look() {
  JobSeen now = seen();
  Result<JobState> state = read_job_state(control_, keys_);
  const bool unreadable = !state && (state.error().code == Code::corrupt || state.error().code == Code::stale);
  now.answered = state || unreadable || state.error().code == Code::not_found;
  now.why_not = !now.answered || unreadable ? state.error().what : "";
  if (state) now.state = std::move(state).value();
  // Who is registered matters to people only while the job can't go on.
  if (now.answered && (!now.state || now.state->phase == JobPhase::forming)) {
    if (const Result<Listing> nodes = control_.list(keys_.nodes())) {
      now.registered.clear();
      now.unhealthy.clear();
      for (const KeyValue& kv : nodes->kvs) {
        const Result<NodeRecord> record = parse_node_record(kv.value);
        if (!record) continue;
        now.registered.push_back(record->life.node);
        if (!record->healthy && !record->unhealthy.empty()) now.unhealthy[record->life.node] = record->unhealthy;
      }
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
