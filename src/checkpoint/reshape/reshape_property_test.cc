// Random layouts, and random views of files, to random layouts, against a reference that shares no enumeration code: it
// materialises every tensor as an array of element numbers and cuts that by selecting indices, one by one.
//
// PAWL_CASES: how many of each (default 6000). PAWL_SEED: the first seed (default 1; "random": another one each time);
// it is printed, and a failure prints its own.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "checkpoint/reshape/cast.h"
#include "checkpoint/reshape/file_source.h"
#include "checkpoint/reshape/plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "checkpoint/view/pieces.h"
#include "tensor/enumerate.h"

namespace pawl::checkpoint {
namespace {

using Numbers = std::vector<std::uint64_t>;
using Elements = std::vector<std::int64_t>;  // of a buffer: which element of which tensor, or kPad
constexpr std::int64_t kPad = -1;
constexpr std::int64_t kUntouched = -7;

// --- The reference ------------------------------------------------------------------------------------------------

struct Array {
  Shape shape;
  Elements elements;
};

std::int64_t tensor_base(const JobTensor& tensor) {  // tensors are named t0, t1, ..., whatever their order
  return static_cast<std::int64_t>(std::stoul(tensor.name.substr(1))) << 32;
}

Numbers reference_coordinates(const Mesh& mesh, std::uint32_t rank) {
  Numbers coordinates;
  std::uint64_t below = 1;
  for (const auto& axis : mesh.axes) below *= axis.size;
  for (const auto& axis : mesh.axes) {
    below /= axis.size;
    coordinates.push_back(rank / below % axis.size);
  }
  return coordinates;
}

// The array with only these indices along one dimension.
Array select(const Array& array, std::size_t dimension, const Numbers& indices) {
  std::uint64_t outer = 1;
  std::uint64_t inner = 1;
  for (std::size_t d = 0; d < dimension; ++d) outer *= array.shape[d];
  for (std::size_t d = dimension + 1; d < array.shape.size(); ++d) inner *= array.shape[d];
  Array out{array.shape, {}};
  out.shape[dimension] = indices.size();
  for (std::uint64_t o = 0; o < outer; ++o) {
    for (const std::uint64_t index : indices) {
      for (std::uint64_t i = 0; i < inner; ++i) {
        out.elements.push_back(array.elements[(o * array.shape[dimension] + index) * inner + i]);
      }
    }
  }
  return out;
}

// Who owns each index of a dimension, by walking it.
Numbers owners(const AxisPattern& pattern, std::uint64_t extent, std::uint64_t parts) {
  Numbers out;
  const Numbers segments = pattern.segments.empty() ? Numbers{extent} : pattern.segments;
  std::size_t next_size = 0;
  for (const std::uint64_t segment : segments) {
    if (!pattern.sizes.empty()) {
      for (std::uint64_t part = 0; part < parts; ++part) out.insert(out.end(), pattern.sizes[next_size++], part);
      continue;
    }
    std::uint64_t chunk = 0;
    while (chunk * parts < segment) ++chunk;
    for (std::uint64_t i = 0; i < segment; ++i) out.push_back(i / chunk);
  }
  return out;
}

// All of a tensor, with its padding.
Array materialised(const JobTensor& tensor) {
  Array array{tensor.shape, {}};
  std::uint64_t count = 1;
  for (const std::uint64_t extent : tensor.shape) count *= extent;
  for (std::uint64_t i = 0; i < count; ++i) {
    array.elements.push_back(tensor_base(tensor) + static_cast<std::int64_t>(i));
  }
  if (tensor.padded.empty()) return array;
  Array padded{tensor.padded, {}};
  count = 1;
  for (const std::uint64_t extent : tensor.padded) count *= extent;
  for (std::uint64_t i = 0; i < count; ++i) {
    std::uint64_t rest = i;
    std::uint64_t step = 1;
    std::uint64_t at = 0;
    bool inside = true;
    for (std::size_t d = tensor.padded.size(); d-- > 0;) {
      const std::uint64_t index = rest % tensor.padded[d];
      rest /= tensor.padded[d];
      inside = inside && index < tensor.shape[d];
      at += index * step;
      step *= tensor.shape[d];
    }
    padded.elements.push_back(inside ? array.elements[at] : kPad);
  }
  return padded;
}

struct Held {
  bool any = false;
  Array array;
  std::uint64_t version = 0;
};

Held reference_held(const JobLayout& layout, const JobTensor& tensor, std::uint32_t rank) {
  const Mesh& mesh = layout.meshes[tensor.placement.mesh];
  const Numbers coordinates = reference_coordinates(mesh, rank);
  Held held{true, materialised(tensor), 0};
  for (const AxisPattern& pattern : tensor.placement.patterns) {
    const std::uint64_t index = coordinates[pattern.axis];
    if (pattern.kind == AxisPattern::Kind::only &&
        std::find(pattern.holders.begin(), pattern.holders.end(), index) == pattern.holders.end()) {
      return {};
    }
    if (pattern.kind != AxisPattern::Kind::shard) continue;
    const std::uint64_t extent = held.array.shape[pattern.dimension];
    const Numbers owner = owners(pattern, extent, mesh.axes[pattern.axis].size);
    Numbers mine;
    for (std::uint64_t i = 0; i < extent; ++i) {
      if (owner[i] == index) mine.push_back(i);
    }
    held.array = select(held.array, pattern.dimension, mine);
  }
  for (std::uint32_t axis = 0; axis < mesh.axes.size(); ++axis) {
    for (const AxisPattern& pattern : tensor.placement.patterns) {
      if (pattern.axis == axis && pattern.kind == AxisPattern::Kind::averaged) {
        held.version = held.version * mesh.axes[axis].size + coordinates[axis];
      }
    }
  }
  return held;
}

struct Contents {
  Elements elements;
  Numbers versions;  // of each element
  void push(std::int64_t element, std::uint64_t version) {
    elements.push_back(element);
    versions.push_back(version);
  }
  void append(const Array& array, std::uint64_t version) {
    for (const std::int64_t element : array.elements) push(element, version);
  }
  void pad_to(std::uint64_t multiple) {
    while (elements.size() % multiple != 0) push(kPad, 0);
  }
  void append_part(const Contents& all, std::uint64_t part, std::uint64_t parts) {
    const std::uint64_t size = all.elements.size() / parts;
    for (std::uint64_t i = part * size; i < (part + 1) * size; ++i) push(all.elements[i], all.versions[i]);
  }
};
using Buffers = std::map<std::pair<std::uint32_t, std::uint32_t>, Contents>;  // of (rank, buffer)

void reference_group(const JobLayout& layout, std::uint32_t number, std::uint32_t rank, Buffers& buffers) {
  const FlatGroup& group = layout.groups[number];
  const Mesh& mesh = layout.meshes[group.mesh];
  const Numbers coordinates = reference_coordinates(mesh, rank);
  std::uint64_t parts = 1;
  std::uint64_t part = 0;
  for (const std::uint32_t axis : group.axes) {
    parts *= mesh.axes[axis].size;
    part = part * mesh.axes[axis].size + coordinates[axis];
  }
  const bool joined = group.form == FlatGroup::Form::joined;
  Contents flat;
  bool any = false;
  for (const FlatGroup::Member& member : group.members) {
    const Held held = reference_held(layout, layout.tensors[member.tensor], rank);
    if (!held.any) continue;
    any = true;
    for (std::uint64_t i = 0; i < member.gap; ++i) flat.push(kPad, 0);
    flat.pad_to(group.align);
    Contents own;
    own.append(held.array, held.version);
    own.pad_to(joined ? 1 : parts);
    flat.append_part(own, joined ? 0 : part, joined ? 1 : parts);
  }
  if (!any) return;
  Contents& buffer = buffers[{rank, static_cast<std::uint32_t>(layout.tensors.size()) + number}];
  if (!joined) {
    buffer = flat;
    return;
  }
  while (flat.elements.size() % group.pad != 0 || flat.elements.size() % parts != 0) flat.push(kPad, 0);
  buffer.append_part(flat, part, parts);
}

Buffers reference_buffers(const JobLayout& layout) {
  std::set<std::uint32_t> members;
  for (const FlatGroup& group : layout.groups) {
    for (const FlatGroup::Member& member : group.members) members.insert(member.tensor);
  }
  Buffers buffers;
  for (std::uint32_t rank = 0; rank < layout.world; ++rank) {
    for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
      if (members.contains(t)) continue;
      const Held held = reference_held(layout, layout.tensors[t], rank);
      if (held.any) buffers[{rank, t}].append(held.array, held.version);
    }
    for (std::uint32_t g = 0; g < layout.groups.size(); ++g) reference_group(layout, g, rank, buffers);
  }
  return buffers;
}

// --- Random layouts -----------------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  std::uint64_t between(std::uint64_t least, std::uint64_t most) { return least + below(most - least + 1); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }
  // `sum`, cut into `count` numbers, zeros among them.
  Numbers parts_of(std::uint64_t sum, std::uint64_t count) {
    Numbers cuts{0, sum};
    for (std::uint64_t i = 1; i < count; ++i) cuts.push_back(between(0, sum));
    std::sort(cuts.begin(), cuts.end());
    Numbers parts;
    for (std::size_t i = 1; i < cuts.size(); ++i) parts.push_back(cuts[i] - cuts[i - 1]);
    return parts;
  }

