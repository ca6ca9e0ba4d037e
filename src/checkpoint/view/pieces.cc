#include "checkpoint/view/pieces.h"

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "base/first_few.h"
#include "base/text.h"
#include "tensor/enumerate.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kPiecesMax = std::uint64_t{1} << 22;  // that an edit may cut a tensor into

Error refused(const StoredTensor& tensor, std::string why) {
  return {Code::invalid, text(label_of(tensor.name, tensor.role), ": ", text_of(tensor.shape), ": ", why)};
}

bool is_packed(const StoredTensor& tensor) {
  return size_bits(tensor.type) % 8 != 0;
}

Status check_edit(const StoredTensor& tensor, std::uint32_t dimension) {
  if (dimension >= tensor.shape.size()) return refused(tensor, text("it has no dimension ", dimension));
  if (is_packed(tensor)) return refused(tensor, text("elements of ", name_of(tensor.type), " cannot be cut"));
  return {};
}

// Sums that overflow are none.
bool sum_of(const std::vector<Span>& spans, std::uint64_t& sum) {
  sum = 0;
  return std::ranges::none_of(spans, [&](const Span& span) {
    return __builtin_add_overflow(sum, span.size, &sum) || span.begin > ~std::uint64_t{0} - span.size;
  });
}

std::uint64_t end_of(const Span& span) {
  return span.begin + span.size;
}

// Shifts a piece's begin along a dimension by `by` of its elements, and makes it `size` long.
void narrow(StoredPiece& piece, std::uint32_t dimension, std::uint64_t by, std::uint64_t size, ElementType type) {
  piece.offset_bytes += by * piece.stride[dimension] * (size_bits(type) / 8);
  piece.box.begin[dimension] += by;
  piece.box.size[dimension] = size;
}

// Two lists of spans, joined, run side by side: what index i of `from` is, is index i of `to`.
struct Move {
  Span from;
  std::uint64_t to = 0;
};

// The moves that meet a piece, found by halving where the moves don't overlap.
class Moves {
 public:
  explicit Moves(std::vector<Move> moves) : moves_(std::move(moves)) {
    std::erase_if(moves_, [](const Move& move) { return move.from.size == 0; });
    std::ranges::stable_sort(moves_, {}, [](const Move& move) { return move.from.begin; });
    for (std::size_t i = 1; i < moves_.size(); ++i) {
      disjoint_ = disjoint_ && end_of(moves_[i - 1].from) <= moves_[i].from.begin;
    }
  }

  void apply(StoredTensor& tensor, std::uint32_t dimension) const {
    std::vector<StoredPiece> moved;
    for (const StoredPiece& piece : tensor.pieces) {
      const Span own{piece.box.begin[dimension], piece.box.size[dimension]};
      auto move = moves_.begin();
      if (disjoint_) {
        move = std::ranges::upper_bound(moves_, own.begin, {}, [](const Move& m) { return end_of(m.from); });
      }
      for (; move != moves_.end() && move->from.begin < end_of(own); ++move) {
        const std::uint64_t begin = std::max(move->from.begin, own.begin);
        const std::uint64_t end = std::min(end_of(move->from), end_of(own));
        if (begin >= end) continue;
        StoredPiece part = piece;
        narrow(part, dimension, begin - own.begin, end - begin, tensor.type);
        part.box.begin[dimension] = move->to + (begin - move->from.begin);
        moved.push_back(part);
      }
    }
    tensor.pieces = std::move(moved);
  }

 private:
  std::vector<Move> moves_;
  bool disjoint_ = true;
};

PerDimension with(PerDimension values, std::uint32_t at, std::uint64_t value) {
  std::copy_backward(values.begin() + at, values.end() - 1, values.end());
  values[at] = value;
  return values;
}

PerDimension without(PerDimension values, std::uint32_t at) {
  std::copy(values.begin() + at + 1, values.end(), values.begin() + at);
  values.back() = 0;
  return values;
}

Status check_alike(const std::vector<StoredTensor>& parts) {
  if (parts.empty()) return Error{Code::invalid, "no parts to join"};
  const StoredTensor& first = parts.front();
  for (const StoredTensor& part : parts) {
    if (part.type != first.type) {
      return refused(first, text("its parts are ", name_of(first.type), " and ", name_of(part.type)));
    }
    if (part.shape != first.shape) return refused(first, text("another part is ", text_of(part.shape)));
    if (part.versions != first.versions) {
      return refused(first, text("its parts are means of ", first.versions, " and of ", part.versions));
    }
  }
  return {};
}

