// Faults: what a seed does to a cluster, as a list that can be printed, read again and shortened.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cluster.h"

namespace pawl::sim {

enum class FaultType : unsigned char {
  kill_trainer,
  stop_trainer,  // SIGSTOP, then SIGCONT
  kill_pawld,    // at its `turns`-th await point from then on
  stop_pawld,
  kill_node,     // keeper, pawld and trainer; its memory goes `more` later
  power_off,     // nobody is told, nothing answers
  pause_node,    // SIGSTOP to all of it, then SIGCONT
  cut_data,      // of the machines in `mask` from the others, both ways
  cut_data_out,  // what they send is lost, what others send arrives
  cut_control,   // of the machines in `mask`
  control_down,
  control_stopped,  // takes calls, answers none
  slow_control,     // each change takes `more`
  slow_network,
  no_memory,       // on one machine
  wall_jump,       // of one machine's wall clock
  flip_bits,       // in the newest sealed slot of its own arena; then its trainer is killed
  flip_on_wire,    // one bit of what travels between machines, `turns` times
  kill_two_nodes,  // of a job with two replicas: those in `mask`
  outage,          // the switch is away that carries all data and the control: nobody hears anybody
  pause_all,       // every node is stopped, then continued, as a suspended job is
  cut_link,        // between the two machines in `mask`, both ways; each hears all others
  late_watch,      // of the machines in `mask`: the watches in `turns` (by WatchKind) tell each change `more` later
  lost_watch,      // they tell nothing, and are begun anew; what came meanwhile was compacted, if `turns` says so
  kill_trainer_and_pawld,  // the pawld as above, at one of the next await points
  kill_leader,             // only of scenarios: the node that leads by then
  drain_node,              // only of scenarios: as `pawl node drain` would, and after `length` it may have seats again
  change_world,            // only of scenarios: of the first world's seats those in `mask` are wished, `turns` turns on
  flip_unsent,             // in a bucket of its own arena that is captured and not yet sent; in place of some flip_bits
  // Nothing is done, only of scenarios: by then
  must_be_well,  // the job runs and commits
  must_run,
  must_have_stored,  // since it ran last
  must_have_gone_back,
};
inline constexpr unsigned kFaultTypes = 33;
inline constexpr std::uint32_t kCompacted = 1u << kWatchKinds;  // in `turns` of lost_watch

inline constexpr std::uint32_t kMaskedMachines = 32;  // of a large job the first ones only

struct InjectedFault {
  FaultType type = FaultType::kill_trainer;
  Duration after{};        // since the one before
  bool when_well = false;  // and not before the job runs and commits
  std::uint32_t machine = 0;
  std::uint32_t mask = 0;  // machines, a bit each
  Duration length{};
  Duration more{};
  std::uint32_t turns = 0;
};

// From a seed of its own, so that dropping a fault changes nothing else.
[[nodiscard]] std::vector<InjectedFault> draw_faults(std::uint64_t seed, const ClusterOptions& options);
[[nodiscard]] std::string text_of(const InjectedFault& fault);

// Injects them one after the other. `on_end` follows when the last has healed.
void inject(Cluster& cluster, std::vector<InjectedFault> faults, std::function<void()> on_end);
// As `pawl node drain` would, beside the faults; at some time drawn from the seed. `on_end`: it is done or withdrawn, and the
// node may have seats again.
void drain_a_node(Cluster& cluster, std::function<void()> on_end);
// All nodes are told to end within a moment; by the seed, one of their processes or a node dies meanwhile.
void stop_all(Cluster& cluster);

}  // namespace pawl::sim
