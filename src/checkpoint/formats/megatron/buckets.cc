#include "checkpoint/formats/megatron/buckets.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/megatron/parameter_names.h"
#include "checkpoint/reshape/cast.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kAlignment = 64;       // elements, of a parameter's begin in a bucket
constexpr std::uint64_t kKeyElements = 16;     // by which a parameter is looked up
constexpr std::uint64_t kProofElements = 256;  // of its begin and of its end, which then have to be equal
constexpr std::uint64_t kComparisonsMax = 1'000'000;

// What one tensor-parallel rank holds of a weight, as it lies in that rank's memory: the parts one after another.
struct LocalShard {
  std::uint32_t tensor = 0;
  std::uint32_t rank = 0;   // of `ranks` that share the tensor
  std::uint32_t ranks = 1;  // 1: each rank has all of it
  std::vector<StoredPiece> parts;
  std::uint64_t elements = 0;
  std::string begin;  // kProofElements or fewer, of the first part
  std::string end;    // likewise, of the last part
  std::uint32_t placed = 0;
  std::uint64_t buffer = 0;  // the last one that it was found in, counted from 1
};

struct BucketPlace {
  std::uint32_t shard = 0;
  std::size_t bucket = 0;  // index in buckets_
  std::uint64_t begin = 0;
  std::uint32_t copy = 0;
};

struct Bucket {
  std::string buffer;
  std::uint64_t number = 0;
  std::vector<StoredTensor> tensors;  // by role; pieces in the order of the elements
  std::size_t param = 0;              // which one holds the weights
};

// The copy-0 pieces of a weight in the order of the one dimension that they are cut along; empty where they aren't.
std::vector<StoredPiece> cuts_of(const StoredTensor& weight) {
  std::vector<StoredPiece> pieces;
  for (const StoredPiece& piece : weight.pieces)
    if (piece.copy == 0 && piece.version == 0) pieces.push_back(piece);
  if (pieces.empty() || weight.versions != 1) return {};
  for (std::uint32_t d = 0; d < weight.shape.size(); ++d) {
    std::ranges::sort(pieces, {}, [&](const StoredPiece& piece) { return piece.box.begin[d]; });
    Box expected = whole_box(weight.shape);
    expected.size[d] = pieces[0].box.size[d];
    bool fits = pieces.size() * expected.size[d] == weight.shape[d];
    for (std::size_t i = 0; fits && i < pieces.size(); ++i) {
      expected.begin[d] = i * expected.size[d];
      fits = pieces[i].box == expected;
    }
    if (fits) return pieces;
  }
  return weight.shape.empty() && pieces.size() == 1 ? pieces : std::vector<StoredPiece>();
}

bool is_dense(const StoredPiece& piece) {
  std::uint64_t step = 1;
  for (std::uint32_t d = piece.box.dimensions; d-- > 0; step *= piece.box.size[d])
    if (piece.box.size[d] > 1 && piece.stride[d] != step) return false;
  return !piece.swapped;
}