StoredTensor gathered(std::vector<StoredTensor> parts) {
  StoredTensor whole = std::move(parts.front());
  std::size_t count = whole.pieces.size();
  for (const StoredTensor& part : parts) count += part.pieces.size();
  whole.pieces.reserve(count);
  for (std::size_t i = 1; i < parts.size(); ++i) {
    whole.pieces.insert(whole.pieces.end(), parts[i].pieces.begin(), parts[i].pieces.end());
  }
  return whole;
}

// --- check_view ---------------------------------------------------------------------------------------------------

// Where the last byte of a piece ends in its file; false: past 2^64.
bool end_of(const StoredPiece& piece, ElementType type, std::uint64_t& end) {
  std::uint64_t last = 0;
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(piece.box.size[d] - 1, piece.stride[d], &step)) return false;
    if (__builtin_add_overflow(last, step, &last)) return false;
  }
  std::uint64_t bytes = 0;
  if (size_bits(type) % 8 != 0) {
    const auto packed = size_bytes(type, volume(piece.box));
    if (!packed) return false;
    bytes = *packed;
  } else if (__builtin_add_overflow(last, 1, &last) || __builtin_mul_overflow(last, size_bits(type) / 8, &bytes)) {
    return false;
  }
  return !__builtin_add_overflow(piece.offset_bytes, bytes, &end);
}

bool lies_in(const Box& box, const Shape& shape) {
  for (std::uint32_t d = 0; d < box.dimensions; ++d) {
    if (box.begin[d] > shape[d] || box.size[d] > shape[d] - box.begin[d]) return false;
  }
  return true;
}

// The names and roles of a view's tensors: a table of their indices, since a hundred thousand are common.
class Keys {
 public:
  explicit Keys(const std::vector<StoredTensor>& tensors)
      : tensors_(tensors), cells_(std::bit_ceil(2 * tensors.size() + 1), kFree) {}
  // False: it is there.
  [[nodiscard]] bool insert(std::size_t index) {
    const StoredTensor& tensor = tensors_[index];
    const std::hash<std::string_view> hash;
    std::size_t cell = hash(tensor.name) * 31 + hash(tensor.role);
    for (;; ++cell) {
      std::size_t& held = cells_[cell & (cells_.size() - 1)];
      if (held == kFree) {
        held = index;
        return true;
      }
      if (tensors_[held].name == tensor.name && tensors_[held].role == tensor.role) return false;
    }
  }

 private:
  static constexpr std::size_t kFree = ~std::size_t{0};
  const std::vector<StoredTensor>& tensors_;
  std::vector<std::size_t> cells_;
};

std::uint64_t size_of(const StoredFile& file, std::uint64_t plain_size) {
  if (file.codec == StoredFile::Codec::content) return file.content.size();
  return file.codec == StoredFile::Codec::none ? plain_size : file.decoded_bytes;
}

// What is wrong with a piece by itself; empty: nothing.
std::string fault_of(const StoredPiece& piece, const StoredTensor& tensor, const CheckpointView& view,
                     const std::vector<std::uint64_t>& file_sizes) {
  if (piece.box.dimensions != tensor.shape.size()) return text("a piece has ", piece.box.dimensions, " dimensions");
  if (volume(piece.box) == 0) return "a piece is empty";
  if (!lies_in(piece.box, tensor.shape)) return text(text_of(piece.box), " leaves it");
  if (piece.version >= tensor.versions) return text("a piece of version ", piece.version, " of ", tensor.versions);
  if (piece.file >= view.files.size()) return text("a piece in file ", piece.file, " of ", view.files.size());
  const StoredFile& file = view.files[piece.file];
  const std::uint64_t size = size_of(file, piece.file < file_sizes.size() ? file_sizes[piece.file] : 0);
  std::uint64_t end = 0;
  if (!end_of(piece, tensor.type, end) || end > size) {
    return text(text_of(piece.box), " at offset ", piece.offset_bytes, " of ", file.path, " passes its end at ", size);
  }
  return {};
}

std::string fault_of_packed(const StoredTensor& tensor) {
  if (tensor.pieces.empty()) return {};  // a hole
  if (tensor.pieces.size() > 1) return text(name_of(tensor.type), " in ", tensor.pieces.size(), " pieces");
  const StoredPiece& piece = tensor.pieces.front();
  if (piece.box != whole_box(tensor.shape) || piece.stride != dense_stride(piece.box)) {
    return text(name_of(tensor.type), " that is not one dense piece");
  }
  return {};
}

