#include "tensor/enumerate.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <unordered_set>

#include "base/text.h"
#include "tensor/tiling.h"

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

// Appends the pieces for the part `local` of a local array. `base`: where the array's first element would lie in the
// buffer; it wraps around for a part that begins later.
class PieceWriter {
 public:
  PieceWriter(const LocalArray& array, const Shape& shape, const TensorPiece& form, std::vector<TensorPiece>& out)
      : array_(array), shape_(shape), stride_(dense_stride(whole_box(array.shape()))), piece_(form), out_(out) {
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

// The pieces of the elements [begin, end) of a local array, which lies from `base` on in a flat buffer.
template <class Interval>
void append_interval_pieces(const LocalArray& array, const Shape& local, const Interval& interval, const Shape& shape,
                            const TensorPiece& form, std::vector<TensorPiece>& out) {
  std::vector<Box> boxes;
  append_interval(local, interval.begin, interval.end, boxes);
  PieceWriter writer(array, shape, form, out);
  for (const Box& box : boxes) writer.append(box, interval.base);
}

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
  const Interval interval =
      interval_of(membership, rank, index_along(group->axes, mesh, coordinates), product_of(local));
  append_interval_pieces(array, local, interval, of.shape, piece, out);
}

// All ranks of one tensor. Walks the mesh, last axis fastest, and keeps each distinct local array: ranks have the same
// one if they have the same coordinates along the axes that cut or choose.
class Enumeration::OfAll {
 public:
  OfAll(const Enumeration& all, std::uint32_t tensor, Only only, std::vector<TensorPiece>& out)
      : all_(all),
        of_(all.layout_.tensors[tensor]),
        mesh_(all.layout_.meshes[of_.placement.mesh]),
        membership_(all.membership_[tensor]),
        group_(membership_.group == ~0u ? nullptr : &all.layout_.groups[membership_.group]),
        only_(only),
        out_(out) {
    form_.tensor = tensor;
    form_.buffer =
        group_ == nullptr ? tensor : static_cast<std::uint32_t>(all.layout_.tensors.size()) + membership_.group;
    form_.box.dimensions = static_cast<std::uint32_t>(of_.shape.size());
    weigh_axes();
    narrow_axes();
  }

  void run() {
    for (const Range& range : ranges_) {
      if (range.first > range.last) return;
      position_.push_back(range.first);
    }
    do {
      visit();
    } while (advance());
  }

 private:
  struct Range {
    std::uint64_t first = 0;
    std::uint64_t last = 0;  // included
  };
  // What a coordinate along an axis adds to each number of a rank.
  struct Weights {
    std::uint64_t rank = 0, array = 0, version = 0, copy = 0, part = 0;
  };
  struct KnownArray {
    bool is_known = false;
    bool is_held = false;
    LocalArray array;
    Shape shape;
    std::vector<TensorPiece> pieces;  // not of a flat group: the first such rank's
  };

  void weigh_axes() {
    weights_.resize(mesh_.axes.size());
    Weights next{1, 1, 1, 1, 1};
    if (group_ != nullptr) {
      for (std::size_t i = group_->axes.size(); i-- > 0; next.part *= mesh_.axes[group_->axes[i]].size) {
        weights_[group_->axes[i]].part = next.part;
      }
    }
    for (std::uint32_t axis = static_cast<std::uint32_t>(mesh_.axes.size()); axis-- > 0;) {
      const std::uint64_t size = mesh_.axes[axis].size;
      weights_[axis].rank = next.rank;
      next.rank *= size;
      const auto pattern = std::ranges::find(of_.placement.patterns, axis, &AxisPattern::axis);
      const bool replicates = pattern == of_.placement.patterns.end();
      const bool is_flat = group_ != nullptr && std::ranges::count(group_->axes, axis) != 0;
      if (!replicates && pattern->kind != AxisPattern::Kind::averaged) {
        weights_[axis].array = next.array;
        next.array *= size;
      }
      if (is_flat || (!replicates && pattern->kind == AxisPattern::Kind::shard)) continue;
      const bool averages = !replicates && pattern->kind == AxisPattern::Kind::averaged;
      (averages ? weights_[axis].version : weights_[axis].copy) = averages ? next.version : next.copy;
      (averages ? next.version : next.copy) *= size;
    }
    shares_ = next.array < next.rank;
    known_.resize(shares_ ? next.array : 1);
  }

  // Where chunks of whole dimensions are cut, only those that meet the box; of a flat group, those with the member.
  void narrow_axes() {
    for (const Mesh::Axis& axis : mesh_.axes) ranges_.push_back({0, axis.size - 1});
    std::vector<bool> is_cut(of_.shape.size());
    for (const AxisPattern& pattern : of_.placement.patterns) {
      Range& range = ranges_[pattern.axis];
      if (pattern.kind == AxisPattern::Kind::only) range = {pattern.holders.front(), pattern.holders.back()};
      if (pattern.kind != AxisPattern::Kind::shard || is_cut[pattern.dimension]) continue;
      is_cut[pattern.dimension] = true;
      if (only_.meeting == nullptr || !pattern.segments.empty() || pattern.split == AxisPattern::Split::given) continue;
      const std::uint64_t parts = mesh_.axes[pattern.axis].size;
      const std::uint64_t extent = of_.placed_shape()[pattern.dimension];
      const std::uint64_t chunk = std::max<std::uint64_t>(1, (extent + parts - 1) / parts);
      const std::uint64_t begin = only_.meeting->begin[pattern.dimension];
      const std::uint64_t size = only_.meeting->size[pattern.dimension];
      if (size != 0) range = {begin / chunk, std::min(parts - 1, (begin + size - 1) / chunk)};
    }
  }

