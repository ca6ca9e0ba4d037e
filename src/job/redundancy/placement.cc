#include "job/redundancy/placement.h"

#include "base/text.h"

namespace pawl::job {
namespace {

std::uint32_t node_count(const RingOptions& options) {
  return options.seat_count / options.seats_per_node;
}

}  // namespace

Status check_ring(const RingOptions& options) {
  if (options.seat_count == 0 || options.seats_per_node == 0 || options.seat_count % options.seats_per_node != 0) {
    return Error{Code::invalid, text(options.seat_count, " seats do not fill whole nodes of ", options.seats_per_node)};
  }
  if (options.replica_count >= node_count(options)) {
    return Error{Code::full, text(options.replica_count, " replicas need ", std::uint64_t{options.replica_count} + 1,
                                  " failure domains, there are ", node_count(options))};
  }
  return {};
}

std::uint32_t ring_position(Seat seat, const RingOptions& options) {
  return seat.value / options.seats_per_node;
}

std::vector<std::uint32_t> holder_positions(Seat seat, const RingOptions& options) {
  std::vector<std::uint32_t> positions;
  for (std::uint32_t i = 1; i <= options.replica_count; ++i) {
    positions.push_back((ring_position(seat, options) + i) % node_count(options));
  }
  return positions;
}

std::vector<Seat> wards_of(std::uint32_t position, const RingOptions& options) {
  const std::uint32_t nodes = node_count(options);
  std::vector<Seat> wards;
  for (std::uint32_t i = 1; i <= options.replica_count; ++i) {
    const std::uint32_t owner = (position + nodes - i) % nodes;
    for (std::uint32_t local = 0; local < options.seats_per_node; ++local) {
      wards.push_back(Seat(owner * options.seats_per_node + local));
    }
  }
  return wards;
}

}  // namespace pawl::job