// Of one tensor whose pieces are sound by themselves.
struct Coverage {
  std::string fault;
  std::string hole;
};

Coverage coverage_of(const StoredTensor& tensor) {
  const Box whole = whole_box(tensor.shape);
  if (volume(whole) == 0) return {};
  if (tensor.versions == 1 && tensor.pieces.size() == 1 && tensor.pieces.front().box == whole) return {};  // most are
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Box>> boxes;  // of each version and copy
  for (const StoredPiece& piece : tensor.pieces) boxes[{piece.version, piece.copy}].push_back(piece.box);
  Coverage coverage;
  std::uint64_t covered = 0;  // versions
  for (auto at = boxes.begin(); at != boxes.end();) {
    const std::uint32_t version = at->first.first;
    bool complete = false;
    std::vector<Box> all;
    std::size_t copies = 0;
    Tiling last;
    for (; at != boxes.end() && at->first.first == version; ++at, ++copies) {
      last = check_tiling(whole, at->second);
      if (last.overlap) {
        const Box both = intersection(at->second[last.overlap->first], at->second[last.overlap->second]);
        return {text("held twice around ", text_of(both)), {}};
      }
      if (last.undecided) return {"its pieces cross each other too often to be checked", {}};
      complete = complete || last.is_exact();
      all.insert(all.end(), at->second.begin(), at->second.end());
    }
    if (!complete && copies > 1) {
      last = check_cover(whole, all);
      if (last.undecided) return {"its pieces cross each other too often to be checked", {}};
      complete = last.is_exact();
    }
    if (complete) {
      ++covered;
    } else if (coverage.hole.empty()) {
      coverage.hole = text_of(*last.hole);
    }
  }
  if (covered < tensor.versions && coverage.hole.empty()) {
    coverage.hole = tensor.pieces.empty() ? "all of it" : text("all of version ", covered);
  }
  return coverage;
}

}  // namespace

void append_interval(const Shape& array, std::uint64_t begin, std::uint64_t end, ElementType type,
                     const StoredPiece& first, std::vector<StoredPiece>& out) {
  std::vector<Box> boxes;
  append_interval(array, begin, end, boxes);
  StoredPiece piece = first;
  piece.stride = dense_stride(whole_box(array));
  for (const Box& box : boxes) {
    piece.box = box;
    out.push_back(piece);
    piece.offset_bytes += volume(box) * (size_bits(type) / 8);
  }
}

Result<StoredTensor> select(StoredTensor tensor, std::uint32_t dimension, const std::vector<Span>& spans) {
  if (dimension < tensor.shape.size() && spans == std::vector<Span>{{0, tensor.shape[dimension]}}) return tensor;
  PAWL_TRY(check_edit(tensor, dimension));
  std::uint64_t sum = 0;
  const std::uint64_t extent = tensor.shape[dimension];
  if (!sum_of(spans, sum) || std::ranges::any_of(spans, [&](const Span& span) { return end_of(span) > extent; })) {
    return refused(tensor, text("a selection leaves dimension ", dimension));
  }
  std::vector<Move> moves;
  std::uint64_t to = 0;
  for (const Span& span : spans) {
    moves.push_back({span, to});
    to += span.size;
  }
  Moves(std::move(moves)).apply(tensor, dimension);
  tensor.shape[dimension] = sum;
  return tensor;
}

Result<StoredTensor> spread(StoredTensor tensor, std::uint32_t dimension, const std::vector<Span>& spans,
                            std::uint64_t extent) {
  if (dimension < tensor.shape.size() && tensor.shape[dimension] == extent && spans == std::vector<Span>{{0, extent}}) {
    return tensor;
  }
  PAWL_TRY(check_edit(tensor, dimension));
  std::uint64_t sum = 0;
  if (!sum_of(spans, sum) || sum != tensor.shape[dimension]) {
    return refused(tensor, text("it is to be spread over ", sum, " indices of dimension ", dimension));
  }
  if (std::ranges::any_of(spans, [&](const Span& span) { return end_of(span) > extent; })) {
    return refused(tensor, text("it is to be spread beyond ", extent, " in dimension ", dimension));
  }
  std::vector<Move> moves;
  std::uint64_t from = 0;
  for (const Span& span : spans) {
    moves.push_back({{from, span.size}, span.begin});
    from += span.size;
  }
  Moves(std::move(moves)).apply(tensor, dimension);
  tensor.shape[dimension] = extent;
  return tensor;
}

