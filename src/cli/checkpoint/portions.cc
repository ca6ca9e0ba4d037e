#include "cli/checkpoint/portions.h"

#include <algorithm>
#include <utility>

#include "tensor/enumerate.h"

namespace pawl::checkpoint {
namespace {

std::uint64_t bytes_of(const PortionTensor& tensor) {
  const Result<std::uint64_t> count = element_count(tensor.shape);
  return count ? size_bytes(tensor.type, *count).value_or(0) : 0;
}

// Appends the portions of a tensor that is too large for one.
void cut(const PortionTensor& tensor, std::uint32_t number, std::uint64_t bytes, std::uint64_t bytes_max,
         std::vector<Portion>& out) {
  const auto longest = std::ranges::max_element(tensor.shape);
  const std::uint64_t extent = *longest;
  const std::uint64_t step = std::max<std::uint64_t>(1, bytes_max / (bytes / extent));
  Portion portion{{number}, static_cast<std::uint32_t>(longest - tensor.shape.begin()), {}, 0};
  for (std::uint64_t at = 0; at < extent; at += step) portion.parts.push_back(std::min(step, extent - at));
  for (; portion.part < portion.parts.size(); ++portion.part) out.push_back(portion);
}

// A layout of one rank that holds all of these, or of as many ranks as the one tensor has parts.
JobLayout layout_of(const CheckpointView& view, const Portion& portion, std::span<const std::uint32_t> view_index) {
  JobLayout layout;
  layout.world = portion.parts.empty() ? 1 : static_cast<std::uint32_t>(portion.parts.size());
  layout.meshes.push_back({"memory", {{"part", layout.world}}});
  for (const std::uint32_t number : portion.tensors) {
    const StoredTensor& tensor = view.tensors[view_index[number]];
    JobTensor& wanted = layout.tensors.emplace_back();
    wanted.name = tensor.name;
    wanted.role = tensor.role;
    wanted.dtype = tensor.type;
    wanted.shape = tensor.shape;
    if (!portion.parts.empty())
      wanted.placement.patterns = {AxisPattern::shard_sizes(0, portion.dimension, portion.parts)};
  }
  return layout;
}

}  // namespace

std::vector<Portion> plan_portions(std::span<const PortionTensor> tensors, std::uint64_t bytes_max) {
  std::vector<Portion> portions;
  std::uint64_t filled = bytes_max;  // of the last portion, if that takes more
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    const std::uint64_t bytes = bytes_of(tensors[i]);
    if (bytes == 0) continue;
    if (bytes > bytes_max && size_bits(tensors[i].type) % 8 == 0 && !tensors[i].shape.empty()) {
      cut(tensors[i], i, bytes, bytes_max, portions);
      filled = bytes_max;
      continue;
    }
    if (filled >= bytes_max || bytes > bytes_max - filled) {
      portions.emplace_back();
      filled = 0;
    }
    portions.back().tensors.push_back(i);
    filled = bytes >= bytes_max - filled ? bytes_max : filled + bytes;
  }
  return portions;
}

Box box_of(const Portion& portion, const Shape& shape) {
  Box box = whole_box(shape);
  if (portion.parts.empty()) return box;
  for (std::uint32_t i = 0; i < portion.part; ++i) box.begin[portion.dimension] += portion.parts[i];
  box.size[portion.dimension] = portion.parts[portion.part];
  return box;
}

std::uint64_t element_of(const Box& box, const Shape& shape, std::uint64_t i) {
  std::uint64_t element = 0, scale = 1;
  for (std::uint32_t d = box.dimensions; d-- > 0; i /= box.size[d]) {
    element += (box.begin[d] + i % box.size[d]) * scale;
    scale *= shape[d];
  }
  return element;
}

PortionReader::PortionReader(const CheckpointView& view, FileSourceOptions options)
    : view_(view), source_(source_of(view, options)), places_(places_of(view)) {}

Status PortionReader::read(const Portion& portion, std::span<const std::uint32_t> view_index,
                           std::vector<std::vector<std::byte>>& buffers, const ExecuteOptions& options) const {
  const JobLayout layout = layout_of(view_, portion, view_index);
  const Enumeration wanted(layout);
  ReshapeSource source;  // of these tensors only: a plan's cost is then that of the portion
  source.disjoint = source_.disjoint;
  buffers.resize(portion.tensors.size());
  for (std::size_t i = 0; i < portion.tensors.size(); ++i) {
    source.tensors.push_back(source_.tensors[view_index[portion.tensors[i]]]);
    source.tensors.back().scales = {};  // values as they are stored are wanted, wherever their scales are
    const Box box = box_of(portion, layout.tensors[i].shape);
    buffers[i].resize(static_cast<std::size_t>(size_bytes(layout.tensors[i].dtype, volume(box)).value_or(0)));
  }
  source.append_pieces = [&](std::uint32_t tensor, std::vector<TensorPiece>& out) {
    source_.append_pieces(view_index[portion.tensors[tensor]], out);
  };
  if (source_.append_meeting)
    source.append_meeting = [&](std::uint32_t tensor, const Box& box, std::vector<TensorPiece>& out) {
      source_.append_meeting(view_index[portion.tensors[tensor]], box, out);
    };
  PAWL_ASSIGN(const ReshapePlan plan, ReshapePlan::create(source, wanted));
  CopyTarget target;
  target.place = [&](std::uint32_t holder, std::uint32_t buffer) -> BufferPlace {
    if (holder != portion.part || buffer >= buffers.size()) return {};
    return {.memory = buffers[buffer].data(), .size_bytes = buffers[buffer].size()};
  };
  const CopyStream copies = [&](const CopySink& sink) { return plan.plan_rank(portion.part, sink); };
  PAWL_ASSIGN([[maybe_unused]] const ExecuteReport report, execute(copies, places_, target, options));
  return {};
}

}  // namespace pawl::checkpoint
