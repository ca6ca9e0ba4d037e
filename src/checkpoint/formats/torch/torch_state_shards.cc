#include "checkpoint/formats/torch/torch_state_shards.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "tensor/placement.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;
constexpr std::uint64_t kPartsMax = 1 << 16;  // boxes of one rank
constexpr std::uint64_t kRanksMax = std::uint64_t{1} << 31;
// A file can name one large list for every tensor. What torch writes is smaller; what is larger is not looked at.
constexpr std::size_t kSmallItems = Pickle::kRecordItemsMax;
constexpr std::size_t kRankMapLooked = 4096;

Error unknown(std::string why) {
  return {Code::invalid, std::move(why)};
}

// An attribute in a state: a dict, or a pair of two (with and without slots).
Value state_member(const Pickle& pickle, Value state, std::string_view name) {
  if (pickle.is(state, PickleKind::dict)) return pickle.find_field(state, name);
  if (!pickle.is(state, PickleKind::tuple) || pickle.items(state).size() > kSmallItems) return kNothing;
  for (const Value half : pickle.items(state))
    if (pickle.is(half, PickleKind::dict))
      if (const Value found = pickle.find_field(half, name); found != kNothing) return found;
  return kNothing;
}

// An attribute that BUILD gave an object.
Value member(const Pickle& pickle, Value object, std::string_view name) {
  if (!pickle.is(object, PickleKind::object)) return kNothing;
  return state_member(pickle, pickle.object(object).state, name);
}

std::span<const Value> arguments_of(const Pickle& pickle, Value object) {
  return pickle.is(object, PickleKind::object) ? pickle.items(pickle.object(object).arguments)
                                               : std::span<const Value>();
}

// A named tuple's field, or an attribute.
Value field(const Pickle& pickle, Value object, std::size_t index, std::string_view name) {
  if (const Value found = member(pickle, object, name); found != kNothing) return found;
  const std::span<const Value> arguments = arguments_of(pickle, object);
  return index < arguments.size() ? arguments[index] : kNothing;
}

std::string_view class_name(const Pickle& pickle, Value object) {
  if (!pickle.is(object, PickleKind::object)) return {};
  const PickleSymbol& symbol = pickle.class_of(object);
  return symbol.module.starts_with("torch.distributed") ? std::string_view(symbol.name) : std::string_view();
}

bool is_sequence(const Pickle& pickle, Value value) {
  return pickle.is(value, PickleKind::tuple) || pickle.is(value, PickleKind::list);
}

// The state that _rebuild_from_type_v2 gives the object; parameters are looked through.
Value state_of(const Pickle& pickle, Value value) {
  for (int i = 0; i < 4 && pickle.is(value, PickleKind::object); ++i) {
    const PickleSymbol& function = pickle.class_of(value);
    const std::span<const Value> arguments = arguments_of(pickle, value);
    if (function.is("torch._tensor", "_rebuild_from_type_v2") && arguments.size() == 4) return arguments[3];
    if (!function.name.starts_with("_rebuild_parameter") || arguments.empty()) return kNothing;
    value = arguments[0];
  }
  return kNothing;
}

// The extent of one mesh axis: a number, or several whose product it is (an axis that was flattened of others).
std::optional<std::uint64_t> extent_of(const Pickle& pickle, Value value) {
  if (pickle.is(value, PickleKind::integer)) return pickle.unsigned_(value);
  if (!is_sequence(pickle, value) || pickle.items(value).size() > kSmallItems) return std::nullopt;
  std::uint64_t product = 1;
  for (const Value item : pickle.items(value)) {
    const std::optional<std::uint64_t> factor = pickle.unsigned_(item);
    if (!factor || __builtin_mul_overflow(product, *factor, &product)) return std::nullopt;
  }
  return product;
}

// A DeviceMesh tells its axes in one of three ways, by torch's age.
Result<std::vector<std::uint64_t>> mesh_sizes(const Pickle& pickle, Value mesh, const TorchTensorFinder& local_of) {
  std::vector<std::uint64_t> sizes;
  const Value layout = member(pickle, mesh, "_layout");
  const Value axes = member(pickle, layout, "axes");
  const Value shape = member(pickle, layout, "shape");
  if (is_sequence(pickle, axes) || is_sequence(pickle, shape)) {
    const bool has_axes = is_sequence(pickle, axes);
    if (pickle.items(has_axes ? axes : shape).size() > kAxesMax) return unknown("a DeviceMesh of too many axes");
    for (const Value item : pickle.items(has_axes ? axes : shape)) {
      const std::optional<std::uint64_t> size = extent_of(pickle, has_axes ? field(pickle, item, 0, "shape") : item);
      if (!size) return damaged("a DeviceMesh without sizes of its axes");
      sizes.push_back(*size);
    }
  } else if (const std::optional<std::uint64_t> size = extent_of(pickle, shape)) {
    sizes.push_back(*size);
  } else {
    const Value named = member(pickle, mesh, "mesh");
    const TorchTensor* tensor = local_of(named != kNothing ? named : member(pickle, mesh, "_mesh"));
    if (tensor == nullptr) return unknown("a DeviceMesh of a version of torch that is not known here");
    sizes = tensor->shape;
  }
  std::uint64_t world = 1;
  for (const std::uint64_t size : sizes)
    if (size == 0 || __builtin_mul_overflow(world, size, &world) || world > kRanksMax)
      return damaged("a DeviceMesh of impossible sizes");
  if (sizes.size() > kAxesMax) return unknown(text("a DeviceMesh of ", sizes.size(), " axes"));
  return sizes;
}

