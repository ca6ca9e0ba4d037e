#include "job/daemon/control_session.h"

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr Duration kRegisterPause = std::chrono::milliseconds(50);
constexpr Duration kRetryPause = std::chrono::milliseconds(200);

}  // namespace

ControlSession::ControlSession(Loop& loop, std::unique_ptr<Control> control,
                               std::function<void(Duration asked, bool answered)> on_answer)
    : loop_(loop),
      control_(std::move(control)),
      on_answer_(std::move(on_answer)),
      changed_(loop.environment().tasks.make_condition()) {
  worker_ = loop_.environment().tasks.start("pawl-control", [this] { run(jobs_); });
}

ControlSession::~ControlSession() {
  {
    std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_->notify_all();
  worker_->join();
  if (beside_worker_) beside_worker_->join();
  if (lease_) lease_->join();
}

void ControlSession::tell(std::function<void(Control&)> work) {
  enqueue([this, work = std::move(work)] { work(*control_); });
}

void ControlSession::tell_answer(Duration asked, bool answered) {
  post([this, asked, answered] { on_answer_(asked, answered); });
}

void ControlSession::post(std::function<void()> task) {
  loop_.post([alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void ControlSession::enqueue(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
  }
  changed_->notify_all();
}

void ControlSession::enqueue_beside(std::function<void()> job) {
  {
    std::lock_guard lock(mutex_);
    beside_.push_back(std::move(job));
  }
  changed_->notify_all();
  if (!beside_worker_) beside_worker_ = loop_.environment().tasks.start("pawl-listing", [this] { run(beside_); });
}

void ControlSession::run(Jobs& jobs) {
  std::unique_lock lock(mutex_);
  while (!ended_) {
    while (!ended_ && jobs.empty()) changed_->wait(lock);
    while (!ended_ && !jobs.empty()) {
      auto job = std::move(jobs.front());
      jobs.pop_front();
      lock.unlock();
      job();
      lock.lock();
    }
  }
}

void ControlSession::keep_registered(std::string key, Duration time_to_live, std::function<std::string()> value,
                                     std::function<void(Duration)> renewed) {
  key_ = std::move(key);
  time_to_live_ = time_to_live;
  value_ = std::move(value);
  renewed_ = std::move(renewed);
  lease_ = loop_.environment().tasks.start("pawl-lease", [this] { run_lease(); });
}

void ControlSession::register_again() {
  {
    std::lock_guard lock(mutex_);
    value_changed_ = true;
  }
  changed_->notify_all();
}

// One renewal, or a new lease and registration.
Status ControlSession::renew(LeaseId& lease, bool& registered) {
  const Duration asked_at = loop_.environment().clock.boottime();
  if (lease != 0) {
    auto left = control_->lease_keep_alive_once(lease);
    if (!left && left.error().code != Code::not_found) return left.error();
    if (left) renewed_(asked_at);
    if (!left) log_warn("lease_lost", "key", key_);
    if (!left) lease = 0;
  }
  if (lease == 0) {
    registered = false;
    PAWL_ASSIGN(lease, control_->lease_grant(std::chrono::ceil<std::chrono::seconds>(time_to_live_)));
  }
  if (registered) return {};
  auto put = control_->put(key_, value_(), lease);
  registered = put.has_value();
  if (registered) renewed_(asked_at);
  if (!put && put.error().code == Code::not_found) lease = 0;
  return put ? Status() : Status(put.error());
}

void ControlSession::run_lease() {
  LeaseId lease = 0;
  bool registered = false;
  for (;;) {
    Clock& clock = loop_.environment().clock;
    const Duration asked = clock.now();
    const Status renewed = renew(lease, registered);
    tell_answer(asked, has_answered(renewed));
    std::unique_lock lock(mutex_);
    const Duration pause = !registered ? kRegisterPause : renewed ? time_to_live_ / 4 : kRetryPause;
    const Duration until = clock.now() + pause;
    while (!ended_ && !value_changed_ && clock.now() < until) changed_->wait_for(lock, until - clock.now());
    if (value_changed_) registered = false;
    value_changed_ = false;
    if (ended_) break;
  }
  if (lease != 0) (void)control_->lease_revoke(lease);
}

std::unique_ptr<Watch> ControlSession::watch(const std::string& prefix, Revision from,
                                             std::function<void(const WatchEvent&)> on_event) {
  WatchOptions options;
  options.from_revision = from;
  return control_->watch(prefix, options, [this, on_event = std::move(on_event)](const WatchEvent& event) {
    loop_.post([event, on_event] { on_event(event); });
  });
}

}  // namespace pawl::job