std::uint64_t aligned(std::uint64_t at) {
  return (at + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

class BucketPlacer {
 public:
  BucketPlacer(const CheckpointView& view, const std::vector<std::unique_ptr<ByteSource>>& sources)
      : view_(view), sources_(sources) {}

  Status add_buckets(std::vector<BucketTensor> tensors);
  Status add_weights();
  Status place_all();
  Result<std::vector<StoredTensor>> states();
  [[nodiscard]] std::uint64_t told_by_order() const { return told_by_order_; }
  [[nodiscard]] std::uint64_t without_state() const;

 private:
  Status add_shards(std::uint32_t tensor, const std::vector<StoredPiece>& cuts, bool is_gated);
  Status place_bucket(std::size_t bucket);
  Result<std::vector<std::uint32_t>> matches(const Bucket& bucket, std::uint64_t at);
  Result<bool> is_equal(const Bucket& bucket, std::uint64_t at, LocalShard& shard);
  Result<std::uint32_t> choose(std::vector<std::uint32_t> candidates, const std::string& where);
  Result<std::string> read_flat(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t count);
  Result<std::string> read_as(const Bucket& bucket, std::uint64_t begin, std::uint64_t count, ElementType type);
  Result<std::string> read_weight(const LocalShard& shard, const StoredPiece& part, bool from_end, std::uint64_t count);
  void append_state(const StoredTensor& flat, const BucketPlace& place, StoredTensor& out) const;

  using Class = std::pair<ElementType, std::uint64_t>;  // what is looked up: so many elements of that type
  const CheckpointView& view_;
  const std::vector<std::unique_ptr<ByteSource>>& sources_;
  std::vector<Bucket> buckets_;
  std::vector<LocalShard> shards_;
  std::map<Class, std::unordered_map<std::string, std::vector<std::uint32_t>>> found_by_;
  std::vector<std::uint32_t> order_;   // of each tensor: where it stands in the model
  std::vector<std::uint32_t> before_;  // at each place in that order: the weight right before it, of its kind
  std::vector<BucketPlace> places_;
  std::uint64_t comparisons_ = 0;
  std::uint64_t told_by_order_ = 0;
  std::uint64_t buffer_count_ = 0;
  // Of the buffer that is walked: the shard before, and the tensor-parallel rank that it belongs to.
  std::optional<std::uint32_t> previous_;
  std::map<std::uint32_t, std::uint32_t> rank_of_;  // by number of ranks
};

std::optional<BucketTensor> parse_bucket_key(std::string_view key) {
  constexpr std::string_view kMark = ".bucket_idx_";
  const std::size_t at = key.rfind(kMark);
  if (at == std::string_view::npos || key.find("dp_group_idx_") == std::string_view::npos) return std::nullopt;
  const std::string_view rest = key.substr(at + kMark.size());
  const std::size_t dot = rest.find('.');
  BucketTensor out;
  if (dot == std::string_view::npos || !parse_number(rest.substr(0, dot), out.bucket)) return std::nullopt;
  out.buffer = key.substr(0, at);
  out.tensor.name = key;
  out.tensor.role = rest.substr(dot + 1);
  return out;
}

Status BucketPlacer::add_buckets(std::vector<BucketTensor> tensors) {
  std::ranges::stable_sort(tensors, [](const BucketTensor& a, const BucketTensor& b) {
    return std::pair(std::string_view(a.buffer), a.bucket) < std::pair(std::string_view(b.buffer), b.bucket);
  });
  for (BucketTensor& each : tensors) {
    StoredTensor& tensor = each.tensor;
    std::erase_if(tensor.pieces, [](const StoredPiece& piece) { return piece.copy != 0; });
    std::ranges::sort(tensor.pieces, {}, [](const StoredPiece& piece) { return piece.box.begin[0]; });
    std::uint64_t end = 0;
    for (const StoredPiece& piece : tensor.pieces) {
      if (piece.box.begin[0] != end || !is_dense(piece))
        return Error{Code::corrupt, text(tensor.name, ": elements from ", end, " on are missing")};
      end += piece.box.size[0];
    }
    if (tensor.shape.size() != 1 || tensor.shape[0] != end)
      return Error{Code::corrupt, text(tensor.name, ' ', text_of(tensor.shape), ": ", end, " elements are there")};
    if (buckets_.empty() || buckets_.back().buffer != each.buffer || buckets_.back().number != each.bucket)
      buckets_.push_back({each.buffer, each.bucket, {}, 0});
    Bucket& bucket = buckets_.back();
    if (!bucket.tensors.empty() && bucket.tensors[0].shape != tensor.shape)
      return Error{Code::corrupt, text(tensor.name, ": it is as long as ", bucket.tensors[0].name, " is not")};
    if (tensor.role == "param") bucket.param = bucket.tensors.size();
    bucket.tensors.push_back(std::move(tensor));
  }
  for (const Bucket& bucket : buckets_)
    if (bucket.tensors[bucket.param].role != "param")
      return Error{Code::invalid, text(bucket.buffer, " bucket ", bucket.number, " has no copy of the weights")};
  return {};
}

Status BucketPlacer::add_weights() {
  std::unordered_map<std::string_view, std::uint32_t> named;
  std::vector<std::pair<ModelOrder, std::uint32_t>> order;
  for (std::uint32_t i = 0; i < view_.tensors.size(); ++i) {
    const StoredTensor& tensor = view_.tensors[i];
    if (tensor.role != "weight") continue;
    named.emplace(tensor.name, i);
    order.emplace_back(order_of(tensor.name), i);
  }
  std::ranges::sort(order);
  order_.resize(view_.tensors.size());
  std::map<std::pair<bool, ElementType>, std::uint32_t> last;  // buffers hold one kind
  for (const auto& [key, tensor] : order) {
    const std::pair kind(is_expert_name(view_.tensors[tensor].name), view_.tensors[tensor].type);
    order_[tensor] = static_cast<std::uint32_t>(before_.size());
    const auto before = last.find(kind);
    before_.push_back(before == last.end() ? ~0u : before->second);
    last[kind] = tensor;
  }
  for (const auto& [key, tensor] : order) {
    const std::vector<StoredPiece> cuts = cuts_of(view_.tensors[tensor]);
    if (cuts.empty()) continue;  // cut in another way: if a bucket holds it, that will be said there
    const std::string& name = view_.tensors[tensor].name;
    bool is_gated = false;
    if (const std::size_t at = name.rfind(".linear_fc1."); at != std::string::npos) {
      const auto other = named.find(name.substr(0, at) + ".linear_fc2.weight");
      is_gated = other != named.end() && cuts.size() == 2 * cuts_of(view_.tensors[other->second]).size();
    }
    PAWL_TRY(add_shards(tensor, cuts, is_gated));
  }
  return {};
}

// A gated fc1 is cut in two for each rank: the ranks' gates, then their other halves.
Status BucketPlacer::add_shards(std::uint32_t tensor, const std::vector<StoredPiece>& cuts, bool is_gated) {
  const auto ranks = static_cast<std::uint32_t>(is_gated ? cuts.size() / 2 : cuts.size());
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    LocalShard shard;
    shard.tensor = tensor;
    shard.rank = rank;
    shard.ranks = ranks;
    for (std::size_t i = rank; i < cuts.size(); i += ranks) {
      if (!is_dense(cuts[i])) return Error{Code::invalid, text(view_.tensors[tensor].name, " is stored with gaps")};
      shard.parts.push_back(cuts[i]);
      shard.elements += volume(cuts[i].box);
    }
    const ElementType type = view_.tensors[tensor].type;
    if (shard.elements == 0 || size_bits(type) % 8 != 0) continue;
    const std::uint64_t count = std::min(kKeyElements, volume(shard.parts[0].box));
    PAWL_ASSIGN(std::string key, read_weight(shard, shard.parts[0], false, count));
    found_by_[{type, count}][std::move(key)].push_back(static_cast<std::uint32_t>(shards_.size()));
    shards_.push_back(std::move(shard));
  }
  return {};
}

Result<std::string> BucketPlacer::read_weight(const LocalShard& shard, const StoredPiece& part, bool from_end,
                                              std::uint64_t count) {
  const std::uint64_t element = size_bits(view_.tensors[shard.tensor].type) / 8;
  const std::uint64_t first = from_end ? volume(part.box) - count : 0;
  return read_text(*sources_[part.file], part.offset_bytes + first * element, count * element);
}

Result<std::string> BucketPlacer::read_flat(const StoredTensor& tensor, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t element = size_bits(tensor.type) / 8;
  const std::uint64_t end = begin + count;
  std::string out;
  auto piece = std::ranges::upper_bound(tensor.pieces, begin, {},
                                        [](const StoredPiece& p) { return p.box.begin[0] + p.box.size[0]; });
  for (; piece != tensor.pieces.end() && piece->box.begin[0] < end; ++piece) {
    const std::uint64_t from = std::max(begin, piece->box.begin[0]);
    const std::uint64_t to = std::min(end, piece->box.begin[0] + piece->box.size[0]);
    PAWL_ASSIGN(const std::string bytes,
                read_text(*sources_[piece->file], piece->offset_bytes + (from - piece->box.begin[0]) * element,
                          (to - from) * element));
    out += bytes;
  }
  return out;
}

// Elements of a bucket's copy of the weights, rounded to the weights' type; empty where that can't be.
Result<std::string> BucketPlacer::read_as(const Bucket& bucket, std::uint64_t begin, std::uint64_t count,
                                          ElementType type) {
  const StoredTensor& param = bucket.tensors[bucket.param];
  if (param.type != type && !can_cast(param.type, type)) return std::string();
  PAWL_ASSIGN(std::string bytes, read_flat(param, begin, count));
  if (param.type == type) return bytes;
  std::string out(count * size_bits(type) / 8, '\0');
  (void)cast(param.type, std::as_bytes(std::span(bytes)), type, std::as_writable_bytes(std::span(out)));
  return out;
}

Result<bool> BucketPlacer::is_equal(const Bucket& bucket, std::uint64_t at, LocalShard& shard) {
  const ElementType type = view_.tensors[shard.tensor].type;
  const std::uint64_t element = size_bits(type) / 8;
  if (shard.begin.empty()) {
    PAWL_ASSIGN(shard.begin, read_weight(shard, shard.parts.front(), false,
                                         std::min(kProofElements, volume(shard.parts.front().box))));
    PAWL_ASSIGN(shard.end,
                read_weight(shard, shard.parts.back(), true, std::min(kProofElements, volume(shard.parts.back().box))));
  }
  PAWL_ASSIGN(const std::string begin, read_as(bucket, at, shard.begin.size() / element, type));
  if (begin != shard.begin) return false;
  const std::uint64_t count = shard.end.size() / element;
  PAWL_ASSIGN(const std::string end, read_as(bucket, at + shard.elements - count, count, type));
  return end == shard.end;
}

Result<std::vector<std::uint32_t>> BucketPlacer::matches(const Bucket& bucket, std::uint64_t at) {
  const std::uint64_t left = bucket.tensors[bucket.param].shape[0] - at;
  std::vector<std::uint32_t> out;
  for (const auto& [kind, shards] : found_by_) {
    if (kind.second > left) continue;
    PAWL_ASSIGN(const std::string key, read_as(bucket, at, kind.second, kind.first));
    const auto found = shards.find(key);
    if (found == shards.end()) continue;
    for (const std::uint32_t candidate : found->second) {
      LocalShard& shard = shards_[candidate];
      if (shard.elements > left || shard.buffer == buffer_count_) continue;
      if (++comparisons_ > kComparisonsMax)
        return Error{Code::invalid, text(bucket.buffer, ": too many parameters have equal contents")};
      PAWL_ASSIGN(const bool equal, is_equal(bucket, at, shard));
      if (equal) out.push_back(candidate);
    }
  }
  return out;
}

// Of shards with equal contents: the one of this buffer's tensor-parallel rank, and right before the previous one in
// the model's order (buffers are filled from the model's end).
Result<std::uint32_t> BucketPlacer::choose(std::vector<std::uint32_t> candidates, const std::string& where) {
  const bool many = candidates.size() > 1;
  if (many) {
    std::erase_if(candidates, [&](std::uint32_t i) {
      const auto rank = rank_of_.find(shards_[i].ranks);
      return shards_[i].ranks > 1 && rank != rank_of_.end() && rank->second != shards_[i].rank;
    });
  }
  if (candidates.size() > 1 && previous_) {
    const std::uint32_t expected = before_[order_[shards_[*previous_].tensor]];
    std::erase_if(candidates, [&](std::uint32_t i) { return shards_[i].tensor != expected; });
  }
  if (candidates.size() == 1) {
    told_by_order_ += many ? 1 : 0;
    return candidates[0];
  }
  return Error{Code::invalid,
               text(where, many ? " could be several parameters: their contents are equal, and the order of the model "
                                  "doesn't tell them apart"
                                : " is not a parameter of the checkpoint")};
}

Status BucketPlacer::place_bucket(std::size_t index) {
  const Bucket& bucket = buckets_[index];
  const std::uint64_t size = bucket.tensors[bucket.param].shape[0];
  for (std::uint64_t at = 0; at < size;) {
    PAWL_ASSIGN(std::vector<std::uint32_t> candidates, matches(bucket, at));
    const std::string where = text(bucket.buffer, " bucket ", bucket.number, ": what begins at element ", at);
    PAWL_ASSIGN(const std::uint32_t found, choose(std::move(candidates), where));
    LocalShard& shard = shards_[found];
    places_.push_back({found, index, at, shard.placed++});
    shard.buffer = buffer_count_;
    if (shard.ranks > 1) rank_of_.emplace(shard.ranks, shard.rank);
    previous_ = found;
    at = aligned(at + shard.elements);
  }
  return {};
}

Status BucketPlacer::place_all() {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (i == 0 || buckets_[i].buffer != buckets_[i - 1].buffer) {
      ++buffer_count_;
      previous_.reset();
      rank_of_.clear();
    }
    PAWL_TRY(place_bucket(i));
  }
  return {};
}

