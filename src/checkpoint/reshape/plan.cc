#include "checkpoint/reshape/plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/reshape/cast.h"
#include "tensor/tiling.h"

namespace pawl::checkpoint {
namespace {

// Sentences about tensors, joined to one error.
class Complaints {
 public:
  void add(std::string_view sentence) { sentences_.add(sentence); }
  [[nodiscard]] bool full() const { return sentences_.full(); }
  [[nodiscard]] Status status(Code code) const {
    if (!sentences_.any()) return {};
    return Error{code, sentences_.sentence()};
  }

 private:
  FirstFew sentences_;
};

PlannedEnd end_of(const TensorPiece& piece, const Box& part) {
  PlannedEnd end{piece.holder, piece.buffer, piece.offset, piece.stride};
  for (std::uint32_t d = 0; d < part.dimensions; ++d)
    end.offset += (part.begin[d] - piece.box.begin[d]) * end.stride[d];
  return end;
}

// The bytes that each holder has given.
class Loads {
 public:
  [[nodiscard]] std::uint64_t of(std::uint32_t holder) const {
    if (holder < kDense) return holder < dense_.size() ? dense_[holder] : 0;
    const auto found = others_.find(holder);
    return found == others_.end() ? 0 : found->second;
  }
  void add(std::uint32_t holder, std::uint64_t bytes) {
    if (holder >= kDense) {
      others_[holder] += bytes;
      return;
    }
    if (holder >= dense_.size()) dense_.resize(std::max<std::size_t>(holder + 1, 2 * dense_.size()));
    dense_[holder] += bytes;
  }

 private:
  static constexpr std::uint32_t kDense = 1 << 20;  // holders are counted from 0, mostly
  std::vector<std::uint64_t> dense_;
  std::unordered_map<std::uint32_t, std::uint64_t> others_;
};

// One tensor's pieces, found by box. Equal boxes of one version stand together: they are replicas.
class PieceIndex {
 public:
  explicit PieceIndex(const std::vector<TensorPiece>& pieces) : pieces_(pieces) {
    along_ = best_dimension();
    sort();
    for (std::uint32_t i = 0; i < order_.size(); ++i) {
      const TensorPiece& piece = pieces_[order_[i]];
      const bool replica =
          i != 0 && piece.version == pieces_[order_[i - 1]].version && piece.box == pieces_[order_[i - 1]].box;
      if (!replica) groups_.push_back({piece.version, begin_along(piece), i});
      longest_ = std::max(longest_, piece.box.dimensions == 0 ? 1 : piece.box.size[along_]);
    }
    groups_.push_back({~0u, 0, static_cast<std::uint32_t>(order_.size())});
  }

  // Calls `found` with the number of each group of replicas whose box meets `box`.
  template <class Found>
  void for_each_meeting(std::uint32_t version, const Box& box, Found found) const {
    const std::uint64_t begin = box.dimensions == 0 ? 0 : box.begin[along_];
    const std::uint64_t end = box.dimensions == 0 ? 1 : begin + box.size[along_];
    const auto from = std::pair(version, begin < longest_ ? 0 : begin - longest_ + 1);
    auto group = std::ranges::lower_bound(groups_.begin(), groups_.end() - 1, from, {},
                                          [](const Group& g) { return std::pair(g.version, g.begin); });
    for (; group != groups_.end() - 1 && group->version == version && group->begin < end; ++group) {
      if (volume(intersection(pieces_[order_[group->first]].box, box)) == 0) continue;
      found(static_cast<std::uint32_t>(group - groups_.begin()));
    }
  }
  // The indices of a group's pieces, holders ascending.
  [[nodiscard]] std::span<const std::uint32_t> replicas(std::uint32_t group) const {
    return std::span(order_).subspan(groups_[group].first, groups_[group + 1].first - groups_[group].first);
  }
  [[nodiscard]] const TensorPiece& piece(std::uint32_t index) const { return pieces_[index]; }
  [[nodiscard]] const Box& box_of(std::uint32_t group) const { return pieces_[order_[groups_[group].first]].box; }