 private:
  std::mt19937_64 engine_;
};

Mesh random_mesh(Random& random, std::uint32_t world, std::uint32_t number) {
  Mesh mesh{"m" + std::to_string(number), {}};
  std::uint64_t rest = world;
  while (mesh.axes.size() < 3 && rest > 1) {
    Numbers divisors;
    for (std::uint64_t d = 1; d <= rest; ++d) {
      if (rest % d == 0) divisors.push_back(d);
    }
    const std::uint64_t size = mesh.axes.size() == 2 ? rest : divisors[random.below(divisors.size())];
    mesh.axes.push_back({"a" + std::to_string(mesh.axes.size()), size});
    rest /= size;
  }
  if (mesh.axes.empty() || random.one_in(8)) mesh.axes.push_back({"one", 1});
  if (rest != 1) mesh.axes.push_back({"rest", rest});
  random.shuffle(mesh.axes);
  return mesh;
}

AxisPattern random_shard(Random& random, std::uint32_t axis, std::uint64_t axis_size, const Shape& shape,
                         std::vector<bool>& is_cut) {
  const auto dimension = static_cast<std::uint32_t>(random.below(shape.size()));
  AxisPattern pattern = AxisPattern::shard(axis, dimension);
  if (!is_cut[dimension]) {  // else its length differs by rank, and only chunks fit all
    is_cut[dimension] = true;
    if (random.one_in(3)) pattern.segments = random.parts_of(shape[dimension], random.between(1, 3));
    const Numbers segments = pattern.segments.empty() ? Numbers{shape[dimension]} : pattern.segments;
    const bool divides = std::all_of(segments.begin(), segments.end(), [&](auto n) { return n % axis_size == 0; });
    if (random.one_in(3)) {
      pattern.split = AxisPattern::Split::given;
      for (const std::uint64_t segment : segments) {
        for (const std::uint64_t size : random.parts_of(segment, axis_size)) pattern.sizes.push_back(size);
      }
    } else if (divides && random.one_in(2)) {
      pattern.split = AxisPattern::Split::even;
    }
  }
  return pattern;
}