Result<Mesh> mesh_of(const Pickle& pickle, Value mesh, const TorchTensorFinder& local_of) {
  PAWL_ASSIGN(const std::vector<std::uint64_t> sizes, mesh_sizes(pickle, mesh, local_of));
  Value names = member(pickle, mesh, "_mesh_dim_names");
  if (!is_sequence(pickle, names)) names = member(pickle, mesh, "mesh_dim_names");
  const std::span<const Value> given = is_sequence(pickle, names) ? pickle.items(names) : std::span<const Value>();
  Mesh out;
  out.name = "mesh";
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string_view name = i < given.size() ? pickle.text(given[i]) : std::string_view();
    out.axes.push_back({is_name(name) ? std::string(name) : text("axis", i), sizes[i]});
  }
  return out;
}

std::uint64_t world_of(const Pickle& pickle, Value mesh, const Mesh& axes) {
  std::uint64_t world = 1;
  for (const Mesh::Axis& axis : axes.axes) world *= axis.size;  // checked: at most kRanksMax
  const Value ranks = member(pickle, mesh, "_flatten_rank_map");
  if (!is_sequence(pickle, ranks)) return world;
  if (pickle.items(ranks).size() > kRankMapLooked) return std::max(world, std::uint64_t{pickle.items(ranks).size()});
  for (const Value rank : pickle.items(ranks))
    if (const auto number = pickle.unsigned_(rank); number && *number < kRanksMax) world = std::max(world, *number + 1);
  return world;
}

struct Placements {
  std::vector<DTensorPlacement> list;
  std::string words;
  bool strided = false;
};

Result<std::uint32_t> dimension_of(const Pickle& pickle, Value value, std::size_t dimensions) {
  const std::optional<std::int64_t> number = pickle.integer(value);
  const auto count = static_cast<std::int64_t>(dimensions);
  if (!number || *number >= count || *number < -count) return damaged("a DTensor that is cut along no dimension of it");
  return static_cast<std::uint32_t>(*number < 0 ? *number + count : *number);
}

Result<Placements> placements_of(const Pickle& pickle, Value value, std::size_t dimensions) {
  if (!is_sequence(pickle, value) || pickle.items(value).size() > kAxesMax)
    return damaged("a DTensor without placements");
  Placements out;
  for (const Value item : pickle.items(value)) {
    DTensorPlacement placement;
    const std::string_view kind = class_name(pickle, item);
    if (kind.find("Partial") != std::string_view::npos)
      return unknown("it is Partial: its ranks hold terms of a sum that was not made, so no file has its value");
    if (kind == "Shard" || kind == "_StridedShard") {
      PAWL_ASSIGN(placement.dimension, dimension_of(pickle, field(pickle, item, 0, "dim"), dimensions));
      placement.kind = DTensorPlacement::Kind::shard;
      append_text(out.words, text(out.words.empty() ? "" : ", ", "Shard(", placement.dimension, ')'));
    } else if (kind == "Replicate") {
      append_text(out.words, text(out.words.empty() ? "" : ", ", "Replicate"));
    } else {
      return unknown(text("its placement is ", pickle.describe(item)));
    }
    if (kind == "_StridedShard") {
      const std::optional<std::uint64_t> factor = pickle.unsigned_(member(pickle, item, "split_factor"));
      if (!factor || *factor == 0) return damaged("a _StridedShard without its split factor");
      placement.kind = DTensorPlacement::Kind::strided_shard;
      placement.split_factor = *factor;
      append_text(out.words, text("/", *factor));
      out.strided = true;
    }
    out.list.push_back(placement);
  }
  return out;
}

