// Members: small questions about a JobState's seats and lives, and how a decision names them. Pure.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/contains.h"
#include "job/membership/job_state.h"
#include "job/redundancy/placement.h"

namespace pawl::job {

// Of all seats, of a checkpoint of that step. Their slots are then of the state's generation.
[[nodiscard]] inline std::vector<Source> sources_in_storage(const JobState& state, Step step) {
  std::vector<Source> sources;
  for (const Member& member : state.seats)
    sources.push_back({member.seat, SourceKind::storage, {}, state.generation, step});
  return sources;
}

// One state's members as an index, for what is asked at each event: logarithmic each, where the functions below search all
// seats. As of the state from which it was made: O(seats log seats).
class Roster {
 public:
  Roster() = default;
  explicit Roster(const JobState& state);
  [[nodiscard]] std::optional<Seat> lowest_seat_of(NodeLife life) const;
  [[nodiscard]] std::optional<Seat> lowest_seat_of(NodeId node) const;  // of whichever life
  [[nodiscard]] bool is_member(NodeLife life) const { return lowest_seat_of(life).has_value(); }
  [[nodiscard]] bool is_evicted(NodeLife life) const;   // by the last recovery or an earlier one
  [[nodiscard]] bool is_survivor(NodeLife life) const;  // a member that the last one has not evicted
  [[nodiscard]] bool has_survivor(NodeId node) const;
  [[nodiscard]] bool reads_from_evicted() const { return reads_from_evicted_; }    // the state has such a source
  [[nodiscard]] const std::vector<NodeLife>& members() const { return members_; }  // by lowest seat
  [[nodiscard]] const std::vector<NodeLife>& survivors() const { return survivors_; }

 private:
  struct Place {
    NodeLife life;
    Seat lowest;
  };
  std::vector<Place> places_;      // by life
  std::vector<NodeLife> evicted_;  // ascending, by the last recovery
  std::vector<NodeLife> gone_;     // ascending, by any
  std::vector<NodeLife> members_;
  std::vector<NodeLife> survivors_;
  bool reads_from_evicted_ = false;
};

// The ring of a generation's topology: a position for each node, in the order of the seats, and the failure domains for
// which it was formed. `seats`: index = seat; those of a node follow each other.
[[nodiscard]] Ring ring_of(std::span<const Member> seats, std::uint32_t replica_count);
// That of the first generation, before anybody has a seat: what `pawl run` asked for.
[[nodiscard]] Ring ring_of(const JobSpec& spec);

// Where two of a seat's copies (its own included) lie in one failure domain, because there are too few, or a spare of that
// domain has taken a position: they may be lost at once.
struct SharedDomain {
  std::uint32_t position = 0;  // whose seats they are of
  NodeLife one;
  NodeLife other;
  std::string domain;
  bool operator==(const SharedDomain&) const = default;
};
// Of all positions, or of one. `seats`: those of the state, of which `ring` is. Cost: O(seats + positions x copies^2).
[[nodiscard]] std::vector<SharedDomain> shared_domains(std::span<const Member> seats, const Ring& ring);
[[nodiscard]] std::vector<SharedDomain> shared_domains_of(std::span<const Member> seats, const Ring& ring,
                                                          std::uint32_t position);
// Those of the seats of this position, and those of others to which the node there is a party.
[[nodiscard]] std::vector<SharedDomain> shared_domains_at(std::span<const Member> seats, const Ring& ring,
                                                          std::uint32_t position);
[[nodiscard]] std::string to_text(const SharedDomain& shared, const Ring& ring);

// Each life once, in the order of its lowest seat.
[[nodiscard]] std::vector<NodeLife> lives_of(const std::vector<Member>& seats);
[[nodiscard]] std::vector<NodeLife> survivors_of(const JobState& state);  // members that are not evicted
[[nodiscard]] bool is_survivor(const JobState& state, NodeLife life);
[[nodiscard]] std::vector<Seat> seats_of(const JobState& state, NodeLife life);  // ascending
[[nodiscard]] std::optional<Seat> lowest_seat_of(const JobState& state, NodeLife life);
// Which of them goes on from the seat before, if any. Cost: O(seats).
[[nodiscard]] std::optional<Seat> seat_after(std::span<const Member> seats, Seat before);
// A step was committed between that recovery and the last one. Such an attempt no longer counts, and is erased.
[[nodiscard]] bool brought_progress(const JobState& state, const Attempt& attempt);

[[nodiscard]] std::string numbers_of(const std::vector<NodeLife>& lives);  // "2,3"
[[nodiscard]] std::string numbers_of(const std::vector<Seat>& seats);
// The first few of them: "2,3,5,7,8,9,12,14 and 90 more".
[[nodiscard]] std::string some_numbers_of(std::span<const NodeLife> lives);
[[nodiscard]] std::string joined(const std::vector<std::string>& sentences, std::string_view between);

// The state with the job ended. The generation stays.
[[nodiscard]] JobState failed(const JobState& state, NodeLife self, std::string verdict);

}  // namespace pawl::job
