// StopOrder: a job that is to end writes its newest step to storage before (REFT 4.2). What its nodes agree on. Pure.
//
// The order stands once, under the key `stop_order`, whoever asks: an operator, a machine that is taken away, or a verdict that would
// end the job. All then freeze as for a recovery, which finds the newest step that memory holds whole; nobody goes on from
// it. It is written from wherever it lies, whether trainers live or not: own arenas by their nodes, the others as the key
// `last_checkpoint` says. Each node tells what it has written (`last_part/<attempt>/<node>`); whoever leads publishes, and
// ends the job. A death meanwhile is a further generation, which begins anew over the same frozen slots.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "job/membership/job_state.h"

namespace pawl::job {

struct StopOrder {
  std::string why;  // a sentence: the job's verdict begins with it
  std::uint64_t wall_ms = 0;
  std::uint64_t patience_ms = 0;  // until the job ends, written or not
  bool operator==(const StopOrder&) const = default;
};

// A node that was told to end: all of those, and only they, say whether the job can go on without.
struct StoppingNode {
  NodeLife life;
  std::string why;
  std::uint64_t grace_ms = 0;
  bool operator==(const StoppingNode&) const = default;
};

// A seat whose step is not read from its own arena on its own node.
struct LastPart {
  Seat seat;
  NodeLife from;
  SourceKind kind = SourceKind::nothing;  // own_arena or replica
  bool operator==(const LastPart&) const = default;
};

enum class LastPhase : std::uint8_t { writing, published, failed };

struct LastRecord {
  std::uint64_t attempt = 0;  // counts up; far beyond those of ordinary checkpoints, beside which it may be written
  Generation generation;      // frozen
  NodeLife by;                // who has begun it: another waits for it a while
  LastPhase phase = LastPhase::writing;
  Step step;
  std::string folder;
  std::vector<LastPart> parts;  // by seats
  std::string why;              // of failed
  bool operator==(const LastRecord&) const = default;
};
inline constexpr std::uint64_t kLastAttempts = std::uint64_t{1} << 40;  // theirs begin here

struct PartTold {  // by one node
  std::uint64_t attempt = 0;
  std::vector<Seat> seats;  // written
  std::string failed;       // why not the others; empty: they are yet to come
  bool operator==(const PartTold&) const = default;
};

[[nodiscard]] std::string last_checkpoint_key(const JobKeys& keys);  // of the LastRecord

[[nodiscard]] std::string to_json(const StopOrder& order);
[[nodiscard]] std::string to_json(const StoppingNode& node);
[[nodiscard]] std::string to_json(const LastRecord& record);
[[nodiscard]] std::string to_json(const PartTold& told);
// Fail: `corrupt`, naming the field: one is missing, of another type or out of range.
[[nodiscard]] Result<StopOrder> parse_stop_order(std::string_view json);
[[nodiscard]] Result<StoppingNode> parse_stopping_node(std::string_view json);
[[nodiscard]] Result<LastRecord> parse_last_record(std::string_view json);
[[nodiscard]] Result<PartTold> parse_part_told(std::string_view json);

// Which seats do not read their own node's own arena.
[[nodiscard]] std::vector<LastPart> parts_elsewhere(std::span<const Source> sources, std::span<const Member> seats);

struct PartToWrite {
  Seat seat;
  SourceKind kind = SourceKind::nothing;
  bool operator==(const PartToWrite&) const = default;
};
// What this node writes. Cost: linear in the seats of the job.
[[nodiscard]] std::vector<PartToWrite> parts_of(const LastRecord& record, std::span<const Member> seats, NodeLife node);

// Whether the job ends with these: all survivors go, or with the members that are dead and not replaced more than
// `replica_count`, so that a seat's copies might all go. Else a spare takes the place of each, or is waited for. Cost: n log n.
[[nodiscard]] bool ends_job(std::span<const NodeLife> survivors, std::size_t dead_count,
                            std::span<const StoppingNode> stopping, std::uint32_t replica_count);

}  // namespace pawl::job
