#include "checkpoint/reshape/compare_copies.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/file_source.h"
#include "tensor/enumerate.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kBuffersMax = 64 << 20;  // bytes read between two comparisons

using Copies = std::vector<std::uint32_t>;  // their numbers, ascending

std::map<std::uint32_t, Copies> copies_by_version(const StoredTensor& tensor) {
  std::map<std::uint32_t, std::set<std::uint32_t>> found;
  for (const StoredPiece& piece : tensor.pieces) found[piece.version].insert(piece.copy);
  std::map<std::uint32_t, Copies> out;
  for (const auto& [version, copies] : found) out[version] = Copies(copies.begin(), copies.end());
  return out;
}

// Calls body(box) for boxes of at most `elements_max` that tile the tensor; until it returns false.
template <class Body>
void for_each_chunk(const Shape& shape, std::uint64_t elements_max, Body body) {
  const Box whole = whole_box(shape);
  std::uint32_t along = 0;
  std::uint64_t inner = volume(whole);
  while (along < whole.dimensions && inner > elements_max) inner /= whole.size[along++];
  Box box = whole;
  if (along == 0) {
    body(box);
    return;
  }
  --along;  // the dimension that is cut; all before it go one index at a time
  const std::uint64_t step = std::max<std::uint64_t>(1, elements_max / inner);
  for (std::uint32_t d = 0; d < along; ++d) box.size[d] = 1;
  for (;;) {
    for (std::uint64_t at = 0; at < whole.size[along]; at += step) {
      box.begin[along] = at;
      box.size[along] = std::min(step, whole.size[along] - at);
      if (!body(box)) return;
    }
    std::uint32_t d = along;
    while (d-- > 0) {
      if (++box.begin[d] < whole.size[d]) break;
      box.begin[d] = 0;
    }
    if (d == ~0u) return;
  }
}

class Comparison {
 public:
  Comparison(const CheckpointView& view, const ExecuteOptions& options)
      : view_(view), source_(places_of(view)), options_(options) {
    const std::uint64_t memory = std::max<std::uint64_t>(options.memory_bytes, 2 << 20);
    buffers_max_ = std::min(memory / 2, kBuffersMax);
    options_.memory_bytes = memory - buffers_max_;
    for (const StoredTensor& tensor : view.tensors) {
      firsts_.push_back(pieces_);
      pieces_ += tensor.pieces.size();
    }
  }

  Status add(std::uint32_t tensor) {
    const StoredTensor& stored = view_.tensors[tensor];
    if (volume(whole_box(stored.shape)) == 0) return {};
    for (const auto& entry : copies_by_version(stored)) {
      const Copies& copies = entry.second;
      if (copies.size() < 2) continue;
      const std::uint64_t bits = size_bits(stored.type);
      const bool packed = bits % 8 != 0;  // cannot be cut
      const std::uint64_t elements_max =
          packed ? ~std::uint64_t{0} : std::max<std::uint64_t>(1, buffers_max_ * 8 / bits / copies.size());
      Status status;
      for_each_chunk(stored.shape, elements_max, [&](const Box& box) {
        status = add_chunk(tensor, entry.first, copies, box);
        return status.has_value();
      });
      PAWL_TRY(status);
    }
    return {};
  }

  Result<std::vector<CopyDifference>> finish() {
    PAWL_TRY(flush());
    std::vector<CopyDifference> out;
    for (auto& [key, difference] : differences_) out.push_back(std::move(difference));
    return out;
  }

 private:
  struct Chunk {
    std::uint32_t tensor = 0, version = 0;
    Copies copies;
    Box box;
    std::uint64_t size_bytes = 0;    // of one copy
    std::uint64_t first_buffer = 0;  // of the first copy: where it begins
  };

  Status add_chunk(std::uint32_t tensor, std::uint32_t version, const Copies& copies, const Box& box) {
    const std::uint64_t bytes = volume(box) * size_bits(view_.tensors[tensor].type) / 8;
    if (used_ + bytes * copies.size() > buffers_max_) PAWL_TRY(flush());
    if (bytes * copies.size() > options_.memory_bytes)
      return Error{Code::full, text(label_of(view_.tensors[tensor].name, view_.tensors[tensor].role), ": comparing ",
                                    copies.size(), " copies of ", bytes, " bytes needs more memory")};
    chunks_.push_back({tensor, version, copies, box, bytes, used_});
    used_ += bytes * copies.size();
    return {};
  }

