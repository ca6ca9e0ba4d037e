#include "job/daemon/loop.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr Duration kTimersWaitMax = std::chrono::milliseconds(5);  // for tasks that were posted together
constexpr Duration kLogPause = std::chrono::seconds(10);
constexpr Duration kLookFrom = std::chrono::milliseconds(1);  // below, nobody asks whether it waited for a core

std::string name_of(const std::type_info& type) {
  std::unique_ptr<char, decltype(&std::free)> readable(abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr),
                                                       &std::free);
  std::string name = readable ? readable.get() : type.name();
  for (std::size_t at = 0; (at = name.find("pawl::job::")) != std::string::npos;) name.erase(at, 11);
  return name;
}

}  // namespace

Result<std::unique_ptr<Loop>> Loop::make(const Environment& environment) {
  PAWL_ASSIGN(std::unique_ptr<Poller> poller, environment.network.make_poller());
  return std::unique_ptr<Loop>(new Loop(environment, std::move(poller)));
}

void Loop::post(Task task) {
  {
    std::lock_guard lock(posted_mutex_);
    posted_.push_back(std::move(task));
  }
  poller_->wake();
}

std::uint64_t Loop::watch(int handle, Interest interest, std::function<void(const Ready&)> handler) {
  const std::uint64_t id = next_id_++;
  const Status added = poller_->add(handle, id, interest);
  PAWL_CHECK(added.has_value(), "watching a stream: ", added ? "" : added.error().what);
  watches_[id] = {handle, std::make_shared<std::function<void(const Ready&)>>(std::move(handler))};
  return id;
}

void Loop::change(std::uint64_t watch, Interest interest) {
  auto found = watches_.find(watch);
  if (found != watches_.end()) (void)poller_->modify(found->second.handle, watch, interest);
}

void Loop::unwatch(std::uint64_t watch) {
  auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  poller_->remove(found->second.handle);
  watches_.erase(found);
}

std::uint64_t Loop::after(Duration delay, Task task) {
  const std::uint64_t id = next_id_++;
  timers_.emplace(environment_.clock.now() + delay, std::make_pair(id, std::move(task)));
  return id;
}

void Loop::cancel(std::uint64_t timer) {
  auto found = std::find_if(timers_.begin(), timers_.end(), [&](const auto& t) { return t.second.first == timer; });
  if (found != timers_.end()) timers_.erase(found);
}

void Loop::run() {
  std::vector<Ready> ready;
  while (!stopped_) {
    if (const Status waited = poller_->wait(until_next_timer(), ready); !waited) {
      log_error("loop_ended", "why", waited.error().what);
      return;
    }
    begin_turn();
    for (const Ready& event : ready) {
      auto found = watches_.find(event.key);  // an earlier handler of this round may have unwatched it
      if (found == watches_.end()) continue;
      auto handler = found->second.handler;  // stays alive while it unwatches itself
      (*handler)(event);
      end_piece(handler->target_type());
    }
    run_posted();
    run_timers();
    last_round_boottime_ = environment_.clock.boottime();
    end_turn();
  }
}

void Loop::stop() {
  post([this] { stopped_ = true; });
}

void Loop::run_posted() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(posted_mutex_);
    tasks.swap(posted_);
  }
  Duration looked = environment_.clock.now();
  for (Task& task : tasks) {
    task();
    end_piece(task.target_type());
    const Duration now = piece_began_;
    if (now - looked < kTimersWaitMax) continue;
    looked = now;
    run_timers();
    last_round_boottime_ = environment_.clock.boottime();
  }
}

void Loop::run_timers() {
  const Duration now = environment_.clock.now();
  while (!timers_.empty() && timers_.begin()->first <= now) {
    Task task = std::move(timers_.begin()->second.second);
    timers_.erase(timers_.begin());
    task();
    end_piece(task.target_type());
  }
}

void Loop::begin_turn() {
  turn_began_ = piece_began_ = environment_.clock.now();
  waited_for_core_ = environment_.clock.waited_for_core();
  turn_waited_ = {};
  piece_ = longest_ = {};
}

void Loop::end_piece(const std::type_info& what) {
  const Duration now = environment_.clock.now();
  piece_.what = &what;
  piece_.busy = now - std::exchange(piece_began_, now);
  if (piece_.busy > kLookFrom) {
    const Duration waited = environment_.clock.waited_for_core();
    const Duration here = std::min(waited - std::exchange(waited_for_core_, waited), piece_.busy);
    piece_.busy -= here;
    turn_waited_ += here;
  }
  if (piece_.busy > longest_.busy) longest_ = piece_;
  piece_ = {};
}

void Loop::end_turn() {
  const Duration took = piece_began_ - turn_began_;
  if (took <= kLongTurn || longest_.what == nullptr) return;
  const Duration busy = took - turn_waited_;
  if (busy <= kLongTurn) {
    ++turns_.crowded_count;
    return;
  }
  ++turns_.long_count;
  const bool logs = turn_began_ >= log_again_at_;
  if (!logs && busy <= turns_.longest) return;
  std::string in = name_of(*longest_.what);
  if (longest_.frame_kind != 0) in += text(", frame ", longest_.frame_kind);
  if (logs) {
    log_again_at_ = turn_began_ + kLogPause;
    log_warn("loop_turn_long", "busy_ms", busy / std::chrono::milliseconds(1), "took_ms",
             took / std::chrono::milliseconds(1), "in", in, "in_ms", longest_.busy / std::chrono::milliseconds(1),
             "so_far", turns_.long_count);
  }
  if (busy > turns_.longest) turns_.longest = busy, turns_.longest_in = std::move(in);
}

Duration Loop::until_next_timer() const {
  if (timers_.empty()) return std::chrono::seconds(1);
  return std::max(Duration::zero(), timers_.begin()->first - environment_.clock.now());
}

}  // namespace pawl::job