// The order in which axes cut a dimension, where the spec says it: ((dimension, (axis, axis, ...)), ...).
Result<std::vector<AxisPattern>> ordered_patterns(const Pickle& pickle, Value order, const Placements& placements,
                                                  std::string& words) {
  std::vector<AxisPattern> out;
  std::size_t sharded = 0;
  for (const DTensorPlacement& placement : placements.list)
    sharded += placement.kind != DTensorPlacement::Kind::replicate ? 1 : 0;
  if (pickle.items(order).size() > kSmallItems) return damaged("a DTensor's shard_order is none");
  for (const Value entry : pickle.items(order)) {
    const std::optional<std::uint64_t> dimension = pickle.unsigned_(field(pickle, entry, 0, "tensor_dim"));
    const Value axes = field(pickle, entry, 1, "mesh_dims");
    if (!dimension || !is_sequence(pickle, axes) || pickle.items(axes).size() > kAxesMax)
      return damaged("a DTensor's shard_order is none");
    std::optional<std::uint64_t> last;
    for (const Value item : pickle.items(axes)) {
      const std::optional<std::uint64_t> axis = pickle.unsigned_(item);
      if (!axis || *axis >= placements.list.size() || placements.list[*axis].dimension != *dimension ||
          placements.list[*axis].kind == DTensorPlacement::Kind::replicate)
        return damaged("a DTensor's shard_order contradicts its placements");
      out.push_back(AxisPattern::shard(static_cast<std::uint32_t>(*axis), static_cast<std::uint32_t>(*dimension)));
      if (last && *axis < *last) append_text(words, text(", axis ", *last, " cuts before ", *axis));
      last = axis;
    }
  }
  if (out.size() != sharded) return damaged("a DTensor's shard_order contradicts its placements");
  return out;
}

Result<std::vector<AxisPattern>> patterns_in(const Pickle& pickle, Value spec, const Mesh& mesh,
                                             Placements& placements) {
  const Value order = member(pickle, spec, "shard_order");
  const Value strided_is_order = member(pickle, spec, "use_strided_shard_as_shard_order");
  if (placements.strided && pickle.is(strided_is_order, PickleKind::boolean) && !pickle.boolean(strided_is_order))
    return unknown("it is a _StridedShard of a view, not of an order of cuts");
  if (!placements.strided && is_sequence(pickle, order))
    return ordered_patterns(pickle, order, placements, placements.words);
  return patterns_of(mesh, placements.list);
}

bool read_coordinates(const Pickle& pickle, Value value, const Mesh& mesh, std::vector<std::uint64_t>& out) {
  if (!is_sequence(pickle, value) || pickle.items(value).size() != mesh.axes.size()) return false;
  for (const Value item : pickle.items(value)) {
    const std::optional<std::uint64_t> index = pickle.unsigned_(item);
    if (!index || *index >= mesh.axes[out.size()].size) return false;
    out.push_back(*index);
  }
  return true;
}

// Every choice of one span a dimension is a box: with `from` counting along the local tensor.
Status append_parts(const LocalArray& array, Value local, TorchShard& out) {
  std::uint64_t count = 1;
  for (const std::vector<Span>& spans : array.spans)
    if (__builtin_mul_overflow(count, std::uint64_t{spans.size()}, &count) || count > kPartsMax)
      return unknown("a DTensor whose local part is too many boxes");
  std::vector<std::size_t> choice(array.spans.size(), 0);
  for (std::uint64_t i = 0; i < count; ++i) {
    TorchShard::Part part{local, Box{static_cast<std::uint32_t>(choice.size()), {}, {}}, {}};
    for (std::size_t d = 0; d < choice.size(); ++d) {
      for (std::size_t before = 0; before < choice[d]; ++before) part.from[d] += array.spans[d][before].size;
      part.box.begin[d] = array.spans[d][choice[d]].begin;
      part.box.size[d] = array.spans[d][choice[d]].size;
    }
    out.parts.push_back(part);
    for (std::size_t d = choice.size(); d-- > 0;) {
      if (++choice[d] < array.spans[d].size()) break;
      choice[d] = 0;
    }
  }
  return {};
}