std::vector<AxisPattern> random_patterns(Random& random, const Mesh& mesh, const JobTensor& tensor,
                                         const std::vector<std::uint32_t>& kept_free) {
  std::vector<AxisPattern> patterns;
  std::vector<bool> is_cut(tensor.shape.size());
  std::vector<std::uint32_t> axes(mesh.axes.size());
  std::iota(axes.begin(), axes.end(), 0);
  random.shuffle(axes);
  for (const std::uint32_t axis : axes) {
    if (std::count(kept_free.begin(), kept_free.end(), axis) != 0) continue;
    const std::uint64_t size = mesh.axes[axis].size;
    const std::uint64_t kind = random.below(8);
    if (kind < 4 && !tensor.shape.empty()) {
      patterns.push_back(random_shard(random, axis, size, tensor.placed_shape(), is_cut));
    } else if (kind == 4 && can_average(tensor.dtype)) {
      patterns.push_back(AxisPattern::averaged(axis));
    } else if (kind == 5) {
      Numbers holders;
      for (std::uint64_t i = 0; i < size; ++i) {
        if (random.one_in(2)) holders.push_back(i);
      }
      if (holders.empty()) holders.push_back(random.below(size));
      patterns.push_back(AxisPattern::only(axis, holders));
    }
  }
  return patterns;
}

struct Plain {
  std::string name;
  Shape shape;
  std::optional<ElementType> exact;  // a type that is only ever copied; else a floating one, which is cast
};

constexpr ElementType kExact[] = {ElementType::int64,     ElementType::uint16,        ElementType::boolean,
                                  ElementType::complex64, ElementType::float8_e4m3fn, ElementType::qint8};

std::vector<Plain> random_tensors(Random& random) {
  std::vector<Plain> tensors;
  for (std::uint64_t t = random.between(1, 5); t > 0; --t) {
    Shape shape;
    std::uint64_t count = 1;
    for (std::uint64_t d = random.below(5); d > 0; --d) {
      shape.push_back(random.one_in(12) ? 0 : random.between(1, d > 2 ? 4 : 12));
      count *= shape.back();
    }
    if (count > 500) shape.resize(2);
    tensors.push_back({"t" + std::to_string(tensors.size()), shape, std::nullopt});
    if (random.one_in(6)) tensors.back().exact = kExact[random.below(std::size(kExact))];
  }
  return tensors;
}

