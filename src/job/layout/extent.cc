#include "job/layout/extent.h"

#include <algorithm>
#include <iterator>

#include "base/text.h"

namespace pawl::job {

Extents joined_extents(Extents extents) {
  std::ranges::sort(extents);
  Extents joined;
  for (const Extent& extent : extents) {
    if (extent.is_empty()) continue;
    if (!joined.empty() && extent.begin <= joined.back().end)
      joined.back().end = std::max(joined.back().end, extent.end);
    else
      joined.push_back(extent);
  }
  return joined;
}

Extents without(std::span<const Extent> extents, std::span<const Extent> others) {
  const Extents from = joined_extents({extents.begin(), extents.end()});
  const Extents taken = joined_extents({others.begin(), others.end()});
  Extents left;
  auto next = taken.begin();
  for (Extent extent : from) {
    while (next != taken.end() && next->end <= extent.begin) ++next;
    for (auto hole = next; hole != taken.end() && hole->begin < extent.end; ++hole) {
      if (extent.begin < hole->begin) left.push_back({extent.begin, hole->begin});
      extent.begin = std::min(hole->end, extent.end);
    }
    if (!extent.is_empty()) left.push_back(extent);
  }
  return left;
}

Extents holes_in(std::span<const Extent> extents) {
  constexpr Extent kWhole;
  return without({&kWhole, 1}, extents);
}

bool covers(std::span<const Extent> extents, std::span<const Extent> others) {
  return without(others, extents).empty();
}

std::uint32_t least_cover(std::span<const Extent> extents) {
  std::vector<std::uint64_t> begins, ends;
  for (const Extent& extent : extents) {
    if (extent.is_empty()) continue;
    begins.push_back(extent.begin);
    ends.push_back(extent.end);
  }
  std::ranges::sort(begins);
  std::ranges::sort(ends);
  auto least = static_cast<std::uint32_t>(begins.size());
  // A byte with the fewest is the first, or lies where one of them has ended.
  std::size_t begun = 0;
  std::size_t ended = 0;
  for (std::uint64_t at = 0; at != kStreamEnd; at = ended < ends.size() ? ends[ended] : kStreamEnd) {
    while (begun < begins.size() && begins[begun] <= at) ++begun;
    while (ended < ends.size() && ends[ended] <= at) ++ended;
    least = std::min(least, static_cast<std::uint32_t>(begun - ended));
  }
  return least;
}

bool ExtentUnion::add(Extent extent) {
  if (extent.is_empty()) return false;
  auto next = ends_.upper_bound(extent.begin);
  if (next != ends_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= extent.end) return false;
    if (before->second >= extent.begin) {
      extent.begin = before->first;
      next = ends_.erase(before);
    }
  }
  while (next != ends_.end() && next->first <= extent.end) {
    extent.end = std::max(extent.end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace(extent.begin, extent.end);
  return true;
}

std::string to_text(std::span<const Extent> extents) {
  std::string out;
  for (const Extent& extent : extents) {
    out += text(out.empty() ? "bytes " : ", ", extent.begin, '-');
    if (extent.end != kStreamEnd) out += text(extent.end - 1);
  }
  return out;
}

}  // namespace pawl::job
