#include "checkpoint/output/output_shares.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/reshape/range_checksums.h"

namespace pawl::checkpoint {
namespace {

// Where a cut may lie in a tensor of the plan, counted in bytes: at multiples of this.
class Units {
 public:
  Units(const OutputPlan& plan, const CheckpointView& view) : plan_(plan), view_(view) {
    for (const StoredTensor& tensor : view.tensors)
      if (!tensor.scales.payload.empty()) blocks_.emplace(label_of(tensor.scales.payload, tensor.role), &tensor.scales);
  }
  [[nodiscard]] std::uint64_t of(std::uint32_t index) const {
    const PlannedTensor& planned = plan_.tensors[index];
    const StoredTensor& tensor = view_.tensors[planned.tensor];
    if (size_bits(planned.type) % 8 != 0 || size_bits(tensor.type) % 8 != 0) return planned.size_bytes;
    const std::uint64_t element = size_bits(planned.type) / 8;
    const auto scaled = blocks_.empty() ? blocks_.end() : blocks_.find(label_of(tensor.name, tensor.role));
    if (scaled == blocks_.end()) return element;
    const Shape& block = scaled->second->block;
    if (block.size() != tensor.shape.size() || block.empty() || block[0] == 0) return planned.size_bytes;
    std::uint64_t row = element;  // of one index along the first dimension: less than the tensor, which fits
    for (std::size_t d = 1; d < tensor.shape.size(); ++d) row *= tensor.shape[d];
    return row > planned.size_bytes / block[0] ? planned.size_bytes : row * block[0];
  }

 private:
  const OutputPlan& plan_;
  const CheckpointView& view_;
  std::unordered_map<std::string, const BlockScales*> blocks_;
};

// A place between two bytes of the tensors: `bytes` of a tensor, by its number in order of places, are before it.
struct Cut {
  std::size_t number = 0;
  std::uint64_t bytes = 0;
  auto operator<=>(const Cut&) const = default;
};

class Cutter {
 public:
  Cutter(const OutputPlan& plan, const CheckpointView& view) : plan_(plan), units_(plan, view) {
    for (std::uint32_t i = 0; i < plan.tensors.size(); ++i)
      if (plan.tensors[i].size_bytes != 0) order_.push_back(i);
    std::ranges::sort(
        order_, {}, [&](std::uint32_t i) { return std::tuple(plan.tensors[i].file, plan.tensors[i].offset_bytes, i); });
    for (const std::uint32_t i : order_) {
      first_.push_back(all_);
      all_ += plan.tensors[i].size_bytes;
    }
  }

  [[nodiscard]] std::vector<OutputShare> shares(std::uint32_t workers) const {
    std::vector<OutputShare> shares(workers);
    Cut from;
    for (std::uint32_t k = 0; k < workers; ++k) {
      const Cut to = k + 1 == workers ? Cut{order_.size(), 0} : cut_near(part_of(k + 1, workers));
      fill(from, to, shares[k]);
      from = to;
    }
    return shares;
  }

 private:
  // k/n of all, without overflow.
  [[nodiscard]] std::uint64_t part_of(std::uint32_t k, std::uint32_t n) const {
    return all_ / n * k + all_ % n * k / n;
  }

  // The last place that is allowed, at most so many bytes from the beginning.
  [[nodiscard]] Cut cut_near(std::uint64_t bytes) const {
    if (order_.empty() || bytes >= all_) return {order_.size(), 0};
    auto number = static_cast<std::size_t>(std::ranges::upper_bound(first_, bytes) - first_.begin()) - 1;
    const PlannedTensor* tensor = &plan_.tensors[order_[number]];
    const std::uint64_t wanted = tensor->offset_bytes + (bytes - first_[number]);
    const std::uint64_t page = wanted - wanted % kCutPageBytes;
    while (page < tensor->offset_bytes) {  // small tensors side by side
      if (number == 0 || plan_.tensors[order_[number - 1]].file != tensor->file) return {number, 0};
      const PlannedTensor* before = &plan_.tensors[order_[number - 1]];
      if (page >= before->offset_bytes + before->size_bytes) return {number, 0};  // between the two
      tensor = before;
      --number;
    }
    const std::uint64_t in_it = page - tensor->offset_bytes;
    return {number, in_it - in_it % units_.of(order_[number])};
  }

  void fill(const Cut& from, const Cut& to, OutputShare& share) const {
    for (std::size_t number = from.number; number < order_.size() && Cut{number, 0} < to; ++number) {
      const PlannedTensor& tensor = plan_.tensors[order_[number]];
      const std::uint64_t begin = number == from.number ? from.bytes : 0;
      const std::uint64_t end = number == to.number ? to.bytes : tensor.size_bytes;
      if (begin == end) continue;
      const std::uint64_t bits = size_bits(tensor.type);
      share.stretches.push_back({order_[number], begin * 8 / bits, end * 8 / bits});
      share.bytes += end - begin;
    }
  }

