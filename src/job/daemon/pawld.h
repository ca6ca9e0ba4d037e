// Pawld: the daemon of one node, wiring its parts to the decisions of recovery/ and redundancy/.
//
// Everything here runs on the loop's thread. Whatever happens (a key changed, a trainer asked, a neighbour was lost, a
// timer) is noted, then drive() compares the job's state with what this node has done about it and takes the next step;
// so any step may be repeated, and a pawld that was killed goes on where the memory says it was.
// One file a concern: pawld.cc (start, keys, time), generation.cc (causes, freeze, lead), seats.cc (trainers, restore),
// spread.cc (streams, progress, the store), questions.cc (status).
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "job/daemon/control_session.h"
#include "job/daemon/daemon.h"
#include "job/daemon/fetch.h"
#include "job/daemon/keeper_channel.h"
#include "job/daemon/memory.h"
#include "job/daemon/neighbours.h"
#include "job/daemon/rendezvous_log.h"
#include "job/daemon/replication.h"
#include "job/daemon/trainers.h"
#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/decide.h"
#include "job/redundancy/placement.h"
#include "job/redundancy/progress.h"
#include "job/rendezvous/rendezvous_store.h"

namespace pawl::job {

class Pawld {
 public:
  explicit Pawld(DaemonOptions options);
  ~Pawld();
  [[nodiscard]] Status start();
  int run();

 private:
  // --- pawld.cc
  void join_job();  // reads spec, state and nodes; asks again until they are there
  void joined(const Listing& listing);
  void on_key(const WatchEvent& event);
  void note_all(const Listing& listing);
  void note_key(const std::string& key, const std::string* value, Revision revision);
  void tick();
  void drive();  // the next step, whatever it is; idempotent
  void drive_soon(Duration delay);
  void register_node();
  [[nodiscard]] NodeRecord node_record() const;
  void tell_event(const std::string& kind, std::string fields_json);
  void end_job(int code);
  void accept_peer();
  void on_peer_hello(const std::shared_ptr<Connection>& connection, Frame& frame);
  void fence_if_cut_off();

  // --- generation.cc
  void consider_forming();
  void apply_state();
  void freeze();
  void begin_running();
  void lead();
  void push_causes();
  void report_cause(Cause cause, std::vector<Struck> struck = {});
  void swap_state(const JobState& next, const std::string& why);
  void learn_state(const JobState& state, Revision revision);
  void take_seats();     // our places, from the state's seats
  void watch_members();  // neighbours, from the state's seats
  void lost_neighbour(NodeLife life, FaultKind kind, const std::string& detail);
  void check_leases();
  void consider_orphaned_job();
  [[nodiscard]] bool is_registered(NodeLife life) const;
  [[nodiscard]] bool is_member() const;
  [[nodiscard]] bool is_evicted(NodeLife life) const;
  [[nodiscard]] Duration in_state_for() const;
  [[nodiscard]] bool held_back(const std::string& phase);  // a drill holds this phase
  void put_inventory();
  [[nodiscard]] Step known_committed() const;
  void tidy_keys();  // of recoveries that are over

  // --- seats.cc
  void on_trainer_request(TrainerProcess& place, const Frame& frame);
  void on_trainer_death(TrainerProcess& place, const std::string& how);
  void begin_restore();
  void start_imports();
  void import_seat(const Source& source);
  void imported(Generation generation, Source source, Status status, std::uint64_t bytes, Duration took);
  void seat_trainers();
  void answer_restores();
  void on_layout(TrainerProcess& place, const Frame& frame);
  void on_store(TrainerProcess& place, const Frame& frame);
  void grant_arena(TrainerProcess& place, const ArenaHandle& arena);
  void on_done(TrainerProcess& place, Generation generation);
  void on_fault(TrainerProcess& place, Generation generation, const std::string& what);
  void start_missing_trainers();
  void kill_trainer(TrainerProcess& place, const std::string& why);
  void check_trainers();
  void check_running(TrainerProcess& place);
  void check_returning(TrainerProcess& place);
  [[nodiscard]] Duration since_progress(const TrainerProcess& place) const;
  [[nodiscard]] std::string how_it_ended(const TrainerProcess& place, const std::string& how) const;
  void put_exit(const TrainerProcess& place, const std::string& how);
  void give_up_node(const std::string& why);
  void count_parked();
  void consider_finish();
  void put_finish(TrainerProcess& place);
  void consider_stop();
  void propose_stop(Step step);
  void write_page(TrainerProcess& place);
  [[nodiscard]] std::vector<std::string> trainer_environment(const TrainerProcess& place) const;
  [[nodiscard]] const Source* source_of(Seat seat) const;
  [[nodiscard]] Result<ArenaHandle> arena_on_loop(const ArenaSpec& spec, bool keep_sealed);  // any thread; waits
  [[nodiscard]] Result<ArenaHandle> own_arena(const ArenaSpec& spec);