Result<StoredTensor> drop_dimension(StoredTensor tensor, std::uint32_t dimension) {
  if (dimension >= tensor.shape.size() || tensor.shape[dimension] != 1) {
    return refused(tensor, text("dimension ", dimension, " is not one of extent 1"));
  }
  tensor.shape.erase(tensor.shape.begin() + dimension);
  for (StoredPiece& piece : tensor.pieces) {
    piece.box = {piece.box.dimensions - 1, without(piece.box.begin, dimension), without(piece.box.size, dimension)};
    piece.stride = without(piece.stride, dimension);
  }
  return tensor;
}

Result<StoredTensor> add_dimension(StoredTensor tensor, std::uint32_t dimension) {
  if (dimension > tensor.shape.size() || tensor.shape.size() == kDimensionsMax) {
    return refused(tensor, text("it cannot have another dimension at ", dimension));
  }
  tensor.shape.insert(tensor.shape.begin() + dimension, 1);
  for (StoredPiece& piece : tensor.pieces) {
    // As in dense strides: one step is all of what lies within.
    const bool is_last = dimension == piece.box.dimensions;
    const std::uint64_t step = is_last ? 1 : piece.stride[dimension] * piece.box.size[dimension];
    piece.box = {piece.box.dimensions + 1, with(piece.box.begin, dimension, 0), with(piece.box.size, dimension, 1)};
    piece.stride = with(piece.stride, dimension, step);
  }
  return tensor;
}

Result<StoredTensor> split_dimension(StoredTensor tensor, std::uint32_t dimension, std::uint64_t inner) {
  PAWL_TRY(check_edit(tensor, dimension));
  const std::uint64_t extent = tensor.shape[dimension];
  if (inner == 0 || extent % inner != 0 || tensor.shape.size() == kDimensionsMax) {
    return refused(tensor, text("dimension ", dimension, " cannot be split by ", inner));
  }
  tensor.shape[dimension] = extent / inner;
  tensor.shape.insert(tensor.shape.begin() + dimension + 1, inner);
  std::vector<StoredPiece> split;
  std::vector<Box> boxes;
  for (const StoredPiece& piece : tensor.pieces) {
    const std::uint64_t begin = piece.box.begin[dimension];
    boxes.clear();
    append_interval({extent / inner, inner}, begin, begin + piece.box.size[dimension], boxes);
    for (const Box& box : boxes) {
      StoredPiece part = piece;
      const std::uint64_t at = box.begin[0] * inner + box.begin[1];
      narrow(part, dimension, at - begin, volume(box), tensor.type);
      part.box = {piece.box.dimensions + 1, with(part.box.begin, dimension + 1, box.begin[1]),
                  with(part.box.size, dimension + 1, box.size[1])};
      part.box.begin[dimension] = box.begin[0];
      part.box.size[dimension] = box.size[0];
      part.stride = with(piece.stride, dimension + 1, piece.stride[dimension]);
      part.stride[dimension] = piece.stride[dimension] * inner;
      split.push_back(part);
    }
  }
  tensor.pieces = std::move(split);
  return tensor;
}

Result<StoredTensor> merge_dimensions(StoredTensor tensor, std::uint32_t dimension) {
  PAWL_TRY(check_edit(tensor, dimension));
  PAWL_TRY(check_edit(tensor, dimension + 1));
  const std::uint64_t inner = tensor.shape[dimension + 1];
  if (__builtin_mul_overflow(tensor.shape[dimension], inner, &tensor.shape[dimension])) {
    return refused(tensor, "its shape overflows");
  }
  tensor.shape.erase(tensor.shape.begin() + dimension + 1);
  std::vector<StoredPiece> merged;
  for (const StoredPiece& piece : tensor.pieces) {
    const std::uint64_t rows = piece.box.size[dimension];
    const std::uint64_t columns = piece.box.size[dimension + 1];
    const bool dense =
        columns == inner && (rows == 1 || piece.stride[dimension] == inner * piece.stride[dimension + 1]);
    if (!dense && rows > kPiecesMax - merged.size()) {
      return refused(tensor, text("dimensions ", dimension, " and ", dimension + 1, " are not stored as one"));
    }
    for (std::uint64_t row = 0; row < rows; row += dense ? rows : 1) {
      StoredPiece part = piece;
      narrow(part, dimension, row, dense ? rows : 1, tensor.type);
      const std::uint64_t begin = part.box.begin[dimension] * inner + part.box.begin[dimension + 1];
      const std::uint64_t step = piece.stride[dimension + 1];
      part.box = {piece.box.dimensions - 1, without(part.box.begin, dimension + 1),
                  without(part.box.size, dimension + 1)};
      part.box.begin[dimension] = begin;
      part.box.size[dimension] = dense ? rows * columns : columns;
      part.stride = without(piece.stride, dimension + 1);
      part.stride[dimension] = step;
      merged.push_back(part);
    }
  }
  tensor.pieces = std::move(merged);
  return tensor;
}

