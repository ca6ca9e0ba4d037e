// FSDP1's flat parameters, as LOCAL_STATE_DICT saves them: of each wrapped module's parameters, joined, padded and cut
// in equal parts, each rank's part ("layers.0._flat_param"): a ShardedTensor, which says where its part begins, or a
// plain tensor, and then parts stand in the order of the ranks. With use_orig_params the parameters stand beside it by
// name, each as the part of it that the rank's interval met, without a dimension. Shapes are nowhere in such files.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/formats/torch/rank_files_join.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kFlat = "_flat_param";
constexpr std::size_t kNameBytesLooked = 4096;
constexpr std::uint64_t kAlignBytes = 16;  // of parameters that keep their names: each begins at a multiple

struct Flat {
  std::size_t item = 0;
  std::string prefix;                // "layers.0."
  std::vector<std::uint64_t> begin;  // of each rank's part in the whole
  std::vector<std::uint64_t> size;
  std::vector<std::uint32_t> copy;  // how many ranks before it hold the same part
  std::uint64_t total = 0;
  std::vector<std::size_t> named;  // items that may be its parameters, in the model's order
};

std::uint64_t extent(const TorchPart& part) {
  return part.shape.empty() ? 0 : part.shape[0];
}

// A part of one dimension with a unit stride, or nothing of it.
bool is_interval(const JoinPart& part) {
  return part.part->shape.size() == 1 && part.part->layout.empty() &&
         (part.part->pieces.empty() || part.part->pieces[0].stride[0] == 1 || part.part->shape[0] == 1);
}

std::string container_of(const JoinItem& item) {
  return key_of(std::span<const PathStep>(item.path.data(), item.path.size() - 1));
}

// The flat parameters of one dict, found by what they begin with.
struct FlatSet {
  std::vector<Flat> flats;
  std::unordered_map<std::string, std::size_t> by_prefix;
  std::unordered_map<std::string, std::size_t> by_bare_prefix;
};

// The one with the longest prefix of the name. Prefixes are empty or end with a dot.
std::size_t owner_of(const std::unordered_map<std::string, std::size_t>& prefixes, std::string_view name) {
  if (name.size() > kNameBytesLooked) return kNoItem;
  for (std::size_t end = name.rfind('.'); end != std::string_view::npos; end = name.rfind('.', end - 1)) {
    if (const auto at = prefixes.find(std::string(name.substr(0, end + 1))); at != prefixes.end()) return at->second;
    if (end == 0) break;
  }
  const auto at = prefixes.find(std::string());
  return at == prefixes.end() ? kNoItem : at->second;
}

class FlatJoiner {
 public:
  FlatJoiner(Join& join, const std::optional<ParameterNames>& given) : join_(join) {
    if (!given) return;
    add_given(*given);
    for (const ParameterNames& each : given->optimizers) add_given(each);
  }
  Status run();

 private:
  void add_given(const ParameterNames& given) {
    for (const std::vector<ParameterNames::Entry>& section : given.sections)
      for (const ParameterNames::Entry& entry : section) {
        given_.emplace(bare_name(entry.name), entry.shape);
        order_.push_back(bare_name(entry.name));
      }
  }
  void find();
  void find_named();
  Status join(Flat& flat);
  Status join_named(Flat& flat);
  Status join_one(JoinItem& item, const Flat& flat, std::uint64_t begin);
  Status give_shape(JoinItem& item);
  Status unflatten(const Flat& flat, const std::vector<std::string>& names);
  Result<StoredTensor> shaped(StoredTensor tensor, const Shape& shape) const;
  Status place_parts(Flat& flat) const;
  Result<StoredTensor> concatenated(const JoinItem& item, const std::vector<std::uint64_t>& begin,
                                    const std::vector<std::uint32_t>& copy, std::uint64_t total);

  Join& join_;
  std::unordered_map<std::string, std::optional<Shape>> given_;
  std::vector<std::string> order_;
  std::map<std::string, FlatSet> flats_;  // by their dict
  std::vector<std::string> unshaped_;
};

void FlatJoiner::find() {
  for (std::size_t i = 0; i < join_.items.size(); ++i) {
    const JoinItem& item = join_.items[i];
    if (item.in_optimizer || item.path.empty() || !is_flat_parameter(*item.parts[0].part)) continue;
    const std::string& name = item.path.back().text;
    Flat flat;
    flat.item = i;
    flat.prefix = name.substr(0, name.size() - kFlat.size());
    FlatSet& set = flats_[container_of(item)];
    set.by_prefix.emplace(flat.prefix, set.flats.size());
    set.by_bare_prefix.emplace(bare_name(flat.prefix), set.flats.size());
    set.flats.push_back(std::move(flat));
  }
}

