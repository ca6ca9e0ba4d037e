// NodeContext: what all parts of the daemon share: who this node is, what the job's keys say, how far the node has
// followed them, and the few things that a part asks of the world.
//
// One of it, made by Pawld, outlives all parts. Parts read it; besides Pawld only Generations and Imports write
// `followed`, and only Pawld lets the mirror apply keys and tells `attention` what happens. On the loop's thread, except `post`, `clock` and `self`.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/metrics.h"
#include "env/environment.h"
#include "job/daemon/job_mirror.h"
#include "job/daemon/orders.h"
#include "job/recovery/attention.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/duties.h"

namespace pawl::job {

// What the parts ask of the control. It never blocks; answers come back on the loop, in order.
class ControlCalls {
 public:
  virtual ~ControlCalls() = default;
  virtual void put(std::string key, std::string value, std::function<void(Status)> then) = 0;
  // With what is to be put `beside` it in one revision, before it. Not begun at all (`stale`) if others stand in its way
  // for long: what it was decided from is then too old.
  virtual void compare_and_swap(std::string key, Revision expected, std::string value, std::vector<KeyChange> beside,
                                std::function<void(Result<Swapped>)> then) = 0;
  // Runs where blocking is allowed; nobody cares about the result.
  virtual void tell(std::function<void(Control&)> work) = 0;
};

// What all nodes report in a recovery, only a few need: who leads it, who has to judge whether it is still needed.
struct HeardReports {
  Generation wanted;       // of which this node wants to hear it
  Generation known;        // of which it has heard what was there; Pawld writes this and the next
  Duration as_of{};        // when the last listing that came began
  bool list_anew = false;  // once more, as soon as this node has taken its next step
};

// Keys that a node watches: what a watch tells may come late.
struct KnownKeys {
  Duration as_of{};       // this node knows all that stood there by then, or something newer; Pawld writes it
  bool ask_anew = false;  // once more, as soon as this node has taken its next step
};

enum class Haste { now, later };  // later: many may want the same at once

struct WatchedKeys {
  KnownKeys keys;   // of the job: every node watches them
  KnownKeys nodes;  // who is registered, of who follows that (job/recovery/node_followers.h)
  std::map<NodeLife, Haste>
      wanted;               // lives of which this node wants to know what they have registered, whoever else is
  bool few_follow = false;  // of this job's nodes; NodeFollower writes this and the next
  bool has_post = true;     // this one always does
};

struct NodeContext {
  NodeContext(NodeLife life, std::string job_name, const Environment& world)
      : self(life),
        job(std::move(job_name)),
        mirror(self, job),
        orders(job),
        environment(&world),
        clock(&world.clock) {}

  const NodeLife self;
  const std::string job;
  std::string address;  // where others reach this node
  JobMirror mirror;
  Orders orders;  // operators'; applied beside the mirror
  Followed followed;
  Attention attention;
  Step committed;  // the greatest that this node knows of, in the generation that last ran here; ProgressTree writes it
  Deadlines deadlines{};
  StateLimits state_limits;
  HeardReports heard;
  WatchedKeys watched;
  bool ending = false;

  Metrics metrics;  // all that this daemon counts
  const Environment* const environment;
  Clock* clock;  // the environment's; a test may put its own
  ControlCalls* control = nullptr;
  std::function<void(Duration, std::function<void()>)> after;  // once, on the loop
  std::function<void(std::function<void()>)> post;             // any thread: runs it on the loop
  std::function<void()> drive;                                 // takes the next step, whatever it is
  std::function<void(Duration)> drive_soon;
  std::function<void(int code)> exit;  // ends this daemon at once, as if it were killed; does not return

  // This life was evicted. Until it begins anew it moves no state and starts nothing (Generations).
  [[nodiscard]] bool is_evicted() const { return mirror.roster().is_evicted(self); }
  void want_reports() { heard.wanted = mirror.generation(); }
  [[nodiscard]] bool knows_reports() const { return heard.known == mirror.generation(); }
  [[nodiscard]] bool knows_nodes() const { return mirror.registrations().known; }
  // What it has registered. nullptr: that is not known yet; then it is read, and this node takes its next step.
  [[nodiscard]] const NodeRecord* record_of(NodeLife life, Haste haste) {
    const NodeRecord* const record = mirror.nodes.record_of(life);
    if (record == nullptr && (haste == Haste::now || !watched.wanted.contains(life))) watched.wanted[life] = haste;
    return record;
  }
  // All that stood in the control by then is known here, or something newer. If not it is asked for.
  [[nodiscard]] bool knows_all_since(Duration moment) {
    watched.keys.ask_anew = watched.keys.ask_anew || watched.keys.as_of < moment;
    watched.nodes.ask_anew = watched.nodes.ask_anew || watched.nodes.as_of < moment;
    return watched.keys.as_of >= moment && watched.nodes.as_of >= moment;
  }
  [[nodiscard]] bool is_running() const {  // here as in the state
    return mirror.is_in(JobPhase::running) && followed.running == mirror.generation();
  }
  [[nodiscard]] bool is_restoring() const {
    return mirror.is_in(JobPhase::restoring) && followed.restoring == mirror.generation();
  }
};

}  // namespace pawl::job
