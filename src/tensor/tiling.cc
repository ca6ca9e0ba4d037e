#include "tensor/tiling.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/text.h"

namespace pawl {
namespace {

constexpr std::size_t kCutsMax = 256;  // parts that a box is cut into, on average, before we give up
constexpr std::size_t kCornersMax = std::size_t{1} << 24;  // looked at at once: 128 MiB

std::uint64_t end_of(const Box& box, std::uint32_t d) {
  return box.begin[d] + box.size[d];
}

// The dimensions in which some box is not as long as the whole: the others do not tell boxes apart.
std::vector<std::uint32_t> telling_dimensions(const Box& whole, std::span<const Box> boxes) {
  std::vector<std::uint32_t> out;
  for (std::uint32_t d = 0; d < whole.dimensions; ++d) {
    if (std::ranges::any_of(boxes, [&](const Box& box) { return box.size[d] != whole.size[d]; })) out.push_back(d);
  }
  return out;
}

// Each element counts how many boxes hold it. That count is 1 all over the whole just if its mixed differences are
// those of the whole, and they are nonzero at corners only: +1 or -1 for each corner of each box. So the corners that
// count up, and those of the whole that count down, have to be the others. False also where they are too many.
bool corners_cancel(const Box& whole, std::span<const Box> boxes, const std::vector<std::uint32_t>& dimensions) {
  if (boxes.size() + 1 > kCornersMax >> dimensions.size()) return false;
  std::vector<std::uint64_t> step;  // so that each corner has a number of its own
  std::uint64_t product = 1;
  for (const std::uint32_t d : dimensions) {
    step.push_back(product);
    if (__builtin_mul_overflow(product, whole.size[d] + 1, &product)) return false;
  }
  std::vector<std::uint64_t> up;
  std::vector<std::uint64_t> down;
  const std::size_t half = (boxes.size() + 1) << (dimensions.size() - 1);
  up.reserve(half);
  down.reserve(half);
  const auto add = [&](const Box& box, bool is_whole) {
    for (std::uint32_t bits = 0; bits < std::uint32_t{1} << dimensions.size(); ++bits) {
      std::uint64_t corner = 0;
      for (std::size_t i = 0; i < dimensions.size(); ++i) {
        const std::uint32_t d = dimensions[i];
        corner += step[i] * (box.begin[d] - whole.begin[d] + ((bits >> i & 1) != 0 ? box.size[d] : 0));
      }
      const bool is_down = (std::popcount(bits) % 2 != 0) != is_whole;
      (is_down ? down : up).push_back(corner);
    }
  };
  for (const Box& box : boxes) add(box, false);
  add(whole, true);
  std::ranges::sort(up);
  std::ranges::sort(down);
  return up == down;
}

// Boxes that differ along one dimension only.
Tiling check_row(const Box& whole, std::span<const Box> boxes, std::uint32_t d) {
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::size_t i) { return std::pair(boxes[i].begin[d], i); });
  Tiling found;
  std::uint64_t end = whole.begin[d];
  std::size_t last = 0;  // the box that ends there
  const auto note_hole = [&](std::uint64_t until) {
    if (found.hole) return;
    found.hole = whole;
    found.hole->begin[d] = end;
    found.hole->size[d] = until - end;
  };
  for (const std::size_t i : order) {
    if (boxes[i].begin[d] > end) note_hole(boxes[i].begin[d]);
    if (boxes[i].begin[d] < end && !found.overlap) found.overlap = std::pair(last, i);
    if (end_of(boxes[i], d) <= end) continue;
    end = end_of(boxes[i], d);
    last = i;
  }
  if (end < end_of(whole, d)) note_hole(end_of(whole, d));
  return found;
}

// Cuts the whole at the boxes' edges until each part lies in a box or meets none.
class Cutter {
 public:
  Cutter(std::span<const Box> boxes, bool may_overlap) : boxes_(boxes), may_overlap_(may_overlap) {}

  Tiling run(const Box& whole) {
    std::vector<std::size_t> all(boxes_.size());
    std::iota(all.begin(), all.end(), 0);
    todo_.push_back({whole, std::move(all)});
    std::size_t left = kCutsMax * (boxes_.size() + 16);
    while (!todo_.empty() && !(found_.hole && (may_overlap_ || found_.overlap))) {
      const Part part = std::move(todo_.back());
      todo_.pop_back();
      if (part.boxes.size() + 1 > left) {
        found_.undecided = true;
        break;
      }
      left -= part.boxes.size() + 1;
      look(part);
    }
    return found_;
  }