 private:
  struct Group {
    std::uint32_t version = 0;
    std::uint64_t begin = 0;
    std::uint32_t first = 0;  // in order_
  };

  [[nodiscard]] std::uint64_t begin_along(const TensorPiece& piece) const { return piece.box.begin[along_]; }

  void sort() {
    struct Key {
      std::uint32_t version;
      std::uint32_t index;
      std::uint64_t begin;
    };
    std::vector<Key> keys;
    keys.reserve(pieces_.size());
    for (std::uint32_t i = 0; i < pieces_.size(); ++i) keys.push_back({pieces_[i].version, i, begin_along(pieces_[i])});
    const auto rest = [this](const Key& key) {  // holders last: they tell replicas apart
      const TensorPiece& piece = pieces_[key.index];
      return std::tie(piece.box.begin, piece.box.size, piece.holder, piece.buffer, piece.offset);
    };
    std::ranges::sort(keys, [&](const Key& a, const Key& b) {
      if (a.version != b.version) return a.version < b.version;
      if (a.begin != b.begin) return a.begin < b.begin;
      return rest(a) < rest(b);
    });
    order_.reserve(keys.size());
    for (const Key& key : keys) order_.push_back(key.index);
  }

  // The one along which the pieces begin at the most places, so that a search leaves the fewest.
  [[nodiscard]] std::uint32_t best_dimension() const {
    constexpr std::size_t kLooked = 1024;
    std::uint32_t best = 0;
    std::size_t most = 0;
    std::vector<std::uint64_t> begins;
    const std::size_t step = pieces_.size() / kLooked + 1;
    for (std::uint32_t d = 0; !pieces_.empty() && d < pieces_.front().box.dimensions; ++d) {
      begins.clear();
      for (std::size_t i = 0; i < pieces_.size(); i += step) begins.push_back(pieces_[i].box.begin[d]);
      std::ranges::sort(begins);
      const auto count = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
      if (count > most) {
        most = count;
        best = d;
      }
    }
    return best;
  }

  const std::vector<TensorPiece>& pieces_;
  std::vector<std::uint32_t> order_;
  std::vector<Group> groups_;  // and one that ends them
  std::uint32_t along_ = 0;
  std::uint64_t longest_ = 1;  // of any piece, along that dimension
};

// Two pieces of one version and copy that overlap, if any: the second of them.
std::string overlap_in(const std::vector<TensorPiece>& pieces, const Shape& shape) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<Box>> boxes;  // of each version and copy
  for (const TensorPiece& piece : pieces) boxes[{piece.version, piece.copy}].push_back(piece.box);
  for (const auto& [number, list] : boxes) {
    const Tiling tiling = check_tiling(whole_box(shape), list);
    if (tiling.overlap) return text("held twice around ", text_of(list[tiling.overlap->second]));
    if (tiling.undecided) return "held in pieces that cross each other too often";
  }
  return {};
}

struct HashOfBox {
  std::size_t operator()(const Box& box) const {
    std::uint64_t hash = box.dimensions;
    for (std::uint32_t d = 0; d < box.dimensions; ++d) {
      hash = (hash ^ box.begin[d]) * 0x9E37'79B9'7F4A'7C15;
      hash = (hash ^ hash >> 29 ^ box.size[d]) * 0xBF58'476D'1CE4'E5B9;
    }
    return hash ^ hash >> 32;
  }
};

// Covers the pieces of target ranks with those of one source tensor.
class Cover {
 public:
  // `shares`: several target ranks want the same boxes.
  Cover(const PieceIndex& index, const SourceTensor& tensor, bool shares, ReshapeOptions options, Loads& loads)
      : index_(index),
        versions_(tensor.versions),
        dtype_(tensor.dtype),
        shares_(shares),
        options_(options),
        loads_(loads) {}

