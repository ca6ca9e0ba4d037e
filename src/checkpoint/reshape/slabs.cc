#include "checkpoint/reshape/slabs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/cast.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kGapMax = 64 << 10;  // a longer one is always worth a request of its own
// Runs as long as that are pieces of their own; what lies between may be another part's, and joins them then.
constexpr std::uint64_t kOwnPieceMin = 2048;

std::uint64_t bytes_of(ElementType type) {
  return size_bits(type) / 8;
}

bool is_packed(ElementType type) {
  return size_bits(type) % 8 != 0;
}

std::string text_of_end(std::string_view which, const PlannedEnd& end) {
  return text(which, " (holder ", end.holder, ", buffer ", end.buffer, ")");
}

Error refused(const PlannedCopy& copy, std::string what) {
  return Error{Code::invalid, text("copy of tensor ", copy.tensor, ": ", what)};
}

// A source whose file holds float32 numbers that are rounded as they are read: from now on as it lies in the file.
Status unround(const PlannedCopy& copy, const StoredFile& file, std::uint64_t last, PlacedEnd& end) {
  const auto type = file.codec == StoredFile::Codec::bfloat16 ? ElementType::bfloat16 : ElementType::float16;
  if (copy.from != type || end.swapped || last > file.decoded_bytes || file.decoded_bytes > file.length_bytes / 2 ||
      file.offset_bytes + file.length_bytes < file.offset_bytes)
    return refused(copy, text(file.path, ": no range of float32 numbers that could be rounded to this"));
  end.stored = ElementType::float32;
  end.at = file.offset_bytes + 2 * end.at;
  for (std::uint64_t& stride : end.stride) stride *= 2;
  return {};
}

bool is_rounded(const StoredFile& file) {
  return file.codec == StoredFile::Codec::bfloat16 || file.codec == StoredFile::Codec::float16;
}

// Where element `offset` of the place lies, with strides in bytes. Fails unless the box from there lies in the place.
Result<PlacedEnd> resolve(const PlannedCopy& copy, const Box& box, std::string_view which, const PlannedEnd& end,
                          const PlaceOf& place_of, ElementType type, std::size_t file_count,
                          const std::vector<StoredFile>* files = nullptr) {
  const BufferPlace place = place_of ? place_of(end.holder, end.buffer) : BufferPlace{};
  if (place.size_bytes == 0) return refused(copy, text(text_of_end(which, end), ": no such buffer"));
  if (place.memory == nullptr && place.file >= file_count)
    return refused(copy, text(text_of_end(which, end), ": no file ", place.file));
  const std::uint64_t unit = bytes_of(type);
  PlacedEnd out{place.memory, place.file, place.offset_bytes, {}, type, place.swapped, place.peer};
  std::uint64_t first = 0, last = 0;
  bool overflow = __builtin_mul_overflow(end.offset, unit, &first);
  for (std::uint32_t d = 0; d < box.dimensions; ++d) {
    std::uint64_t reach = 0;
    overflow |= __builtin_mul_overflow(end.stride[d], unit, &out.stride[d]);
    overflow |= __builtin_mul_overflow(box.size[d] - 1, out.stride[d], &reach);
    overflow |= __builtin_add_overflow(last, reach, &last);
  }
  overflow |= __builtin_add_overflow(last, first, &last);
  overflow |= __builtin_add_overflow(last, unit, &last);
  std::uint64_t end_bytes = 0;
  overflow |= __builtin_add_overflow(place.offset_bytes, place.size_bytes, &end_bytes);
  if (overflow || last > place.size_bytes)
    return refused(copy, text(text_of_end(which, end), ": leaves its ", place.size_bytes, " bytes"));
  if (out.memory != nullptr) out.memory += first;
  out.at += first;
  if (out.memory == nullptr && files != nullptr && is_rounded((*files)[out.file]))
    PAWL_TRY(unround(copy, (*files)[out.file], place.offset_bytes + last, out));
  return out;
}

// A packed tensor as its bytes.
Result<PlannedCopy> as_bytes(const PlannedCopy& copy, const CopyTarget& target) {
  const auto bits = static_cast<std::uint64_t>(size_bits(copy.from));
  const std::uint64_t bytes = volume(copy.box) * bits / 8;
  const bool begins = std::ranges::all_of(copy.box.begin, [](std::uint64_t begin) { return begin == 0; });
  if (copy.from != copy.to || copy.sources.size() != 1 || !begins || volume(copy.box) * bits % 8 != 0)
    return refused(copy, text("packed ", name_of(copy.from), " can only be copied whole, as it is"));
  PlannedCopy out = copy;
  out.from = out.to = ElementType::uint8;
  out.box = {1, {}, {bytes}};
  for (PlannedEnd* end : {&out.sources.front(), &out.target}) {
    if (end->offset * bits % 8 != 0) return refused(copy, "packed, and not on a whole byte");
    end->offset = end->offset * bits / 8;
    end->stride = {1};
  }
  return out;
}

