#include "tensor/placement.h"

#include <algorithm>
#include <set>

#include "base/text.h"

namespace pawl {
namespace {

using Numbers = AxisPattern::Numbers;
using Spans = std::vector<Span>;

struct Range {
  std::uint64_t begin;
  std::uint64_t end;
};

Range chunk(std::uint64_t extent, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t size = (extent + parts - 1) / parts;
  return {std::min(extent, index * size), std::min(extent, (index + 1) * size)};
}

// The part that `index` of `parts` gets of segment number `segment`, counted from that segment's begin.
Range part_of(const AxisPattern& pattern, std::size_t segment, std::uint64_t extent, std::uint64_t parts,
              std::uint64_t index) {
  if (pattern.split != AxisPattern::Split::given) return chunk(extent, parts, index);
  const auto sizes = pattern.sizes.begin() + static_cast<std::ptrdiff_t>(segment * parts);
  std::uint64_t begin = 0;
  for (std::uint64_t i = 0; i < index; ++i) begin += sizes[static_cast<std::ptrdiff_t>(i)];
  return {begin, begin + sizes[static_cast<std::ptrdiff_t>(index)]};
}

std::uint64_t extent_of(const Spans& spans) {
  std::uint64_t sum = 0;
  for (const Span& span : spans) sum += span.size;
  return sum;
}

void append_span(Spans& spans, Span span) {
  if (span.size == 0) return;
  if (!spans.empty() && spans.back().begin + spans.back().size == span.begin) {
    spans.back().size += span.size;
  } else {
    spans.push_back(span);
  }
}

// Appends what `spans`, joined, have in `range`.
void append_slice(const Spans& spans, Range range, Spans& out) {
  std::uint64_t position = 0;
  for (const Span& span : spans) {
    const std::uint64_t begin = std::max(range.begin, position);
    const std::uint64_t end = std::min(range.end, position + span.size);
    if (begin < end) append_span(out, {span.begin + (begin - position), end - begin});
    position += span.size;
  }
}

Spans shard(const Spans& spans, const AxisPattern& pattern, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t extent = extent_of(spans);
  Spans out;
  std::uint64_t position = 0;
  for (std::size_t s = 0; s < std::max<std::size_t>(1, pattern.segments.size()); ++s) {
    const std::uint64_t segment = pattern.segments.empty() ? extent : pattern.segments[s];
    const Range part = part_of(pattern, s, segment, parts, index);
    append_slice(spans, {position + part.begin, position + part.end}, out);
    position += segment;
  }
  return out;
}

// No sum below overflows: numbers past `limit` are refused first.
bool adds_up(const std::uint64_t* numbers, std::size_t count, std::uint64_t sum) {
  std::uint64_t rest = sum;
  for (std::size_t i = 0; i < count; ++i) {
    if (numbers[i] > rest) return false;
    rest -= numbers[i];
  }
  return rest == 0;
}

// Indices whose parts have every length that occurs. Chunks change their length where a segment ends, and only there.
std::set<std::uint64_t> telling_indices(const Numbers& segments, std::uint64_t parts) {
  std::set<std::uint64_t> indices{0};
  for (const std::uint64_t segment : segments) {
    if (segment == 0) continue;
    const std::uint64_t whole_chunks = segment / ((segment + parts - 1) / parts);
    if (whole_chunks < parts) indices.insert(whole_chunks);
    if (whole_chunks + 1 < parts) indices.insert(whole_chunks + 1);
  }
  return indices;
}

// The lengths that a checked cut leaves.
void add_lengths(const AxisPattern& pattern, const Numbers& segments, std::uint64_t parts,
                 std::set<std::uint64_t>& left) {
  if (pattern.split == AxisPattern::Split::given) {
    Numbers lengths(parts);
    for (std::size_t i = 0; i < pattern.sizes.size(); ++i) lengths[i % parts] += pattern.sizes[i];
    left.insert(lengths.begin(), lengths.end());
    return;
  }
  for (const std::uint64_t index : telling_indices(segments, parts)) {
    std::uint64_t length = 0;
    for (const std::uint64_t segment : segments) {
      const Range part = chunk(segment, parts, index);
      length += part.end - part.begin;
    }
    left.insert(length);
  }
}

// Checks one cut of a dimension that is `extent` long, and adds the lengths that it leaves.
Status check_cut(const AxisPattern& pattern, std::uint64_t parts, std::uint64_t extent, std::set<std::uint64_t>& left) {
  const Numbers whole{extent};
  const Numbers& segments = pattern.segments.empty() ? whole : pattern.segments;
  if (segments.size() > kSegmentsMax) {
    return Error{Code::invalid, text(segments.size(), " segments; at most ", kSegmentsMax)};
  }
  if (!adds_up(segments.data(), segments.size(), extent)) {
    return Error{Code::invalid, text("segments ", text_of(segments), " do not add up to ", extent)};
  }
  if (pattern.split == AxisPattern::Split::given) {
    if (pattern.sizes.size() != segments.size() * parts) {
      return Error{Code::invalid,
                   text(pattern.sizes.size(), " sizes for ", segments.size(), " segments of ", parts, " parts")};
    }
  } else if (!pattern.sizes.empty()) {
    return Error{Code::invalid, "sizes, but the split is not a given one"};
  }
  for (std::size_t s = 0; s < segments.size(); ++s) {
    if (pattern.split == AxisPattern::Split::even && segments[s] % parts != 0) {
      return Error{Code::invalid, text(segments[s], " does not divide into ", parts, " even parts")};
    }
    if (pattern.split == AxisPattern::Split::given && !adds_up(&pattern.sizes[s * parts], parts, segments[s])) {
      return Error{Code::invalid, text("sizes ", text_of(pattern.sizes), " do not add up to ", segments[s])};
    }
  }
  add_lengths(pattern, segments, parts, left);
  return {};
}

Status check_holders(const AxisPattern& pattern, std::uint64_t axis_size) {
  const bool ascending = std::ranges::adjacent_find(pattern.holders, std::greater_equal<>()) == pattern.holders.end();
  if (pattern.holders.empty() || !ascending || pattern.holders.back() >= axis_size) {
    return Error{Code::invalid,
                 text("holders ", text_of(pattern.holders), " are not ascending indices of an axis of ", axis_size)};
  }
  return {};
}

Status check_pattern(const AxisPattern& pattern, const Mesh& mesh, std::vector<std::set<std::uint64_t>>& extents) {
  const std::uint64_t axis_size = mesh.axes[pattern.axis].size;
  if (pattern.kind == AxisPattern::Kind::only) return check_holders(pattern, axis_size);
  if (pattern.kind == AxisPattern::Kind::averaged) return {};
  if (pattern.dimension >= extents.size()) return Error{Code::invalid, text("no dimension ", pattern.dimension)};
  std::set<std::uint64_t> left;
  for (const std::uint64_t extent : extents[pattern.dimension]) {
    PAWL_TRY(check_cut(pattern, axis_size, extent, left));
  }
  extents[pattern.dimension] = std::move(left);
  return {};
}

}  // namespace

AxisPattern AxisPattern::only(std::uint32_t axis, Numbers holders) {
  return {.kind = Kind::only, .axis = axis, .holders = std::move(holders)};
}

AxisPattern AxisPattern::averaged(std::uint32_t axis) {
  return {.kind = Kind::averaged, .axis = axis};
}

AxisPattern AxisPattern::shard(std::uint32_t axis, std::uint32_t dimension, Split split) {
  return {.kind = Kind::shard, .axis = axis, .dimension = dimension, .split = split};
}

AxisPattern AxisPattern::shard_sizes(std::uint32_t axis, std::uint32_t dimension, Numbers sizes) {
  AxisPattern pattern = shard(axis, dimension, Split::given);
  pattern.sizes = std::move(sizes);
  return pattern;
}

AxisPattern AxisPattern::shard_segments(std::uint32_t axis, std::uint32_t dimension, Numbers segments, Split split) {
  AxisPattern pattern = shard(axis, dimension, split);
  pattern.segments = std::move(segments);
  return pattern;
}

Status check_placement(const MeshPlacement& placement, const Mesh& mesh, const Shape& padded) {
  std::vector<std::set<std::uint64_t>> extents;  // of each dimension: the lengths that ranks may have by now
  for (const std::uint64_t extent : padded) extents.push_back({extent});
  std::set<std::uint32_t> axes;
  for (const AxisPattern& pattern : placement.patterns) {
    if (pattern.axis >= mesh.axes.size()) return Error{Code::invalid, text("no axis ", pattern.axis)};
    const std::string& axis = mesh.axes[pattern.axis].name;
    if (!axes.insert(pattern.axis).second) return Error{Code::invalid, text("two patterns on axis ", axis)};
    if (Status checked = check_pattern(pattern, mesh, extents); !checked) {
      return std::move(checked.error()).within(text("axis ", axis));
    }
  }
  return {};
}

Shape LocalArray::shape() const {
  Shape shape;
  shape.reserve(spans.size());
  for (const Spans& dimension : spans) shape.push_back(extent_of(dimension));
  return shape;
}

bool local_array(const MeshPlacement& placement, const Mesh& mesh, const Shape& padded,
                 const std::vector<std::uint64_t>& coordinates, LocalArray& out) {
  out.spans.resize(padded.size());
  for (std::size_t d = 0; d < padded.size(); ++d) {
    out.spans[d].clear();
    append_span(out.spans[d], {0, padded[d]});
  }
  for (const AxisPattern& pattern : placement.patterns) {
    const std::uint64_t index = coordinates[pattern.axis];
    if (pattern.kind == AxisPattern::Kind::only && !std::ranges::binary_search(pattern.holders, index)) return false;
    if (pattern.kind != AxisPattern::Kind::shard) continue;
    Spans& spans = out.spans[pattern.dimension];
    spans = shard(spans, pattern, mesh.axes[pattern.axis].size, index);
  }
  return true;
}

Result<std::vector<AxisPattern>> patterns_of(const Mesh& mesh, const std::vector<DTensorPlacement>& placements) {
  using Kind = DTensorPlacement::Kind;
  if (placements.size() != mesh.axes.size()) {
    return Error{Code::invalid, text(placements.size(), " placements for ", mesh.axes.size(), " axes")};
  }
  // From the last axis to the first: each goes before the later axes on its dimension, but for those that its split
  // factor says have cut before it.
  std::vector<AxisPattern> patterns;
  for (std::uint32_t axis = static_cast<std::uint32_t>(placements.size()); axis-- > 0;) {
    const DTensorPlacement& placement = placements[axis];
    if (placement.kind == Kind::replicate) continue;
    const std::uint64_t wanted = placement.kind == Kind::strided_shard ? placement.split_factor : 1;
    std::uint64_t factor = 1;
    auto at = patterns.begin();
    for (; at != patterns.end() && factor != wanted; ++at) {
      if (at->dimension == placement.dimension) factor *= mesh.axes[at->axis].size;
    }
    if (factor != wanted) {
      return Error{Code::invalid, text("axis ", mesh.axes[axis].name, ": no later axes cut dimension ",
                                       placement.dimension, " into ", wanted, " parts")};
    }
    patterns.insert(at, AxisPattern::shard(axis, placement.dimension));
  }
  return patterns;
}

}  // namespace pawl
