#include "cli/job/job_watch.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/contains.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr int kLookEveryMs = 5000;  // besides what the watch tells: whether the control answers
constexpr int kLookSoonMs = 300;    // while it doesn't, or few nodes have registered and more must
constexpr std::size_t kFewNodes = 100;
constexpr std::size_t kEventsMax = 10'000;  // that nobody takes

Event make_event() {
  Result<Event> event = Event::make();
  PAWL_CHECK(event, event.error().what);
  return std::move(event).value();
}

bool has_formed(const JobSeen& seen) {
  return seen.state != nullptr && seen.state->phase != JobPhase::forming;
}

}  // namespace

JobWatch::JobWatch(Control& control, const std::string& job, const std::vector<NodeId>& nodes)
    : control_(control),
      keys_(job),
      nodes_(nodes),
      reads_all_(contains(nodes, NodeId(0))),
      reader_(control, keys_),
      wake_(make_event()),
      thread_([this] { run(); }) {
  WatchOptions options;
  options.on_connection = [this](bool) { wake_.raise(); };  // what was put before that is asked for
  state_watch_ = control.watch(keys_.state(), options, [this](const WatchEvent& event) {
    const std::lock_guard lock(mutex_);
    if (event.kind == WatchEvent::Kind::put && event.kv.key == keys_.state()) told_ = event.kv;
    wake_.raise();
  });
  if (!reads_all_) return;
  event_watch_ = control.watch(keys_.events(), {}, [this](const WatchEvent& event) {
    if (event.kind != WatchEvent::Kind::put) return;
    json told = json::parse(event.kv.value, nullptr, false);
    const std::lock_guard lock(mutex_);
    if (told.is_object() && events_.size() < kEventsMax) events_.push_back(std::move(told));
  });
}

JobWatch::~JobWatch() {
  state_watch_.reset();
  event_watch_.reset();
  stopping_ = true;
  wake_.raise();
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

std::optional<KeyValue> JobWatch::take_told() {
  const std::lock_guard lock(mutex_);
  return std::exchange(told_, {});
}

JobSeen JobWatch::look() {
  return look_at({});
}

// `state`: as a watch has told it; none: it is asked for.
JobSeen JobWatch::look_at(std::optional<KeyValue> state) {
  const std::lock_guard one_at_a_time(look_mutex_);
  JobSeen now = seen();
  if (state && state->mod_revision <= reader_.revision()) return now;
  Result<JobState> read = reader_.read(std::move(state));
  const bool unreadable = !read && (read.error().code == Code::corrupt || read.error().code == Code::stale);
  now.answered = read || unreadable || read.error().code == Code::not_found;
  now.why_not = !now.answered || unreadable ? read.error().what : "";
  if (read) now.state = std::make_shared<const JobState>(std::move(read).value());
  // Who is registered matters to people only while the job can't go on.
  if (now.answered && !has_formed(now)) note_registered(now);
  const std::lock_guard lock(mutex_);
  return seen_ = now;
}

void JobWatch::note_registered(JobSeen& now) {
  const Result<std::vector<KeyValue>> nodes = registrations();
  if (!nodes) return;
  now.registered.clear();
  now.unhealthy.clear();
  for (const KeyValue& kv : *nodes) {
    const Result<NodeRecord> record = parse_node_record(kv.value);
    if (!record) continue;
    now.registered.push_back(record->life.node);
    if (!record->healthy && !record->unhealthy.empty()) now.unhealthy[record->life.node] = record->unhealthy;
  }
}

Result<std::vector<KeyValue>> JobWatch::registrations() {
  if (reads_all_) {
    PAWL_ASSIGN(Listing all, control_.list(keys_.nodes()));
    return std::move(all.kvs);
  }
  std::vector<KeyValue> own;
  for (const NodeId node : nodes_) {
    Result<KeyValue> there = control_.get(keys_.node(node));
    if (!there && there.error().code != Code::not_found) return there.error();
    if (there) own.push_back(std::move(*there));
  }
  return own;
}

void JobWatch::run() {
  while (!stopping_) {
    const JobSeen now = look_at(take_told());
    const bool counts_nodes = reads_all_ && !has_formed(now) && now.registered.size() < kFewNodes;
    pollfd entry{wake_.fd(), POLLIN, 0};
    (void)poll(&entry, 1, !now.answered || counts_nodes ? kLookSoonMs : kLookEveryMs);
    (void)wake_.lower();
  }
}

}  // namespace pawl::job
