#include "reshape/plan.h"

#include <algorithm>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "reshape/cast.h"

namespace pawl {
namespace {

constexpr std::size_t kNamedMax = 5;  // tensors in one error

// Sentences about tensors, joined to one error.
class Complaints {
 public:
  void add(std::string sentence) {
    if (++count_ <= kNamedMax) what_ += text(what_.empty() ? "" : "; ", sentence);
  }
  [[nodiscard]] bool full() const { return count_ >= kNamedMax; }
  [[nodiscard]] Status status(Code code) const {
    if (count_ == 0) return {};
    return Error{code, count_ <= kNamedMax ? what_ : text(what_, "; and ", count_ - kNamedMax, " more")};
  }

 private:
  std::string what_;
  std::size_t count_ = 0;
};

std::string text_of_box(const Box& box) {
  const Region region = region_of(box);
  return text(text_of(region.shape), " at ", text_of(region.offset));
}

CopyEnd end_of(const TensorPiece& piece, const Box& part) {
  CopyEnd end{piece.holder, piece.buffer, piece.offset, piece.stride};
  for (std::uint32_t d = 0; d < part.dimensions; ++d)
    end.offset += (part.begin[d] - piece.box.begin[d]) * end.stride[d];
  return end;
}

// The bytes that each holder has given.
class Loads {
 public:
  [[nodiscard]] std::uint64_t of(std::uint32_t holder) const {
    const auto found = bytes_.find(holder);
    return found == bytes_.end() ? 0 : found->second;
  }
  void add(std::uint32_t holder, std::uint64_t bytes) { bytes_[holder] += bytes; }

 private:
  std::unordered_map<std::uint32_t, std::uint64_t> bytes_;
};

// One tensor's pieces, found by box. Equal boxes of one version stand together: they are replicas.
class PieceIndex {
 public:
  explicit PieceIndex(std::vector<TensorPiece> pieces) : pieces_(std::move(pieces)) {
    along_ = best_dimension();
    const auto key = [this](const TensorPiece& piece) {  // holders last: they tell replicas apart
      return std::tie(piece.version, piece.box.begin[along_], piece.box.begin, piece.box.size, piece.holder,
                      piece.buffer, piece.offset);
    };
    std::sort(pieces_.begin(), pieces_.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const bool replica =
          i != 0 && pieces_[i].version == pieces_[i - 1].version && pieces_[i].box == pieces_[i - 1].box;
      if (!replica) groups_.push_back(i);
      longest_ = std::max(longest_, size(pieces_[i]));
    }
    groups_.push_back(pieces_.size());
  }

  using Replicas = std::span<const TensorPiece>;

  // Calls `found` with the replicas of each box of `version` that meets `box`, until it returns false.
  template <class Found>
  void for_each_meeting(std::uint32_t version, const Box& box, Found found) const {
    const std::uint64_t begin = box.dimensions == 0 ? 0 : box.begin[along_];
    const std::uint64_t end = box.dimensions == 0 ? 1 : begin + box.size[along_];
    const auto from = std::pair(version, begin < longest_ ? 0 : begin - longest_ + 1);
    auto group = std::lower_bound(groups_.begin(), groups_.end() - 1, from, [&](std::size_t first, const auto& wanted) {
      return std::pair(pieces_[first].version, begin_of(pieces_[first])) < wanted;
    });
    for (; group != groups_.end() - 1; ++group) {
      const TensorPiece& piece = pieces_[*group];
      if (piece.version != version || begin_of(piece) >= end) return;
      if (volume(intersection(piece.box, box)) == 0) continue;
      if (!found(Replicas(&piece, *(group + 1) - *group))) return;
    }
  }

  // Two pieces of one version and copy that overlap, if any.
  [[nodiscard]] const TensorPiece* first_overlap() const {
    const TensorPiece* overlap = nullptr;
    for (std::size_t i = 0; i < pieces_.size() && overlap == nullptr; ++i) {
      const TensorPiece& piece = pieces_[i];
      for_each_meeting(piece.version, piece.box, [&](Replicas replicas) {
        for (const TensorPiece& other : replicas) {
          if (&other != &piece && other.copy == piece.copy) overlap = &other;
        }
        return overlap == nullptr;
      });
    }
    return overlap;
  }

 private:
  [[nodiscard]] std::uint64_t begin_of(const TensorPiece& piece) const { return piece.box.begin[along_]; }
  [[nodiscard]] std::uint64_t size(const TensorPiece& piece) const {
    return piece.box.dimensions == 0 ? 1 : piece.box.size[along_];
  }
  // The one along which the pieces begin at the most places, so that a search leaves the fewest.
  [[nodiscard]] std::uint32_t best_dimension() const {
    std::uint32_t best = 0;
    std::size_t most = 0;
    for (std::uint32_t d = 0; !pieces_.empty() && d < pieces_.front().box.dimensions; ++d) {
      std::vector<std::uint64_t> begins;
      for (const TensorPiece& piece : pieces_) begins.push_back(piece.box.begin[d]);
      std::sort(begins.begin(), begins.end());
      const auto count = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
      if (count > most) {
        most = count;
        best = d;
      }
    }
    return best;
  }