Result<StoredTensor> transpose(StoredTensor tensor, const std::vector<std::uint32_t>& order) {
  std::vector<std::uint32_t> sorted = order;
  std::ranges::sort(sorted);
  bool is_order = order.size() == tensor.shape.size();
  for (std::uint32_t d = 0; is_order && d < sorted.size(); ++d) is_order = sorted[d] == d;
  if (!is_order) return refused(tensor, "not an order of its dimensions");
  if (order == sorted) return tensor;
  PAWL_TRY(check_edit(tensor, 0));
  const Shape shape = tensor.shape;
  for (std::size_t d = 0; d < order.size(); ++d) tensor.shape[d] = shape[order[d]];
  for (StoredPiece& piece : tensor.pieces) {
    const StoredPiece old = piece;
    for (std::size_t d = 0; d < order.size(); ++d) {
      piece.box.begin[d] = old.box.begin[order[d]];
      piece.box.size[d] = old.box.size[order[d]];
      piece.stride[d] = old.stride[order[d]];
    }
  }
  return tensor;
}

Result<StoredTensor> place(StoredTensor part, const Shape& whole, const Shape& offset) {
  if (Result<Box> inside = box_inside(offset, part.shape, whole); !inside) return refused(part, inside.error().what);
  if (is_packed(part) && part.shape != whole) return refused(part, "a packed tensor cannot be part of another");
  part.shape = whole;
  for (StoredPiece& piece : part.pieces) {
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) piece.box.begin[d] += offset[d];
  }
  return part;
}

Result<StoredTensor> gather(std::vector<StoredTensor> parts) {
  PAWL_TRY(check_alike(parts));
  return gathered(std::move(parts));
}

Result<StoredTensor> join(std::vector<StoredTensor> parts, std::uint32_t dimension,
                          const std::vector<std::vector<Span>>& spans) {
  if (parts.empty()) return Error{Code::invalid, "no parts to join"};
  if (spans.size() != parts.size()) {
    return refused(parts.front(), text(spans.size(), " lists of spans for ", parts.size(), " parts"));
  }
  std::uint64_t extent = 0;
  std::vector<Span> all;
  for (const std::vector<Span>& list : spans) all.insert(all.end(), list.begin(), list.end());
  std::erase_if(all, [](const Span& span) { return span.size == 0; });
  std::ranges::sort(all, {}, &Span::begin);
  for (const Span& span : all) {
    if (span.begin != extent || __builtin_add_overflow(extent, span.size, &extent)) {
      return refused(parts.front(), text("its parts do not lie side by side in dimension ", dimension));
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    PAWL_ASSIGN(parts[i], spread(std::move(parts[i]), dimension, spans[i], extent));
  }
  return gather(std::move(parts));
}

Result<StoredTensor> concatenate(std::vector<StoredTensor> parts, std::uint32_t dimension) {
  std::vector<std::vector<Span>> spans;
  std::uint64_t begin = 0;
  for (const StoredTensor& part : parts) {
    if (dimension >= part.shape.size()) return refused(part, text("it has no dimension ", dimension));
    spans.push_back({{begin, part.shape[dimension]}});
    if (__builtin_add_overflow(begin, part.shape[dimension], &begin)) return refused(part, "its parts are too long");
  }
  return join(std::move(parts), dimension, spans);
}

Result<StoredTensor> as_copies(std::vector<StoredTensor> parts) {
  PAWL_TRY(check_alike(parts));
  std::uint32_t copies = 0;
  for (StoredTensor& part : parts) {
    std::uint32_t own = 0;
    for (StoredPiece& piece : part.pieces) {
      own = std::max(own, piece.copy + 1);
      piece.copy += copies;
    }
    copies += own;
  }
  return gathered(std::move(parts));
}

Result<StoredTensor> as_versions(std::vector<StoredTensor> parts) {
  PAWL_TRY(check_alike(parts));
  const std::uint32_t own = parts.front().versions;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    for (StoredPiece& piece : parts[i].pieces) piece.version += static_cast<std::uint32_t>(i) * own;
  }
  const auto versions = static_cast<std::uint32_t>(parts.size()) * own;
  StoredTensor whole = gathered(std::move(parts));
  whole.versions = versions;
  return whole;
}

