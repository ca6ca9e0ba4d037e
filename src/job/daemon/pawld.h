// Pawld: the daemon of one node. It makes the parts, joins the job, and drives them; what they do is in their files.
//
// It touches the world only through the environment and the lines that it is given, so that a simulation runs many of
// them in one process; daemon.cc gives it the real ones.
// Everything runs on the loop's thread. Whatever happens (a key changed, a trainer asked, a neighbour was lost, a timer)
// is noted, then drive() compares the job's state with what this node has done about it and takes the next step. So any
// step may be repeated, and a pawld that was killed goes on where the memory says it was.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "env/network.h"
#include "job/daemon/control_session.h"
#include "job/daemon/daemon.h"
#include "job/daemon/keeper_channel.h"
#include "job/daemon/key_watch.h"
#include "job/daemon/neighbours.h"
#include "job/daemon/node_context.h"
#include "job/daemon/node_follower.h"
#include "job/daemon/own_registration.h"
#include "job/persist/checkpoint_store.h"

namespace pawl::job {

// What a daemon is born with: its lines to the processes of its node, and its way to the control.
struct DaemonLines {
  std::unique_ptr<Stream> keeper;                // packets
  std::unique_ptr<Listener> peers;               // for other nodes, and whoever asks questions
  std::unique_ptr<Listener> trainers;            // for this node's trainers
  std::vector<std::pair<std::string, Fd>> held;  // segments that the keeper gives back
  std::optional<std::string> token = {};         // none: it is in the run directory
  std::function<Result<std::unique_ptr<Control>>(const std::string& token)> connect_control;
  std::function<void(int code)> exit;                 // see NodeContext
  std::unique_ptr<CheckpointStore> checkpoints = {};  // none: this job can't write any
  std::function<Status()> probe;  // the operator's health check; blocks, any task; null: there is none
};

class Pawld {
 public:
  Pawld(DaemonOptions options, DaemonLines lines, const Environment& environment);
  ~Pawld();
  [[nodiscard]] Status start();
  int run();

 private:
  struct Parts;  // all that the daemon is made of besides its lines to loop, keeper, control and neighbours

  [[nodiscard]] Status adopt_held();  // what the keeper has kept over the death of the pawld before us
  void join_job();                    // reads spec, state and nodes; asks again until they are there
  void joined(const Listing& listing);
  [[nodiscard]] bool take_spec(const Listing& listing);  // false: it isn't there yet, or the job has ended
  void start_neighbours();
  void start_registrations();
  [[nodiscard]] std::string lifeline_of(NodeLife life);  // its keeper's address; empty: not known
  [[nodiscard]] NodeRecord node_record() const;          // any thread
  void on_key(const WatchEvent& event);
  void on_beat(NodeId node, Generation generation);
  void take(const Listing& listing);
  void note(const KeyValue& kv, bool erased = false);
  void on_change(const JobMirror::Change& change);
  void await_state(Revision of);  // that can't be read without the topology or the sheet that it names
  void tell_control_lost();
  void drive();  // the next step, whatever it is; idempotent
  void drive_parts();
  void check_state();
  void follow_keys();
  void follow_reports();
  void drive_soon(Duration delay);
  void drive_once_for_all();  // after all that has come by now
  void tick();
  void count_turns();
  [[nodiscard]] std::vector<NodeId> beating() const;  // nodes that beat here within the deadline for silence
  void fence_if_cut_off();
  void fence(const std::string& why);
  void end_job(int code);
  [[nodiscard]] Hello hello(Purpose purpose) const;

  const DaemonOptions options_;
  DaemonLines lines_;
  NodeContext context_;
  std::string token_;
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<KeeperChannel> keeper_;
  std::unique_ptr<ControlSession> session_;
  std::unique_ptr<ControlCalls> control_calls_;
  struct Watches {
    std::unique_ptr<KeyWatch> keys;
    Duration keys_begun{};              // their last listing
    std::unique_ptr<KeyWatch> reports;  // of this generation; 0: none
    Generation reports_of;
    Duration reports_begun{};  // their last listing
  };
  Watches watches_;
  struct StateCheck {
    Revision of = -1;  // the state's
    Duration due{};
    Duration pause{};
    Revision unread = 0;      // the last that could not be read
    Duration unread_pause{};  // until the keys are listed for it
  };
  StateCheck state_check_;
  std::unique_ptr<OwnRegistration> registration_;
  std::unique_ptr<NodeFollower> nodes_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<Parts> parts_;
  int exit_code_ = 0;
  bool ready_ = false;  // spec, state and nodes are known
  struct Drives {
    bool planned = false;
    bool posted = false;
  };
  Drives drives_;
  bool control_lost_ = false;
  std::map<NodeId, Duration> beats_;  // when others last beat here, boottime
  std::atomic<std::int64_t> lease_renewed_ns_{0};
};

}  // namespace pawl::job
