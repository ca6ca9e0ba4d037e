// Cluster: a simulated job: its machines, its control, its nodes with their keepers, pawlds and trainers, and what must
// always be true of them.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "collectors.h"
#include "control.h"
#include "job/daemon/keeper_lifelines.h"
#include "job/daemon/node_keeper.h"
#include "job/daemon/pawld.h"
#include "job/membership/job_state.h"
#include "job/recovery/members.h"
#include "job/snapshot/arena.h"
#include "machine.h"
#include "storage.h"
#include "told_waits.h"
#include "worlds.h"

namespace pawl::sim {

inline constexpr Duration kHang = std::chrono::seconds(5);

struct ClusterOptions {
  std::uint64_t seed = 1;
  std::uint32_t members = 3;  // nodes
  std::uint32_t seats_per_node = 1;
  std::uint32_t spares = 1;
  std::uint32_t replicas = 1;
  std::uint64_t deadline_ms = 3000;
  double bytes_a_second = 1e9;
  double ns_a_byte = 0.1;  // to allocate and map memory
  Duration step = std::chrono::milliseconds(40);
  Duration long_delay = std::chrono::milliseconds(2);
  bool gate_off = false;
  bool ring_exchange = false;             // gradients go from each seat to the next one; else between any two
  bool drain = false;                     // an operator drains a node, too
  bool nothing_else = false;              // is done to it: then no step may be done again
  bool other_worlds = false;              // are wished, too
  std::vector<std::string> domains = {};  // failure domains of the machines; empty: each is one
  bool fewer_domains = false;             // copies may share one
  std::size_t state_bytes_max = job::kStateBytesMax;  // without a sheet; 1: it always names one
  bool bad_sheets = false;                          // of the changes that watches tell, one in three of these is wrong
  std::size_t state_rows_max = job::kMovedRowsMax;  // of a state (job_state.h): few, as in a large job
  std::uint32_t report_group_size = job::kReportGroupSize;  // likewise
  job::FollowLimits follow_limits{};                        // how many follow who is registered; likewise
  job::FetchSizes fetch_sizes;
  job::SpreadSizes spread_sizes;
  bool collectors_die = true;   // where they are bad
  bool bad_collectors = false;  // some of what a collector puts goes wrong (collectors.h)
  std::uint32_t equal_stride =
      0;  // seats that many apart declare equal state, and have it; 0: none do. Divides the world
  std::optional<Seat> differs = {};  // but this one has not
  StorageOptions storage = {};       // where checkpoints go
  bool loses_too_much = false;       // more nodes die at once than copies are for, besides the faults
  bool may_go_back = false;          // then, or by a scenario's faults: to a checkpoint
  bool is_stopped = false;           // at the end all nodes are told to end, while it trains
};

class Cluster;

// One life of a node's keeper, with all that it has started.
class Node final : public job::NodeKeeper::Node {
 public:
  Node(Cluster& cluster, std::uint32_t machine);
  void start();
  // SIGKILL to all of its processes at once; their memory goes `dying` later.
  void kill(Duration dying, bool silent);
  std::vector<Process*> stop();  // whom
  void terminate();              // SIGTERM to its keeper

  [[nodiscard]] bool is_over() const { return over_; }
  [[nodiscard]] Process* pawld() { return pawld_ != nullptr && pawld_->alive ? pawld_ : nullptr; }
  [[nodiscard]] Process* trainer(std::uint32_t local_index);  // nullptr: none lives
  [[nodiscard]] std::uint64_t incarnation() const { return keeper_ ? keeper_->incarnation() : 0; }

  // NodeKeeper::Node
  Result<std::uint64_t> next_incarnation(std::uint64_t last) override;
  Result<std::uint64_t> start_daemon(std::uint64_t incarnation, std::span<const job::HeldSegment> held,
                                     std::span<const job::FromKeeper> news) override;
  void terminate_daemon() override { kill_daemon(); }
  void kill_daemon() override;
  Result<job::StartedTrainer> start_trainer(std::uint32_t local_index,
                                            std::span<const std::string> environment) override;
  void terminate_trainer(std::uint32_t local_index) override { kill_trainer(local_index); }
  void kill_trainer(std::uint32_t local_index) override;
  void tell(const job::FromKeeper& news) override;