// What the flat tensor holds of one shard, as boxes of the parameter.
void BucketPlacer::append_state(const StoredTensor& flat, const BucketPlace& place, StoredTensor& out) const {
  std::uint64_t begin = place.begin;
  for (const StoredPiece& part : shards_[place.shard].parts) {
    const Shape local(part.box.size.begin(), part.box.size.begin() + part.box.dimensions);
    const std::uint64_t end = begin + volume(part.box);
    auto piece = std::ranges::upper_bound(flat.pieces, begin, {},
                                          [](const StoredPiece& p) { return p.box.begin[0] + p.box.size[0]; });
    for (; piece != flat.pieces.end() && piece->box.begin[0] < end; ++piece) {
      const std::uint64_t from = std::max(begin, piece->box.begin[0]);
      const std::uint64_t to = std::min(end, piece->box.begin[0] + piece->box.size[0]);
      StoredPiece first = *piece;
      first.offset_bytes += (from - piece->box.begin[0]) * (size_bits(flat.type) / 8);
      first.copy = place.copy;
      const std::size_t at = out.pieces.size();
      append_interval(local, from - begin, to - begin, flat.type, first, out.pieces);
      for (std::size_t i = at; i < out.pieces.size(); ++i)
        for (std::uint32_t d = 0; d < part.box.dimensions; ++d) out.pieces[i].box.begin[d] += part.box.begin[d];
    }
    begin = end;
  }
}