StoredTensor without_copies_beyond(StoredTensor tensor, std::uint32_t copies) {
  std::erase_if(tensor.pieces, [&](const StoredPiece& piece) { return piece.copy >= copies; });
  return tensor;
}

std::size_t mark_block_scales(CheckpointView& view, const Shape& block) {
  if (std::ranges::count(block, std::uint64_t{0}) != 0) return 0;
  std::unordered_map<std::string, const StoredTensor*> payloads;
  for (const StoredTensor& tensor : view.tensors) {
    if (size_bits(tensor.type) <= 8 && tensor.shape.size() == block.size()) {
      payloads.emplace(label_of(tensor.name, tensor.role), &tensor);
    }
  }
  const auto has_shape_of_blocks = [&](const StoredTensor& scales, const Shape& payload) {
    bool fits = scales.shape.size() == block.size();
    for (std::size_t d = 0; fits && d < block.size(); ++d) {
      fits = scales.shape[d] == payload[d] / block[d] + (payload[d] % block[d] != 0 ? 1 : 0);
    }
    return fits;
  };
  std::size_t marked = 0;
  for (StoredTensor& tensor : view.tensors) {
    for (const std::string_view suffix : {"_scale_inv", "_scale", "_scales"}) {
      if (!tensor.name.ends_with(suffix)) continue;
      std::string name = tensor.name.substr(0, tensor.name.size() - suffix.size());
      const auto payload = payloads.find(label_of(name, tensor.role));
      if (payload == payloads.end() || !has_shape_of_blocks(tensor, payload->second->shape)) continue;
      tensor.scales = {std::move(name), block};
      ++marked;
      break;
    }
  }
  return marked;
}

Status check_view(CheckpointView& view, const std::vector<std::uint64_t>& file_sizes) {
  FirstFew faults;
  FirstFew holes;
  Keys keys(view.tensors);
  for (std::size_t t = 0; t < view.tensors.size(); ++t) {
    const StoredTensor& tensor = view.tensors[t];
    const auto label = [&] { return label_of(tensor.name, tensor.role); };
    if (!keys.insert(t)) faults.add(text(label(), ": it is there twice"));
    std::string fault;
    if (const auto count = element_count(tensor.shape); !count) fault = count.error().what;
    if (fault.empty() && tensor.versions == 0) fault = "a mean of no versions";
    if (fault.empty() && is_packed(tensor) && volume(whole_box(tensor.shape)) != 0) fault = fault_of_packed(tensor);
    for (std::size_t i = 0; fault.empty() && i < tensor.pieces.size(); ++i) {
      fault = fault_of(tensor.pieces[i], tensor, view, file_sizes);
    }
    Coverage coverage;
    if (fault.empty()) coverage = coverage_of(tensor);
    if (fault.empty()) fault = coverage.fault;
    if (!fault.empty()) {
      faults.add(text(label(), ": ", text_of(tensor.shape), ": ", fault));
    } else if (!coverage.hole.empty()) {
      holes.add(text(label(), ": ", text_of(tensor.shape), ", ", coverage.hole, " is in no file"));
    }
  }
  std::unordered_set<std::string_view> names;
  if (!view.aliases.empty()) {
    for (const StoredTensor& tensor : view.tensors) names.insert(tensor.name);
  }
  for (const auto& [alias, kept] : view.aliases) {
    if (!names.contains(kept)) faults.add(text("alias ", alias, ": there is no tensor ", kept));
  }
  const bool is_new = std::ranges::find(view.problems, holes.sentence()) == view.problems.end();
  if (holes.any() && is_new) view.problems.push_back(holes.sentence());
  if (faults.any()) return Error{Code::corrupt, faults.sentence()};
  return {};
}

}  // namespace pawl::checkpoint
