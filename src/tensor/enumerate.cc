#include "tensor/enumerate.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>

#include "base/text.h"

namespace pawl {
namespace {

using Coordinates = std::vector<std::uint64_t>;
constexpr std::uint64_t kFlatElementsMax = std::uint64_t{1} << 62;

std::uint64_t product_of(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
}

std::uint64_t round_up(std::uint64_t value, std::uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::uint64_t parts_of(const FlatGroup& group, const Mesh& mesh) {
  std::uint64_t parts = 1;
  for (const std::uint32_t axis : group.axes) parts *= mesh.axes[axis].size;
  return parts;
}

std::uint64_t index_along(const std::vector<std::uint32_t>& axes, const Mesh& mesh, const Coordinates& coordinates) {
  std::uint64_t index = 0;
  for (const std::uint32_t axis : axes) index = index * mesh.axes[axis].size + coordinates[axis];
  return index;
}

// --- checks -------------------------------------------------------------------------------------------------------

Status check_tensor(const JobTensor& tensor, const std::vector<Mesh>& meshes) {
  if (!is_name(tensor.name) || !is_name(tensor.role)) return Error{Code::invalid, "not a proper name or role"};
  if (tensor.placement.mesh >= meshes.size()) return Error{Code::invalid, text("no mesh ", tensor.placement.mesh)};
  const Shape& placed = tensor.placed_shape();
  PAWL_TRY(element_count(placed));
  if (placed.size() != tensor.shape.size() ||
      !std::ranges::equal(tensor.shape, placed, [](auto own, auto padded) { return own <= padded; })) {
    return Error{Code::invalid, text("shape ", text_of(tensor.shape), " does not fit into ", text_of(placed))};
  }
  return check_placement(tensor.placement, meshes[tensor.placement.mesh], placed);
}

Status check_axes(const FlatGroup& group, const Mesh& mesh) {
  std::set<std::uint32_t> seen;
  for (const std::uint32_t axis : group.axes) {
    if (axis >= mesh.axes.size() || !seen.insert(axis).second) return Error{Code::invalid, text("axis ", axis)};
  }
  return {};
}

Status check_member(const FlatGroup& group, const JobTensor& tensor, ElementType dtype) {
  const std::string label = label_of(tensor.name, tensor.role);
  if (tensor.placement.mesh != group.mesh) return Error{Code::invalid, text(label, " lies on another mesh")};
  if (tensor.dtype != dtype) return Error{Code::invalid, text(label, " has another dtype")};
  for (const AxisPattern& pattern : tensor.placement.patterns) {
    if (std::ranges::count(group.axes, pattern.axis) != 0) {
      return Error{Code::invalid, text(label, " has a pattern on an axis of the group")};
    }
  }
  return {};
}

Status check_group(const FlatGroup& group, const JobLayout& layout, std::set<std::uint32_t>& taken) {
  if (!is_name(group.name)) return Error{Code::invalid, "not a proper name"};
  if (group.mesh >= layout.meshes.size()) return Error{Code::invalid, text("no mesh ", group.mesh)};
  const Mesh& mesh = layout.meshes[group.mesh];
  PAWL_TRY(check_axes(group, mesh));
  constexpr std::uint64_t kMultipleMax = std::uint64_t{1} << 31;  // so that no common multiple overflows
  if (group.align == 0 || group.pad == 0 || group.align > kMultipleMax || group.pad > kMultipleMax) {
    return Error{Code::invalid, "align and pad must be 1..2^31"};
  }
  if (group.members.empty()) return Error{Code::invalid, "no members"};
  std::uint64_t room = kFlatElementsMax;
  for (const FlatGroup::Member& member : group.members) {
    if (member.tensor >= layout.tensors.size()) return Error{Code::invalid, text("no tensor ", member.tensor)};
    const JobTensor& tensor = layout.tensors[member.tensor];
    if (!taken.insert(member.tensor).second) {
      return Error{Code::invalid, text(label_of(tensor.name, tensor.role), " is a member twice")};
    }
    PAWL_TRY(check_member(group, tensor, layout.tensors[group.members.front().tensor].dtype));
    const std::uint64_t count = product_of(tensor.placed_shape());
    if (count > room || member.gap > room - count || room - count - member.gap < group.align) {
      return Error{Code::invalid, "more than 2^62 elements"};
    }
    room -= count + member.gap + group.align;
  }
  return {};
}

// --- pieces -------------------------------------------------------------------------------------------------------

PerDimension strides_of(const Shape& shape) {
  PerDimension stride{};
  std::uint64_t step = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    stride[d] = step;
    step *= shape[d];
  }
  return stride;
}

// The boxes that the row-major elements [begin, end) of an array make up: at most two a dimension, less one.
void append_boxes(const Shape& shape, std::uint64_t begin, std::uint64_t end, std::vector<Box>& out) {
  const PerDimension stride = strides_of(shape);
  const auto dimensions = static_cast<std::uint32_t>(shape.size());
  while (begin < end) {
    // Of the steps that begin here and end in time, the longest; then as many of them as the dimension has left.
    std::uint32_t d = 0;
    while (d < dimensions && (begin % stride[d] != 0 || stride[d] > end - begin)) ++d;
    Box box{dimensions, {}, {}};
    std::uint64_t count = 1;
    if (d < dimensions) {
      const std::uint64_t left = shape[d] - begin / stride[d] % shape[d];
      count = std::min(left, (end - begin) / stride[d]);
    }
    for (std::uint32_t i = 0; i < dimensions; ++i) {
      box.begin[i] = begin / stride[i] % shape[i];
      box.size[i] = i < d ? 1 : i == d ? count : shape[i];
    }
    out.push_back(box);
    begin += d < dimensions ? count * stride[d] : 1;
  }
}

// Appends the pieces for the part `local` of a local array. `base`: where the array's first element would lie in the
// buffer; it wraps around for a part that begins later.
class PieceWriter {
 public:
  PieceWriter(const LocalArray& array, const Shape& shape, TensorPiece form, std::vector<TensorPiece>& out)
      : array_(array), shape_(shape), stride_(strides_of(array.shape())), piece_(std::move(form)), out_(out) {
    piece_.box.dimensions = static_cast<std::uint32_t>(shape.size());
  }
  void append(const Box& local, std::uint64_t base) { cut(0, local, base); }