Result<std::vector<StoredTensor>> BucketPlacer::states() {
  std::map<std::pair<std::uint32_t, std::string>, StoredTensor> states;  // of each weight and role
  for (const BucketPlace& place : places_) {
    const std::uint32_t tensor = shards_[place.shard].tensor;
    for (const StoredTensor& flat : buckets_[place.bucket].tensors) {
      const auto [at, is_new] = states.try_emplace({tensor, flat.role});
      StoredTensor& state = at->second;
      if (is_new) {
        state.name = view_.tensors[tensor].name;
        state.role = flat.role == "param" ? "master" : flat.role;
        state.type = flat.type;
        state.shape = view_.tensors[tensor].shape;
      } else if (state.type != flat.type) {
        return Error{Code::invalid, text(flat.name, " is ", name_of(flat.type), "; of ", state.name, ' ',
                                         name_of(state.type), " is there too")};
      }
      append_state(flat, place, state);
    }
  }
  std::vector<StoredTensor> out;
  for (auto& [key, state] : states) out.push_back(std::move(state));
  return out;
}

std::uint64_t BucketPlacer::without_state() const {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(shards_, [](const LocalShard& shard) { return shard.placed == 0; }));
}

Result<std::vector<StoredTensor>> place_buckets(const CheckpointView& view, std::vector<BucketTensor> buckets,
                                                const std::vector<std::unique_ptr<ByteSource>>& sources,
                                                std::vector<std::string>& notes) {
  BucketPlacer placer(view, sources);
  PAWL_TRY(placer.add_buckets(std::move(buckets)));
  PAWL_TRY(placer.add_weights());
  PAWL_TRY(placer.place_all());
  if (placer.told_by_order() != 0)
    notes.push_back(text("optimizer state: ", placer.told_by_order(),
                         " parts of parameters have contents that others have too; Megatron's order told them apart"));
  if (placer.without_state() != 0)
    notes.push_back(text("optimizer state: ", placer.without_state(), " parts of parameters have none: frozen?"));
  return placer.states();
}

}  // namespace pawl::checkpoint