JobLayout random_layout(Random& random, std::vector<Plain> tensors) {
  JobLayout layout;
  layout.world = static_cast<std::uint32_t>(random.between(1, 12));
  for (std::uint64_t m = random.between(1, 3); m > 0; --m) {
    layout.meshes.push_back(random_mesh(random, layout.world, static_cast<std::uint32_t>(m)));
  }
  const ElementType dtypes[] = {ElementType::float32, ElementType::float16, ElementType::bfloat16};
  const ElementType dtype = dtypes[random.below(3)];
  // Groups first, without members; a tensor that joins one keeps the group's axes free.
  for (std::uint64_t g = random.below(3); g > 0; --g) {
    FlatGroup group{.name = "g" + std::to_string(g)};
    group.mesh = static_cast<std::uint32_t>(random.below(layout.meshes.size()));
    for (std::uint32_t axis = 0; axis < layout.meshes[group.mesh].axes.size(); ++axis) {
      if (random.one_in(2)) group.axes.push_back(axis);
    }
    random.shuffle(group.axes);
    group.form = random.one_in(3) ? FlatGroup::Form::each_member : FlatGroup::Form::joined;
    group.align = random.one_in(2) ? 1 : random.between(1, 16);
    group.pad = random.one_in(2) ? 1 : random.between(1, 16);
    layout.groups.push_back(group);
  }
  random.shuffle(tensors);
  for (const Plain& plain : tensors) {
    JobTensor tensor{plain.name, "weight", plain.exact.value_or(dtype), plain.shape, {}, {}};
    if (!plain.shape.empty() && random.one_in(4)) {
      tensor.padded = plain.shape;
      tensor.padded[random.below(plain.shape.size())] += random.between(1, 8);
    }
    tensor.placement.mesh = static_cast<std::uint32_t>(random.below(layout.meshes.size()));
    std::vector<std::uint32_t> kept_free;
    if (!layout.groups.empty() && !plain.exact && random.one_in(2)) {
      FlatGroup& group = layout.groups[random.below(layout.groups.size())];
      group.members.push_back(
          {static_cast<std::uint32_t>(layout.tensors.size()), random.one_in(3) ? random.below(9) : 0});
      tensor.placement.mesh = group.mesh;
      kept_free = group.axes;
    }
    tensor.placement.patterns = random_patterns(random, layout.meshes[tensor.placement.mesh], tensor, kept_free);
    layout.tensors.push_back(std::move(tensor));
  }
  std::erase_if(layout.groups, [](const FlatGroup& group) { return group.members.empty(); });
  for (FlatGroup& group : layout.groups) random.shuffle(group.members);
  return layout;
}

// --- The properties -----------------------------------------------------------------------------------------------

template <class Visit>
void for_each_element(const Box& box, Visit visit) {
  const std::uint64_t count = volume(box);
  for (std::uint64_t i = 0; i < count; ++i) {
    PerDimension at{};
    std::uint64_t rest = i;
    for (std::uint32_t d = box.dimensions; d-- > 0;) {
      at[d] = rest % box.size[d];
      rest /= box.size[d];
    }
    visit(at);
  }
}

std::uint64_t address(std::uint64_t offset, const PerDimension& stride, const PerDimension& at) {
  for (std::size_t d = 0; d < at.size(); ++d) offset += stride[d] * at[d];
  return offset;
}

// All ranks at once: the same as rank by rank, with those that are alive and meet a box.
void expect_all_at_once(const Enumeration& enumeration, Random& random) {
  const JobLayout& layout = enumeration.layout();
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    Box box = whole_box(layout.tensors[t].shape);
    for (std::uint32_t d = 0; d < box.dimensions; ++d) {
      if (box.size[d] == 0) continue;
      box.begin[d] = random.below(box.size[d]);
      box.size[d] = random.between(1, box.size[d] - box.begin[d]);
    }
    std::vector<bool> is_alive(layout.world);
    for (std::uint32_t rank = 0; rank < layout.world; ++rank) is_alive[rank] = !random.one_in(4);
    const bool only_meeting = random.one_in(2);
    const bool only_alive = random.one_in(2);
    std::vector<TensorPiece> expected;
    for (std::uint32_t rank = 0; rank < layout.world; ++rank) {
      if (!only_alive || is_alive[rank]) enumeration.append_pieces(t, rank, expected);
    }
    if (only_meeting) {
      std::erase_if(expected, [&](const TensorPiece& piece) { return volume(intersection(piece.box, box)) == 0; });
    }
    std::vector<TensorPiece> found;
    enumeration.append_pieces_of_all(t, {only_meeting ? &box : nullptr, only_alive ? &is_alive : nullptr}, found);
    ASSERT_EQ(found, expected) << "tensor " << t;
  }
}

