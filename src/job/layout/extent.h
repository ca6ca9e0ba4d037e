// Extent: a part of a stream. A stream is, today, the payload of one seat; whoever holds an extent names the stream.
//
// A whole stream is one extent that reaches to its end, wherever that is: so nobody needs to know how long the stream is,
// as long as nothing is cut. Pure. Which bytes of a stream lie where: job/membership (inventories, sources).
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace pawl::job {

inline constexpr std::uint64_t kStreamEnd = std::numeric_limits<std::uint64_t>::max();

struct Extent {  // in bytes of the stream; the first is in it, the last is not
  std::uint64_t begin = 0;
  std::uint64_t end = kStreamEnd;  // kStreamEnd: to the stream's end
  [[nodiscard]] constexpr bool is_empty() const { return begin >= end; }
  [[nodiscard]] constexpr bool is_whole() const { return begin == 0 && end == kStreamEnd; }
  [[nodiscard]] constexpr bool overlaps(Extent other) const {
    return begin < other.end && other.begin < end && !is_empty() && !other.is_empty();
  }
  auto operator<=>(const Extent&) const = default;
};
using Extents = std::vector<Extent>;

// The same bytes in ascending order; no two of them touch, none is empty. Cost: O(n log n).
[[nodiscard]] Extents joined_extents(Extents extents);
// The bytes of `extents` that are not in `others`, joined.
[[nodiscard]] Extents without(std::span<const Extent> extents, std::span<const Extent> others);
// What is missing of the whole stream, joined. Empty: nothing is.
[[nodiscard]] Extents holes_in(std::span<const Extent> extents);
[[nodiscard]] bool covers(std::span<const Extent> extents, std::span<const Extent> others);
// In how many of them a byte of the stream lies, of the byte that lies in the fewest. Cost: O(n log n).
[[nodiscard]] std::uint32_t least_cover(std::span<const Extent> extents);

// Extents that are added one by one, joined at each moment.
class ExtentUnion {
 public:
  // False: all of it was there. Cost: O(log n), besides what it joins.
  bool add(Extent extent);

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by begin; no two of them touch
};

// "bytes 0-4095, 8192-": for people.
[[nodiscard]] std::string to_text(std::span<const Extent> extents);

}  // namespace pawl::job