// Dimensions of the box that have more than one index, the one with the longest steps first.
struct Order {
  std::uint32_t count = 0;
  std::array<std::uint32_t, kDimensionsMax> dimension{};
};

Order order_of(const PerDimension& stride, const Box& box) {
  Order order;
  for (std::uint32_t d = 0; d < box.dimensions; ++d)
    if (box.size[d] > 1) order.dimension[order.count++] = d;
  std::stable_sort(order.dimension.begin(), order.dimension.begin() + order.count,
                   [&](std::uint32_t a, std::uint32_t b) { return stride[a] > stride[b]; });
  return order;
}

// Bytes from the first element to the end of the last one, and of all elements, over order[level..].
struct Extension {
  std::uint64_t span = 0;
  std::uint64_t dense = 0;
};

Extension extension_from(const Order& order, std::uint32_t level, const PerDimension& stride, const Box& box,
                         std::uint64_t unit) {
  Extension out{unit, unit};
  for (std::uint32_t i = level; i < order.count; ++i) {
    const std::uint32_t d = order.dimension[i];
    out.span += (box.size[d] - 1) * stride[d];
    out.dense *= box.size[d];
  }
  return out;
}

// The first level from which all lies without a gap, and how many such boxes there are.
std::pair<std::uint32_t, std::uint64_t> runs_of(const Order& order, const PerDimension& stride, const Box& box,
                                                std::uint64_t unit) {
  std::uint32_t level = 0;
  std::uint64_t runs = 1;
  for (; level < order.count; ++level) {
    const Extension all = extension_from(order, level, stride, box, unit);
    if (all.span <= all.dense) break;
    runs *= box.size[order.dimension[level]];
  }
  return {level, runs};
}

std::uint64_t run_count(const PlacedEnd& end, const Box& box, std::uint64_t unit) {
  return runs_of(order_of(end.stride, box), end.stride, box, unit).second;
}

// Calls body(box) for each box of `box` that has one index along order[0..level) and, along order[level], those
// between two multiples of `step`.
template <class Body>
void for_each_block(const Box& box, const Order& order, std::uint32_t level, std::uint64_t step, Body body) {
  Box block = box;
  const bool is_cut = level < order.count;
  const std::uint32_t along = is_cut ? order.dimension[level] : 0;
  const std::uint64_t along_end = is_cut ? box.begin[along] + box.size[along] : 0;
  for (std::uint32_t i = 0; i < level; ++i) block.size[order.dimension[i]] = 1;
  for (;;) {
    if (!is_cut) {
      body(block);
    } else {
      for (std::uint64_t at = box.begin[along]; at < along_end; at += block.size[along]) {
        block.begin[along] = at;
        block.size[along] = std::min(along_end, (at / step + 1) * step) - at;
        body(block);
      }
    }
    std::uint32_t i = level;
    while (i-- > 0) {
      const std::uint32_t d = order.dimension[i];
      if (++block.begin[d] < box.begin[d] + box.size[d]) break;
      block.begin[d] = box.begin[d];
    }
    if (i == ~0u) return;
  }
}

struct Cost {
  std::uint64_t target_bytes = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t runs = 0;

  void add(const Cost& other) {
    target_bytes += other.target_bytes;
    staged_bytes += other.staged_bytes;
    runs += other.runs;
  }
  [[nodiscard]] bool fits(const SlabLimits& limits) const {
    return target_bytes <= limits.target_bytes && staged_bytes <= limits.staged_bytes && runs <= limits.runs;
  }
};

Cost cost_of(const Batch& batch, const CopyPart& part) {
  const PlacedCopy& placed = batch.copies[part.copy];
  const std::uint64_t count = volume(part.box);
  Cost cost{count * bytes_of(placed.to), 0, 1};
  if (placed.target.memory == nullptr) {
    cost.staged_bytes += cost.target_bytes;
    cost.runs += run_count(placed.target, part.box, bytes_of(placed.to));
  }
  if (placed.source_count > 1) cost.staged_bytes += count * bytes_of(placed.from) * placed.source_count;
  for (std::uint32_t i = 0; i < placed.source_count; ++i) {
    const PlacedEnd& source = batch.sources[placed.first_source + i];
    if (source.memory == nullptr) cost.runs += run_count(source, part.box, bytes_of(source.stored));
  }
  return cost;
}

