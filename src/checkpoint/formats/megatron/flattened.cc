#include "checkpoint/formats/megatron/flattened.h"

#include <utility>

#include "base/text.h"
#include "checkpoint/containers/pickle.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/view/pieces.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;
constexpr std::uint64_t kBlocksMax = 1 << 20;

Error misfit(const StoredTensor& grid, const Shape& shape, std::string_view why) {
  return {Code::corrupt,
          text(grid.name, ": ", text_of(grid.shape), " are not the flattened blocks of ", text_of(shape), ": ", why)};
}

// One piece of the grid lies in some blocks; in each it is the same interval.
Status append_piece(const StoredTensor& grid, const Shape& block, const StoredPiece& piece, StoredTensor& out) {
  const auto dimensions = static_cast<std::uint32_t>(block.size());
  if (piece.box.size[dimensions] > 1 && piece.stride[dimensions] != 1)
    return Error{Code::corrupt, text(grid.name, ": the elements of a flattened block lie apart")};
  const std::uint64_t begin = piece.box.begin[dimensions];
  const std::uint64_t end = begin + piece.box.size[dimensions];
  std::uint64_t cells = 1;
  for (std::uint32_t d = 0; d < dimensions; ++d) cells *= piece.box.size[d];
  if (cells > kBlocksMax)
    return Error{Code::full, text(grid.name, " has more than ", kBlocksMax, " blocks in one piece")};
  for (std::uint64_t cell = 0; cell < cells; ++cell) {
    StoredPiece first = piece;
    PerDimension shift{};
    std::uint64_t rest = cell;
    for (std::uint32_t d = dimensions; d-- > 0; rest /= piece.box.size[d]) {
      const std::uint64_t at = rest % piece.box.size[d];
      first.offset_bytes += at * piece.stride[d] * (size_bits(grid.type) / 8);
      shift[d] = (piece.box.begin[d] + at) * block[d];
    }
    const std::size_t from = out.pieces.size();
    append_interval(block, begin, end, grid.type, first, out.pieces);
    for (std::size_t i = from; i < out.pieces.size(); ++i)
      for (std::uint32_t d = 0; d < dimensions; ++d) out.pieces[i].box.begin[d] += shift[d];
  }
  return {};
}

}  // namespace

Result<std::unordered_map<std::string, Shape>> read_true_shapes(const std::string& folder, Files& files) {
  std::unordered_map<std::string, Shape> out;
  const std::string path = join_path(folder, ".metadata");
  if (!files.exists(path)) return out;
  PAWL_ASSIGN(const std::string bytes, read_file(path, std::uint64_t{1} << 30, files));
  Result<Pickle> pickle = parse_pickle(bytes);
  if (!pickle) return std::move(pickle).error().within(path);
  const Value state = pickle->object(pickle->root()).state;
  const std::span<const Value> pairs = pickle->items(pickle->find(state, "mcore_data"));
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle->is(pairs[i], PickleKind::string)) continue;
    const Value entry =
        pickle->is(pairs[i + 1], PickleKind::object) ? pickle->object(pairs[i + 1]).state : pairs[i + 1];
    const Value shape = pickle->find_field(entry, "nd_reformulated_orig_global_shape");
    if (shape == Pickle::kNothing || pickle->is(shape, PickleKind::none)) continue;
    Result<Shape> sizes = torch_sizes(*pickle, shape, "the true shape of a tensor");
    if (!sizes) return std::move(sizes).error().within(path);
    out.insert_or_assign(std::string(pickle->text(pairs[i])), std::move(*sizes));
  }
  return out;
}

Result<StoredTensor> unflatten(const StoredTensor& grid, const Shape& shape) {
  const std::size_t dimensions = shape.size();
  if (grid.shape.size() != dimensions + 1) return misfit(grid, shape, "the number of axes");
  if (size_bits(grid.type) % 8 != 0) return misfit(grid, shape, "its type is packed");
  PAWL_ASSIGN(const std::uint64_t count, element_count(shape));
  PAWL_ASSIGN(const std::uint64_t stored, element_count(grid.shape));
  if (count != stored) return misfit(grid, shape, "the number of elements");
  Shape block(dimensions);
  std::uint64_t product = 1;
  for (std::size_t d = 0; d < dimensions; ++d) {
    if (grid.shape[d] == 0 || shape[d] % grid.shape[d] != 0) return misfit(grid, shape, "the blocks' sizes");
    block[d] = shape[d] / grid.shape[d];
    product *= block[d];  // at most `count`
  }
  if (product != grid.shape[dimensions]) return misfit(grid, shape, "the blocks' sizes");
  StoredTensor out = grid;
  out.shape = shape;
  out.pieces.clear();
  for (const StoredPiece& piece : grid.pieces) PAWL_TRY(append_piece(grid, block, piece, out));
  return out;
}

}  // namespace pawl::checkpoint