 private:
  // Splits the box where its spans meet, from dimension d on.
  void cut(std::uint32_t d, const Box& local, std::uint64_t offset) {
    if (d == shape_.size()) {
      piece_.offset = offset;
      piece_.stride = stride_;
      out_.push_back(piece_);
      return;
    }
    const std::uint64_t local_end = local.begin[d] + local.size[d];
    std::uint64_t position = 0;
    for (const Span& span : array_.spans[d]) {
      const std::uint64_t own = std::min(span.size, shape_[d] - std::min(shape_[d], span.begin));  // without padding
      const std::uint64_t begin = std::max(position, local.begin[d]);
      const std::uint64_t end = std::min(position + own, local_end);
      if (begin < end) {
        piece_.box.begin[d] = span.begin + (begin - position);
        piece_.box.size[d] = end - begin;
        cut(d + 1, local, offset + begin * stride_[d]);
      }
      position += span.size;
    }
  }

  const LocalArray& array_;
  const Shape& shape_;
  PerDimension stride_;
  TensorPiece piece_;
  std::vector<TensorPiece>& out_;
};

// Which version and which copy a rank has: its coordinates along the averaged axes, and along those that cut nothing.
void number_versions(const JobTensor& tensor, const Mesh& mesh, const Coordinates& coordinates, const FlatGroup* group,
                     TensorPiece& piece) {
  for (std::uint32_t axis = 0; axis < mesh.axes.size(); ++axis) {
    if (group != nullptr && std::ranges::count(group->axes, axis) != 0) continue;
    const auto pattern = std::ranges::find(tensor.placement.patterns, axis, &AxisPattern::axis);
    const bool replicates = pattern == tensor.placement.patterns.end();
    if (!replicates && pattern->kind == AxisPattern::Kind::shard) continue;
    std::uint32_t& index = !replicates && pattern->kind == AxisPattern::Kind::averaged ? piece.version : piece.copy;
    index = static_cast<std::uint32_t>(index * mesh.axes[axis].size + coordinates[axis]);
  }
}

}  // namespace

std::string label_of(std::string_view name, std::string_view role) {
  return text("tensor ", name, " (", role, ")");
}

Status check_layout(const JobLayout& layout) {
  for (const Mesh& mesh : layout.meshes) PAWL_TRY(check_mesh(mesh, layout.world));
  std::unordered_set<std::string> names;
  for (const JobTensor& tensor : layout.tensors) {
    Status checked = check_tensor(tensor, layout.meshes);
    if (checked && !names.insert(text(tensor.name, '\n', tensor.role)).second) {
      checked = Error{Code::invalid, "is there twice"};
    }
    if (!checked) return std::move(checked.error()).within(label_of(tensor.name, tensor.role));
  }
  std::set<std::uint32_t> taken;
  for (const FlatGroup& group : layout.groups) {
    if (Status checked = check_group(group, layout, taken); !checked) {
      return std::move(checked.error()).within(text("flat group ", group.name));
    }
  }
  return {};
}

Enumeration::Enumeration(const JobLayout& layout) : layout_(layout), membership_(layout.tensors.size()) {
  for (std::uint32_t g = 0; g < layout.groups.size(); ++g) {
    const FlatGroup& group = layout.groups[g];
    const Mesh& mesh = layout.meshes[group.mesh];
    for (std::uint32_t m = 0; m < group.members.size(); ++m) membership_[group.members[m].tensor] = {g, m};
    std::map<Coordinates, std::uint32_t> known;  // of ranks that are equal but along the group's axes
    std::vector<std::uint32_t>& plan_of = plan_of_.emplace_back(layout.world);
    for (std::uint32_t rank = 0; rank < layout.world; ++rank) {
      Coordinates coordinates = coordinates_of(mesh, rank);
      for (const std::uint32_t axis : group.axes) coordinates[axis] = 0;
      const auto [plan, is_new] = known.emplace(coordinates, static_cast<std::uint32_t>(flat_plans_.size()));
      if (is_new) flat_plans_.push_back(plan_group(group, rank));
      plan_of[rank] = plan->second;
    }
  }
}

Enumeration::FlatPlan Enumeration::plan_group(const FlatGroup& group, std::uint32_t rank) const {
  const Mesh& mesh = layout_.meshes[group.mesh];
  const Coordinates coordinates = coordinates_of(mesh, rank);
  const std::uint64_t parts = parts_of(group, mesh);
  FlatPlan plan;
  LocalArray array;
  std::uint64_t end = 0;
  for (const FlatGroup::Member& member : group.members) {
    const JobTensor& tensor = layout_.tensors[member.tensor];
    if (!local_array(tensor.placement, mesh, tensor.placed_shape(), coordinates, array)) {
      plan.begin.push_back(kNotHeld);
      continue;
    }
    plan.held = true;
    const std::uint64_t count = product_of(array.shape());
    plan.begin.push_back(round_up(end + member.gap, group.align));
    end = plan.begin.back() + (group.form == FlatGroup::Form::joined ? count : (count + parts - 1) / parts);
  }
  const bool joined = group.form == FlatGroup::Form::joined;
  plan.part = joined ? round_up(end, std::lcm(group.pad, parts)) / parts : end;
  return plan;
}

void Enumeration::append_pieces(std::uint32_t tensor, std::uint32_t rank, std::vector<TensorPiece>& out) const {
  const JobTensor& of = layout_.tensors[tensor];
  const Mesh& mesh = layout_.meshes[of.placement.mesh];
  const Coordinates coordinates = coordinates_of(mesh, rank);
  LocalArray array;
  if (!local_array(of.placement, mesh, of.placed_shape(), coordinates, array)) return;
  const Shape local = array.shape();
  const Membership& membership = membership_[tensor];
  const bool flat = membership.group != ~0u;
  const FlatGroup* group = flat ? &layout_.groups[membership.group] : nullptr;

  TensorPiece piece{.tensor = tensor, .holder = rank, .buffer = tensor, .box = {}};
  number_versions(of, mesh, coordinates, group, piece);
  if (!flat) {
    PieceWriter(array, of.shape, piece, out).append(whole_box(local), 0);
    return;
  }
  piece.buffer = static_cast<std::uint32_t>(layout_.tensors.size()) + membership.group;
  const FlatPlan& plan = flat_plans_[plan_of_[membership.group][rank]];
  const std::uint64_t index = index_along(group->axes, mesh, coordinates);
  const std::uint64_t count = product_of(local);
  // The rank has the elements [begin, end) of the local array, and its buffer begins `base` before the array.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t base = 0;
  if (group->form == FlatGroup::Form::joined) {
    const std::uint64_t first = plan.begin[membership.member];
    begin = std::clamp(index * plan.part, first, first + count) - first;
    end = std::clamp((index + 1) * plan.part, first, first + count) - first;
    base = first - index * plan.part;
  } else {
    const std::uint64_t parts = parts_of(*group, mesh);
    const std::uint64_t part = (count + parts - 1) / parts;
    begin = std::min(count, index * part);
    end = std::min(count, begin + part);
    base = plan.begin[membership.member] - begin;
  }
  std::vector<Box> boxes;
  append_boxes(local, begin, end, boxes);
  PieceWriter writer(array, of.shape, piece, out);
  for (const Box& box : boxes) writer.append(box, base);
}

std::vector<Buffer> Enumeration::buffers_of(std::uint32_t rank) const {
  std::vector<Buffer> buffers;
  LocalArray array;
  for (std::uint32_t t = 0; t < layout_.tensors.size(); ++t) {
    const JobTensor& tensor = layout_.tensors[t];
    const Mesh& mesh = layout_.meshes[tensor.placement.mesh];
    if (membership_[t].group != ~0u) continue;
    if (!local_array(tensor.placement, mesh, tensor.placed_shape(), coordinates_of(mesh, rank), array)) continue;
    buffers.push_back({t, tensor.dtype, product_of(array.shape())});
  }
  for (std::uint32_t g = 0; g < layout_.groups.size(); ++g) {
    const FlatPlan& plan = flat_plans_[plan_of_[g][rank]];
    if (!plan.held) continue;
    const ElementType dtype = layout_.tensors[layout_.groups[g].members.front().tensor].dtype;
    buffers.push_back({static_cast<std::uint32_t>(layout_.tensors.size()) + g, dtype, plan.part});
  }
  return buffers;
}

std::uint32_t Enumeration::versions_of(std::uint32_t tensor) const {
  const MeshPlacement& placement = layout_.tensors[tensor].placement;
  std::uint64_t versions = 1;
  for (const AxisPattern& pattern : placement.patterns) {
    if (pattern.kind == AxisPattern::Kind::averaged) versions *= layout_.meshes[placement.mesh].axes[pattern.axis].size;
  }
  return static_cast<std::uint32_t>(versions);
}

}  // namespace pawl