  std::vector<TensorPiece> pieces_;
  std::vector<std::size_t> groups_;  // where each group of replicas begins, and the end
  std::uint32_t along_ = 0;
  std::uint64_t longest_ = 1;  // of any piece, along that dimension
};

// Covers the pieces of target ranks with those of one source tensor.
class Cover {
 public:
  Cover(const PieceIndex& index, const SourceTensor& tensor, ReshapeOptions options, Loads& loads)
      : index_(index), versions_(tensor.versions), dtype_(tensor.dtype), options_(options), loads_(loads) {}

  // False, and `hole` says where, if a part of `wanted` is held by nobody.
  [[nodiscard]] bool plan(const TensorPiece& wanted, ElementType to, const CopySink& sink, Box& hole) {
    ReshapeCopy copy{wanted.tensor, dtype_, to, wanted.box, {}, {}};
    chosen_.clear();
    return plan_version(wanted, copy, sink, hole);
  }

 private:
  static constexpr std::size_t kLooksMax = 16;  // at replicas, for the least loaded: thousands need not all be seen

  [[nodiscard]] const TensorPiece& choose(PieceIndex::Replicas replicas, std::uint32_t rank) const {
    if (options_.prefer_own_rank) {
      const auto own = std::ranges::lower_bound(replicas, rank, {}, &TensorPiece::holder);
      if (own != replicas.end() && own->holder == rank) return *own;
    }
    const TensorPiece* best = nullptr;
    for (std::size_t i = 0; i < std::min(kLooksMax, replicas.size()); ++i) {
      const TensorPiece& piece = replicas[(rank + i) % replicas.size()];
      if (best == nullptr || loads_.of(piece.holder) < loads_.of(best->holder)) best = &piece;
    }
    return *best;
  }

  // The chosen replica of each distinct box that meets `box`: in order; but where the boxes overlap, so that there is a
  // choice, the best first.
  [[nodiscard]] std::vector<const TensorPiece*> candidates(std::uint32_t version, const Box& box,
                                                           std::uint32_t rank) const {
    std::vector<const TensorPiece*> chosen;
    std::uint64_t held = 0;
    index_.for_each_meeting(version, box, [&](PieceIndex::Replicas replicas) {
      chosen.push_back(&choose(replicas, rank));
      held += volume(intersection(chosen.back()->box, box));
      return true;
    });
    const auto cost = [&](const TensorPiece* piece) {
      return std::pair(!(options_.prefer_own_rank && piece->holder == rank), loads_.of(piece->holder));
    };
    if (held > volume(box)) std::ranges::stable_sort(chosen, {}, cost);
    return chosen;
  }

  void emit(const TensorPiece& wanted, ReshapeCopy& copy, const CopySink& sink) const {
    copy.sources.clear();
    for (const TensorPiece* piece : chosen_) copy.sources.push_back(end_of(*piece, copy.box));
    copy.target = end_of(wanted, copy.box);
    sink(copy);
  }

  // Finds the next version of copy.box, split as its sources need it, and goes on to the one after it with each part.
  bool plan_version(const TensorPiece& wanted, ReshapeCopy& copy, const CopySink& sink, Box& hole) {
    if (chosen_.size() == versions_) {
      emit(wanted, copy, sink);
      return true;
    }
    std::vector<Box> missing{copy.box};
    for (const TensorPiece* piece : candidates(static_cast<std::uint32_t>(chosen_.size()), copy.box, wanted.holder)) {
      std::vector<Box> still;
      for (const Box& box : missing) {
        const Box part = intersection(box, piece->box);
        if (volume(part) == 0) {
          still.push_back(box);
          continue;
        }
        append_difference(box, part, still);
        loads_.add(piece->holder, volume(part) * size_bits(dtype_) / 8);
        chosen_.push_back(piece);
        copy.box = part;
        const bool covered = plan_version(wanted, copy, sink, hole);
        chosen_.pop_back();
        if (!covered) return false;
      }
      missing = std::move(still);
      if (missing.empty()) return true;
    }
    hole = missing.front();
    return false;
  }

