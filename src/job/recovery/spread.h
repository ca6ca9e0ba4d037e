// Spread: a few of many places, so that what all would do is done by some, wherever a rack of neighbours is lost.
//
// Equal arguments give the same places on every node, so nobody agrees on anything. Pure.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {

inline constexpr std::uint32_t kSpreadPlaces = 16;

// Whether `place` of `count` is one of these: one in each of so many equal parts, anywhere in it, since places at equal distances
// may be those of one rack. Each further turn has others; every place has its turn. Of a few places each is one.
[[nodiscard]] bool is_spread(std::uint64_t place, std::uint64_t count, std::uint64_t turn = 0,
                             std::uint32_t places = kSpreadPlaces);

// Which turn it is after so long: 0 until `first` is over, then turns of which each takes as long as all before it.
[[nodiscard]] std::uint64_t doubling_turn(Duration elapsed, Duration first);

// A part of `span`, another for each node and moment: many that begin at one moment don't all ask the control at once.
[[nodiscard]] Duration drawn_within(Duration span, NodeId node, Duration now);

}  // namespace pawl::job