  bool advance() {
    for (std::size_t axis = position_.size(); axis-- > 0;) {
      if (position_[axis] < ranges_[axis].last) {
        ++position_[axis];
        return true;
      }
      position_[axis] = ranges_[axis].first;
    }
    return false;
  }

  void visit() {
    Weights sum;
    for (std::size_t axis = 0; axis < position_.size(); ++axis) {
      const Weights& weights = weights_[axis];
      sum.rank += position_[axis] * weights.rank;
      sum.array += position_[axis] * weights.array;
      sum.version += position_[axis] * weights.version;
      sum.copy += position_[axis] * weights.copy;
      sum.part += position_[axis] * weights.part;
    }
    if (only_.is_alive != nullptr && !(*only_.is_alive)[sum.rank]) return;
    form_.holder = static_cast<std::uint32_t>(sum.rank);
    form_.version = static_cast<std::uint32_t>(sum.version);
    form_.copy = static_cast<std::uint32_t>(sum.copy);
    KnownArray& known = known_[shares_ ? sum.array : 0];
    if (!shares_) {
      known.is_known = false;
      known.pieces.clear();
    }
    if (group_ == nullptr) {
      append_own(known);
    } else {
      append_flat(known, sum.part);
    }
  }

  void append_own(KnownArray& known) {
    if (!known.is_known) {
      known.is_known = true;
      if (!local_array(of_.placement, mesh_, of_.placed_shape(), position_, scratch_)) return;
      PieceWriter(scratch_, of_.shape, form_, known.pieces).append(whole_box(scratch_.shape()), 0);
      drop_others(known.pieces, 0);
    }
    for (TensorPiece& piece : known.pieces) {
      piece.holder = form_.holder;
      piece.version = form_.version;
      piece.copy = form_.copy;
      out_.push_back(piece);
    }
  }

  void append_flat(KnownArray& known, std::uint64_t part) {
    if (!known.is_known) {
      known.is_known = true;
      known.is_held = local_array(of_.placement, mesh_, of_.placed_shape(), position_, known.array);
      known.shape = known.array.shape();
    }
    if (!known.is_held) return;
    const Interval interval = all_.interval_of(membership_, form_.holder, part, product_of(known.shape));
    if (interval.begin >= interval.end) return;
    const std::size_t first = out_.size();
    append_interval_pieces(known.array, known.shape, interval, of_.shape, form_, out_);
    drop_others(out_, first);
  }

  void drop_others(std::vector<TensorPiece>& pieces, std::size_t first) const {
    if (only_.meeting == nullptr) return;
    std::size_t kept = first;
    for (std::size_t i = first; i < pieces.size(); ++i) {
      if (volume(intersection(pieces[i].box, *only_.meeting)) != 0) pieces[kept++] = pieces[i];
    }
    pieces.resize(kept);
  }

  const Enumeration& all_;
  const JobTensor& of_;
  const Mesh& mesh_;
  const Membership membership_;
  const FlatGroup* group_;
  const Only only_;
  std::vector<TensorPiece>& out_;
  TensorPiece form_;
  std::vector<Weights> weights_;
  std::vector<Range> ranges_;
  std::vector<std::uint64_t> position_;
  std::vector<KnownArray> known_;  // by the coordinates along axes that cut or choose; one, if all ranks differ
  bool shares_ = false;
  LocalArray scratch_;
};

void Enumeration::append_pieces_of_all(std::uint32_t tensor, Only only, std::vector<TensorPiece>& out) const {
  OfAll(*this, tensor, only, out).run();
}

// What the rank has of a local array that is `count` long, and where the array's first element would lie.
Enumeration::Interval Enumeration::interval_of(Membership membership, std::uint32_t rank, std::uint64_t part,
                                               std::uint64_t count) const {
  const FlatGroup& group = layout_.groups[membership.group];
  const FlatPlan& plan = flat_plans_[plan_of_[membership.group][rank]];
  const std::uint64_t first = plan.begin[membership.member];
  if (group.form == FlatGroup::Form::joined) {
    return {std::clamp(part * plan.part, first, first + count) - first,
            std::clamp((part + 1) * plan.part, first, first + count) - first, first - part * plan.part};
  }
  const std::uint64_t parts = parts_of(group, layout_.meshes[group.mesh]);
  const std::uint64_t size = (count + parts - 1) / parts;
  const std::uint64_t begin = std::min(count, part * size);
  return {begin, std::min(count, begin + size), first - begin};
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