Result<TorchShard> read_dtensor(const Pickle& pickle, const TorchTensor& tensor, Value state,
                                const TorchTensorFinder& local_of) {
  const Value spec = state_member(pickle, state, "_spec");
  const Value local_value = state_member(pickle, state, "_local_tensor");
  const TorchTensor* local = local_of(local_value);
  if (local == nullptr) return damaged("a DTensor without its local tensor");
  const Value mesh_value = member(pickle, spec, "mesh");
  PAWL_ASSIGN(const Mesh mesh, mesh_of(pickle, mesh_value, local_of));
  PAWL_ASSIGN(Placements placements, placements_of(pickle, member(pickle, spec, "placements"), tensor.shape.size()));
  if (placements.list.size() != mesh.axes.size())
    return damaged(text("a DTensor of ", placements.list.size(), " placements on ", mesh.axes.size(), " axes"));
  PAWL_ASSIGN(std::vector<AxisPattern> patterns, patterns_in(pickle, spec, mesh, placements));
  const MeshPlacement placement{0, std::move(patterns)};
  PAWL_TRY(check_placement(placement, mesh, tensor.shape));
  TorchShard out;
  out.shape = tensor.shape;
  for (const Mesh::Axis& axis : mesh.axes)
    append_text(out.layout, text(out.layout.empty() ? "" : " ", axis.name, '=', axis.size));
  append_text(out.layout, text(": ", placements.words));
  out.world = world_of(pickle, mesh_value, mesh);
  const Value where = member(pickle, mesh_value, "_coordinate_on_dim");
  if (pickle.is(where, PickleKind::none)) return out;  // a rank outside the mesh: it holds nothing
  std::vector<std::uint64_t> coordinates;
  if (!read_coordinates(pickle, where, mesh, coordinates))
    return damaged("a DeviceMesh that does not say where its rank stands");
  LocalArray array;
  if (!local_array(placement, mesh, tensor.shape, coordinates, array)) return out;
  const Shape expected = array.shape();
  const bool both_empty = std::ranges::find(expected, std::uint64_t{0}) != expected.end() &&
                          std::ranges::find(local->shape, std::uint64_t{0}) != local->shape.end();
  if (both_empty) return out;
  if (local->shape != expected)
    return damaged(text("a DTensor's local part is ", text_of(local->shape), ", and by its placement (", out.layout,
                        ") it would be ", text_of(expected)));
  PAWL_TRY(append_parts(array, local_value, out));
  return out;
}

// Box by box, from shard_offsets and shard_sizes.
Result<Box> box_in(const Pickle& pickle, Value metadata, const Shape& whole) {
  PAWL_ASSIGN(const Shape offset, torch_sizes(pickle, member(pickle, metadata, "shard_offsets"), "shard_offsets"));
  PAWL_ASSIGN(const Shape size, torch_sizes(pickle, member(pickle, metadata, "shard_sizes"), "shard_sizes"));
  if (offset.size() != whole.size() || size.size() != whole.size())
    return damaged("a shard of other dimensions than its tensor");
  return box_inside(offset, size, whole);
}

// (local shards, metadata, process group, sharding spec, ...)
Result<TorchShard> read_sharded_tensor(const Pickle& pickle, Value state, const TorchTensorFinder& local_of) {
  const std::span<const Value> parts = pickle.items(state);
  if (!pickle.is(state, PickleKind::tuple) || parts.size() < 3 || !is_sequence(pickle, parts[0]))
    return damaged("a ShardedTensor without its shards");
  TorchShard out;
  PAWL_ASSIGN(out.shape, torch_sizes(pickle, member(pickle, parts[1], "size"), "a ShardedTensor's size"));
  if (out.shape.size() > kDimensionsMax) return unknown(text("it has ", out.shape.size(), " dimensions"));
  PAWL_TRY(element_count(out.shape));
  for (const Value shard : pickle.items(parts[0])) {
    TorchShard::Part part;
    part.local = member(pickle, shard, "tensor");
    const TorchTensor* local = local_of(part.local);
    if (local == nullptr) return damaged("a ShardedTensor's shard without its tensor");
    PAWL_ASSIGN(part.box, box_in(pickle, member(pickle, shard, "metadata"), out.shape));
    const Shape size = shape_of(part.box);
    if (local->shape != size)
      return damaged(text("a shard of ", text_of(size), " whose tensor is ", text_of(local->shape)));
    for (const TorchShard::Part& other : out.parts)
      if (volume(intersection(other.box, part.box)) != 0) return damaged("a ShardedTensor's shards overlap");
    if (out.parts.size() >= 256) return unknown("a ShardedTensor of more than 256 shards on one rank");
    if (volume(part.box) != 0) out.parts.push_back(part);
  }
  for (const std::string_view name : {"local_world_size", "global_world_size"})
    if (const auto world = pickle.unsigned_(member(pickle, parts[2], name)); world && *world < kRanksMax)
      out.world = *world;
  out.layout = "ShardedTensor";
  return out;
}

}  // namespace

bool is_sharded(const TorchTensor& tensor) {
  return tensor.class_name.starts_with("torch.distributed.") &&
         (tensor.class_name.ends_with(".DTensor") || tensor.class_name.ends_with(".ShardedTensor"));
}

Result<TorchShard> shard_of(const Pickle& pickle, const TorchTensor& tensor, const TorchTensorFinder& local_of) {
  const Value state = state_of(pickle, tensor.value);
  if (state == kNothing) return damaged(text("a ", tensor.class_name, " without state"));
  if (tensor.class_name.ends_with(".ShardedTensor")) return read_sharded_tensor(pickle, state, local_of);
  if (tensor.shape.size() > kDimensionsMax) return unknown(text("it has ", tensor.shape.size(), " dimensions"));
  PAWL_TRY(element_count(tensor.shape));
  return read_dtensor(pickle, tensor, state, local_of);
}

}  // namespace pawl::checkpoint
