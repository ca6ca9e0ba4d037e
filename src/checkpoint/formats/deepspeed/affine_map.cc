#include "checkpoint/formats/deepspeed/tensor_parallel_joins.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

PerDimension dense(const Shape& shape) {
  return dense_stride(whole_box(shape));
}

// The box that begins at an offset; false if it passes the tensor's end.
bool place_at(Box& box, std::uint64_t offset, const Shape& shape) {
  const PerDimension stride = dense(shape);
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (stride[d] == 0) return false;
    box.begin[d] = offset / stride[d];
    offset %= stride[d];
    if (box.begin[d] >= shape[d] || box.size[d] > shape[d] - box.begin[d]) return false;
  }
  return offset == 0;
}

// A piece's strides as boxes of both tensors, whose extents are equal; nothing if it is no box of one of them.
std::optional<MergedPart> boxes_of(const AffinePiece& piece, const Shape& local, const Shape& whole) {
  const PerDimension local_stride = dense(local), whole_stride = dense(whole);
  const auto dimensions = static_cast<std::uint32_t>(whole.size());
  MergedPart part;
  part.local.dimensions = part.whole.dimensions = dimensions;
  for (std::uint32_t d = 0; d < dimensions; ++d) part.local.size[d] = 1;
  for (std::size_t i = 0; i < piece.shape.size(); ++i) {
    std::uint64_t count = piece.shape[i], from = piece.whole_strides[i], to = piece.local_strides[i];
    for (std::uint32_t d = dimensions; count > 1 && d-- > 0;) {
      if (from != whole_stride[d] || to != local_stride[d] || part.local.size[d] != 1) continue;
      if (count <= whole[d] && count <= local[d]) {
        part.local.size[d] = count;
        count = 1;
      } else if (d > 0 && whole[d] == local[d] && whole[d] > 1 && count % whole[d] == 0) {  // several rows in one run
        part.local.size[d] = whole[d];
        count /= whole[d];
        from = whole_stride[d - 1];
        to = local_stride[d - 1];
      }
    }
    if (count != 1) return std::nullopt;
  }
  part.whole.size = part.local.size;
  if (!place_at(part.local, piece.local_offset, local) || !place_at(part.whole, piece.whole_offset, whole))
    return std::nullopt;
  return part;
}

// A box that several ranks hold is as many copies of it; the ranks' order makes their numbers. Boxes that overlap
// otherwise have no order in which they could be copies.
Status number_copies(std::string_view name, MergedParameter& merged) {
  using Key = std::pair<PerDimension, PerDimension>;
  std::map<Key, std::vector<MergedPart*>> holders;  // in the order of their first index along dimension 0
  for (std::vector<MergedPart>& parts : merged.ranks)
    for (MergedPart& part : parts) holders[{part.whole.begin, part.whole.size}].push_back(&part);
  std::uint64_t covered = 0;
  std::vector<const Box*> boxes;
  for (const auto& [key, parts] : holders) {
    merged.copies = std::max(merged.copies, static_cast<std::uint32_t>(parts.size()));
    for (std::uint32_t i = 0; i < parts.size(); ++i) {
      parts[i]->copy = i;
      parts[i]->copy_step = static_cast<std::uint32_t>(parts.size());
    }
    const Box& box = parts[0]->whole;
    for (const Box* other : boxes)
      if (volume(intersection(box, *other)) != 0) return unfit(name, "boxes of its affine map overlap in part");
    boxes.push_back(&box);
    covered += volume(box);
  }
  if (covered != volume(whole_box(merged.shape))) return unfit(name, "its affine map leaves elements out");
  return {};
}

}  // namespace

Result<MergedParameter> join_affine(std::string_view name, const AffineMap& map, std::span<const Shape> locals) {
  if (map.is_scaled)
    return unfit(name, "its tensor-parallel ranks hold it scaled by a factor, which is not undone here");
  PAWL_TRY(element_count(map.shape));
  MergedParameter merged{.shape = map.shape, .rule = "affine map"};
  merged.ranks.resize(locals.size());
  std::size_t count = 0;
  for (const auto& [rank, held] : map.ranks) {
    if (rank >= locals.size())
      return unfit(name, text("its affine map has rank ", rank, " of ", locals.size(), " tensor-parallel ranks"));
    if (held.shape != locals[rank])
      return unfit(name, text("rank ", rank, " should hold ", text_of(held.shape), " by its affine map, and holds ",
                              text_of(locals[rank])));
    if (held.shape.size() != map.shape.size())
      return unfit(name, text("its affine map maps ", text_of(held.shape), " to ", text_of(map.shape)));
    if ((count += held.pieces.size()) > kPartsMax)
      return Error{Code::full, text("parameter ", name, ": an affine map of more than ", kPartsMax, " pieces")};
    std::uint64_t elements = 0;
    for (const AffinePiece& piece : held.pieces) {
      if (std::ranges::find(piece.shape, 0u) != piece.shape.end()) continue;
      const std::optional<MergedPart> part = boxes_of(piece, held.shape, map.shape);
      if (!part) return unfit(name, text("a piece of its affine map is not a box of the tensor of rank ", rank));
      elements += volume(part->local);
      merged.ranks[rank].push_back(*part);
    }
    if (elements != volume(whole_box(held.shape)))
      return unfit(name, text("its affine map names ", elements, " elements of the tensor of rank ", rank,
                              ", whose shape is ", text_of(held.shape)));
  }
  PAWL_TRY(number_copies(name, merged));
  return merged;
}

}  // namespace pawl::checkpoint::deepspeed