  [[nodiscard]] const std::string& local_address() const { return local_; }
  const std::uint32_t machine;

 private:
  void serve();
  void read(const std::shared_ptr<End>& channel);
  void note(std::string_view packet, const std::vector<Fd>& fds);
  void happen(std::function<void()> event);

  Cluster& cluster_;
  std::string address_, local_, lifeline_;
  std::shared_ptr<Port> port_, local_port_;
  job::KeeperLifelines* lifelines_ = nullptr;  // never destroyed: fibers of a killed keeper still point to it
  Duration dying_{};                           // how long its pawld and trainers hold what they have, once killed
  Process* process_ = nullptr;                 // the keeper
  World* world_ = nullptr;
  std::unique_ptr<job::NodeKeeper> keeper_;
  Process* pawld_ = nullptr;
  std::map<std::uint32_t, Process*> trainers_;  // by local index
  [[nodiscard]] std::vector<Process*> all() const;
  std::shared_ptr<End> channel_;
  std::deque<std::function<void()>> events_;
  WaitQueue waiting_;
  bool over_ = false;
};

// A segment in a keeper's care.
struct KeptArena {
  std::uint32_t machine = 0;
  std::string name;
  std::shared_ptr<Mapping> mapping;
  job::Arena arena;
  std::vector<std::uint64_t> seen;  // words of slots that were looked into
};

// The exchange of gradients of one step.
struct Exchange {
  std::map<std::uint32_t, std::uint32_t> arrived;  // seat -> machine
  bool done = false;
  std::uint64_t last_step = 0;  // the job ends after it; 0: not known yet
  WaitQueue waiting;
};

class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  const ClusterOptions options;
  Scheduler scheduler;
  Machines machines;
  ControlServerModel control;
  const std::string job = "sim";
  job::JobSpec spec;
  std::vector<std::unique_ptr<Node>> nodes;  // the latest of each machine
  std::vector<std::unique_ptr<Node>> former;

  void start();
  void start_node(std::uint32_t machine);
  // Its machine is used again: unless that has begun already, since what was dead has been struck twice.
  void replace_node(const Node& killed);
  // Whether all is well: it runs, and has committed since. Faults that cost memory wait for it.
  [[nodiscard]] bool is_well() const;
  // Whether neither gradients nor copies go between these two members.
  [[nodiscard]] bool trains_without_link(std::uint32_t a, std::uint32_t b) const;
  [[nodiscard]] std::uint32_t first_world() const { return options.members * options.seats_per_node; }
  Worlds worlds{first_world()};
  [[nodiscard]] bool is_over() const { return over_; }
  // The ring of the members as they are now, and whether no copies share a failure domain. Only if there is a state.
  [[nodiscard]] job::Ring ring() const { return job::ring_of(state_->seats, options.replicas); }
  [[nodiscard]] bool keeps_domains_apart() const { return job::shared_domains(state_->seats, ring()).empty(); }
  // What an operator's command writes. `value`: nullptr erases the key.
  void order(const std::string& key, const std::string* value);
  void end_soon();  // trainers agree on a last step from now on, and storage does what it should

