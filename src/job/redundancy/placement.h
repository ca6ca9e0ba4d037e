// Placement: which nodes hold the replicas of a seat's state.
//
// The nodes form a ring of positions. A position has seats that follow each other, as many as its node has; the k replicas
// of its seats lie on the next k positions. A spare inherits a dead node's seats and with them its position. One node is
// one failure domain here, and has one position, so no replica shares one with what it protects.
// A ring is of one generation's topology (ring_of, job/recovery/members.h): in the next one a node may have more seats, or
// there may be fewer nodes.
// Pure: equal arguments give an equal placement on every node. Thread-safe. It moves no bytes:
// job/daemon/replication.h does.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"

namespace pawl::job {

class Ring {
 public:
  Ring() = default;  // without a seat
  // `seat_counts`: of each position, at least 1. Of fewer than k+1 positions each holds replicas of all the others.
  Ring(std::span<const std::uint32_t> seat_counts, std::uint32_t replica_count);

  [[nodiscard]] std::uint32_t seat_count() const { return first_seats_.back(); }  // the world
  [[nodiscard]] std::uint32_t position_count() const { return static_cast<std::uint32_t>(first_seats_.size() - 1); }
  [[nodiscard]] std::uint32_t replica_count() const { return replica_count_; }  // k. 0: no node's loss is survived
  [[nodiscard]] std::uint32_t seats_per_node_max() const { return seats_per_node_max_; }
  // The seat must be in the ring, and the position. position_of: O(log positions).
  [[nodiscard]] std::uint32_t position_of(Seat seat) const;
  [[nodiscard]] Seat first_seat(std::uint32_t position) const { return Seat(first_seats_[position]); }
  [[nodiscard]] std::uint32_t seats_at(std::uint32_t position) const {
    return first_seats_[position + 1] - first_seats_[position];
  }
  // Positions of the holders of `seat`, nearest first; the i-th has acknowledgement i of a slot. Empty for k = 0.
  [[nodiscard]] std::vector<std::uint32_t> holders_of(Seat seat) const;
  // Seats whose replicas the node at `position` holds (its wards).
  [[nodiscard]] std::vector<Seat> wards_of(std::uint32_t position) const;

 private:
  std::vector<std::uint32_t> first_seats_ = {0};  // of each position, and behind the last the number of seats
  std::uint32_t replica_count_ = 0;
  std::uint32_t seats_per_node_max_ = 0;
};

}  // namespace pawl::job
