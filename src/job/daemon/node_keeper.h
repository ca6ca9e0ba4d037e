// NodeKeeper: what a keeper decides: when pawld and the trainers of a node are started, killed and started again, when
// the node begins anew with nothing, and when it ends.
//
// Always: one pawld, and one trainer a local index, at a time; a new pawld begins after a fence, and a new life after a
// reset, only when what ran before has ended. What was killed and does not end (it waits in the kernel) may still write:
// the node then ends with an error.
//
// Others may have gone on without this node where it was stopped or its lease has ended. It then fences itself, which
// is: kill all. What it holds stays, and so does its incarnation: whether others have gone on says the state alone. The
// next pawld reads it, and asks for a reset where this life was evicted: hold nothing, begin a new life. If nobody has
// gone on, because all were cut off or stopped at once, what is held here may be the only copy. Two rules:
// 1. Who did not call for longer than the silence deadline was stopped, and the node with it.
// 2. A pawld that lives judges by what it hears from its neighbours (must_fence, recovery/deadlines.h). Where none lives
//    (it has ended, or was killed for its silence), the keeper judges in its place: the node has registered, and the
//    last pawld that ever spoke ended longer ago than a lease lasts.
// Rule 2 fences no node that must_fence would have spared: had that pawld been stopped instead of ended, it would find,
// once it goes on, its lease older than its bound (no one renewed it since) and itself stalled for longer than the
// silence deadline (a lease lasts longer), which is must_fence's condition. A control that is away fences nobody here:
// pawld says that it lives without it, and one that dies is started again and speaks long before a lease has passed.
// The time in `alive` only says that there is a lease: pawld renews it on a thread of its own, so whoever was busy or
// stuck, or died between two heartbeats, has renewed it later than it has told.
//
// It touches no process, clock or socket: each call says the time (boottime), and Node carries out what is decided, with
// real processes (keeper.cc) or simulated ones. No call waits: what takes time ends with an event, or is seen in turn().
// Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/fd.h"
#include "job/transport/keeper_messages.h"

namespace pawl::job {

struct NodeKeeperOptions {
  NodeId node;
  std::uint32_t seats_per_node = 1;
  Duration silence = std::chrono::seconds(1);         // as in KeeperOptions
  Duration daemon_silence = std::chrono::seconds(1);  // as in KeeperOptions
  Duration lease = std::chrono::seconds(2);           // as in KeeperOptions
  Duration trainer_grace = std::chrono::seconds(2);   // as in KeeperOptions
  Duration stop_grace{};                              // as in KeeperOptions
  std::string log_path;                               // named where an error sends people
};

struct HeldSegment {
  std::string name;
  Fd fd;
};

struct StartedTrainer {
  std::uint64_t pid = 0;
  std::uint64_t start_time = 0;
  std::string output_path;  // of its stderr; empty: nowhere
};

// How long killed processes may take to end that have so much memory to give back: four times as long as the others
// expect (time_to_give_back, recovery/deadlines.h), and ten seconds, for past it the node ends with an error.
[[nodiscard]] Duration time_to_end(std::uint64_t memory_bytes);

class NodeKeeper {
 public:
  // The processes of the node. What is asked to end ends later: then tell on_daemon_exit() or on_trainer_exit(), once.
  class Node {
   public:
    virtual ~Node() = default;
    // Of a new life: greater than `last` and than that of any keeper before this one.
    [[nodiscard]] virtual Result<std::uint64_t> next_incarnation(std::uint64_t last) = 0;
    // The answer is its pid. It gets `held`, which stays ours; `news` lie in its channel before it begins, for it must not
    // take a place for empty in which something runs.
    [[nodiscard]] virtual Result<std::uint64_t> start_daemon(std::uint64_t incarnation,
                                                             std::span<const HeldSegment> held,
                                                             std::span<const FromKeeper> news) = 0;
    virtual void terminate_daemon() = 0;  // may still end itself in order
    virtual void kill_daemon() = 0;
    [[nodiscard]] virtual Result<StartedTrainer> start_trainer(std::uint32_t local_index,
                                                               std::span<const std::string> environment) = 0;
    virtual void terminate_trainer(std::uint32_t local_index) = 0;
    virtual void kill_trainer(std::uint32_t local_index) = 0;                    // with all that it has started
    virtual void show_trainer(std::uint32_t /*local_index*/, bool /*shown*/) {}  // its output, to people
    virtual void tell(const FromKeeper& news) = 0;                               // to the pawld that runs
    // Closes them. The last descriptor of gigabytes takes its time, in which this keeper must not stand still.
    virtual void let_go(std::vector<HeldSegment> segments) { segments.clear(); }
    // Of what it was to let go, some is still there: a new life would lack that memory.
    [[nodiscard]] virtual bool is_giving_back() { return false; }
    // Of all that runs: what killed processes give back before they have ended. 0: it can't be told.
    [[nodiscard]] virtual std::uint64_t memory_bytes() { return 0; }
  };

