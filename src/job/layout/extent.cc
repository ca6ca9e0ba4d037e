#include "job/layout/extent.h"

#include <algorithm>

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
  std::vector<std::uint64_t> begins{0};
  for (const Extent& extent : extents) begins.insert(begins.end(), {extent.begin, extent.end});
  std::uint32_t least = static_cast<std::uint32_t>(extents.size());
  for (const std::uint64_t at : begins) {  // a byte with the fewest lies where one of them begins or has ended
    if (at == kStreamEnd) continue;
    const auto holds = [at](const Extent& extent) { return extent.begin <= at && at < extent.end; };
    least = std::min(least, static_cast<std::uint32_t>(std::ranges::count_if(extents, holds)));
  }
  return least;
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