// Collects parts until a limit is reached.
class SlabMaker {
 public:
  SlabMaker(const std::shared_ptr<const Batch>& batch, const SlabLimits& limits, const SlabSink& sink)
      : batch_(batch), limits_(limits), sink_(sink) {}

  // The copies of one tensor: all in one slab, or cut in halves until each fits.
  void add(std::vector<CopyPart> parts) {
    std::vector<std::vector<CopyPart>> open;
    open.push_back(std::move(parts));
    while (!open.empty()) {
      std::vector<CopyPart> now = std::move(open.back());
      open.pop_back();
      Cost cost;
      for (const CopyPart& part : now) cost.add(cost_of(*batch_, part));
      std::vector<CopyPart> second;
      if (!cost.fits(limits_) && halve(now, second)) {
        open.push_back(std::move(second));
        open.push_back(std::move(now));
        continue;
      }
      Cost both = cost_;
      both.add(cost);
      if (!both.fits(limits_)) flush();
      cost_.add(cost);
      slab_.parts.insert(slab_.parts.end(), now.begin(), now.end());
    }
  }

  void flush() {
    if (slab_.parts.empty()) return;
    slab_.batch = batch_;
    sink_(std::exchange(slab_, {}));
    cost_ = {};
  }

 private:
  // Leaves the lower indices in `parts`. False: all are of one element.
  static bool halve(std::vector<CopyPart>& parts, std::vector<CopyPart>& upper) {
    Box around = parts.front().box;
    for (const CopyPart& part : parts) {
      for (std::uint32_t d = 0; d < around.dimensions; ++d) {
        const std::uint64_t end = std::max(around.begin[d] + around.size[d], part.box.begin[d] + part.box.size[d]);
        around.begin[d] = std::min(around.begin[d], part.box.begin[d]);
        around.size[d] = end - around.begin[d];
      }
    }
    std::uint32_t along = 0;
    while (along < around.dimensions && around.size[along] == 1) ++along;
    if (along == around.dimensions) return false;
    // At a round index: every other cut of this tensor's files is at one, too.
    const std::uint64_t round = std::bit_floor(std::max<std::uint64_t>(around.size[along] / 4, 1));
    const std::uint64_t middle = around.begin[along] + around.size[along] / 2;
    std::uint64_t at = middle / round * round;
    if (at <= around.begin[along]) at = middle;
    std::vector<CopyPart> lower;
    for (const CopyPart& part : parts) {
      const std::uint64_t begin = part.box.begin[along], end = begin + part.box.size[along];
      if (begin < at) {
        lower.push_back(part);
        lower.back().box.size[along] = std::min(end, at) - begin;
      }
      if (end > at) {
        upper.push_back(part);
        upper.back().box.begin[along] = std::max(begin, at);
        upper.back().box.size[along] = end - std::max(begin, at);
      }
    }
    parts = std::move(lower);
    return true;
  }

  const std::shared_ptr<const Batch>& batch_;
  const SlabLimits& limits_;
  const SlabSink& sink_;
  Slab slab_;
  Cost cost_;
};

// Of a part with a target in a file: where that begins and ends.
struct Reach {
  std::uint32_t file = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint64_t dense = 0;
  std::uint32_t part = 0;
};

Reach reach_of(const Slab& slab, std::uint32_t number) {
  const CopyPart& part = slab.parts[number];
  const PlacedCopy& placed = slab.batch->copies[part.copy];
  const PlacedEnd end = end_at(placed.target, placed.box, part.box);
  const Order order = order_of(end.stride, part.box);
  const Extension all = extension_from(order, 0, end.stride, part.box, bytes_of(placed.to));
  return {end.file, end.at, end.at + all.span, all.dense, number};
}

std::vector<Reach> reaches_of(const Slab& slab) {
  std::vector<Reach> reaches;
  for (std::uint32_t i = 0; i < slab.parts.size(); ++i) {
    if (slab.batch->copies[slab.parts[i].copy].target.memory == nullptr) reaches.push_back(reach_of(slab, i));
  }
  std::ranges::sort(reaches, {}, [](const Reach& reach) { return std::tuple(reach.file, reach.begin, reach.part); });
  return reaches;
}