  // False, and `hole` says where, if a part of `wanted` is held by nobody.
  [[nodiscard]] bool plan(const TensorPiece& wanted, ElementType to, const CopySink& sink, Box& hole) {
    const std::vector<Fragment>* fragments = &fragments_;
    const auto known = shares_ ? known_.find(wanted.box) : known_.end();
    if (known != known_.end()) {
      fragments = &known->second;
    } else {
      fragments_.clear();
      chosen_.clear();
      has_choice_ = false;
      if (!split(wanted.box, wanted.holder, hole)) return false;
      if (shares_ && !has_choice_) fragments = &known_.emplace(wanted.box, fragments_).first->second;
    }
    copy_.tensor = wanted.tensor;
    copy_.from = dtype_;
    copy_.to = to;
    for (const Fragment& fragment : *fragments) emit(wanted, fragment, sink);
    return true;
  }

 private:
  static constexpr std::size_t kLooksMax = 16;  // at replicas, for the least loaded: thousands need not all be seen

  // A part of a wanted box that one group of replicas of each version holds all of.
  struct Fragment {
    Box box;
    std::vector<std::uint32_t> groups;  // of each version
  };

  [[nodiscard]] const TensorPiece& choose(std::span<const std::uint32_t> replicas, std::uint32_t rank) const {
    const auto holder_of = [this](std::uint32_t index) { return index_.piece(index).holder; };
    if (options_.prefer_own_rank) {
      const auto own = std::ranges::lower_bound(replicas, rank, {}, holder_of);
      if (own != replicas.end() && holder_of(*own) == rank) return index_.piece(*own);
    }
    const TensorPiece* best = nullptr;
    std::uint64_t least = 0;
    for (std::size_t i = 0, at = rank % replicas.size(); i < std::min(kLooksMax, replicas.size()); ++i) {
      const TensorPiece& piece = index_.piece(replicas[at]);
      const std::uint64_t load = loads_.of(piece.holder);
      if (best == nullptr || load < least) {
        best = &piece;
        least = load;
      }
      if (++at == replicas.size()) at = 0;
    }
    return *best;
  }

  // The groups of a version that meet the box: in order; but where their boxes overlap, so that there is a choice, the
  // best first.
  std::vector<std::uint32_t> candidates(std::uint32_t version, const Box& box, std::uint32_t rank) {
    std::vector<std::uint32_t> groups;
    std::uint64_t held = 0;
    index_.for_each_meeting(version, box, [&](std::uint32_t group) {
      groups.push_back(group);
      held += volume(intersection(index_.box_of(group), box));
    });
    if (held <= volume(box)) return groups;
    has_choice_ = true;
    std::ranges::stable_sort(groups, {}, [&](std::uint32_t group) {
      const TensorPiece& piece = choose(index_.replicas(group), rank);
      return std::pair(!(options_.prefer_own_rank && piece.holder == rank), loads_.of(piece.holder));
    });
    return groups;
  }

  // Splits the box as the sources of the next version need it, and goes on to the one after it with each part.
  bool split(const Box& box, std::uint32_t rank, Box& hole) {
    if (chosen_.size() == versions_) {
      fragments_.push_back({box, chosen_});
      return true;
    }
    std::vector<Box> missing{box};
    for (const std::uint32_t group : candidates(static_cast<std::uint32_t>(chosen_.size()), box, rank)) {
      std::vector<Box> still;
      for (const Box& left : missing) {
        const Box part = intersection(left, index_.box_of(group));
        if (volume(part) == 0) {
          still.push_back(left);
          continue;
        }
        append_difference(left, part, still);
        chosen_.push_back(group);
        const bool covered = split(part, rank, hole);
        chosen_.pop_back();
        if (!covered) return false;
      }
      missing = std::move(still);
      if (missing.empty()) return true;
    }
    hole = missing.front();
    return false;
  }

  void emit(const TensorPiece& wanted, const Fragment& fragment, const CopySink& sink) {
    copy_.box = fragment.box;
    copy_.sources.clear();
    const std::uint64_t bytes = volume(fragment.box) * size_bits(dtype_) / 8;
    for (const std::uint32_t group : fragment.groups) {
      const TensorPiece& piece = choose(index_.replicas(group), wanted.holder);
      loads_.add(piece.holder, bytes);
      copy_.sources.push_back(end_of(piece, fragment.box));
    }
    copy_.target = end_of(wanted, fragment.box);
    sink(copy_);
  }