// Pieces, written out element by element, are what the reference holds.
void expect_enumerated(const JobLayout& layout, const Buffers& reference) {
  ASSERT_TRUE(check_layout(layout)) << check_layout(layout).error().what;
  const Enumeration enumeration(layout);
  Buffers found;
  for (std::uint32_t rank = 0; rank < layout.world; ++rank) {
    for (const Buffer& buffer : enumeration.buffers_of(rank)) {
      Contents& contents = found[{rank, buffer.number}];
      for (std::uint64_t i = 0; i < buffer.size; ++i) contents.push(kPad, 0);
    }
    for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
      const JobTensor& tensor = layout.tensors[t];
      std::vector<TensorPiece> pieces;
      enumeration.append_pieces(t, rank, pieces);
      for (const TensorPiece& piece : pieces) {
        ASSERT_EQ(piece.tensor, t);
        ASSERT_EQ(piece.holder, rank);
        ASSERT_GT(volume(piece.box), 0u);
        ASSERT_TRUE(found.contains({rank, piece.buffer}));
        Contents& buffer = found[{rank, piece.buffer}];
        for_each_element(piece.box, [&](const PerDimension& at) {
          std::int64_t element = 0;
          for (std::size_t d = 0; d < tensor.shape.size(); ++d) {
            element = element * static_cast<std::int64_t>(tensor.shape[d]) +
                      static_cast<std::int64_t>(piece.box.begin[d] + at[d]);
          }
          const std::uint64_t to = address(piece.offset, piece.stride, at);
          ASSERT_LT(to, buffer.elements.size());
          ASSERT_EQ(buffer.elements[to], kPad) << "held twice";
          buffer.elements[to] = tensor_base(tensor) + element;
          buffer.versions[to] = piece.version;
        });
      }
    }
  }
  ASSERT_EQ(found.size(), reference.size());
  for (const auto& [where, contents] : reference) {
    ASSERT_TRUE(found.contains(where));
    ASSERT_EQ(found[where].elements, contents.elements);
    for (std::size_t i = 0; i < contents.elements.size(); ++i) {
      const bool is_padding = contents.elements[i] == kPad;
      ASSERT_TRUE(is_padding || found[where].versions[i] == contents.versions[i]);
    }
  }
}

std::int64_t value_of(std::int64_t element, std::uint64_t version) {
  return element * 64 + static_cast<std::int64_t>(version);
}

// Whether the living hold all versions of all that is wanted.
bool is_recoverable(const JobLayout& from, const Buffers& held, const std::vector<bool>& is_alive,
                    const Buffers& wanted) {
  std::set<std::pair<std::int64_t, std::uint64_t>> alive;  // (element, version)
  std::map<std::int64_t, std::uint64_t> versions;          // of each tensor
  const Enumeration enumeration(from);
  for (std::uint32_t t = 0; t < from.tensors.size(); ++t) {
    std::uint64_t& count = versions[tensor_base(from.tensors[t])] = 1;
    for (const AxisPattern& pattern : from.tensors[t].placement.patterns) {
      if (pattern.kind == AxisPattern::Kind::averaged) {
        count *= from.meshes[from.tensors[t].placement.mesh].axes[pattern.axis].size;
      }
    }
  }
  for (const auto& [where, contents] : held) {
    if (!is_alive[where.first]) continue;
    for (std::size_t i = 0; i < contents.elements.size(); ++i) {
      alive.insert({contents.elements[i], contents.versions[i]});
    }
  }
  for (const auto& [where, contents] : wanted) {
    for (const std::int64_t element : contents.elements) {
      if (element == kPad) continue;
      for (std::uint64_t v = 0; v < versions[element >> 32 << 32]; ++v) {
        if (!alive.contains({element, v})) return false;
      }
    }
  }
  return true;
}

struct Counts {
  std::uint64_t reshaped = 0;
  std::uint64_t refused = 0;
  std::uint64_t copies = 0;
  std::uint64_t averaged = 0;
};

