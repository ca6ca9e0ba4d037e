#include "job/recovery/spread.h"

#include <bit>
#include <numeric>

namespace pawl::job {
namespace {

constexpr std::uint64_t kMixing = 0x9e3779b97f4a7c15u;

}  // namespace

bool is_spread(std::uint64_t place, std::uint64_t count, std::uint64_t turn, std::uint32_t places) {
  if (place >= count || places == 0) return false;
  if (count <= places) return true;
  const std::uint64_t part = place * places / count;
  const auto begin_of = [count, places](std::uint64_t one) { return (one * count + places - 1) / places; };
  const std::uint64_t begin = begin_of(part);
  const std::uint64_t length = begin_of(part + 1) - begin;
  std::uint64_t step = length * 5 / 8 + 1;  // not to the next place, which is in the same rack
  while (std::gcd(step, length) != 1) ++step;
  const std::uint64_t anywhere = (part + 1) * kMixing >> 32;
  return place == begin + (anywhere + turn % length * step) % length;
}

std::uint64_t doubling_turn(Duration elapsed, Duration first) {
  return elapsed < first ? 0 : static_cast<std::uint64_t>(std::bit_width(static_cast<std::uint64_t>(elapsed / first)));
}

Duration drawn_within(Duration span, NodeId node, Duration now) {
  const auto mixed = (static_cast<std::uint64_t>(now.count()) ^ (std::uint64_t{node.value} << 32)) * kMixing;
  return span / 256 * static_cast<std::int64_t>(mixed >> 56);
}

}  // namespace pawl::job
