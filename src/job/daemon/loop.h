// Loop: the one thread of pawld that decides. Streams, timers, and tasks that other threads hand in.
//
// Everything registered here runs on the loop's thread, one at a time, and must not block: what may (the control, bulk
// data) has threads of its own and comes back with post(). post() is the only call for other threads. Timers that are due
// run between posted tasks, too, so that many of these make none late by more than one of them takes and a few ms.
// A *turn* is all that is done between two waits. No turn should keep the loop busy for longer than kLongTurn: what does
// is counted, with the name of what took longest in it, and logged. Busy is whoever works or waits for anything but a
// core; a turn that took so long only because this thread had to wait for a core is counted apart.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

#include "env/environment.h"
#include "env/poller.h"

namespace pawl::job {

inline constexpr Duration kLongTurn = std::chrono::milliseconds(10);

struct LoopTurns {
  std::uint64_t long_count = 0;     // busy for longer than kLongTurn
  std::uint64_t crowded_count = 0;  // took longer, but the rest was waiting for a core
  Duration longest{};               // busy
  std::string longest_in;           // the function that took most of it, as the compiler names it; empty: none was long
};

class Loop {
 public:
  using Task = std::function<void()>;
  [[nodiscard]] static Result<std::unique_ptr<Loop>> make(const Environment& environment);

  // The world as this daemon touches it; for all that work on this loop, and their tasks.
  [[nodiscard]] const Environment& environment() const { return environment_; }

  void post(Task task);  // any thread

  // `handle`: of a stream, listener or event of the environment's network, which stays the caller's and must be unwatched
  // before it is closed. Never fails for a good one.
  std::uint64_t watch(int handle, Interest interest, std::function<void(const Ready&)> handler);
  void change(std::uint64_t watch, Interest interest);
  void unwatch(std::uint64_t watch);

  std::uint64_t after(Duration delay, Task task);  // once
  void cancel(std::uint64_t timer);

  void run();   // until stop()
  void stop();  // any thread

  // When this thread last went round or ran timers between tasks, CLOCK_BOOTTIME: tells that it was stopped meanwhile.
  [[nodiscard]] Duration last_round_boottime() const { return last_round_boottime_; }

  [[nodiscard]] const LoopTurns& turns() const { return turns_; }
  // For whoever handles many things under one name: which one it is about to do.
  void note_frame(std::uint16_t kind) { piece_.frame_kind = kind; }

 private:
  Loop(const Environment& environment, std::unique_ptr<Poller> poller)
      : environment_(environment), poller_(std::move(poller)) {}
  // What is done in a turn, one after another.
  struct Piece {
    const std::type_info* what = nullptr;
    std::uint16_t frame_kind = 0;  // 0: no frame
    Duration busy{};
  };
  void run_posted();
  void run_timers();
  void begin_turn();
  void end_piece(const std::type_info& what);
  void end_turn();
  [[nodiscard]] Duration until_next_timer() const;

  struct Watch {
    int handle;
    std::shared_ptr<std::function<void(const Ready&)>> handler;
  };
  const Environment& environment_;
  const std::unique_ptr<Poller> poller_;
  std::unordered_map<std::uint64_t, Watch> watches_;
  std::multimap<Duration, std::pair<std::uint64_t, Task>> timers_;
  std::uint64_t next_id_ = 1;
  std::mutex posted_mutex_;
  std::vector<Task> posted_;
  bool stopped_ = false;
  Duration last_round_boottime_{};
  LoopTurns turns_;
  Duration turn_began_{};
  Duration piece_began_{};
  Duration waited_for_core_{};  // by this thread, when last looked at
  Duration turn_waited_{};      // for a core, in this turn
  Piece piece_;                 // under way
  Piece longest_;               // of this turn
  Duration log_again_at_{};
};

}  // namespace pawl::job