void run_case(std::uint64_t seed, Counts& counts) {
  Random random(seed);
  const std::vector<Plain> tensors = random_tensors(random);
  const JobLayout from = random_layout(random, tensors);
  const JobLayout to = random_layout(random, tensors);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Buffers held = reference_buffers(from);
  const Buffers wanted = reference_buffers(to);
  ASSERT_NO_FATAL_FAILURE(expect_enumerated(from, held));
  ASSERT_NO_FATAL_FAILURE(expect_enumerated(to, wanted));

  ASSERT_NO_FATAL_FAILURE(expect_all_at_once(Enumeration(from), random));
  std::vector<bool> is_alive(from.world, true);
  if (random.one_in(3)) is_alive[random.below(from.world)] = false;
  if (random.one_in(6)) is_alive[random.below(from.world)] = false;
  const Enumeration source_ranks(from);
  const Enumeration target(to);
  ReshapeSource source = source_of(source_ranks, is_alive);
  if (random.one_in(2)) source.disjoint = false;
  const auto plan = ReshapePlan::create(source, target, {.prefer_own_rank = random.one_in(2)});
  ASSERT_TRUE(plan) << plan.error().what;

  std::map<std::pair<std::uint32_t, std::uint32_t>, Elements> filled;  // values
  for (const auto& [where, contents] : wanted) filled[where].assign(contents.elements.size(), kUntouched);
  const CopySink run = [&](const PlannedCopy& copy) {
    ++counts.copies;
    counts.averaged += copy.sources.size() > 1 ? 1 : 0;
    ASSERT_EQ(copy.to, to.tensors[copy.tensor].dtype);
    Elements& out = filled.at({copy.target.holder, copy.target.buffer});
    for_each_element(copy.box, [&](const PerDimension& at) {
      std::int64_t sum = 0;
      for (const PlannedEnd& end : copy.sources) {
        ASSERT_TRUE(is_alive[end.holder]);
        const Contents& buffer = held.at({end.holder, end.buffer});
        const std::uint64_t i = address(end.offset, end.stride, at);
        ASSERT_LT(i, buffer.elements.size());
        ASSERT_NE(buffer.elements[i], kPad);
        ASSERT_EQ(buffer.versions[i], static_cast<std::uint64_t>(&end - copy.sources.data())) << "not in rank order";
        sum += value_of(buffer.elements[i], buffer.versions[i]);
      }
      const std::uint64_t i = address(copy.target.offset, copy.target.stride, at);
      ASSERT_LT(i, out.size());
      ASSERT_EQ(out[i], kUntouched) << "written twice";
      out[i] = sum / static_cast<std::int64_t>(copy.sources.size()) / 64;
    });
  };
  Status status;
  if (random.one_in(2)) {
    status = plan->plan_all(run);
  } else {
    for (std::uint32_t rank = 0; rank < to.world && status; ++rank) status = plan->plan_rank(rank, run);
  }
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  if (!is_recoverable(from, held, is_alive, wanted)) {
    ASSERT_FALSE(status) << "a hole was not seen";
    ASSERT_EQ(status.error().code, Code::not_found);
    ++counts.refused;
    return;
  }
  ASSERT_TRUE(status) << status.error().what;
  ++counts.reshaped;
  for (const auto& [where, contents] : wanted) {
    for (std::size_t i = 0; i < contents.elements.size(); ++i) {
      const std::int64_t expected = contents.elements[i] == kPad ? kUntouched : contents.elements[i];
      ASSERT_EQ(filled[where][i], expected) << "rank " << where.first << " buffer " << where.second << " at " << i;
    }
  }
}

// --- Views of files -----------------------------------------------------------------------------------------------

// A view, and what lies in its files: byte 4 * i of a file belongs to its element i, whatever the type.
struct Stored {
  CheckpointView view;
  std::vector<Contents> files;
  std::map<std::string, std::vector<std::set<std::int64_t>>> held;  // of each tensor and version: the elements
};

// Cuts a box at random places.
std::vector<Box> random_boxes(Random& random, const Box& whole) {
  std::vector<Box> boxes{whole};
  if (volume(whole) == 0) return {};
  for (std::uint64_t cuts = random.below(7); cuts > 0 && whole.dimensions > 0; --cuts) {
    const std::size_t at = random.below(boxes.size());
    const std::size_t d = random.below(whole.dimensions);
    if (boxes[at].size[d] < 2) continue;
    Box upper = boxes[at];
    const std::uint64_t cut = random.between(1, upper.size[d] - 1);
    upper.begin[d] += cut;
    upper.size[d] -= cut;
    boxes[at].size[d] = cut;
    boxes.push_back(upper);
  }
  return boxes;
}

