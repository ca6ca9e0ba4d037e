#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// A memo lets a small file repeat a big list many times: what is read of one file is bounded by these.
constexpr std::size_t kPatternsMax = 1 << 20;
constexpr std::size_t kNumbersMax = 1 << 24;
constexpr std::uint64_t kCountMax = 1024;  // of sub-parameters that only a number names

Error wrong(std::string_view what) {
  return {Code::corrupt, std::string(what)};
}

class InfoReader {
 public:
  InfoReader(const Pickle& pickle, Pickle::Value info) : pickle_(pickle), info_(info) {}

  Status read(TensorParallelInfo& rules) {
    if (!is_mapping(info_)) return wrong(text("it is ", pickle_.describe(info_), ", not a dict"));
    PAWL_TRY(read_version(rules.version));
    PAWL_TRY(patterns("tp_replicated_parameter_patterns", rules.replicated));
    PAWL_TRY(patterns("parameter_to_average_patterns", rules.averaged));
    PAWL_TRY(patterns("parameter_with_2_sub_params_cat_dim_0", rules.two_sub_parameters));
    PAWL_TRY(patterns("parameter_with_row_parallelism_patterns", rules.row_parallel));
    PAWL_TRY(patterns("vocabulary_parameter_patterns", rules.vocabulary));
    PAWL_TRY(patterns("pipeline_replicated_parameter_patterns", rules.pipeline_replicated));
    PAWL_TRY(read_unsupported(rules.unsupported, rules.reasons));
    PAWL_TRY(read_sub_parameters(rules.version, rules.sub_patterns, rules.sub_of_pattern, rules.subs));
    PAWL_TRY(read_widths(rules.shard_widths));
    PAWL_TRY(read_affine(rules.affine_patterns, rules.affine));
    if (const Pickle::Value value = get(info_, "original_vocab_size"); value != Pickle::kNothing) {
      PAWL_ASSIGN(rules.original_vocabulary, number(value, "original_vocab_size"));
    }
    return {};
  }

 private:
  using Value = Pickle::Value;

  // kNothing for None too: a job may have left a list out either way.
  [[nodiscard]] Value get(Value dict, std::string_view key) const {
    const Value value = pickle_.find(dict, key);
    return pickle_.is(value, PickleKind::none) ? Pickle::kNothing : value;
  }

  [[nodiscard]] bool is_sequence(Value value) const {
    if (pickle_.is(value, PickleKind::list) || pickle_.is(value, PickleKind::tuple)) return true;
    return pickle_.is(value, PickleKind::set) || pickle_.is(value, PickleKind::frozenset);
  }

  // A dict, or an OrderedDict.
  [[nodiscard]] bool is_mapping(Value value) const {
    return pickle_.holds_pairs(value) ||
           (pickle_.is(value, PickleKind::object) && pickle_.class_of(value).is("collections", "OrderedDict"));
  }

  // A torch.Size is a call with one tuple.
  [[nodiscard]] Value sequence_of(Value value) const {
    if (!pickle_.is(value, PickleKind::object) || !pickle_.class_of(value).is("torch", "Size")) return value;
    const std::span<const Value> arguments = pickle_.items(pickle_.object(value).arguments);
    return arguments.size() == 1 ? arguments[0] : value;
  }

  Result<std::uint64_t> number(Value value, std::string_view what) {
    if (++numbers_ > kNumbersMax) return Error{Code::full, "too many numbers"};
    const std::optional<std::uint64_t> out = pickle_.unsigned_(value);
    if (!out || *out > std::uint64_t{1} << 62)
      return wrong(text(what, " is not a size, but ", pickle_.describe(value)));
    return *out;
  }

  Result<std::vector<std::uint64_t>> numbers(Value value, std::string_view what) {
    value = sequence_of(value);
    if (!is_sequence(value)) return wrong(text(what, " is not a list of sizes, but ", pickle_.describe(value)));
    std::vector<std::uint64_t> out;
    for (const Value item : pickle_.items(value)) {
      PAWL_ASSIGN(const std::uint64_t one, number(item, what));
      out.push_back(one);
    }
    return out;
  }

  Result<std::string_view> pattern(Value value, std::string_view list) {
    if (++patterns_ > kPatternsMax) return Error{Code::full, "too many patterns"};
    if (!pickle_.is(value, PickleKind::string))
      return wrong(text(list, " holds ", pickle_.describe(value), ", not a pattern"));
    return pickle_.text(value);
  }

  Status patterns(std::string_view key, NamePatterns& out) {
    const Value list = get(info_, key);
    if (list == Pickle::kNothing) return {};
    if (!is_sequence(list)) return wrong(text(key, " is not a list, but ", pickle_.describe(list)));
    for (const Value item : pickle_.items(list)) {
      PAWL_ASSIGN(const std::string_view one, pattern(item, key));
      PAWL_TRY(out.add(one));
    }
    return {};
  }