  // --- What trainers tell
  enum class Exchanged { done, failed, interrupted };
  Exchanged exchange(Generation generation, Step step, Seat seat, std::uint32_t machine, std::uint32_t pid,
                     const std::function<bool()>& interrupted, std::uint64_t& last_step);
  [[nodiscard]] bool is_exchange_open(const Exchange& one);
  void trainer_ended(Generation generation);
  void committed(Generation generation, Step step);
  void restored(Generation generation, Seat seat, Step step, std::span<const std::byte> bytes);
  // Whose bytes the seat before has: those of the first that is equal to it. And whose a seat of that generation goes on from.
  [[nodiscard]] Seat content_of(Seat before) const;
  [[nodiscard]] Seat content_in(Generation generation, Seat seat) const {
    const std::vector<Seat>& world = worlds.in(generation);
    return content_of(seat.value < world.size() ? world[seat.value] : seat);
  }
  void step_begun(Generation generation, Step step) {
    steps_begun_ = std::max(steps_begun_, step.value);
    begun_in_[generation.value] = std::max(begun_in_[generation.value], step.value);
  }

  // --- What keepers tell
  void keep(std::uint32_t machine, const std::string& name, const Fd& fd);
  void drop(std::uint32_t machine, const std::string& name);
  void drop_all(std::uint32_t machine);

  // A machine may be evicted until then: something was done to it.
  std::vector<Duration> may_be_evicted_until;
  std::vector<Duration> pawld_began_at;  // the last one of each machine
  // It can't reach the control until then: it may be late in a recovery that something else has begun.
  std::vector<Duration> may_be_late_until;
  Duration nobody_speaks_until{};         // all of them are stopped
  void violate(const std::string& what);  // the first counts
  [[nodiscard]] const std::string& violation() const { return violation_; }
  [[nodiscard]] const std::optional<job::JobState>& state() const { return state_; }
  [[nodiscard]] std::uint64_t greatest_committed() const { return committed_.value; }
  [[nodiscard]] std::uint64_t steps_begun() const { return steps_begun_; }
  [[nodiscard]] std::string describe() const;
  std::deque<KeptArena>& arenas() { return arenas_; }
  void look();           // at all memory, now and then
  const Duration began;  // in virtual time
  Duration end_began = Duration::max();
  Storage storage{*this};
  std::uint32_t recoveries = 0;
  std::uint32_t drains = 0;
  std::uint32_t returns = 0;  // to a checkpoint in storage

 private:
  void on_put(const std::string& key, const std::string& value);
  void on_state(const job::JobState& state);
  void look_into(KeptArena& kept);
  void go_back(const job::JobState& state);
  void check_committed();
  void check_told();

  std::map<std::pair<std::uint64_t, std::uint64_t>, Exchange> exchanges_;
  std::set<std::uint64_t> broken_generations_;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>, std::uint32_t>
      who_;  // generation, step, seat -> pid
  std::deque<KeptArena> arenas_;
  std::optional<job::Topology> topology_;  // that was written last
  std::optional<job::Sheet> sheet_;        // the same
  std::optional<job::JobState> state_;
  ToldWaits told_;
  std::mt19937_64 sheet_troubles_{options.seed * 0x9e3779b97f4a7c15ull + 47};
  std::unique_ptr<BadCollectors> bad_collectors_;  // nullptr: all are sound
  Step committed_;
  std::uint64_t committed_in_generation_ = 0;
  Generation went_back_in_;  // the job went on from a checkpoint; what was committed before counts no more
  std::uint64_t steps_begun_ = 0;
  std::map<std::uint64_t, std::uint64_t> begun_in_;  // by generation
  std::map<std::uint32_t, Duration> missing_since_;  // by seat: no keeper is seen to have its committed step
  std::uint32_t changes_seen_ = 0;                   // of the world
  bool may_end_ = false;
  bool over_ = false;
  std::string violation_;
};

// What seat `seat` has in its tensors after `step`.
void fill_state(std::span<std::byte> bytes, Seat seat, Step step, std::uint64_t first_word);
[[nodiscard]] bool is_state(std::span<const std::byte> bytes, Seat seat, Step step, std::uint64_t first_word);

inline constexpr std::uint32_t kBucketBytes = 4096;
inline constexpr std::uint32_t kBuckets = 3;

// The body of a simulated trainer process.
void run_trainer(Cluster& cluster, Process& process, World& world, const std::string& local_address,
                 std::uint32_t local_index);

}  // namespace pawl::sim