// Parts that reach over one another, or run on: what they span is a range if they fill it.
template <class Body>
void for_each_cluster(const std::vector<Reach>& reaches, Body body) {
  for (std::size_t first = 0; first < reaches.size();) {
    FileRange range{reaches[first].file, reaches[first].begin, reaches[first].end};
    std::uint64_t dense = 0;
    std::size_t last = first;
    for (; last < reaches.size() && reaches[last].file == range.file && reaches[last].begin <= range.end; ++last) {
      range.end = std::max(range.end, reaches[last].end);
      dense += reaches[last].dense;
    }
    body(range, dense == range.end - range.begin, first, last);
    first = last;
  }
}

// Replaces a part by its contiguous runs in the target.
void split_part(Slab& slab, std::uint32_t number) {
  const CopyPart part = slab.parts[number];
  const PlacedCopy& placed = slab.batch->copies[part.copy];
  const Order order = order_of(placed.target.stride, part.box);
  const std::uint32_t level = runs_of(order, placed.target.stride, part.box, bytes_of(placed.to)).first;
  bool is_first = true;
  for_each_block(part.box, order, level, ~std::uint64_t{0}, [&](const Box& box) {
    if (std::exchange(is_first, false)) {
      slab.parts[number].box = box;
    } else {
      slab.parts.push_back({part.copy, box});
    }
  });
}

}  // namespace

std::uint64_t target_bytes(const PlacedCopy& placed, const Box& box) {
  return volume(box) * bytes_of(placed.to);
}

PlacedEnd end_at(const PlacedEnd& end, const Box& of, const Box& box) {
  PlacedEnd out = end;
  std::uint64_t distance = 0;
  for (std::uint32_t d = 0; d < of.dimensions; ++d) distance += (box.begin[d] - of.begin[d]) * end.stride[d];
  out.at += distance;
  if (out.memory != nullptr) out.memory += distance;
  return out;
}

Status append_placed_copy(const PlannedCopy& given, const CopySource& source, const CopyTarget& target, Batch& batch) {
  if (given.sources.empty()) return refused(given, "no source");
  PlannedCopy bytes;
  const bool packed = is_packed(given.from) || is_packed(given.to);
  if (packed) {
    PAWL_ASSIGN(bytes, as_bytes(given, target));
  }
  const PlannedCopy& copy = packed ? bytes : given;
  if (!can_cast(copy.from, copy.to))
    return refused(copy, text("no cast of ", name_of(copy.from), " to ", name_of(copy.to)));
  if (copy.sources.size() > 1 && !can_average(copy.from))
    return refused(copy, text(name_of(copy.from), " can't be averaged"));
  if (volume(copy.box) == 0) return {};
  const std::size_t source_files = source.files == nullptr ? 0 : source.files->size();
  PlacedCopy placed{copy.tensor,
                    copy.from,
                    copy.to,
                    copy.box,
                    static_cast<std::uint32_t>(batch.sources.size()),
                    static_cast<std::uint32_t>(copy.sources.size()),
                    {}};
  PAWL_ASSIGN(placed.target,
              resolve(copy, copy.box, "target", copy.target, target.place, copy.to, target.files.size()));
  if (placed.target.memory == nullptr) {
    const TargetFile& file = target.files[placed.target.file];
    const Extension all =
        extension_from(order_of(placed.target.stride, copy.box), 0, placed.target.stride, copy.box, bytes_of(copy.to));
    if (placed.target.at > file.size_bytes || all.span > file.size_bytes - placed.target.at)
      return refused(
          copy, text(file.path, " at ", placed.target.at, ": ", all.span, " bytes leave the file's ", file.size_bytes));
  }
  std::vector<PlacedEnd> ends;
  for (const PlannedEnd& end : copy.sources) {
    PAWL_ASSIGN(PlacedEnd resolved,
                resolve(copy, copy.box, "source", end, source.place, copy.from, source_files, source.files));
    ends.push_back(resolved);
  }
  batch.sources.insert(batch.sources.end(), ends.begin(), ends.end());
  batch.copies.push_back(placed);
  return {};
}

void cut_into_slabs(const std::shared_ptr<const Batch>& batch, const SlabLimits& limits, const SlabSink& sink) {
  SlabMaker maker(batch, limits, sink);
  std::vector<CopyPart> parts;
  for (std::uint32_t i = 0; i < batch->copies.size(); ++i) {
    const PlacedCopy& placed = batch->copies[i];
    const bool goes_on = !parts.empty() && batch->copies[i - 1].tensor == placed.tensor &&
                         batch->copies[i - 1].box.dimensions == placed.box.dimensions;
    if (!parts.empty() && !goes_on) maker.add(std::exchange(parts, {}));
    parts.push_back({i, placed.box});
  }
  if (!parts.empty()) maker.add(std::move(parts));
  maker.flush();
}

