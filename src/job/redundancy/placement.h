// Placement: which nodes hold the replicas of a seat's state.
//
// The nodes form a ring: seat s lives on the node at ring position s / seats_per_node; its k replicas lie on the next k
// positions. One node is one failure domain here, so no replica shares one with what it protects. A spare inherits a
// dead node's seats and with them its ring position.
// Pure: equal arguments give an equal placement on every node. Thread-safe. It moves no bytes:
// job/daemon/replication.h does.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

struct RingOptions {
  std::uint32_t seat_count = 0;
  std::uint32_t seats_per_node = 1;
  std::uint32_t replica_count = 1;  // k, 0..nodes-1. 0: nothing survives the loss of a node
};

// Fails: `invalid` if the seats do not fill whole nodes; `full` if there are fewer than k+1 failure domains.
[[nodiscard]] Status check_ring(const RingOptions& options);
[[nodiscard]] std::uint32_t ring_position(Seat seat, const RingOptions& options);
// Positions of the holders of `seat`, nearest first; the i-th has acknowledgement i of a slot. Empty for k = 0.
[[nodiscard]] std::vector<std::uint32_t> holder_positions(Seat seat, const RingOptions& options);
// Seats whose replicas the node at `position` holds (its wards).
[[nodiscard]] std::vector<Seat> wards_of(std::uint32_t position, const RingOptions& options);

}  // namespace pawl::job
