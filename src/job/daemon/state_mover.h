// StateMover: how this node moves the job's state: it forms the job, reports faults, leads a recovery, ends the job.
//
// Each move is a decision of recovery/ written by compare-and-swap; whoever wins it, the state that stands is learned
// and the daemon drives on. One swap at a time: a move that comes meanwhile is dropped, and decided again later from
// the state that then stands. What this node has seen for certain, or of its own trainers, is kept until the state
// accounts for it. What it thinks of others (who is silent, who is late) is never kept: it is asked for again right
// before each swap. Swaps that do not help are tried again after a pause that doubles.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/holds.h"
#include "job/daemon/node_context.h"
#include "job/daemon/spare_probes.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {

class StateMover {
 public:
  struct Handlers {
    std::function<void(JobState, Revision)> on_won;  // it stands
    std::function<void(const KeyValue&)> on_lost;    // this stands instead
    // Asks spares whether they answer on their data links; drives when one more is known. Not set: all do.
    std::function<SpareProbes::Answers(std::span<const NodeRecord>)> probe = {};
    std::function<std::vector<Step>()> stored =
        {};  // of which checkpoints were published, the newest first; not set: none
    std::function<std::optional<std::vector<Seat>>()> wished_world = {};  // not set: none
    // Of a job that writes its newest step before it ends; none of them set: it doesn't.
    std::function<bool(const JobState& failed)> comes_before = {};  // so this one is not to be written yet
    std::function<void(const LastStep&)> write_last = {};
  };
  StateMover(NodeContext& context, Events& events, Holds& holds, Handlers handlers)
      : context_(context), events_(events), holds_(holds), handlers_(std::move(handlers)) {}

  void move(const JobState& next, const std::string& why);
  // A fault that this node has seen: a further generation follows. Said once for each kind, node and seat.
  void report(Cause cause, std::vector<Struck> struck = {});
  void give_up_node(const std::string& why);  // it is no place for the job
  // Each not yet while others fetch from here: whoever calls judges again by then.
  void give_up_node_if_free(const std::string& why);
  void report_if_free(Cause cause);

  void consider_forming();  // while there is no state
  void drive();             // while there is one
  // At every tick. `beating`: as in SuspicionView.
  void check_members(std::span<const Contact> contacts, std::vector<NodeId> beating = {});
  [[nodiscard]] bool is_moving() const { return moving_; }
  // What the recovery waits for as its leader sees it; empty: nothing, or another node leads.
  [[nodiscard]] std::string waits_for() const;

 private:
  [[nodiscard]] bool is_due_to_form();
  [[nodiscard]] Status room_to_form(const JobState& formed) const;  // for its rows as they may become
  [[nodiscard]] Status check_rows(const JobState& formed) const;
  void refuse_to_form(const JobState& formed, const std::string& why);
  void tell_fault(Cause& cause);
  void tell_once(Cause cause);
  void push_unfit();
  [[nodiscard]] bool is_fetched_from() const;  // by others, in the state's recovery
  void push_causes();
  [[nodiscard]] std::vector<Cause> convicts();
  void lead();
  void tell_arenas();
  [[nodiscard]] bool must_decide(Duration in_state_for) const;
  [[nodiscard]] bool has_heard_of_all(Duration in_state_for);
  void probe_spares_early();
  void act_on(Lead lead, std::span<const NodeLife> unprobed);
  void tell_restore(const StateMove& move);
  [[nodiscard]] bool strike_gone_sources();
  [[nodiscard]] SpareProbes::Answers probed_spares() const;
  void accuse();
  void take_over_orphan();
  void on_swapped(JobState next, const std::string& why, const Result<Swapped>& swap);
  void pause();
  [[nodiscard]] SuspicionView suspicion() const;
  [[nodiscard]] std::vector<NodeLife> absent(std::vector<NodeLife> lives) const;
  [[nodiscard]] Duration attentive_for(Duration since) const;
  [[nodiscard]] bool has_reports_of(Duration moment);

  void report_absent();

  // Who is to be given up for what this node does not hear of them.
  struct Charge {
    std::vector<NodeLife> lives;
    Generation generation;
    Duration since{};  // this was first due
  };
  // As of when it was first due, or so long after that.
  [[nodiscard]] bool is_confirmed(Charge& charge, std::span<const Cause> causes, Duration after = {});

  struct PendingCause {
    Cause cause;
    std::vector<Struck> struck;
    Duration reported_at{};  // the last time
    Generation generation;   // then
  };
  NodeContext& context_;
  Events& events_;
  Holds& holds_;
  Handlers handlers_;
  std::string waits_for_;
  bool awaits_reports_ = false;                     // and nothing else: of whom JobMirror::awaited names
  using AsOf = std::pair<Revision, std::uint64_t>;  // state and registrations
  struct Looked {
    AsOf for_spares;         // to ask them early
    AsOf for_absent;         // members, to report them
    Duration for_accused{};  // by others, to convict them
  };
  Looked looked_;      // last
  std::string unfit_;  // why this node is no place for the job, until all are told
  std::vector<PendingCause> causes_;
  std::vector<Contact> contacts_;  // as of the last tick
  std::vector<NodeId> beating_;
  Charge silent_, late_, gone_;  // of push_causes, lead and strike_gone_sources
  std::set<NodeLife> told_;      // events about what is not kept, of the generation told_in_
  Generation told_in_;
  struct Told {
    Generation away, unfit;
  };
  Told told_in_generation_;
  std::map<std::pair<NodeLife, bool>, Duration> spoken_at_;  // when this node last accused it (true), or withdrew that
  bool moving_ = false;                                      // a compare-and-swap is under way
  Duration pause_{};                                         // after the last swap that did not help
  Duration paused_until_{};
  struct Forming {
    Duration enough_nodes_since{};
    Duration looks_at{};  // not before; 0: has not looked yet
  };
  Forming forming_;
  Duration orphaned_since_{};
};

}  // namespace pawl::job
