// JobMirror: what this node knows of the job's keys, and questions about it.
//
// Always as the control last said (apply, in the order of revisions), and besides that what this node itself has put
// and the control has not repeated yet (note_own_*, taken back by forget_own_* if the put fails). The state's generation
// rules: inventories, readies, fault reports and acknowledgements of another one are not kept. Pure: no control, no clock.
// What follows from it is decided in job/recovery; what the node has done about it is Followed (job/recovery/duties.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "job/control/control.h"
#include "job/daemon/beside_state.h"
#include "job/daemon/known_nodes.h"
#include "job/daemon/recovery_reports.h"
#include "job/membership/job_state.h"
#include "job/membership/node_report.h"
#include "job/recovery/absent_members.h"
#include "job/recovery/decide.h"
#include "job/recovery/ending.h"
#include "job/recovery/members.h"
#include "job/recovery/suspicion.h"
#include "job/redundancy/placement.h"

namespace pawl::job {

// The value of exit/<seat>.
[[nodiscard]] std::string to_json(const TrainerEnd& end);

class JobMirror {
 public:
  JobMirror(NodeLife self, std::string_view job) : reports(self), self_(self), keys_(job) {}

  std::map<Seat, FaultReport> faults;  // of the state's generation; a node adds its own before the control repeats them

  RecoveryReports reports;  // a node notes its own before the control repeats them
  BesideState beside;       // what states name; a node notes what it has put with one
  KnownNodes nodes;         // who is registered; a node that does not follow that notes whom it has read

  struct Change {
    bool state = false;       // another revision of it
    bool phase = false;       // of another phase
    bool generation = false;  // and of another generation
    bool stop = false;        // the job's last step is known
    bool nodes = false;       // who is registered
    bool lost = false;        // the control has lost what it knew: the state is not there any more, or an older one is
    std::string refused;      // not empty: the state can't be read, why
    Revision unread = 0;      // of a state that names a topology or a sheet which is yet to come, with the watch
    bool spoiled = false;     // a sheet is not what was put
  };
  // A key of the job. `value`: nullptr if it was erased.
  Change apply(const std::string& key, const std::string* value, Revision revision, Duration now);
  // All keys that every node watches, as of `listing.revision`: what is not among them is not there.
  Change apply_all(const Listing& listing, Duration now);
  // The same of what has been reported in the state's generation (JobKeys::reports).
  void apply_reports(const Listing& listing, Duration now);
  // The same of who is registered (JobKeys::nodes). From then on, until it is forgotten, that is known.
  Change apply_nodes(const Listing& listing, Duration now);
  Change learn(JobState state, Revision revision, Duration now);  // older revisions change nothing
  void set_spec(const JobSpec& spec) {
    spec_ = spec;
    learn_ring();
  }

  void note_own_stop_ack(bool told) {  // false: it could not be told
    stop_.told.erase(self_.node);
    if (told) stop_.told[self_.node] = generation();
  }
  void note_finish(Seat seat, const SeatFinish& finish) { finishes_.note(seat, finish); }
  void forget_finish(Seat seat) { finishes_.forget(seat); }
  void note_end(const TrainerEnd& end) { ends_.insert_or_assign(end.seat, end); }

  [[nodiscard]] const JobKeys& keys() const { return keys_; }
  [[nodiscard]] const JobSpec& spec() const { return spec_; }
  [[nodiscard]] bool has_state() const { return state_.has_value(); }
  [[nodiscard]] const JobState& state() const { return *state_; }  // only if has_state()
  [[nodiscard]] Revision state_revision() const { return state_revision_; }
  [[nodiscard]] Duration state_since() const { return state_since_; }  // its phase
  [[nodiscard]] const Roster& roster() const { return roster_; }       // of the state; empty if there is none
  [[nodiscard]] Generation generation() const { return state_ ? state_->generation : Generation(0); }
  [[nodiscard]] bool is_in(JobPhase phase) const { return state_ && state_->phase == phase; }
  [[nodiscard]] bool is_over() const { return is_in(JobPhase::finished) || is_in(JobPhase::failed); }
  [[nodiscard]] const Registrations& registrations() const { return nodes.registrations(); }
  [[nodiscard]] std::vector<TrainerEnd> ends() const;
  [[nodiscard]] std::optional<TrainerEnd> end_of(Seat seat) const;  // the last that was told
  [[nodiscard]] const Finishes& finishes() const { return finishes_; }
  [[nodiscard]] const StopView& stop() const { return stop_; }
  [[nodiscard]] std::vector<Accusation> accusations() const;  // of the state's generation
  // When anything last changed from which a recovery could go on.
  [[nodiscard]] Duration news_at() const { return news_.at; }

  [[nodiscard]] bool is_member() const { return !own_seats_.empty(); }
  [[nodiscard]] const std::vector<Seat>& own_seats() const { return own_seats_; }  // ascending
  // Of those from which the seat's state is read the first; nullptr: this is no restoring.
  [[nodiscard]] const Source* source_of(Seat seat) const;
  // The ring of the generation's topology, which is also the tree: position p has the children 2p+1 and 2p+2, and 0 is the
  // root. Before anybody has a seat, that of the first generation.
  [[nodiscard]] const Ring& ring() const { return ring_; }
  [[nodiscard]] std::optional<std::uint32_t> position_of(NodeId node) const;
  [[nodiscard]] std::optional<NodeId> node_at(std::uint32_t position) const;
  [[nodiscard]] std::uint32_t my_position() const { return position_of(self_.node).value_or(0); }
  [[nodiscard]] bool is_root() const { return is_member() && my_position() == 0; }
  // To whom this node keeps links, and with whom it has any (job/recovery/suspicion.h).
  [[nodiscard]] std::vector<Member> linked_members() const;
  [[nodiscard]] const Links& links() const;

 private:
  void apply_record(const std::string& key, const std::string* value, Change& change);
  void learn_ring();

  const NodeLife self_;
  const JobKeys keys_;
  JobSpec spec_;
  std::optional<JobState> state_;
  Roster roster_;
  Ring ring_;
  std::vector<Seat> own_seats_;
  struct KnownLinks {
    Links links;
    std::pair<Revision, std::uint64_t> as_of{-1, 0};  // state and registrations
  };
  mutable KnownLinks links_;
  Revision state_revision_ = 0;
  Duration state_since_{};
  std::map<std::string, Accusation> accusations_;  // by key
  struct News {
    Duration at{};
    Revision newest = 0;  // of what counts as news
  };
  News news_;
  Finishes finishes_;
  std::map<Seat, TrainerEnd> ends_;
  StopView stop_;
};

// By which number the seat's arenas go (Member::before).
[[nodiscard]] inline Seat before_of(const JobMirror& mirror, Seat seat) {
  return mirror.has_state() ? before_of(mirror.state().seats, seat) : seat;
}

// Of all nodes but those that are surviving members: spares, and whoever was evicted and still lives.
[[nodiscard]] std::vector<NodeRecord> records_of_others(const JobMirror& mirror);

}  // namespace pawl::job