  const PieceIndex& index_;
  std::uint32_t versions_;
  ElementType dtype_;
  ReshapeOptions options_;
  Loads& loads_;
  std::vector<const TensorPiece*> chosen_;  // for the versions so far
};

// What speaks against making `target` from `source`; empty: nothing.
std::string mismatch(const SourceTensor& source, const JobTensor& target) {
  if (source.shape != target.shape) {
    return text(text_of(source.shape), " held, ", text_of(target.shape), " wanted");
  }
  if (!can_cast(source.dtype, target.dtype)) {
    return text(name_of(source.dtype), ' ', text_of(source.shape), " held, ", name_of(target.dtype), ' ',
                text_of(target.shape), " wanted: no such cast");
  }
  if (source.versions > 1 && !can_average(source.dtype)) {
    return text(name_of(source.dtype), ' ', text_of(source.shape), " held in ", source.versions,
                " versions: cannot be averaged");
  }
  return {};
}

}  // namespace

ReshapeSource source_of(const Enumeration& enumeration, std::vector<bool> is_alive) {
  ReshapeSource source;
  const JobLayout& layout = enumeration.layout();
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const JobTensor& tensor = layout.tensors[t];
    source.tensors.push_back({tensor.name, tensor.role, tensor.dtype, tensor.shape, enumeration.versions_of(t)});
  }
  source.append_pieces = [&enumeration, is_alive = std::move(is_alive)](std::uint32_t tensor,
                                                                        std::vector<TensorPiece>& out) {
    for (std::uint32_t rank = 0; rank < enumeration.layout().world; ++rank) {
      if (is_alive.empty() || is_alive[rank]) enumeration.append_pieces(tensor, rank, out);
    }
  };
  source.disjoint = true;
  return source;
}

Result<ReshapePlan> ReshapePlan::create(const ReshapeSource& source, const Enumeration& target,
                                        ReshapeOptions options) {
  std::unordered_map<std::string, std::uint32_t> unused;
  Complaints complaints;
  for (std::uint32_t s = 0; s < source.tensors.size(); ++s) {
    const SourceTensor& tensor = source.tensors[s];
    const std::string label = label_of(tensor.name, tensor.role);
    if (!unused.emplace(label, s).second) complaints.add(text(label, ": held twice"));
  }
  ReshapePlan plan(source, target, options);
  for (const JobTensor& tensor : target.layout().tensors) {
    const std::string label = label_of(tensor.name, tensor.role);
    const auto found = unused.find(label);
    if (found == unused.end()) {
      complaints.add(text(label, ": ", text_of(tensor.shape), " wanted, none held"));
      continue;
    }
    const std::string why = mismatch(source.tensors[found->second], tensor);
    if (!why.empty()) complaints.add(text(label, ": ", why));
    plan.source_of_.push_back(found->second);
    unused.erase(found);
  }
  for (const SourceTensor& tensor : source.tensors) {
    const std::string label = label_of(tensor.name, tensor.role);
    if (!options.may_drop_tensors && unused.contains(label)) {
      complaints.add(text(label, ": ", text_of(tensor.shape), " held, none wanted"));
    }
  }
  PAWL_TRY(complaints.status(Code::invalid));
  return plan;
}

Status ReshapePlan::plan_rank(std::uint32_t rank, const CopySink& sink) const {
  return plan_ranks(rank, 1, sink);
}

Status ReshapePlan::plan_all(const CopySink& sink) const {
  return plan_ranks(0, target_->layout().world, sink);
}

Status ReshapePlan::plan_ranks(std::uint32_t first, std::uint32_t count, const CopySink& sink) const {
  Loads loads;
  Complaints overlaps;
  Complaints holes;
  for (std::uint32_t t = 0; t < source_of_.size() && !overlaps.full() && !holes.full(); ++t) {
    std::vector<TensorPiece> wanted;
    for (std::uint32_t rank = first; rank < first + count; ++rank) target_->append_pieces(t, rank, wanted);
    if (wanted.empty()) continue;
    const JobTensor& tensor = target_->layout().tensors[t];
    const std::string label = label_of(tensor.name, tensor.role);
    std::vector<TensorPiece> held;
    source_->append_pieces(source_of_[t], held);
    const PieceIndex index(std::move(held));
    if (const TensorPiece* overlap = source_->disjoint ? nullptr : index.first_overlap(); overlap != nullptr) {
      overlaps.add(text(label, ": ", text_of(tensor.shape), ", held twice around ", text_of_box(overlap->box)));
      continue;
    }
    Cover cover(index, source_->tensors[source_of_[t]], options_, loads);
    for (const TensorPiece& piece : wanted) {
      Box hole;
      if (cover.plan(piece, tensor.dtype, sink, hole)) continue;
      holes.add(text(label, ": ", text_of(tensor.shape), " wanted, ", text_of_box(hole), " held by nobody"));
      break;
    }
  }
  PAWL_TRY(overlaps.status(Code::corrupt));
  return holes.status(Code::not_found);
}

}  // namespace pawl