void store_piece(Random& random, const Plain& plain, const StoredTensor& tensor, StoredPiece piece, Stored& out) {
  piece.file = static_cast<std::uint32_t>(random.below(out.files.size()));
  Contents& file = out.files[piece.file];
  for (std::uint64_t gap = random.below(3); gap > 0; --gap) file.push(kPad, 0);
  // Any dimension may run fastest.
  std::vector<std::uint32_t> order(piece.box.dimensions);
  std::iota(order.begin(), order.end(), 0);
  if (random.one_in(3)) random.shuffle(order);
  std::uint64_t step = 1;
  for (std::size_t i = order.size(); i-- > 0; step *= piece.box.size[order[i]]) piece.stride[order[i]] = step;
  const std::uint64_t first = file.elements.size();
  piece.offset_bytes = first * (size_bits(tensor.type) / 8);
  for (std::uint64_t i = 0; i < step; ++i) file.push(kPad, 0);
  const std::int64_t base = static_cast<std::int64_t>(std::stoul(plain.name.substr(1))) << 32;
  for_each_element(piece.box, [&](const PerDimension& at) {
    std::int64_t element = 0;
    for (std::size_t d = 0; d < plain.shape.size(); ++d) {
      element =
          element * static_cast<std::int64_t>(plain.shape[d]) + static_cast<std::int64_t>(piece.box.begin[d] + at[d]);
    }
    const std::uint64_t to = address(first, piece.stride, at);
    file.elements[to] = base + element;
    file.versions[to] = piece.version;
    out.held[plain.name][piece.version].insert(base + element);
  });
  out.view.tensors.back().pieces.push_back(piece);
}

Stored random_view(Random& random, const std::vector<Plain>& tensors) {
  Stored out;
  out.files.resize(random.between(1, 4));
  out.view.files.resize(out.files.size());
  constexpr ElementType kFloating[] = {ElementType::float32, ElementType::float16, ElementType::bfloat16};
  for (const Plain& plain : tensors) {
    StoredTensor tensor{.name = plain.name, .shape = plain.shape};
    tensor.type = plain.exact.value_or(kFloating[random.below(3)]);
    if (!plain.exact && random.one_in(4)) tensor.versions = static_cast<std::uint32_t>(random.between(2, 3));
    out.held[plain.name].resize(tensor.versions);
    out.view.tensors.push_back(tensor);
    for (std::uint32_t version = 0; version < tensor.versions; ++version) {
      const std::uint64_t copies = random.between(1, 2);
      for (std::uint32_t copy = 0; copy < copies; ++copy) {
        for (const Box& box : random_boxes(random, whole_box(plain.shape))) {
          if (random.one_in(copies == 2 ? 4 : 30)) continue;  // a copy that lacks some; rarely, a hole
          store_piece(random, plain, tensor, {.box = box, .version = version, .copy = copy}, out);
        }
      }
    }
  }
  return out;
}

// Whether all that is wanted is there in all versions.
bool is_whole(const Stored& stored, const Buffers& wanted) {
  for (const auto& [where, contents] : wanted) {
    for (const std::int64_t element : contents.elements) {
      if (element == kPad) continue;
      for (const auto& version : stored.held.at("t" + std::to_string(element >> 32))) {
        if (!version.contains(element)) return false;
      }
    }
  }
  return true;
}