  const OutputPlan& plan_;
  Units units_;
  std::vector<std::uint32_t> order_;  // of tensors that have bytes, by place
  std::vector<std::uint64_t> first_;  // bytes before each
  std::uint64_t all_ = 0;
};

// A running sum of everything: two of 32 bits that share nothing.
class Digest {
 public:
  void bytes(std::string_view what) {
    number(what.size());
    add(what);
  }
  template <class... Numbers>
  void number(Numbers... numbers) {
    const std::uint64_t all[] = {static_cast<std::uint64_t>(numbers)...};
    add({reinterpret_cast<const char*>(all), sizeof all});
  }
  void shape(const Shape& shape) {
    number(shape.size());
    for (const std::uint64_t extent : shape) number(extent);
  }
  [[nodiscard]] std::string words() const {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    for (std::uint64_t sum = std::uint64_t{crc32_} << 32 | crc32c_, i = 0; i < 16; ++i, sum <<= 4)
      out.push_back(kDigits[sum >> 60]);
    return out;
  }

 private:
  void add(std::string_view what) {
    const auto bytes = std::as_bytes(std::span(what));
    crc32_ = checksum(ChecksumKind::crc32, bytes, crc32_);
    crc32c_ = checksum(ChecksumKind::crc32c, bytes, crc32c_);
  }
  std::uint32_t crc32_ = 0, crc32c_ = 0;
};

void add_view(const CheckpointView& view, Digest& digest) {
  digest.bytes(view.format);
  digest.number(view.files.size(), view.tensors.size(), view.aliases.size());
  for (const StoredFile& file : view.files) {
    digest.number(file.codec, file.offset_bytes, file.length_bytes, file.decoded_bytes);
    digest.bytes(file.content);
  }
  for (const StoredTensor& tensor : view.tensors) {
    digest.bytes(tensor.name);
    digest.bytes(tensor.role);
    digest.shape(tensor.shape);
    digest.number(tensor.type, tensor.versions, tensor.pieces.size());
    for (const StoredPiece& piece : tensor.pieces) {
      digest.number(piece.file, piece.offset_bytes, piece.swapped, piece.version, piece.copy);
      for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
        digest.number(piece.box.begin[d], piece.box.size[d], piece.stride[d]);
    }
  }
  digest.bytes(view.values);
  for (const auto& [alias, name] : view.aliases) {
    digest.bytes(alias);
    digest.bytes(name);
  }
}

void add_plan(const OutputPlan& plan, Digest& digest) {
  digest.number(plan.is_folder, plan.tensors.size(), plan.files.size(), plan.data_bytes);
  for (const PlannedTensor& tensor : plan.tensors) {
    digest.bytes(tensor.key);
    digest.number(tensor.tensor, tensor.type, tensor.file, tensor.offset_bytes, tensor.size_bytes);
  }
  for (const PlannedFile& file : plan.files) {
    digest.bytes(file.name);
    digest.number(file.size_bytes, file.texts.size(), file.checked.size());
    for (const PlannedText& words : file.texts) {
      digest.number(words.offset_bytes);
      digest.bytes(words.text);
    }
    for (const PlannedRange& range : file.checked) digest.number(range.offset_bytes, range.size_bytes);
  }
}

}  // namespace

std::vector<OutputShare> cut_output(const OutputPlan& plan, const CheckpointView& view, std::uint32_t workers) {
  return Cutter(plan, view).shares(workers);
}

std::uint64_t cut_unit_max(const OutputPlan& plan, const CheckpointView& view) {
  const Units units(plan, view);
  std::uint64_t largest = 0;
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i)
    if (plan.tensors[i].size_bytes != 0) largest = std::max(largest, units.of(i));
  return kCutPageBytes + largest;
}

std::vector<std::size_t> cut_in_order(std::span<const std::uint64_t> bytes, std::uint32_t workers) {
  std::uint64_t all = 0;
  for (const std::uint64_t size : bytes) all += size;
  std::vector<std::size_t> cuts = {0};
  std::uint64_t before = 0;
  std::size_t at = 0;
  for (std::uint64_t k = 1; k < workers; ++k) {
    const std::uint64_t wanted = all / workers * k + all % workers * k / workers;
    for (; at < bytes.size() && before + bytes[at] / 2 < wanted; ++at) before += bytes[at];
    cuts.push_back(at);
  }
  cuts.push_back(bytes.size());
  return cuts;
}

std::string digest_of(const CheckpointView& view, const OutputPlan& plan, const std::string& more) {
  Digest digest;
  digest.bytes("pawl workers 1");
  add_view(view, digest);
  add_plan(plan, digest);
  digest.bytes(more);
  return digest.words();
}

}  // namespace pawl::checkpoint
