#include "job/redundancy/placement.h"

#include <algorithm>

namespace pawl::job {

Ring::Ring(std::span<const std::uint32_t> seat_counts, std::uint32_t replica_count)
    : replica_count_(
          std::min(replica_count, seat_counts.empty() ? 0 : static_cast<std::uint32_t>(seat_counts.size() - 1))) {
  for (const std::uint32_t count : seat_counts) {
    first_seats_.push_back(first_seats_.back() + count);
    seats_per_node_max_ = std::max(seats_per_node_max_, count);
  }
}

std::uint32_t Ring::position_of(Seat seat) const {
  const auto behind = std::ranges::upper_bound(first_seats_, seat.value);
  return static_cast<std::uint32_t>(behind - first_seats_.begin()) - 1;
}

std::vector<std::uint32_t> Ring::holders_of(Seat seat) const {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t i = 1; i <= replica_count_; ++i) positions.push_back((position_of(seat) + i) % position_count());
  return positions;
}

std::vector<Seat> Ring::wards_of(std::uint32_t position) const {
  std::vector<Seat> wards;
  for (std::uint32_t i = 1; i <= replica_count_; ++i) {
    const std::uint32_t owner = (position + position_count() - i) % position_count();
    for (std::uint32_t seat = first_seats_[owner]; seat < first_seats_[owner + 1]; ++seat) wards.emplace_back(seat);
  }
  return wards;
}

}  // namespace pawl::job