  const PieceIndex& index_;
  std::uint32_t versions_;
  ElementType dtype_;
  bool shares_;
  ReshapeOptions options_;
  Loads& loads_;
  bool has_choice_ = false;
  std::vector<std::uint32_t> chosen_;  // groups, for the versions so far
  std::vector<Fragment> fragments_;
  std::unordered_map<Box, std::vector<Fragment>, HashOfBox> known_;
  PlannedCopy copy_;
};

// The least box that has all of them; they are of one tensor, and there is one.
Box box_around(const std::vector<TensorPiece>& pieces) {
  Box around = pieces.front().box;
  for (const TensorPiece& piece : pieces) {
    for (std::uint32_t d = 0; d < around.dimensions; ++d) {
      const std::uint64_t end = std::max(around.begin[d] + around.size[d], piece.box.begin[d] + piece.box.size[d]);
      around.begin[d] = std::min(around.begin[d], piece.box.begin[d]);
      around.size[d] = end - around.begin[d];
    }
  }
  return around;
}

// The box of the scales that a box of the payload needs; nothing if it begins or ends within a block.
std::optional<Box> scales_of(const Box& payload, const Shape& shape, const Shape& block) {
  Box scales = payload;
  for (std::uint32_t d = 0; d < payload.dimensions; ++d) {
    const std::uint64_t end = payload.begin[d] + payload.size[d];
    if (payload.begin[d] % block[d] != 0 || (end % block[d] != 0 && end != shape[d])) return std::nullopt;
    scales.begin[d] = payload.begin[d] / block[d];
    scales.size[d] = (end + block[d] - 1) / block[d] - scales.begin[d];
  }
  return scales;
}

// What speaks against the places of a payload and its scales on the target's ranks; empty: nothing.
std::string fault_of_blocks(const Enumeration& target, std::uint32_t payload, std::uint32_t scales,
                            const Shape& block) {
  const JobTensor& payload_tensor = target.layout().tensors[payload];
  const JobTensor& scale_tensor = target.layout().tensors[scales];
  const Shape& shape = payload_tensor.shape;
  const std::string of_scales =
      text("scaled by ", label_of(scale_tensor.name, scale_tensor.role), ": ", text_of(scale_tensor.shape));
  const bool is_block = block.size() == shape.size() && std::ranges::count(block, std::uint64_t{0}) == 0;
  if (!is_block || shape_of(*scales_of(whole_box(shape), shape, block)) != scale_tensor.shape) {
    return text(of_scales, " in blocks of ", text_of(block), ": these shapes do not go together");
  }
  std::vector<TensorPiece> payloads;
  std::vector<TensorPiece> held;
  target.append_pieces_of_all(payload, {}, payloads);
  target.append_pieces_of_all(scales, {}, held);
  std::map<std::uint32_t, std::vector<Box>> scales_on;  // each rank
  for (const TensorPiece& piece : held) scales_on[piece.holder].push_back(piece.box);
  for (const TensorPiece& piece : payloads) {
    const std::optional<Box> needed = scales_of(piece.box, shape, block);
    const std::string where = text("wanted as ", text_of(piece.box), " on rank ", piece.holder, ", ", of_scales);
    if (!needed) return text(where, ": cut within a block of ", text_of(block));
    std::vector<Box> there;
    for (const Box& box : scales_on[piece.holder]) {
      const Box part = intersection(box, *needed);
      if (volume(part) != 0) there.push_back(part);
    }
    if (there.empty() && piece.box == whole_box(shape)) continue;  // uncut, its scales may be elsewhere: another file
    if (!check_cover(*needed, there).is_exact()) return text(where, ", which that rank does not get for it");
  }
  return {};
}

// What speaks against making a tensor of `type` from `source`; empty: nothing.
std::string fault_of_types(const SourceTensor& source, ElementType type) {
  if (!can_cast(source.dtype, type)) {
    return text(name_of(source.dtype), ' ', text_of(source.shape), " held, ", name_of(type), ' ', text_of(source.shape),
                " wanted: no such cast");
  }
  if (source.versions > 1 && !can_average(source.dtype)) {
    return text(name_of(source.dtype), ' ', text_of(source.shape), " held in ", source.versions,
                " versions: cannot be averaged");
  }
  return {};
}

// What speaks against making `target` from `source`; empty: nothing.
std::string mismatch(const SourceTensor& source, const JobTensor& target) {
  if (source.shape != target.shape) {
    return text(text_of(source.shape), " held, ", text_of(target.shape), " wanted");
  }
  return fault_of_types(source, target.dtype);
}

// What speaks against a plan, by the codes that it is an error of.
struct Faults {
  Complaints cuts;
  Complaints overlaps;
  Complaints holes;
  [[nodiscard]] bool full() const { return cuts.full() || overlaps.full() || holes.full(); }
  [[nodiscard]] Status status() const {
    PAWL_TRY(cuts.status(Code::invalid));
    PAWL_TRY(overlaps.status(Code::corrupt));
    return holes.status(Code::not_found);
  }
};

// Of pieces that are known not to overlap, only those near what is wanted.
void append_held(const ReshapeSource& source, std::uint32_t tensor, const std::vector<TensorPiece>& wanted, bool is_all,
                 std::vector<TensorPiece>& out) {
  if (is_all || !source.disjoint) return source.append_pieces(tensor, out);
  const Box box = box_around(wanted);
  if (source.append_meeting) return source.append_meeting(tensor, box, out);
  source.append_pieces(tensor, out);
  std::erase_if(out, [&](const TensorPiece& piece) { return volume(intersection(piece.box, box)) == 0; });
}

// Covers what is wanted of one tensor. `is_all`: of all ranks.
void plan_tensor(const ReshapeSource& source, std::uint32_t from, ElementType type,
                 const std::vector<TensorPiece>& wanted, bool is_all, ReshapeOptions options, Loads& loads,
                 const CopySink& sink, Faults& faults) {
  const SourceTensor& tensor = source.tensors[from];
  const auto label = [&] { return text(label_of(tensor.name, tensor.role), ": ", text_of(tensor.shape)); };
  if (size_bits(type) % 8 != 0 && wanted.front().box != whole_box(tensor.shape))
    return faults.cuts.add(text(label(), " of ", name_of(type), " elements, which are packed and cannot be cut"));
  std::vector<TensorPiece> held;
  append_held(source, from, wanted, is_all, held);
  const std::string overlap = source.disjoint ? "" : overlap_in(held, tensor.shape);
  if (!overlap.empty()) return faults.overlaps.add(text(label(), ", ", overlap));
  const PieceIndex index(held);
  const bool shares = is_all && std::ranges::any_of(wanted, [](const TensorPiece& piece) { return piece.copy != 0; });
  Cover cover(index, tensor, shares, options, loads);
  for (const TensorPiece& piece : wanted) {
    Box hole;
    if (cover.plan(piece, type, sink, hole)) continue;
    return faults.holes.add(text(label(), " wanted, ", text_of(hole), " held by nobody"));
  }
}

// What speaks against the pieces that are wanted of a tensor; empty: nothing.
std::string fault_of(const SourceTensor& source, const WantedPieces& wanted) {
  if (std::string why = fault_of_types(source, wanted.dtype); !why.empty()) return why;
  for (const TensorPiece& piece : wanted.pieces) {
    if (piece.box.dimensions != source.shape.size())
      return text(text_of(source.shape), " held, ", text_of(piece.box), " wanted");
    if (const Status inside = check_inside(piece.box, source.shape); !inside)
      return text(text_of(source.shape), " held, ", text_of(piece.box), " wanted: ", inside.error().what);
  }
  return {};
}

}  // namespace

