#include "checkpoint/reshape/plan_cache.h"

#include <string>

#include "base/digest.h"

namespace pawl::checkpoint {
namespace {

// FNV-1a, as of layouts' texts, but by whole numbers.
class Digest {
 public:
  void add(std::uint64_t number) {
    value_ = (value_ ^ number) * 0x0000'0100'0000'01B3;
    value_ ^= value_ >> 32;
  }
  void add(const std::string& text) {
    add(text.size());
    add(pawl::digest_of(std::string_view(text)));
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 0xCBF2'9CE4'8422'2325;
};

void add_piece(Digest& digest, const StoredPiece& piece) {
  for (std::uint32_t d = 0; d < piece.box.dimensions; ++d) {
    digest.add(piece.box.begin[d]);
    digest.add(piece.box.size[d]);
    digest.add(piece.stride[d]);
  }
  for (const std::uint64_t number : {std::uint64_t{piece.file}, piece.offset_bytes, std::uint64_t{piece.swapped},
                                     std::uint64_t{piece.version}, std::uint64_t{piece.copy}}) {
    digest.add(number);
  }
}

}  // namespace

std::uint64_t digest_of(const CheckpointView& view) {
  Digest digest;
  digest.add(view.files.size());
  for (const StoredFile& file : view.files) {
    digest.add(file.path);
    for (const std::uint64_t number :
         {static_cast<std::uint64_t>(file.codec), file.offset_bytes, file.length_bytes, file.decoded_bytes}) {
      digest.add(number);
    }
    digest.add(file.content);
  }
  for (const StoredTensor& tensor : view.tensors) {
    digest.add(tensor.name);
    digest.add(tensor.role);
    digest.add(static_cast<std::uint64_t>(tensor.type));
    digest.add(tensor.versions);
    digest.add(tensor.shape.size());
    for (const std::uint64_t extent : tensor.shape) digest.add(extent);
    digest.add(tensor.scales.payload);
    for (const std::uint64_t extent : tensor.scales.block) digest.add(extent);
    digest.add(tensor.pieces.size());
    for (const StoredPiece& piece : tensor.pieces) add_piece(digest, piece);
  }
  return digest.value();
}

std::uint64_t digest_of(const JobLayout& layout, const std::vector<bool>& is_alive) {
  Digest digest;
  digest.add(digest_of(layout));
  for (std::size_t rank = 0; rank < is_alive.size(); ++rank) {
    if (!is_alive[rank]) digest.add(rank + 1);
  }
  return digest.value();
}

Result<PlanCache::Copies> PlanCache::plan_rank(const Key& key, const std::function<Result<ReshapePlan>()>& make) {
  const PlanCache::Digest digest{key.source, key.target, key.rank, key.options.may_drop_tensors,
                                 key.options.prefer_own_rank};
  if (const auto found = by_digest_.find(digest); found != by_digest_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);
    return entries_.front().copies;
  }
  PAWL_ASSIGN(const ReshapePlan plan, make());
  auto copies = std::make_shared<std::vector<PlannedCopy>>();
  PAWL_TRY(plan.plan_rank(key.rank, [&](const PlannedCopy& copy) { copies->push_back(copy); }));
  copies_ += copies->size();
  entries_.push_front({digest, std::move(copies)});
  by_digest_[digest] = entries_.begin();
  while (copies_ > copies_max_ && entries_.size() > 1) {
    copies_ -= entries_.back().copies->size();
    by_digest_.erase(entries_.back().digest);
    entries_.pop_back();
  }
  return entries_.front().copies;
}

}  // namespace pawl::checkpoint
