// ControlSession: the control from the loop's point of view. Calls that block run in a task of its own, in order.
//
// Answers come back as tasks of the loop, and none after the session's end (which is on the loop, or when it has ended).
// The node's lease is kept alive on a second task, so that a slow call never costs the registration. While the control is
// away calls fail (`unreachable`) and the caller asks again: everything it does is idempotent. Ends with its tasks joined.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "job/control/control.h"
#include "job/daemon/loop.h"

namespace pawl::job {

class ControlSession {
 public:
  // `on_answer`, on the loop: a call that was begun at `asked` (steady clock) was answered, or not in its time.
  ControlSession(Loop& loop, std::unique_ptr<Control> control,
                 std::function<void(Duration asked, bool answered)> on_answer);
  ~ControlSession();

  // Runs `work` on the session's thread, then `then(its result)` on the loop.
  template <class T>
  void call(std::function<Result<T>(Control&)> work, std::function<void(Result<T>)> then) {
    enqueue([this, work = std::move(work), then = std::move(then)] {
      const Duration asked = loop_.environment().clock.now();
      auto result = std::make_shared<Result<T>>(work(*control_));
      tell_answer(asked, has_answered(*result));
      post([result, then] { then(std::move(*result)); });
    });
  }
  // As call, for answers that grow with the job: how long one takes says nothing of the control.
  template <class T>
  void call_untimed(std::function<Result<T>(Control&)> work, std::function<void(Result<T>)> then) {
    enqueue([this, work = std::move(work), then = std::move(then)] {
      auto result = std::make_shared<Result<T>>(work(*control_));
      post([result, then] { then(std::move(*result)); });
    });
  }
  // As call_untimed, but others don't wait for it, nor it for them: for what may take long.
  template <class T>
  void call_beside(std::function<Result<T>(Control&)> work, std::function<void(Result<T>)> then) {
    enqueue_beside([this, work = std::move(work), then = std::move(then)] {
      auto result = std::make_shared<Result<T>>(work(*control_));
      post([result, then] { then(std::move(*result)); });
    });
  }
  // As call, and nobody cares about the answer.
  void tell(std::function<void(Control&)> work);

  // Registers `value` under `key` with a lease and keeps it: again and again after any loss. `value` is asked for on
  // the lease's thread and must be thread-safe. `renewed` gets the boot time at which a renewal was asked for.
  void keep_registered(std::string key, Duration time_to_live, std::function<std::string()> value,
                       std::function<void(Duration)> renewed);
  void register_again();  // the value has changed

  [[nodiscard]] std::unique_ptr<Watch> watch(const std::string& prefix, Revision from,
                                             std::function<void(const WatchEvent&)> on_event);

 private:
  template <class T>
  [[nodiscard]] static bool has_answered(const Result<T>& result) {  // a refusal is an answer, too
    return result || (result.error().code != Code::unreachable && result.error().code != Code::timeout);
  }
  void tell_answer(Duration asked, bool answered);
  void post(std::function<void()> task);  // to the loop, for as long as this lives
  using Jobs = std::deque<std::function<void()>>;
  void enqueue(std::function<void()> job);
  void enqueue_beside(std::function<void()> job);
  void run(Jobs& jobs);
  void run_lease();
  Status renew(LeaseId& lease, bool& registered);

  Loop& loop_;
  std::unique_ptr<Control> control_;
  const std::function<void(Duration, bool)> on_answer_;
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
  std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  Jobs jobs_, beside_;
  bool ended_ = false;

  std::string key_;
  Duration time_to_live_{};
  std::function<std::string()> value_;
  std::function<void(Duration)> renewed_;
  bool value_changed_ = false;
  std::unique_ptr<Task> worker_;
  std::unique_ptr<Task> beside_worker_;  // since the first call beside
  std::unique_ptr<Task> lease_;
};

}  // namespace pawl::job