  NodeKeeper(NodeKeeperOptions options, Node& node) : options_(std::move(options)), node_(node) {}

  void begin(Duration now);
  // A packet of the pawld that runs, with the descriptors beside it.
  void on_message(std::string_view packet, std::vector<Fd> fds, Duration now);
  // The pawld that runs does so no more; it may not have ended yet. Every message that it has sent was handed in before.
  void on_daemon_dying(Duration now);
  // Every message of that pawld has been handed in before.
  void on_daemon_exit(std::string_view how, Duration now);
  void on_trainer_exit(std::uint32_t local_index, std::string_view how, Duration now, std::string_view said = {});
  // Ends the node: trainers and pawld may end themselves in order first. The first code counts.
  void end(int code, Duration now);
  // A signal: at once, or where the node has a grace once pawld says so, at the latest when that is over. A second one: at once.
  void stop(int signal, Duration now);
  // So much of the time since the last call went into work of Node's: it is no stall.
  void was_busy(Duration spent);
  // What is due by time. Call it after the events of a moment, and wait no longer than wait() before the next.
  void turn(Duration now);
  [[nodiscard]] Duration wait(Duration now) const;

  // How the node has ended, once all has: the exit code, or an error (`unreachable`: pawld died five times in a row
  // within a second of its start; `timeout`: what was killed did not end; else what Node answered). nullopt: it goes on.
  [[nodiscard]] const std::optional<Result<int>>& outcome() const { return outcome_; }
  [[nodiscard]] std::uint64_t incarnation() const { return incarnation_; }

 private:
  struct Trainer {
    StartedTrainer started;
    bool running = false;
    std::string how_it_ended;  // told again to a new pawld, which may have missed it
    std::string said;          // the end of its output
  };
  enum class Phase {
    serving,
    ending_trainers,  // they may end themselves until `until_`
    ending_daemon,    // it may end itself until `until_`
    killed,           // all are; what comes next begins when all have ended, or at `until_`
    giving_back,      // what the last life held; a new one begins then
    over,
  };

  void note_time(Duration now);
  void begin_life(Duration now);
  void try_life(Duration now);
  void begin_again(Duration now);
  void start_daemon(Duration now);
  void fence(std::string_view why, Duration now);
  void reset(std::string_view why, Duration now);
  void fail(Error error, Duration now);
  void kill_all(Duration now);
  void go_on(Duration now);
  void all_have_ended(Duration now);
  void drop(const std::string& name);
  void on_spawn(const SpawnTrainer& asked);
  void on_kill(std::uint32_t local_index);
  void tell(const FromKeeper& news);
  void tell_about(std::uint32_t local_index) { tell(news_of(local_index)); }
  [[nodiscard]] FromKeeper news_of(std::uint32_t local_index) const;
  [[nodiscard]] FromKeeper stop_asked(Duration now) const;
  [[nodiscard]] bool any_trainer_runs() const;
  [[nodiscard]] Error not_ended() const;
  [[nodiscard]] std::string what_runs() const;  // empty: nothing
  [[nodiscard]] bool lease_has_ended(Duration now) const;
  void note_last_renewal(Duration now);

  const NodeKeeperOptions options_;
  Node& node_;
  Phase phase_ = Phase::over;
  Duration until_{};
  std::optional<Duration> last_call_;  // unset: a life has just begun
  std::optional<Result<int>> wanted_;  // the outcome once all have ended; unset: the node goes on
  struct Asked {
    bool new_life = false;  // once all have ended: with nothing of this one
    int signal = 0;         // this node is to end; 0: no
    Duration at{};
    Duration ends_by{};
  };
  Asked asked_;
  std::optional<Result<int>> outcome_;

  std::uint64_t incarnation_ = 0;
  std::vector<HeldSegment> held_;
  std::map<std::uint32_t, Trainer> trainers_;
  bool daemon_running_ = false;
  std::uint64_t daemon_pid_ = 0;
  Duration daemon_started_{};
  Duration daemon_alive_until_{};  // later it is silent
  Duration daemon_restart_at_{};
  std::optional<Duration> daemon_gone_by_;  // it dies, or was killed for its silence: must have ended by then
  bool daemon_spoke_ = false;               // it has said `alive`
  Duration lease_renewed_{};                // at the latest; 0: this life has never registered
  int short_lives_ = 0;
};

}  // namespace pawl::job