// A name belongs to the flat parameter with the longest prefix of it.
void FlatJoiner::find_named() {
  for (std::size_t i = 0; i < join_.items.size(); ++i) {
    const JoinItem& item = join_.items[i];
    if (item.in_optimizer || item.path.empty() || is_flat_parameter(*item.parts[0].part)) continue;
    const auto at = flats_.find(container_of(item));
    if (at == flats_.end()) continue;
    const std::size_t index = owner_of(at->second.by_prefix, item.path.back().text);
    Flat* owner = index == kNoItem ? nullptr : &at->second.flats[index];
    const bool all = owner != nullptr && item.parts.size() == join_.items[owner->item].parts.size() &&
                     std::ranges::all_of(item.parts, is_interval) &&
                     item.parts[0].part->type == join_.items[owner->item].parts[0].part->type;
    if (all) owner->named.push_back(i);
  }
}

Result<StoredTensor> FlatJoiner::concatenated(const JoinItem& item, const std::vector<std::uint64_t>& begin,
                                              const std::vector<std::uint32_t>& copy, std::uint64_t total) {
  StoredTensor out;
  out.name = name_of(item.path);
  out.type = item.parts[0].part->type;
  out.shape = {total};
  for (std::size_t r = 0; r < item.parts.size(); ++r) {
    const JoinPart& part = item.parts[r];
    if (part.part->type != out.type) return Error{Code::corrupt, text(out.name, ": its ranks have several types")};
    for (StoredPiece piece : part.part->pieces) {
      piece.box.begin[0] = begin[r];
      piece.copy = copy[r];
      piece.file = join_.view_file(part.state, piece.file);
      piece.rank = join_.ranks[part.state].rank;
      out.pieces.push_back(piece);
    }
  }
  return out;
}

Result<StoredTensor> FlatJoiner::shaped(StoredTensor tensor, const Shape& shape) const {
  if (shape.empty()) return drop_dimension(std::move(tensor), 0);
  for (std::size_t d = 0; d + 1 < shape.size(); ++d) {
    std::uint64_t inner = 1;
    for (std::size_t after = d + 1; after < shape.size(); ++after) inner *= shape[after];
    PAWL_ASSIGN(tensor, split_dimension(std::move(tensor), static_cast<std::uint32_t>(d), inner));
  }
  return tensor;
}

Status FlatJoiner::place_parts(Flat& flat) const {
  const JoinItem& item = join_.items[flat.item];
  const std::string name = name_of(item.path);
  const bool is_sharded = !item.parts[0].part->layout.empty();
  for (const JoinPart& part : item.parts) {
    const Shape& shape = part.part->shape;
    const std::vector<StoredPiece>& pieces = part.part->pieces;
    if (part.part->layout.empty() == is_sharded || shape.size() != 1 || pieces.size() > 1 ||
        (pieces.size() == 1 && pieces[0].box.size[0] > 1 && pieces[0].stride[0] != 1))
      return Error{Code::corrupt, text(name, ": not a flat parameter's part on ", rank_label(join_.ranks[part.state]))};
    if (is_sharded) {
      if (shape != item.parts[0].part->shape)
        return Error{Code::corrupt,
                     text(name, ": it is ", text_of(item.parts[0].part->shape), " and ", text_of(shape))};
      flat.total = shape[0];
      flat.begin.push_back(pieces.empty() ? shape[0] : pieces[0].box.begin[0]);
      flat.size.push_back(pieces.empty() ? 0 : pieces[0].box.size[0]);
      continue;
    }
    if (!flat.size.empty() && shape[0] > flat.size.back())
      return Error{Code::corrupt,
                   text(name, ": ", rank_label(join_.ranks[part.state]), " has more of it than the rank before")};
    flat.begin.push_back(flat.total);
    flat.size.push_back(shape[0]);
    if (__builtin_add_overflow(flat.total, shape[0], &flat.total) || flat.total >> 60 != 0)
      return Error{Code::corrupt, text(name, ": its parts are too long")};
  }
  return {};
}

Status FlatJoiner::join(Flat& flat) {
  PAWL_TRY(place_parts(flat));
  std::map<std::uint64_t, std::uint32_t> copies;  // by begin: parts that begin together are the same
  for (std::size_t r = 0; r < flat.size.size(); ++r)
    flat.copy.push_back(flat.size[r] == 0 ? 0 : copies[flat.begin[r]]++);
  JoinItem& item = join_.items[flat.item];
  PAWL_ASSIGN(item.made, concatenated(item, flat.begin, flat.copy, flat.total));
  return {};
}

Status FlatJoiner::give_shape(JoinItem& item) {
  const auto given = given_.find(bare_name(item.path.back().text));
  if (given == given_.end() || !given->second) {
    unshaped_.push_back(name_of(item.path));
    return {};
  }
  PAWL_ASSIGN(const std::uint64_t count, element_count(*given->second));
  if (count != item.made->shape[0])
    return Error{Code::invalid, text("--param-names: ", given->first, " would be ", text_of(*given->second),
                                     ", and has ", item.made->shape[0], " elements")};
  PAWL_ASSIGN(item.made, shaped(std::move(*item.made), *given->second));
  return {};
}