  // --- spread.cc
  void start_streams();
  void end_streams();
  void on_notice(TrainerProcess& place);
  void report_progress();
  void set_progress(Progress progress);
  [[nodiscard]] SeatReport local_report();
  void on_link_up(NodeLife life);
  void on_link_answer(NodeLife life, Frame& frame);
  void on_link_incoming(NodeLife life, const std::shared_ptr<Connection>& connection, Frame& frame);
  using OnStoreAnswer = std::function<void(const RendezvousAnswer&)>;
  void ask_store(RendezvousRequest request, OnStoreAnswer on_answer);    // dropped when the generation changes
  void serve_store(RendezvousRequest request, OnStoreAnswer on_answer);  // at the root
  void send_to_root(std::uint64_t id, const RendezvousRequest& request);
  void enter_store();  // of the state's generation; a returning root goes on with what it did
  void drop_late_store_waits();
  void take_early_frames();
  void adopt_data(const std::shared_ptr<Connection>& connection, const Hello& hello);
  void adopt_fetch(const std::shared_ptr<Connection>& connection);
  [[nodiscard]] std::optional<std::uint32_t> position_of(NodeId node) const;
  [[nodiscard]] std::optional<NodeId> node_at(std::uint32_t position) const;
  [[nodiscard]] RingOptions ring() const;
  [[nodiscard]] std::uint32_t my_position() const;
  [[nodiscard]] bool is_root() const;
  void hold_thread(const char* phase, const std::atomic<bool>& ended);  // any thread

  // --- questions.cc
  void on_question(const std::shared_ptr<Connection>& connection, const Frame& frame, bool local);
  [[nodiscard]] std::string answer(const std::string& question, bool local);
  [[nodiscard]] std::string status_json();
  [[nodiscard]] std::string hold_json(const std::string& phase, std::uint32_t local_index, std::uint64_t step);
  void release_holds();

  [[nodiscard]] Hello hello(Purpose purpose) const;

  DaemonOptions options_;
  NodeLife self_;
  std::string token_;
  JobKeys keys_;
  JobSpec spec_;
  Deadlines deadlines_{};
  std::unique_ptr<Loop> loop_;
  std::unique_ptr<KeeperChannel> keeper_;
  std::unique_ptr<ControlSession> session_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<Trainers> trainers_;
  std::unique_ptr<Neighbours> neighbours_;
  Fd peer_listener_;
  int exit_code_ = 0;
  bool ready_ = false;  // spec, state and nodes are known
  bool ending_ = false;
  bool was_member_ = false;

  // What the control says.
  std::optional<JobState> state_;
  Revision state_revision_ = 0;
  Duration state_since_{};
  std::map<NodeId, NodeRecord> nodes_;
  std::map<NodeId, Duration> node_gone_since_;
  std::map<NodeId, Inventory> inventories_;  // of the state's generation
  std::map<NodeId, Generation> readies_;
  struct Finish {
    Generation generation;
    Step step;               // the last that the seat has begun
    bool committed = false;  // its last window
    bool operator==(const Finish&) const = default;
  };
  std::map<Seat, Finish> finishes_;
  std::map<Seat, TrainerEnd> ends_;         // of trainers that ended by themselves
  Step stop_step_;                          // the job's last; 0: nobody has asked for an end
  std::map<NodeId, Generation> stop_acks_;  // whose trainers see it, as of which generation
  Duration enough_nodes_since_{};

  // What this node has done about it.
  Generation frozen_;  // slots are frozen for this generation
  Generation restoring_;
  Duration restoring_since_{};
  Generation running_;
  Generation ready_put_;
  bool proposing_stop_ = false;
  bool swapping_ = false;  // a compare-and-swap is under way
  bool drive_planned_ = false;
  struct PendingCause {
    Cause cause;
    std::vector<Struck> struck;
  };
  std::vector<PendingCause> causes_;
  std::set<Seat> imported_;
  std::vector<Struck> struck_here_;      // slots of ours that proved wrong and were not filled anew: emptied at running
  std::vector<Source> imports_waiting_;  // for their trainers to join
  std::vector<std::shared_ptr<Fetch>> fetches_;
  std::map<std::uint32_t, int> early_exits_;    // local index -> exits soon, and without a seat
  std::map<std::uint32_t, int> restore_exits_;  // local index -> exits in its seat, since the job last ran
  std::string layout_refusal_;                  // why the last layout was refused for want of memory
  Duration orphaned_since_{};                   // the job has had no living member since then; 0: it has
  std::atomic<std::int64_t> lease_renewed_ns_{0};
  std::atomic<std::uint32_t> parked_{0};

  // Spread.
  Workers workers_;
  StreamContext context_;
  std::atomic<std::uint64_t> progress_bits_{0};
  std::atomic<std::uint64_t> bytes_sent_{0};
  std::atomic<std::uint64_t> bytes_received_{0};
  Progress progress_;
  std::map<NodeId, SeatReport> child_reports_;
  std::optional<SeatReport> last_report_;
  bool report_planned_ = false;
  std::map<Seat, std::vector<std::shared_ptr<ReplicaSender>>> senders_;
  std::map<Seat, std::shared_ptr<ReplicaReceiver>> receivers_;
  std::vector<std::weak_ptr<FetchServer>> fetch_servers_;
  RendezvousStore store_;  // at the root: of the whole job
  std::unique_ptr<RendezvousLog> rendezvous_log_;
  Generation store_generation_;
  struct StoreWait {
    RendezvousRequest request;
    OnStoreAnswer on_answer;
    Duration until{};  // nobody waits any longer
  };
  std::map<std::uint64_t, StoreWait> store_waits_;  // at the root: gets; elsewhere: what the root has not answered
  struct EarlyFrame {  // of a generation that its sender has entered and this daemon has not: taken up when it has
    Generation generation;
    NodeLife life;
    std::weak_ptr<Connection> connection;
    Frame frame;
  };
  std::vector<EarlyFrame> early_frames_;
  std::uint64_t next_store_id_ = 1;

  // Drills.
  std::mutex hold_mutex_;
  std::condition_variable hold_changed_;
  std::map<std::string, bool> holds_;  // phase -> somebody is held there
  // Accepted connections; whose it is, once the hello of a link was welcomed.
  std::map<std::shared_ptr<Connection>, std::optional<NodeId>> peers_;
};

}  // namespace pawl::job