std::vector<FileRange> plan_writes(Slab& slab) {
  std::vector<std::uint32_t> loose;  // parts to be split
  const std::vector<Reach> reaches = reaches_of(slab);
  for_each_cluster(reaches, [&](const FileRange&, bool is_full, std::size_t first, std::size_t last) {
    for (std::size_t i = first; i < last && !is_full; ++i) loose.push_back(reaches[i].part);
  });
  for (const std::uint32_t part : loose) split_part(slab, part);
  std::vector<FileRange> ranges;
  for_each_cluster(loose.empty() ? reaches : reaches_of(slab),
                   [&](const FileRange& range, bool, std::size_t, std::size_t) { ranges.push_back(range); });
  return ranges;
}

void append_read_pieces(const Slab& slab, std::uint32_t part, std::uint32_t source, std::uint64_t span_bytes_max,
                        ReadAllowance& allowance, std::vector<ReadPiece>& pieces) {
  const Box& box = slab.parts[part].box;
  const PlacedCopy& placed = slab.batch->copies[slab.parts[part].copy];
  const PlacedEnd& end = slab.batch->sources[placed.first_source + source];
  const std::uint64_t unit = bytes_of(end.stored);
  const Order order = order_of(end.stride, box);
  allowance.need(volume(box) * unit);
  // From which level on gaps are read along; what is not needed of all such boxes must be allowed.
  std::uint32_t level = 0;
  std::uint64_t boxes = 1;
  for (; level < order.count; ++level) {
    const Extension all = extension_from(order, level, end.stride, box, unit);
    if (all.span <= all.dense) break;
    std::uint64_t gaps = 0;
    const bool is_short = extension_from(order, level + 1, end.stride, box, unit).span < kOwnPieceMin;
    if (is_short && !__builtin_mul_overflow(all.span - all.dense, boxes, &gaps) && allowance.spend(gaps)) break;
    boxes *= box.size[order.dimension[level]];
  }
  // And from which on they are short enough, cut between two round indices.
  std::uint64_t step = ~std::uint64_t{0};
  for (; level < order.count; ++level) {
    if (extension_from(order, level, end.stride, box, unit).span <= span_bytes_max) break;
    const std::uint64_t one = extension_from(order, level + 1, end.stride, box, unit).span;
    const std::uint64_t stride = end.stride[order.dimension[level]];
    if (one > span_bytes_max) continue;
    step = stride == 0 ? ~std::uint64_t{0} : std::bit_floor((span_bytes_max - one) / stride + 1);
    break;
  }
  for_each_block(box, order, level, step, [&](const Box& block) {
    const std::uint64_t begin = end_at(end, placed.box, block).at;
    std::uint64_t span = unit;
    for (std::uint32_t d = 0; d < block.dimensions; ++d) span += (block.size[d] - 1) * end.stride[d];
    pieces.push_back({end.file, part, source, begin, begin + span, block});
  });
}

std::vector<ReadRange> join_read_pieces(std::vector<ReadPiece>& pieces, std::uint64_t bytes_max,
                                        ReadAllowance& allowance) {
  std::ranges::sort(pieces, [](const ReadPiece& a, const ReadPiece& b) {  // the longer first: the others lie in it
    return std::tuple(a.file, a.begin, b.end) < std::tuple(b.file, b.begin, a.end);
  });
  std::vector<ReadRange> ranges;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const ReadPiece& piece = pieces[i];
    if (!ranges.empty()) {
      ReadRange& last = ranges.back();
      const std::uint64_t end = std::max(last.end, piece.end);
      const std::uint64_t gap = piece.begin > last.end ? piece.begin - last.end : 0;
      const bool is_inside = last.file == piece.file && piece.end <= last.end;
      const bool is_near = last.file == piece.file && end - last.begin <= bytes_max && gap <= kGapMax;
      if (is_inside || (is_near && (gap == 0 || allowance.spend(gap)))) {
        last.end = end;
        last.last_piece = i + 1;
        continue;
      }
    }
    ranges.push_back({piece.file, piece.begin, piece.end, i, i + 1});
  }
  return ranges;
}

}  // namespace pawl::checkpoint