 private:
  struct Part {
    Box region;
    std::vector<std::size_t> boxes;  // that meet it
  };

  void look(const Part& part) {
    if (part.boxes.empty()) {
      if (!found_.hole) found_.hole = part.region;
      return;
    }
    for (const std::size_t i : part.boxes) {
      if (intersection(boxes_[i], part.region) != part.region) continue;
      const std::size_t other = part.boxes.front() == i ? part.boxes.back() : part.boxes.front();
      if (other != i && !found_.overlap) found_.overlap = std::minmax(i, other);
      return;
    }
    cut(part);
  }

  // At the middle one of the edges inside, along the dimension that has the most of them.
  void cut(const Part& part) {
    std::vector<std::uint64_t> best;
    std::uint32_t along = 0;
    for (std::uint32_t d = 0; d < part.region.dimensions; ++d) {
      std::vector<std::uint64_t> edges;
      for (const std::size_t i : part.boxes) {
        for (const std::uint64_t edge : {boxes_[i].begin[d], end_of(boxes_[i], d)}) {
          if (edge > part.region.begin[d] && edge < end_of(part.region, d)) edges.push_back(edge);
        }
      }
      if (edges.size() <= best.size()) continue;
      best = std::move(edges);
      along = d;
    }
    const auto middle = best.begin() + static_cast<std::ptrdiff_t>(best.size() / 2);
    std::ranges::nth_element(best, middle);
    Part low{part.region, {}};
    Part high{part.region, {}};
    low.region.size[along] = *middle - part.region.begin[along];
    high.region.begin[along] = *middle;
    high.region.size[along] = end_of(part.region, along) - *middle;
    for (const std::size_t i : part.boxes) {
      if (boxes_[i].begin[along] < *middle) low.boxes.push_back(i);
      if (end_of(boxes_[i], along) > *middle) high.boxes.push_back(i);
    }
    todo_.push_back(std::move(high));
    todo_.push_back(std::move(low));
  }

  std::span<const Box> boxes_;
  bool may_overlap_;
  std::vector<Part> todo_;
  Tiling found_;
};

Tiling check(const Box& whole, std::span<const Box> boxes, bool may_overlap) {
  Tiling found;
  if (volume(whole) == 0) return found;
  if (boxes.empty()) {
    found.hole = whole;
    return found;
  }
  const std::vector<std::uint32_t> dimensions = telling_dimensions(whole, boxes);
  if (dimensions.empty()) {
    if (boxes.size() > 1) found.overlap = std::pair(std::size_t{0}, std::size_t{1});
  } else if (dimensions.size() == 1) {
    found = check_row(whole, boxes, dimensions.front());
  } else if (!corners_cancel(whole, boxes, dimensions)) {
    found = Cutter(boxes, may_overlap).run(whole);
  }
  if (may_overlap) found.overlap.reset();
  return found;
}

}  // namespace

void append_interval(const Shape& array, std::uint64_t begin, std::uint64_t end, std::vector<Box>& out) {
  const auto dimensions = static_cast<std::uint32_t>(array.size());
  PerDimension stride{};
  std::uint64_t step = 1;
  for (std::uint32_t d = dimensions; d-- > 0; step *= array[d]) stride[d] = step;
  end = std::min(end, step);
  while (begin < end) {
    // Of the steps that begin here and end in time, the longest; then as many of them as the dimension has left.
    std::uint32_t d = 0;
    while (d < dimensions && (begin % stride[d] != 0 || stride[d] > end - begin)) ++d;
    Box box{dimensions, {}, {}};
    std::uint64_t count = 1;
    if (d < dimensions) count = std::min(array[d] - begin / stride[d] % array[d], (end - begin) / stride[d]);
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      box.begin[i] = begin / stride[i] % array[i];
      box.size[i] = i < d ? 1 : i == d ? count : array[i];
    }
    out.push_back(box);
    begin += d < dimensions ? count * stride[d] : 1;
  }
}

Tiling check_tiling(const Box& whole, std::span<const Box> boxes) {
  return check(whole, boxes, false);
}

Tiling check_cover(const Box& whole, std::span<const Box> boxes) {
  return check(whole, boxes, true);
}

}  // namespace pawl
