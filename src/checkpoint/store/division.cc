#include "checkpoint/store/division.h"

#include <algorithm>

namespace pawl::checkpoint {
namespace {

// The dimension that is cut; where there is nothing to part, the first.
std::uint32_t row_dimension(const Box& box) {
  for (std::uint32_t d = 0; d < box.dimensions; ++d)
    if (box.size[d] > 1) return d;
  return 0;
}

std::uint64_t rows_of(const Box& box) {
  return box.dimensions == 0 ? 1 : box.size[row_dimension(box)];
}

Box rows_between(Box box, std::uint64_t begin, std::uint64_t end) {
  if (box.dimensions == 0) return box;
  const std::uint32_t d = row_dimension(box);
  box.begin[d] += begin;
  box.size[d] = end - begin;
  return box;
}

// How many of these rows fit best: all, some if both parts are worth it, or none.
std::uint64_t rows_for(std::uint64_t room, std::uint64_t rows, std::uint64_t row_bytes, std::uint64_t part_bytes_min) {
  const std::uint64_t rest = rows * row_bytes;
  if (room >= rest) return rows;
  const std::uint64_t take = (room + row_bytes / 2) / row_bytes;
  if (std::min(take * row_bytes, rest - take * row_bytes) >= part_bytes_min) return take;
  return room > rest / 2 ? rows : 0;
}

}  // namespace

std::vector<std::uint64_t> equal_rooms(std::uint64_t bytes, std::uint32_t holders) {
  return std::vector<std::uint64_t>(holders, (bytes + holders - 1) / holders);
}

std::vector<DividedBox> divide_among(std::span<const DivisionItem> items, std::span<const std::uint64_t> rooms,
                                     std::uint64_t part_bytes_min) {
  std::vector<DividedBox> divided;
  std::uint32_t at = 0;
  std::uint64_t room = rooms.empty() ? 0 : rooms[0];
  for (std::uint32_t i = 0; i < items.size() && !rooms.empty(); ++i) {
    const std::uint64_t elements = volume(items[i].box);
    if (elements == 0) continue;
    const std::uint64_t rows = rows_of(items[i].box);
    const std::uint64_t row_bytes = elements / rows * items[i].element_bytes;
    for (std::uint64_t done = 0; done < rows;) {
      std::uint64_t take = rows - done;
      if (at + 1 < rooms.size()) take = rows_for(room, take, row_bytes, part_bytes_min);
      if (take == 0) {
        room = rooms[++at];
        continue;
      }
      divided.push_back({at, i, rows_between(items[i].box, done, done + take)});
      room -= std::min(room, take * row_bytes);
      done += take;
    }
  }
  return divided;
}

}  // namespace pawl::checkpoint
