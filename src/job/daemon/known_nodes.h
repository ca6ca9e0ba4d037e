// KnownNodes: who is registered, as far as this node follows that, and what it has read of single nodes.
//
// Until a first listing has come, and again after forget(), nobody is registered or a spare (Registrations::known), and gone only
// who was looked up.
// JobMirror fills it as the control tells it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <span>

#include "job/membership/job_state.h"
#include "job/recovery/absent_members.h"
#include "job/recovery/members.h"

namespace pawl::job {

class KnownNodes {
 public:
  KnownNodes() { registrations_.known = false; }

  void note(NodeId node, const NodeRecord* record, Duration now) { registrations_.note(node, record, now); }
  // Around the notes of all that a listing has. Returns who was registered before.
  [[nodiscard]] std::map<NodeId, NodeRecord> begin_listing();
  void end_listing(const std::map<NodeId, NodeRecord>& before, Duration now);
  // Who is named by the state, and is not registered when that is looked for first, is gone since then.
  void note_state(const JobState& state, const Roster& roster, Duration now);
  void forget(std::span<const NodeLife> but_records_of);
  void note_read(const NodeRecord& record) { read_[record.life.node] = record; }  // of a node whose key alone was read
  // Whether this node's key was there, by who knows no more.
  void note_looked_up(NodeId node, bool there, Duration now);
  void note_own_arena(std::uint64_t bytes) { registrations_.own_arena_bytes = bytes; }
  void set_seats_per_node_max(std::uint32_t seats) { registrations_.seats_per_node_max = seats; }

  [[nodiscard]] const Registrations& registrations() const { return registrations_; }
  // What this life has registered, whoever has told it: of what is the same as long as it lives. nullptr: nothing is known.
  [[nodiscard]] const NodeRecord* record_of(NodeLife life) const;

 private:
  Registrations registrations_;
  std::map<NodeId, NodeRecord> read_;  // one by one, or kept when the others were forgotten
};

}  // namespace pawl::job