Status plan_pieces(const ReshapeSource& source, std::span<const WantedPieces> wanted, const CopySink& sink) {
  Complaints complaints;
  for (const WantedPieces& each : wanted) {
    if (each.source_tensor >= source.tensors.size())
      return Error{Code::invalid, text("tensor ", each.source_tensor, " of ", source.tensors.size(), " is wanted")};
    const SourceTensor& tensor = source.tensors[each.source_tensor];
    if (const std::string why = fault_of(tensor, each); !why.empty())
      complaints.add(text(label_of(tensor.name, tensor.role), ": ", why));
  }
  PAWL_TRY(complaints.status(Code::invalid));
  Loads loads;
  Faults faults;
  for (const WantedPieces& each : wanted) {
    if (faults.full()) break;
    if (each.pieces.empty()) continue;
    plan_tensor(source, each.source_tensor, each.dtype, each.pieces, false, {}, loads, sink, faults);
  }
  return faults.status();
}

ReshapeSource source_of(const Enumeration& enumeration, std::vector<bool> is_alive) {
  ReshapeSource source;
  const JobLayout& layout = enumeration.layout();
  for (std::uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const JobTensor& tensor = layout.tensors[t];
    source.tensors.push_back({tensor.name, tensor.role, tensor.dtype, tensor.shape, enumeration.versions_of(t)});
  }
  const auto alive = std::make_shared<const std::vector<bool>>(std::move(is_alive));
  const auto append = [&enumeration, alive](std::uint32_t tensor, const Box* box, std::vector<TensorPiece>& out) {
    enumeration.append_pieces_of_all(tensor, {box, alive->empty() ? nullptr : alive.get()}, out);
  };
  source.append_pieces = [append](std::uint32_t tensor, std::vector<TensorPiece>& out) {
    append(tensor, nullptr, out);
  };
  source.append_meeting = [append](std::uint32_t tensor, const Box& box, std::vector<TensorPiece>& out) {
    append(tensor, &box, out);
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
  PAWL_TRY(plan.check_blocks());
  return plan;
}

Status ReshapePlan::plan_rank(std::uint32_t rank, const CopySink& sink) const {
  return plan_ranks(rank, 1, sink);
}

Status ReshapePlan::plan_all(const CopySink& sink) const {
  return plan_ranks(0, target_->layout().world, sink);
}

// Payloads whose scales the source knows: on each target rank they end where blocks end, and their scales are there.
Status ReshapePlan::check_blocks() const {
  const std::vector<JobTensor>& tensors = target_->layout().tensors;
  Complaints complaints;
  std::unordered_map<std::string, std::uint32_t> by_label;
  for (std::uint32_t t = 0; t < tensors.size(); ++t) {
    const BlockScales& blocks = source_->tensors[source_of_[t]].scales;
    if (blocks.payload.empty()) continue;
    if (by_label.empty()) {
      for (std::uint32_t i = 0; i < tensors.size(); ++i)
        by_label.emplace(label_of(tensors[i].name, tensors[i].role), i);
    }
    const auto payload = by_label.find(label_of(blocks.payload, tensors[t].role));
    if (payload == by_label.end()) continue;  // nobody wants it
    const std::string why = fault_of_blocks(*target_, payload->second, t, blocks.block);
    if (!why.empty()) complaints.add(text(payload->first, ": ", text_of(tensors[payload->second].shape), ", ", why));
  }
  return complaints.status(Code::invalid);
}

void ReshapePlan::append_wanted(std::uint32_t tensor, std::uint32_t first, std::uint32_t count,
                                std::vector<TensorPiece>& out) const {
  if (count > 1) {
    target_->append_pieces_of_all(tensor, {}, out);
  } else {
    target_->append_pieces(tensor, first, out);
  }
}

// `count` is 1, or all ranks.
Status ReshapePlan::plan_ranks(std::uint32_t first, std::uint32_t count, const CopySink& sink) const {
  Loads loads;
  Faults faults;
  std::vector<TensorPiece> wanted;
  for (std::uint32_t t = 0; t < source_of_.size() && !faults.full(); ++t) {
    wanted.clear();
    append_wanted(t, first, count, wanted);
    if (wanted.empty()) continue;
    plan_tensor(*source_, source_of_[t], target_->layout().tensors[t].dtype, wanted, count > 1, options_, loads, sink,
                faults);
  }
  return faults.status();
}

}  // namespace pawl::checkpoint