void run_view_case(std::uint64_t seed, Counts& counts) {
  Random random(seed);
  const std::vector<Plain> tensors = random_tensors(random);
  Stored stored = random_view(random, tensors);
  const JobLayout to = random_layout(random, tensors);
  SCOPED_TRACE("seed " + std::to_string(seed));
  const Buffers wanted = reference_buffers(to);
  std::vector<std::uint64_t> sizes;
  for (const Contents& file : stored.files) sizes.push_back(file.elements.size() * 8);  // of the widest type
  const Status sound = check_view(stored.view, sizes);
  ASSERT_TRUE(sound) << sound.error().what;
  bool complete = true;
  for (const Plain& plain : tensors) {
    const auto count = element_count(plain.shape);
    for (const auto& version : stored.held[plain.name]) complete = complete && version.size() == *count;
  }
  ASSERT_EQ(stored.view.problems.empty(), complete);

  const Enumeration target(to);
  const ReshapeSource source = source_of(stored.view);
  const auto plan = ReshapePlan::create(source, target);
  ASSERT_TRUE(plan) << plan.error().what;
  std::vector<const StoredPiece*> pieces;  // by buffer
  std::map<std::string, std::size_t> element_bytes;
  for (const StoredTensor& tensor : stored.view.tensors) {
    element_bytes[tensor.name] = size_bits(tensor.type) / 8;
    for (const StoredPiece& piece : tensor.pieces) pieces.push_back(&piece);
  }
  std::map<std::pair<std::uint32_t, std::uint32_t>, Elements> filled;
  for (const auto& [where, contents] : wanted) filled[where].assign(contents.elements.size(), kUntouched);
  const CopySink run = [&](const PlannedCopy& copy) {
    ++counts.copies;
    counts.averaged += copy.sources.size() > 1 ? 1 : 0;
    Elements& out = filled.at({copy.target.holder, copy.target.buffer});
    for_each_element(copy.box, [&](const PerDimension& at) {
      std::int64_t found = kPad;
      for (const PlannedEnd& end : copy.sources) {
        const StoredPiece& piece = *pieces.at(end.buffer);
        ASSERT_EQ(piece.file, end.holder);
        const std::uint64_t first = piece.offset_bytes / element_bytes[to.tensors[copy.tensor].name];
        const std::uint64_t i = address(first + end.offset, end.stride, at);
        const Contents& file = stored.files[piece.file];
        ASSERT_LT(i, file.elements.size());
        ASSERT_NE(file.elements[i], kPad);
        ASSERT_EQ(file.versions[i], static_cast<std::uint64_t>(&end - copy.sources.data()));
        ASSERT_TRUE(found == kPad || found == file.elements[i]) << "versions of different elements";
        found = file.elements[i];
      }
      const std::uint64_t i = address(copy.target.offset, copy.target.stride, at);
      ASSERT_LT(i, out.size());
      ASSERT_EQ(out[i], kUntouched) << "written twice";
      out[i] = found;
    });
  };
  Status status;
  if (random.one_in(2)) {
    status = plan->plan_all(run);
  } else {
    for (std::uint32_t rank = 0; rank < to.world && status; ++rank) status = plan->plan_rank(rank, run);
  }
  ASSERT_FALSE(testing::Test::HasFatalFailure());
  ASSERT_EQ(status.has_value(), is_whole(stored, wanted)) << (status ? "a hole was not seen" : status.error().what);
  if (!status) {
    ASSERT_EQ(status.error().code, Code::not_found);
    ++counts.refused;
    return;
  }
  ++counts.reshaped;
  for (const auto& [where, contents] : wanted) {
    for (std::size_t i = 0; i < contents.elements.size(); ++i) {
      const std::int64_t expected = contents.elements[i] == kPad ? kUntouched : contents.elements[i];
      ASSERT_EQ(filled[where][i], expected) << "rank " << where.first << " buffer " << where.second << " at " << i;
    }
  }
}

std::uint64_t cases_wanted() {
  const char* set = std::getenv("PAWL_CASES");
  return set == nullptr ? 6000 : std::strtoull(set, nullptr, 10);
}

std::uint64_t first_seed() {
  const char* set = std::getenv("PAWL_SEED");
  if (set == nullptr) return 1;
  return set == std::string("random") ? std::random_device()() : std::strtoull(set, nullptr, 10);
}

void run_cases(void (*run)(std::uint64_t seed, Counts& counts)) {
  const std::uint64_t cases = cases_wanted();
  const std::uint64_t seed = first_seed();
  std::printf("%llu cases from seed %llu\n", static_cast<unsigned long long>(cases),
              static_cast<unsigned long long>(seed));
  Counts counts;
  for (std::uint64_t i = 0; i < cases; ++i) {
    ASSERT_NO_FATAL_FAILURE(run(seed + i, counts)) << "PAWL_CASES=1 PAWL_SEED=" << seed + i << " repeats it";
    ASSERT_FALSE(testing::Test::HasFailure()) << "PAWL_CASES=1 PAWL_SEED=" << seed + i << " repeats it";
  }
  std::printf("%llu reshaped, %llu refused, %llu copies, %llu of them means\n",
              static_cast<unsigned long long>(counts.reshaped), static_cast<unsigned long long>(counts.refused),
              static_cast<unsigned long long>(counts.copies), static_cast<unsigned long long>(counts.averaged));
  if (cases < 1000) return;
  EXPECT_GT(counts.reshaped, cases / 2);  // the generator still makes both kinds
  EXPECT_GT(counts.refused, cases / 50);
  EXPECT_GT(counts.averaged, cases / 10);
}

TEST(Reshape, AnyLayoutToAnyOther) {
  run_cases(run_case);
}

TEST(Reshape, AnyViewToAnyLayout) {
  run_cases(run_view_case);
}

}  // namespace
}  // namespace pawl::checkpoint