  void append_copies(const Chunk& chunk, std::uint32_t index, std::vector<PlannedCopy>& out) const {
    const StoredTensor& tensor = view_.tensors[chunk.tensor];
    for (std::size_t i = 0; i < tensor.pieces.size(); ++i) {
      const StoredPiece& piece = tensor.pieces[i];
      const auto copy = std::ranges::lower_bound(chunk.copies, piece.copy);
      const Box part = intersection(piece.box, chunk.box);
      if (piece.version != chunk.version || volume(part) == 0) continue;
      PlannedEnd from{piece.file, static_cast<std::uint32_t>(firsts_[chunk.tensor] + i), 0, piece.stride};
      PlannedEnd to{index, static_cast<std::uint32_t>(copy - chunk.copies.begin()), 0, dense_stride(chunk.box)};
      for (std::uint32_t d = 0; d < part.dimensions; ++d) {
        from.offset += (part.begin[d] - piece.box.begin[d]) * from.stride[d];
        to.offset += (part.begin[d] - chunk.box.begin[d]) * to.stride[d];
      }
      out.push_back({chunk.tensor, tensor.type, tensor.type, part, {from}, to});
    }
  }

  Status flush() {
    if (chunks_.empty()) return {};
    buffers_.assign(used_, std::byte{0});
    std::vector<PlannedCopy> copies;
    for (std::uint32_t i = 0; i < chunks_.size(); ++i) append_copies(chunks_[i], i, copies);
    CopyTarget target;
    target.place = [this](std::uint32_t chunk, std::uint32_t copy) {
      const Chunk& held = chunks_[chunk];
      return BufferPlace{buffers_.data() + held.first_buffer + copy * held.size_bytes, 0, 0, held.size_bytes};
    };
    PAWL_ASSIGN(const ExecuteReport report, execute(stream_of(std::move(copies)), source_, target, options_));
    (void)report;
    for (const Chunk& chunk : chunks_) compare(chunk);
    chunks_.clear();
    used_ = 0;
    return {};
  }

  // How much of the chunk a copy covers.
  [[nodiscard]] std::uint64_t covered(const Chunk& chunk, std::uint32_t copy) const {
    std::uint64_t covered = 0;
    for (const StoredPiece& piece : view_.tensors[chunk.tensor].pieces) {
      if (piece.version == chunk.version && piece.copy == copy) covered += volume(intersection(piece.box, chunk.box));
    }
    return covered;
  }

  void compare(const Chunk& chunk) {
    const std::byte* first = buffers_.data() + chunk.first_buffer;
    const bool is_whole = covered(chunk, chunk.copies[0]) == volume(chunk.box);
    for (std::size_t i = 1; i < chunk.copies.size(); ++i) {
      const std::byte* other = first + i * chunk.size_bytes;
      if (std::memcmp(first, other, chunk.size_bytes) == 0) continue;
      if (is_whole && covered(chunk, chunk.copies[i]) == volume(chunk.box)) {
        compare_box(chunk, i, chunk.box);
        continue;
      }
      const std::vector<StoredPiece>& pieces = view_.tensors[chunk.tensor].pieces;
      for (const StoredPiece& a : pieces) {
        if (a.version != chunk.version || a.copy != chunk.copies[0]) continue;
        const Box mine = intersection(a.box, chunk.box);
        if (volume(mine) == 0) continue;
        for (const StoredPiece& b : pieces) {
          if (b.version == chunk.version && b.copy == chunk.copies[i]) compare_box(chunk, i, intersection(mine, b.box));
        }
      }
    }
  }