  Status read_version(double& version) {
    const Value value = get(info_, "universal_checkpoint_version");
    if (value == Pickle::kNothing) return {};
    if (pickle_.is(value, PickleKind::real))
      version = pickle_.real(value);
    else if (const auto whole = pickle_.unsigned_(value))
      version = static_cast<double>(*whole);
    else
      return wrong(text("its version is ", pickle_.describe(value)));
    if (!(version >= 0) || version > kInfoVersionMax + 1e-9)
      return Error{Code::invalid,
                   text("version ", version, ", and ", kInfoVersionMax, " is the last one that is known here")};
    return {};
  }

  // {key: ...} by call.
  template <class Each>
  Status each_pattern(Value dict, std::string_view key, Each each) {
    if (dict == Pickle::kNothing) return {};
    if (!is_mapping(dict)) return wrong(text(key, " is not a dict, but ", pickle_.describe(dict)));
    const std::span<const Value> items = pickle_.items(dict);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      PAWL_ASSIGN(const std::string_view one, pattern(items[i], key));
      PAWL_TRY(each(one, items[i + 1]));
    }
    return {};
  }

  Status read_unsupported(NamePatterns& out, std::vector<std::string>& reasons) {
    constexpr std::string_view kKey = "autotp_unsupported_parameter_patterns";
    return each_pattern(get(info_, kKey), kKey, [&](std::string_view one, Value reason) -> Status {
      if (out.has(one)) return {};
      reasons.emplace_back(pickle_.is(reason, PickleKind::string) ? pickle_.text(reason) : "no reason was given");
      return out.add(one);
    });
  }

  Status read_sub_parameters(double version, NamePatterns& out, std::vector<std::uint32_t>& sub_of_pattern,
                             std::vector<SubParameters>& subs) {
    constexpr std::string_view kKey = "parameter_with_sub_params";
    const Value list = get(info_, kKey);
    if (list == Pickle::kNothing) return {};
    if (!is_sequence(list)) return wrong(text(kKey, " is not a list, but ", pickle_.describe(list)));
    for (const Value entry : pickle_.items(list)) {
      // A dict, or the object that it was made of.
      const Value fields = is_mapping(entry) ? entry : pickle_.object(entry).state;
      PAWL_ASSIGN(SubParameters sub, read_sub(fields, version));
      const Value names = get(fields, "patterns");
      if (!is_sequence(names)) return wrong(text(kKey, " has an entry without patterns"));
      for (const Value name : pickle_.items(names)) {
        PAWL_ASSIGN(const std::string_view one, pattern(name, kKey));
        if (out.has(one)) continue;  // the first that matches counts
        PAWL_TRY(out.add(one));
        sub_of_pattern.push_back(static_cast<std::uint32_t>(subs.size()));
      }
      subs.push_back(std::move(sub));
    }
    return {};
  }

  Result<SubParameters> read_sub(Value fields, double version) {
    if (!is_mapping(fields)) return wrong("an entry of parameter_with_sub_params is not a dict");
    const Value shape = sequence_of(get(fields, "shape"));
    PAWL_ASSIGN(const std::uint64_t dimension, number(get(fields, "partition_dim"), "partition_dim"));
    if (!is_sequence(shape) || dimension >= pickle_.items(shape).size() ||
        pickle_.items(shape).size() > 2 * kDimensionsMax)
      return wrong("an entry of parameter_with_sub_params has no shape with its partition_dim");
    SubParameters sub;
    sub.dimension = dimension;
    for (const Value extent : pickle_.items(shape)) {
      const bool is_cut = sub.shape.size() == dimension;
      if (is_sequence(extent)) {
        PAWL_ASSIGN(const std::vector<std::uint64_t> widths, numbers(extent, "shape"));
        std::uint64_t sum = 0;
        for (const std::uint64_t width : widths)
          if ((sum += width) > std::uint64_t{1} << 62) return wrong("widths of sub-parameters are too large");
        if (is_cut) sub.widths = widths;
        sub.shape.push_back(static_cast<std::int64_t>(sum));
      } else if (is_cut) {
        PAWL_ASSIGN(sub.count, number(extent, "the number of sub-parameters"));
        sub.shape.push_back(0);
        if (version > kInfoVersionMax - 1e-9) {  // today an extent alone is one sub-parameter of that width
          sub.widths = {sub.count};
        } else if (sub.count == 0 || sub.count > kCountMax) {
          return wrong(text("a parameter of ", sub.count, " sub-parameters"));
        }
      } else {
        const std::optional<std::int64_t> one = pickle_.integer(extent);
        if (!one || *one < -1 || *one > std::int64_t{1} << 62)
          return wrong("shape holds something that is not an extent");
        sub.shape.push_back(*one);
      }
    }
    return sub;
  }

  Status read_widths(std::unordered_map<std::string, std::vector<std::vector<std::uint64_t>>>& out) {
    constexpr std::string_view kKey = "sub_param_shard_widths";
    return each_pattern(get(info_, kKey), kKey, [&](std::string_view one, Value list) -> Status {
      if (!is_sequence(list)) return wrong(text(kKey, " of \"", one, "\" is not a list"));
      std::vector<std::vector<std::uint64_t>> widths;
      for (const Value item : pickle_.items(list)) {
        PAWL_ASSIGN(widths.emplace_back(), numbers(item, kKey));
      }
      out.insert_or_assign(std::string(one), std::move(widths));
      return {};
    });
  }

  Status read_affine(NamePatterns& out, std::vector<AffineMap>& maps) {
    const Value map = get(info_, "affine_map");
    if (map == Pickle::kNothing) return {};
    if (!is_mapping(map)) return wrong("affine_map is not a dict");
    if (const Value version = get(map, "version"); version != Pickle::kNothing && pickle_.unsigned_(version) != 1u)
      return Error{Code::invalid, text("affine_map has version ", pickle_.unsigned_(version).value_or(0),
                                       ", and 1 is the one that is known here")};
    return each_pattern(get(map, "params"), "affine_map", [&](std::string_view one, Value entry) -> Status {
      if (out.has(one)) return wrong(text("affine_map has \"", one, "\" twice"));
      PAWL_TRY(out.add(one));
      PAWL_ASSIGN(maps.emplace_back(), read_map(entry));
      return {};
    });
  }

  Result<AffineMap> read_map(Value entry) {
    AffineMap map;
    if (!is_mapping(entry)) return wrong("affine_map: an entry is not a dict");
    PAWL_ASSIGN(map.shape, numbers(get(entry, "logical_shape"), "affine_map: logical_shape"));
    const Value ranks = get(entry, "ranks");
    if (!is_mapping(ranks)) return wrong("affine_map: ranks is not a dict");
    const std::span<const Value> items = pickle_.items(ranks);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      PAWL_ASSIGN(const std::uint64_t rank, number(items[i], "affine_map: a rank"));
      if (!is_mapping(items[i + 1])) return wrong("affine_map: a rank's entry is not a dict");
      AffineMap::Rank& part = map.ranks[rank];
      part = {};
      PAWL_ASSIGN(part.shape, numbers(get(items[i + 1], "shard_shape"), "affine_map: shard_shape"));
      const Value pieces = get(items[i + 1], "pieces");
      if (!is_sequence(pieces)) return wrong("affine_map: pieces is not a list");
      for (const Value piece : pickle_.items(pieces)) {
        PAWL_ASSIGN(part.pieces.emplace_back(), read_piece(piece, map.is_scaled));
      }
    }
    return map;
  }

  Result<AffinePiece> read_piece(Value value, bool& is_scaled) {
    AffinePiece piece;
    if (!is_mapping(value)) return wrong("affine_map: a piece is not a dict");
    PAWL_ASSIGN(piece.shape, numbers(get(value, "shape"), "affine_map: shape of a piece"));
    PAWL_TRY(read_view(get(value, "source"), piece.whole_offset, piece.whole_strides));
    PAWL_TRY(read_view(get(value, "dest"), piece.local_offset, piece.local_strides));
    if (piece.whole_strides.size() != piece.shape.size() || piece.local_strides.size() != piece.shape.size())
      return wrong("affine_map: a piece has not as many strides as extents");
    if (const Value scale = get(value, "scale"); scale != Pickle::kNothing) {
      const bool is_one =
          pickle_.is(scale, PickleKind::real) ? pickle_.real(scale) == 1.0 : pickle_.integer(scale) == 1;
      is_scaled = is_scaled || !is_one;
    }
    return piece;
  }

  Status read_view(Value view, std::uint64_t& offset, std::vector<std::uint64_t>& strides) {
    if (!is_sequence(view) || pickle_.items(view).size() != 2)
      return wrong("affine_map: a piece's source or dest is not [offset, strides]");
    PAWL_ASSIGN(offset, number(pickle_.items(view)[0], "affine_map: an offset"));
    PAWL_ASSIGN(strides, numbers(pickle_.items(view)[1], "affine_map: strides"));
    return {};
  }

  const Pickle& pickle_;
  Value info_;
  std::size_t patterns_ = 0;
  std::size_t numbers_ = 0;
};

}  // namespace

Result<TensorParallelInfo> read_tensor_parallel_info(const Pickle& pickle, Pickle::Value info) {
  TensorParallelInfo out;
  if (info == Pickle::kNothing || pickle.is(info, PickleKind::none)) return out;
  out.said_nothing = false;
  if (Status done = InfoReader(pickle, info).read(out); !done)
    return std::move(done).error().within("universal_checkpoint_info");
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