// Where a name's elements begin in the whole is known from the names before it. A name whose parts are not what the
// ranks' intervals would cut is a buffer, of which every rank has a copy.
Status FlatJoiner::join_named(Flat& flat) {
  const ElementType type = join_.items[flat.item].parts[0].part->type;
  const std::uint64_t align = std::max<std::uint64_t>(1, kAlignBytes * 8 / size_bits(type));
  std::uint64_t next = 0;
  for (const std::size_t index : flat.named) {
    JoinItem& item = join_.items[index];
    const std::uint64_t begin = (next + align - 1) / align * align;
    std::uint64_t count = 0;
    for (std::size_t r = 0; r < item.parts.size(); ++r)
      if (flat.copy[r] == 0 && __builtin_add_overflow(count, extent(*item.parts[r].part), &count))
        return Error{Code::corrupt, "too many elements"};
    bool is_cut = count <= flat.total && begin <= flat.total - count;
    std::vector<std::uint64_t> at;
    for (std::size_t r = 0; is_cut && r < item.parts.size(); ++r) {
      const std::uint64_t from = std::clamp(flat.begin[r], begin, begin + count);
      const std::uint64_t to = std::clamp(flat.begin[r] + flat.size[r], begin, begin + count);
      is_cut = to - from == extent(*item.parts[r].part);
      at.push_back(from - begin);
    }
    if (!is_cut) continue;
    next = begin + count;
    PAWL_ASSIGN(item.made, concatenated(item, at, flat.copy, count));
    PAWL_TRY(give_shape(item));
  }
  if (next == 0) return {};
  const std::uint64_t ranks = flat.size.size();
  if (flat.total - next >= align + ranks)
    return Error{Code::corrupt, text(name_of(join_.items[flat.item].path), " has ", flat.total, " elements, and its ",
                                     "parameters ", next, ": names are missing, or not in the model's order")};
  join_.items[flat.item].is_taken = true;
  return {};
}

// Without names beside it: those given below its prefix, if they make up all of it.
Status FlatJoiner::unflatten(const Flat& flat, const std::vector<std::string>& names) {
  const JoinItem item = join_.items[flat.item];
  std::uint64_t total = 0;
  const std::string prefix = bare_name(flat.prefix);
  for (const std::string& name : names) {
    if (!given_[name]) {
      unshaped_.push_back(name_of(item.path));
      return {};
    }
    PAWL_ASSIGN(const std::uint64_t count, element_count(*given_[name]));
    if (__builtin_add_overflow(total, count, &total)) return Error{Code::invalid, "--param-names: too many elements"};
  }
  if (names.empty()) {
    unshaped_.push_back(name_of(item.path));
    return {};
  }
  if (total != item.made->shape[0])
    return Error{Code::invalid, text("--param-names: the names below ", prefix.empty() ? "the top" : prefix, " have ",
                                     total, " elements, and ", name_of(item.path), " has ", item.made->shape[0])};
  std::uint64_t begin = 0;
  for (const std::string& name : names) {
    const Shape& shape = *given_[name];
    PAWL_ASSIGN(const std::uint64_t count, element_count(shape));
    JoinItem made;
    made.path = item.path;
    made.path.back().text = name;
    made.parts = item.parts;
    PAWL_ASSIGN(StoredTensor flat_tensor, select(*item.made, 0, {{begin, count}}));
    PAWL_ASSIGN(made.made, shaped(std::move(flat_tensor), shape));
    begin += count;
    join_.items.push_back(std::move(made));
  }
  join_.items[flat.item].is_taken = true;
  return {};
}

Status FlatJoiner::run() {
  find();
  if (flats_.empty()) return {};
  find_named();
  for (auto& [container, set] : flats_)
    for (Flat& flat : set.flats) {
      PAWL_TRY(join(flat));
      PAWL_TRY(join_named(flat));
    }
  for (auto& [container, set] : flats_) {
    std::vector<std::vector<std::string>> names(set.flats.size());  // below each, in the model's order
    for (const std::string& name : order_)
      if (const std::size_t owner = owner_of(set.by_bare_prefix, name); owner != kNoItem) names[owner].push_back(name);
    for (std::size_t i = 0; i < set.flats.size(); ++i) {
      if (join_.items[set.flats[i].item].is_taken) continue;
      PAWL_TRY(unflatten(set.flats[i], names[i]));
    }
  }
  if (unshaped_.empty()) return {};
  const bool alone = join_.ranks.size() == 1;
  join_.view.problems.push_back(
      text("FSDP's LOCAL_STATE_DICT: ", unshaped_.size(), " tensors (", unshaped_[0], ", ...) are flat",
           alone ? ", and this may be one rank's part of them: open the folder of all ranks. " : ". ",
           "Their shapes are not in these files: pass them with --param-names FILE, one line \"name 24x24\" for each "
           "parameter in the model's order, or save with FULL_STATE_DICT or SHARDED_STATE_DICT"));
  return {};
}

}  // namespace

bool is_flat_parameter(const TorchPart& part) {
  if (part.path.empty()) return false;
  const std::string& name = part.path.back().text;
  return name == kFlat || name.ends_with("._flat_param");
}

Status join_flat(Join& join, const std::optional<ParameterNames>& names) {
  return FlatJoiner(join, names).run();
}

}  // namespace pawl::checkpoint
