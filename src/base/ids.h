// Ids and units as types of their own, so that arguments cannot be swapped.
//
// Each id is an integer in a coat: equality, order, hash and `value`, no arithmetic but next().
#pragma once

#include <chrono>
#include <compare>
#include <cstdint>
#include <functional>

namespace pawl {

template <class Tag, class Integer>
struct Id {
  Integer value{};
  constexpr Id() = default;
  constexpr explicit Id(Integer v) : value(v) {}
  constexpr auto operator<=>(const Id&) const = default;
  [[nodiscard]] constexpr Id next() const { return Id(value + 1); }
};

using Seat = Id<struct SeatTag, std::uint32_t>;    // a stable place in the job, 0..seat_count-1; equals the rank
using NodeId = Id<struct NodeTag, std::uint32_t>;  // a machine (or a namespace that plays one)
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;  // one life of a node's agent; grows with each
using Generation = Id<struct GenerationTag, std::uint64_t>;    // version of the membership; 0: before the first
using Step = Id<struct StepTag, std::uint64_t>;  // one training iteration; 0: the initial state, before step 1

using Duration = std::chrono::nanoseconds;

}  // namespace pawl

template <class Tag, class Integer>
struct std::hash<pawl::Id<Tag, Integer>> {
  std::size_t operator()(const pawl::Id<Tag, Integer>& id) const { return std::hash<Integer>()(id.value); }
};
