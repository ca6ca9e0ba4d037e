// Placement: which nodes hold the replicas of a seat's state.
//
// The nodes form a ring of positions. A position has seats that follow each other, as many as its node has; the k replicas
// of its seats lie on k other positions, in as many failure domains as there are. A spare inherits a dead node's seats and
// with them its position and the domain for which the ring was made: so replicas stay where they are when a node is
// replaced. Without domains each position is one, and the next k positions hold.
// With them the ring goes from domain to domain: the positions in the order of their domains, and the holders of one are
// the first, second, ... k-th behind it in strides as long as the largest domain. No two of these share a domain while
// k+1 strides fit into the ring, and every node holds as much as it has. Where one domain is larger than that, the holders are chosen
// one by one, the least busy first: nodes of small domains then hold more.
// A ring is of one generation's topology (ring_of, job/recovery/members.h): in the next one a node may have more seats, or
// there may be fewer nodes.
// Pure: equal arguments give an equal placement on every node. Thread-safe. It moves no bytes:
// job/daemon/replication.h does. What else a plan may be, cuts and parity: protection.h.
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
  // `domains`: of each position, equal numbers die together; empty: each position is a domain.
  Ring(std::span<const std::uint32_t> seat_counts, std::uint32_t replica_count,
       std::span<const std::uint32_t> domains = {});

  [[nodiscard]] std::uint32_t seat_count() const { return first_seats_.back(); }  // the world
  [[nodiscard]] std::uint32_t position_count() const { return static_cast<std::uint32_t>(first_seats_.size() - 1); }
  [[nodiscard]] std::uint32_t replica_count() const { return replica_count_; }  // k. 0: no node's loss is survived
  [[nodiscard]] std::uint32_t seats_per_node_max() const { return seats_per_node_max_; }
  // Seats whose replicas the node holds that holds most.
  [[nodiscard]] std::uint32_t wards_per_node_max() const { return wards_per_node_max_; }
  // The seat must be in the ring, and the position. position_of: O(log positions).
  [[nodiscard]] std::uint32_t position_of(Seat seat) const;
  [[nodiscard]] Seat first_seat(std::uint32_t position) const { return Seat(first_seats_[position]); }
  [[nodiscard]] std::uint32_t seats_at(std::uint32_t position) const {
    return first_seats_[position + 1] - first_seats_[position];
  }
  // Numbered from 0 in the order of their first positions.
  [[nodiscard]] std::uint32_t domain_of(std::uint32_t position) const { return domains_[position]; }
  [[nodiscard]] std::uint32_t domain_count() const { return domain_count_; }
  // Positions of the holders of `seat`; the i-th has acknowledgement i of a slot. Empty for k = 0.
  [[nodiscard]] std::vector<std::uint32_t> holders_of(Seat seat) const;
  // Of any seat there. Valid as long as the ring is.
  [[nodiscard]] std::span<const std::uint32_t> holders_at(std::uint32_t position) const {
    return {holders_.data() + std::size_t{position} * replica_count_, replica_count_};
  }
  // Seats whose replicas the node at `position` holds (its wards). Cost: O(positions).
  [[nodiscard]] std::vector<Seat> wards_of(std::uint32_t position) const;

 private:
  void learn_domains(std::span<const std::uint32_t> domains);
  void choose_holders();
  void count_wards();

  std::vector<std::uint32_t> first_seats_ = {0};  // of each position, and behind the last the number of seats
  std::uint32_t replica_count_ = 0;
  std::uint32_t seats_per_node_max_ = 0;
  std::uint32_t wards_per_node_max_ = 0;
  std::vector<std::uint32_t> domains_;  // of each position
  std::uint32_t domain_count_ = 0;
  std::vector<std::uint32_t> holders_;  // [position * k + i]
};

}  // namespace pawl::job