  // Element by element: something differs, so this is rare.
  void compare_box(const Chunk& chunk, std::size_t copy, const Box& box) {
    const std::uint64_t count = volume(box);
    if (count == 0) return;
    const std::uint64_t bits = size_bits(view_.tensors[chunk.tensor].type);
    const std::byte* first = buffers_.data() + chunk.first_buffer;
    const std::byte* other = first + copy * chunk.size_bytes;
    const PerDimension stride = dense_stride(chunk.box);
    Shape element(box.begin.begin(), box.begin.begin() + box.dimensions);
    for (std::uint64_t n = 0; n < count; ++n) {
      std::uint64_t index = 0;
      for (std::uint32_t d = 0; d < box.dimensions; ++d) index += (element[d] - chunk.box.begin[d]) * stride[d];
      const std::uint64_t at = index * bits / 8, end = ((index + 1) * bits + 7) / 8;  // packed: the bytes that it's in
      if (std::memcmp(first + at, other + at, end - at) != 0) note(chunk, copy, element);
      for (std::uint32_t d = box.dimensions; d-- > 0;) {
        if (++element[d] < box.begin[d] + box.size[d]) break;
        element[d] = box.begin[d];
      }
    }
  }

  void note(const Chunk& chunk, std::size_t copy, const Shape& element) {
    const std::uint32_t number = chunk.copies[copy];
    const auto [found, is_new] = differences_.try_emplace({chunk.tensor, chunk.version, number});
    CopyDifference& difference = found->second;
    ++difference.elements;
    if (!is_new) return;
    difference.tensor = chunk.tensor;
    difference.version = chunk.version;
    difference.first = chunk.copies[0];
    difference.second = number;
    difference.element = element;
    for (const StoredPiece& piece : view_.tensors[chunk.tensor].pieces) {
      if (piece.version != chunk.version || !holds(piece.box, element)) continue;
      if (piece.copy == difference.first) {
        difference.first_rank = piece.rank;
        difference.first_file = piece.file;
      } else if (piece.copy == number) {
        difference.second_rank = piece.rank;
        difference.second_file = piece.file;
      }
    }
  }

  [[nodiscard]] static bool holds(const Box& box, const Shape& element) {
    for (std::uint32_t d = 0; d < box.dimensions; ++d)
      if (element[d] < box.begin[d] || element[d] - box.begin[d] >= box.size[d]) return false;
    return true;
  }

  const CheckpointView& view_;
  CopySource source_;
  ExecuteOptions options_;
  std::uint64_t buffers_max_ = 0;
  std::vector<std::uint64_t> firsts_;  // of each tensor: the number of its first piece
  std::uint64_t pieces_ = 0;
  std::vector<Chunk> chunks_;
  std::uint64_t used_ = 0;
  std::vector<std::byte> buffers_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, CopyDifference> differences_;
};

std::string text_of_writer(std::uint32_t rank, const std::string& path) {
  return rank == kNoRank ? path : text("rank ", rank, ", ", path);
}

}  // namespace

std::string sentence_of(const CopyDifference& difference, const CheckpointView& view) {
  const StoredTensor& tensor = view.tensors[difference.tensor];
  const std::string version = tensor.versions > 1 ? text(", version ", difference.version) : std::string();
  return text(label_of(tensor.name, tensor.role), version, " differs between copy ", difference.first, " (",
              text_of_writer(difference.first_rank, view.files[difference.first_file].path), ") and copy ",
              difference.second, " (", text_of_writer(difference.second_rank, view.files[difference.second_file].path),
              "): ", difference.elements, difference.elements == 1 ? " element, at " : " elements, the first at ",
              text_of(difference.element));
}

bool has_copies(const CheckpointView& view) {
  return std::ranges::any_of(view.tensors, [](const StoredTensor& tensor) {
    return std::ranges::any_of(copies_by_version(tensor), [](const auto& entry) { return entry.second.size() > 1; });
  });
}

Result<std::vector<CopyDifference>> compare_copies(const CheckpointView& view,
                                                   const std::vector<std::uint32_t>& tensors,
                                                   const ExecuteOptions& options) {
  Comparison comparison(view, options);
  for (const std::uint32_t tensor : tensors) PAWL_TRY(comparison.add(tensor));
  return comparison.finish();
}

}  // namespace pawl::checkpoint
