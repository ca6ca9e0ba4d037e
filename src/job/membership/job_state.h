// JobState: the one key by which a job's members agree, and the records around it. Plain values and their JSON.
//
// Everything lives under /pawl/<job>/ in the control (etcd's protocol); docs/protocol.md lists the keys and who writes
// them. The state moves only by compare-and-swap: forming -> restoring -> running -> quiescing -> restoring -> running;
// a further death opens a further generation from any of the last three. Any daemon may carry it on.
// Pure: who decides what is in job/recovery. What a daemon's memory holds: inventory.h. Parsing refuses what it does not
// know (Code::corrupt, naming the field): a missing or unknown field, another type, a number out of range, text beyond
// kRecordBytesMax. It never aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/text.h"
#include "job/layout/extent.h"
#include "job/snapshot/slot_word.h"

namespace pawl::job {

inline constexpr std::uint32_t kProtocolVersion = 11;

// Of a job that writes checkpoints, or begins with one.
struct CheckpointSpec {
  std::string path = {};                // where they are written; empty: nowhere
  std::uint64_t every_steps = 0;        // or
  std::uint64_t every_ms = 0;           // so often, or
  bool every_auto = false;              // as often as the storage takes them
  std::string resume_path = {};         // the one with which it begins
  Step resume_step;                     // that one's step; 0: it begins anew
  std::vector<Step> resume_older = {};  // those beside it, DIR/step-N, the newest first: if it proves damaged
  std::uint64_t bytes_a_second = 0;     // that each node writes at most; 0: no limit. Not of the last one
  std::uint64_t keep_last = 0;          // of the newest so many are kept; 0: all
  std::uint64_t keep_every = 0;         // and each whose step is a multiple of it; 0: none
  bool operator==(const CheckpointSpec&) const = default;
};

// What `pawl run` asked for; written once by the first, compared by the others.
struct JobSpec {
  std::string job;
  std::uint32_t version = kProtocolVersion;
  std::uint32_t node_count = 1;  // members
  std::uint32_t seats_per_node = 1;
  std::uint32_t spare_count = 0;
  std::uint32_t replica_count = 1;
  // Who says which nodes die together: nobody (each is alone), "file:" and its digest, "env" or "slurm".
  std::string domains = {};
  bool fewer_domains = false;                // consent: copies may share a domain if there are too few
  std::uint64_t memory_bytes = 0;            // of each node, for all its arenas; 0: what it has
  std::uint64_t replica_bytes_a_second = 0;  // that each node sends to holders at most; 0: no limit
  CheckpointSpec checkpoints = {};
  bool wait_for_spare = true;        // --no-wait: a recovery without a spare stops the job instead of waiting
  bool test_hooks = false;           // drills may hold phases; the gate may be switched off
  bool gate_off = false;             // test only
  std::uint64_t deadline_ms = 3000;  // the one budget from which all other waits are derived (job/recovery/deadlines.h)
  std::uint64_t hang_ms = 20000;     // a trainer without progress for so long, outside a collective, hangs
  std::uint64_t start_ms = 600000;   // a new process, or a spare with a new seat, becomes ready within this
  std::string token_digest;          // hex; the token itself never leaves its 0600 file
  bool operator==(const JobSpec&) const = default;
};

struct NodeLife {  // one life of one node's agent
  NodeId node;
  Incarnation incarnation;
  auto operator<=>(const NodeLife&) const = default;
};

// :nodes/<id>, under the node's lease: gone when the node is.
struct NodeRecord {
  NodeLife life;
  std::string address;     // host:port of the keeper's listening socket, for peers
  std::string lifeline;    // host:port where the keeper itself listens, for lifelines; empty: nowhere
  std::string local_path;  // unix socket for this machine's command line
  std::uint64_t keeper_pid = 0;
  std::uint64_t pawld_pid = 0;
  std::uint32_t parked = 0;       // trainers that wait for a seat
  bool healthy = false;           // passed its health check; only such a node gets seats
  std::uint64_t arena_bytes = 0;  // of the largest arena of a seat of its own; 0: it has none
  std::string unhealthy = {};     // why it is not healthy; empty if it is
  std::string domain = {};        // its failure domain (job/redundancy/failure_domains.h); empty: it is one of its own
  bool operator==(const NodeRecord&) const = default;
};

struct Member {  // who sits where
  Seat seat;
  NodeLife life;
  std::string address;
  std::uint32_t local_index = 0;  // which of the node's trainers
  std::string domain = {};        // the node's failure domain; empty: it is one of its own
  std::string plan_domain = {};   // that of the first node here, for which copies were placed: a swap keeps it
  // Since the world has changed: the seat before it, from which it goes on. The seat's state goes by that number wherever it
  // lies, in slots of any generation: in arenas, inventories and strikes. None: by its own.
  std::optional<Seat> before = {};
  bool operator==(const Member&) const = default;
};
[[nodiscard]] inline Seat before_of(const Member& member) {
  return member.before.value_or(member.seat);
}
// Of `seats` (index = seat); who has no place there goes by his own number.
[[nodiscard]] inline Seat before_of(std::span<const Member> seats, Seat seat) {
  return seat.value < seats.size() ? before_of(seats[seat.value]) : seat;
}
// Whether any of them goes by another number.
[[nodiscard]] bool are_renumbered(std::span<const Member> seats);

enum class JobPhase : std::uint8_t { forming, restoring, running, quiescing, finished, failed };

// Where a seat's state may lie: in a node's memory; or, without any node that lives, in storage, from which nothing is read
// yet: whoever is to read it refuses. A path is the own arena of another seat, which was declared to have the same bytes.
enum class SourceKind : std::uint8_t { nothing, own_arena, replica, storage, path };
[[nodiscard]] constexpr bool is_in_memory(SourceKind kind) {
  return kind == SourceKind::own_arena || kind == SourceKind::replica || kind == SourceKind::path;
}

// Where an extent of a seat's stream, its state of the resume step, is read from.
struct Source {
  Seat seat;
  SourceKind kind = SourceKind::nothing;  // nothing: resume step 0
  NodeLife from;                          // of storage: nobody
  Generation slot_generation;
  Step step;
  Extent extent = {};
  Seat of = {};  // of a path: whose own arena it is
  bool operator==(const Source&) const = default;
};

// A source that proved wrong in use, in that extent; never tried twice.
struct Struck {
  NodeLife at;
  Seat seat;  // the number by which what lies there goes (before_of)
  SourceKind kind = SourceKind::nothing;
  Generation slot_generation;
  Step step;
  Extent extent = {};
  Seat of = {};          // of a path: whose own arena `seat` can't read there. It may be right about itself
  bool differs = false;  // what was declared equal is not; else it is only gone, or damaged
  bool operator==(const Struck&) const = default;
};

enum class FaultKind : std::uint8_t {
  none,
  node_lost,       // its address refuses, or its lease ended
  node_silent,     // accepts or swallows, but says nothing within its deadline
  trainer_exit,    // crash, exception, OOM kill
  trainer_hang,    // no progress outside a collective
  trainer_stuck,   // could not be freed within its deadline during a recovery
  communication,   // a collective failed and nobody died within the grace
  corrupt_source,  // a source struck out during a restore
  leader_lost,     // whoever led the recovery died
  operator_stop,
  layout_conflict,   // the seats do not agree on the layout
  drain,             // an operator takes the node out, which is sound
  source_unreached,  // nothing comes of a seat's state; `node` is its source, which is sound
  last_checkpoint,   // the job is to end, and writes its newest step to storage before
};

struct Cause {
  FaultKind kind = FaultKind::none;
  std::optional<NodeLife> node;
  std::optional<Seat> seat;
  std::string detail;
  std::uint64_t detected_wall_ms = 0;
  bool operator==(const Cause&) const = default;
};

struct LineageEntry {  // generation g went on from step `resume`: later steps of older generations are void for ever
  Generation generation;
  Step resume;
  bool operator==(const LineageEntry&) const = default;
};

// Recoveries of one kind in one place that brought no new committed step: what an escalation counts.
struct Attempt {
  FaultKind kind = FaultKind::none;
  std::optional<Seat> seat;  // the place: a spare inherits it, a node's is its lowest seat; none: nowhere in particular
  Step resume;               // R of the generation that failed last; a greater one since then is progress
  std::uint32_t count = 0;
  bool operator==(const Attempt&) const = default;
};

struct JobState {
  Generation generation;
  JobPhase phase = JobPhase::forming;
  NodeLife leader;
  // Index = seat: the world. In quiescing: the members of before, dead ones included; another world begins with `restoring`.
  std::vector<Member> seats;
  std::vector<NodeLife> evicted;   // by the last recovery; none of these is ever a source or a member again
  std::vector<NodeLife> departed;  // by earlier ones, the newest 64: a registration that outlives its node is no spare
  std::vector<Struck> struck;      // since the last `running`
  std::vector<LineageEntry> lineage;  // generations and steps both grow; the last entry is the last decision's
  Generation ran;                     // the last generation that reached `running`; 0: none has, nothing was trained
  Step committed;                     // greatest step known to be committed at the last move; R once it runs
  Step resume;                        // R; meaningful from `restoring` on
  // While it is `restoring`: by seats, of each seat one or more, in order of preference, which have its whole stream
  // together. All of a seat name the same generation and step: they fill one slot.
  std::vector<Source> sources;
  std::vector<Seat> restart;  // seats whose trainer process must be (or was) started anew on its node
  std::uint64_t plan_digest = 0;
  bool cold = false;              // every trainer starts anew from step 0: a death before the first commit
  std::uint64_t arena_bytes = 0;  // of the largest arena of a seat; 0: not known yet, since nothing was committed
  std::vector<Cause> causes;      // of the last recovery, oldest first
  std::vector<Attempt> attempts;  // fruitless ones
  std::string waiting;            // for what, if the decision waits ("a spare for seat 2")
  // Of finished and failed, a sentence; else which committed steps are redone, and why a wished world was refused, if so.
  std::string verdict;
  bool operator==(const JobState&) const = default;
};

inline constexpr std::size_t kSourcesMax = 64;  // of a seat

// Those of a seat. Valid as long as `sources` is. Cost: O(log n).
[[nodiscard]] std::span<const Source> sources_of(std::span<const Source> sources, Seat seat);

// suspect/<generation>/<victim>/<accuser>: the accuser hears nothing of the victim, which is erased when it does again.
struct Accusation {
  NodeLife victim;
  NodeLife accuser;
  bool operator==(const Accusation&) const = default;
};

// fault/<generation>/<seat>: a collective failed for the seat's trainer.
struct FaultReport {
  Seat seat;
  std::string lost;  // whom it found gone when it failed: ranks, or hosts of addresses, blanks between; may be empty
  bool operator==(const FaultReport&) const = default;
};

// Who sits where (without the seats before them), in a key of its own: topology/<generation>. A state of more than a few nodes names one, and has only
// the seats that are others' since. So what all watch stays small, however many nodes there are; newcomers read both.
// Written in one transaction with the first state that names it; what the state names is there as long as it stands.
struct Topology {
  Generation generation;  // of that state
  std::vector<Member> seats;
  std::uint64_t digest = 0;  // of all this: by it the state names it
  bool operator==(const Topology&) const = default;
};
[[nodiscard]] Topology make_topology(Generation generation, std::vector<Member> seats);

// What of a state is long because much has died at once, in a key of its own: sheet/<generation>/<digest>. A state that would have
// more than kStateBytesMax names one, by generation and digest, and says nothing of what that has.
// Put in one transaction with the first state that names it, and before it; erased with the first one after that which does not.
struct SheetName {
  Generation generation;
  std::uint64_t digest = 0;
  bool operator==(const SheetName&) const = default;
};
struct Sheet {
  SheetName name;
  std::string text;  // the value of its key
  bool operator==(const Sheet&) const = default;
};
[[nodiscard]] Sheet make_sheet(Generation generation, std::string text);

// A state as its keys have it.
struct WrittenState {
  std::string state;
  std::optional<Topology> topology = {};  // to be put with it; none: the state names the known one, or none at all
  std::optional<Sheet> sheet = {};        // the same of it
  std::optional<SheetName> named = {};    // the sheet that the state names, new or known
};
inline constexpr std::size_t kMovedRowsMax = 8;      // so many nodes' seats a state has itself
inline constexpr std::size_t kStateBytesMax = 4096;  // of one that names what it can
struct StateLimits {
  std::size_t rows_max = kMovedRowsMax;
  std::size_t bytes_max = kStateBytesMax;
};
struct SheetOptions {
  const Sheet* known = nullptr;  // that the current state names
  std::size_t bytes_max = kStateBytesMax;
};
// `known`: the topology that the current state names; nullptr: none.
[[nodiscard]] WrittenState write_state(const JobState& state, const Topology* known,
                                       std::size_t rows_max = kMovedRowsMax, SheetOptions sheets = {});
// Which topology a state names; none: all seats are in it, or it can't be read.
[[nodiscard]] std::optional<Generation> topology_named_by(std::string_view json);
// The same of its sheet.
[[nodiscard]] std::optional<SheetName> sheet_named_by(std::string_view json);
// Fails: `stale` if it names another topology or sheet than these: read all again; else as parse_job_state.
[[nodiscard]] Result<JobState> read_state(std::string_view json, const Topology* known, const Sheet* sheet = nullptr);

// Whether such a job can write who sits where, if its nodes' addresses have so many bytes each, and the names of their
// failure domains.
// Fails: `full`, with the arithmetic. Cost: linear in the nodes.
[[nodiscard]] Status check_records_of(const JobSpec& spec, std::size_t address_bytes, std::size_t domain_bytes = 0);

inline constexpr std::size_t kRecordBytesMax = std::size_t{1} << 20;
inline constexpr std::uint32_t kSeatsMax = std::uint32_t{1} << 18;  // of a job
inline constexpr std::size_t kAddressBytesMax = 260;                // of a member: a name of 253 characters and a port

[[nodiscard]] std::string to_json(const JobSpec&);
[[nodiscard]] std::string to_json(const NodeRecord&);
[[nodiscard]] std::string to_json(const JobState&);  // with all its seats
[[nodiscard]] std::string to_json(const Topology&);
[[nodiscard]] std::string to_json(const Accusation&);
[[nodiscard]] std::string to_json(const FaultReport&);
[[nodiscard]] Result<JobSpec> parse_job_spec(std::string_view json);
[[nodiscard]] Result<NodeRecord> parse_node_record(std::string_view json);
[[nodiscard]] Result<JobState> parse_job_state(std::string_view json);  // of one that names no topology
[[nodiscard]] Result<Topology> parse_topology(std::string_view json);
[[nodiscard]] Result<Accusation> parse_accusation(std::string_view json);
[[nodiscard]] Result<FaultReport> parse_fault_report(std::string_view json);

[[nodiscard]] const char* name_of(JobPhase phase);
[[nodiscard]] const char* name_of(FaultKind kind);
[[nodiscard]] const char* name_of(SourceKind kind);
[[nodiscard]] const char* name_of(SlotState state);

// Keys. `job` is checked by `pawl run`: [A-Za-z0-9._-]{1,63}.
struct JobKeys {
  std::string root;    // "/pawl/<job>/": what every node watches
  std::string beside;  // "/pawl/<job>:": what only some watch; no other job's root begins so
  explicit JobKeys(std::string_view job);
  [[nodiscard]] std::string spec() const;                              // spec
  [[nodiscard]] std::string state() const;                             // state
  [[nodiscard]] std::string topologies() const;                        // topology/
  [[nodiscard]] std::string topology(Generation generation) const;     // topology/<generation>
  [[nodiscard]] std::string nodes() const;                             // :nodes/
  [[nodiscard]] std::string node(NodeId node) const;                   // :nodes/<id>
  [[nodiscard]] std::string all_reports() const;                       // :reports/
  [[nodiscard]] std::string reports(Generation generation) const;      // :reports/<generation>/
  [[nodiscard]] std::string inventories(Generation generation) const;  // :reports/<generation>/inventory/
  [[nodiscard]] std::string inventory(Generation generation, NodeId node) const;
  [[nodiscard]] std::string readies(Generation generation) const;  // :reports/<generation>/ready/
  [[nodiscard]] std::string ready(Generation generation, NodeId node) const;
  [[nodiscard]] std::string collected(Generation generation) const;    // :reports/<generation>/collected/
  [[nodiscard]] std::string all_accusations() const;                   // suspect/
  [[nodiscard]] std::string accusations(Generation generation) const;  // suspect/<generation>/
  [[nodiscard]] std::string accusation(Generation generation, NodeId victim, NodeId accuser) const;
  [[nodiscard]] std::string all_faults() const;                   // fault/
  [[nodiscard]] std::string faults(Generation generation) const;  // fault/<generation>/
  [[nodiscard]] std::string fault(Generation generation, Seat seat) const;
  [[nodiscard]] std::string finishes() const;                        // finish/
  [[nodiscard]] std::string finish(Seat seat) const;                 // finish/<seat>
  [[nodiscard]] std::string exits() const;                           // exit/
  [[nodiscard]] std::string exit(Seat seat) const;                   // exit/<seat>
  [[nodiscard]] std::string stop() const;                            // stop
  [[nodiscard]] std::string stop_acks(Generation generation) const;  // stop_ack/<generation>/
  [[nodiscard]] std::string stop_ack(Generation generation, NodeId node) const;
  [[nodiscard]] std::string all_progress() const;                   // progress/
  [[nodiscard]] std::string progress(Generation generation) const;  // progress/<generation>/
  [[nodiscard]] std::string progress(Generation generation, NodeId node) const;
  [[nodiscard]] std::string orders() const;                                       // order/
  [[nodiscard]] std::string cordons() const;                                      // order/cordon/
  [[nodiscard]] std::string cordon(NodeId node) const;                            // order/cordon/<id>
  [[nodiscard]] std::string drains() const;                                       // order/drain/
  [[nodiscard]] std::string drain(NodeId node) const;                             // order/drain/<id>
  [[nodiscard]] std::string pause() const;                                        // pause
  [[nodiscard]] std::string pause_acks() const;                                   // pause_ack/
  [[nodiscard]] std::string pause_ack(Generation generation, NodeId node) const;  // pause_ack/<generation>/<id>
  [[nodiscard]] std::string events() const;                                       // :events/
  [[nodiscard]] std::string event(std::uint64_t wall_ns, NodeId node) const;      // sorts by time
};

[[nodiscard]] std::string sheet_prefix(const JobKeys& keys);               // sheet/
[[nodiscard]] std::string sheet_key(const JobKeys& keys, SheetName name);  // sheet/<generation>/<digest>
// The sheet in a key of one, as its name says it; none: the value is not what was put there.
[[nodiscard]] std::optional<Sheet> sheet_in(const JobKeys& keys, std::string_view key, std::string value);

// The id in `<prefix><id>`, such as :nodes/<id>; false, with `id` as it was, where the key is another.
template <class AnId>
[[nodiscard]] bool id_after(std::string_view prefix, std::string_view key, AnId& id) {
  return key.starts_with(prefix) && parse_number(key.substr(prefix.size()), id.value);
}

}  // namespace pawl::job
