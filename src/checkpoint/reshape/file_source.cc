#include "checkpoint/reshape/file_source.h"

#include <algorithm>
#include <memory>

namespace pawl::checkpoint {
namespace {

// Pieces, counted over all tensors in order.
std::vector<std::uint64_t> first_pieces(const CheckpointView& view) {
  std::vector<std::uint64_t> firsts;
  std::uint64_t count = 0;
  for (const StoredTensor& tensor : view.tensors) {
    firsts.push_back(count);
    count += tensor.pieces.size();
  }
  return firsts;
}

bool is_wanted(const StoredTensor& tensor, const FileSourceOptions& options) {
  return options.roles.empty() || std::ranges::find(options.roles, tensor.role) != options.roles.end();
}

// `meeting`: only pieces that share an element with it. Null: all.
void append_pieces(const StoredTensor& tensor, std::uint32_t index, std::uint64_t first_piece,
                   std::optional<std::uint32_t> trusted, const Box* meeting, std::vector<TensorPiece>& out) {
  const bool only_trusted =
      trusted && std::ranges::any_of(tensor.pieces, [&](const StoredPiece& piece) { return piece.copy == *trusted; });
  for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
    const StoredPiece& piece = tensor.pieces[i];
    if (only_trusted && piece.copy != *trusted) continue;
    if (meeting != nullptr && volume(intersection(piece.box, *meeting)) == 0) continue;
    out.push_back({index, piece.file, static_cast<std::uint32_t>(first_piece + i), piece.version, piece.copy, piece.box,
                   0, piece.stride});
  }
}

}  // namespace

ReshapeSource source_of(const CheckpointView& view, const FileSourceOptions& options) {
  ReshapeSource source;
  std::vector<std::uint32_t> wanted;  // index in the view of each of the source's tensors
  for (std::uint32_t t = 0; t < view.tensors.size(); ++t) {
    const StoredTensor& tensor = view.tensors[t];
    if (!is_wanted(tensor, options)) continue;
    wanted.push_back(t);
    source.tensors.push_back({tensor.name, tensor.role, tensor.type, tensor.shape, tensor.versions, tensor.scales});
  }
  const auto append = [&view, wanted = std::move(wanted), firsts = first_pieces(view), trusted = options.trusted_copy](
                          std::uint32_t tensor, const Box* meeting, std::vector<TensorPiece>& out) {
    append_pieces(view.tensors[wanted[tensor]], tensor, firsts[wanted[tensor]], trusted, meeting, out);
  };
  source.append_meeting = [append](std::uint32_t tensor, const Box& box, std::vector<TensorPiece>& out) {
    append(tensor, &box, out);
  };
  source.append_pieces = [append](std::uint32_t tensor, std::vector<TensorPiece>& out) {
    append(tensor, nullptr, out);
  };
  source.disjoint = true;  // as every view's pieces are
  return source;
}

CopySource places_of(const CheckpointView& view) {
  CopySource source;
  source.files = &view.files;
  source.place = [&view, firsts = first_pieces(view)](std::uint32_t holder, std::uint32_t buffer) {
    const auto after = std::ranges::upper_bound(firsts, std::uint64_t{buffer});
    if (after == firsts.begin()) return BufferPlace{};
    const StoredTensor& tensor = view.tensors[static_cast<std::size_t>(after - firsts.begin()) - 1];
    const std::uint64_t index = buffer - *(after - 1);
    if (index >= tensor.pieces.size() || tensor.pieces[index].file != holder) return BufferPlace{};
    const StoredPiece& piece = tensor.pieces[index];
    return BufferPlace{nullptr, piece.file, piece.offset_bytes, span_bytes(piece, tensor.type), piece.swapped};
  };
  return source;
}

}  // namespace pawl::checkpoint
