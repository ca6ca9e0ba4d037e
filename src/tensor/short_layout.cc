#include "tensor/short_layout.h"

#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <unordered_map>

#include "base/first_few.h"
#include "base/text.h"

namespace pawl {
namespace {

using Numbers = AxisPattern::Numbers;

constexpr std::size_t kNamedMax = 5;
constexpr std::uint64_t kDegreeMax = 1 << 20;
constexpr std::uint64_t kMegatronStart = 64;       // each parameter begins at a multiple of it
constexpr std::uint64_t kMegatronBucketEnd = 128;  // and buckets end at one of it and of their ranks' number

// The axes of the two meshes, slowest first.
enum DenseAxis : std::uint32_t { kStage, kData, kContext, kFsdp, kTensor };
enum ExpertAxis : std::uint32_t { kExpertStage, kExpertData, kExpert, kExpertTensor };

Error wrong(std::string what) {
  return {Code::invalid, "layout: " + std::move(what)};
}

// --- the text -----------------------------------------------------------------------------------------------------

struct Degrees {
  std::uint64_t tp = 1, pp = 1, dp = 1, cp = 1, fsdp = 1, ep = 1, etp = 0, zero = 0, vpp = 1, first = 0, last = 0;
  std::uint64_t bucket = 0, vocab = 0;
  Numbers stages;
  bool megatron = false;
  [[nodiscard]] std::uint64_t experts_data() const { return dp * cp * tp / (ep * etp); }
};

Status parse_number_key(std::string_view key, std::string_view value, Degrees& degrees) {
  const std::pair<std::string_view, std::uint64_t*> keys[] = {
      {"tp", &degrees.tp},       {"pp", &degrees.pp},       {"dp", &degrees.dp},     {"cp", &degrees.cp},
      {"fsdp", &degrees.fsdp},   {"ep", &degrees.ep},       {"etp", &degrees.etp},   {"zero", &degrees.zero},
      {"vpp", &degrees.vpp},     {"first", &degrees.first}, {"last", &degrees.last}, {"bucket", &degrees.bucket},
      {"vocab", &degrees.vocab},
  };
  const auto found = std::ranges::find(keys, key, [](const auto& entry) { return entry.first; });
  if (found == std::end(keys)) {
    return wrong(text("unknown key ", key,
                      "; known: tp pp dp cp fsdp ep etp zero style bucket vocab stages first last "
                      "vpp"));
  }
  if (!parse_number(value, *found->second) || (key != "zero" && *found->second == 0)) {
    return wrong(text(key, '=', value, " is not a number that it can have"));
  }
  if (key != "bucket" && *found->second > kDegreeMax) return wrong(text(key, '=', value, " is too much"));
  return {};
}

Status parse_stages(std::string_view value, Numbers& stages) {
  while (true) {
    const std::size_t slash = value.find('/');
    if (!parse_number(value.substr(0, slash), stages.emplace_back()) || stages.back() > kDegreeMax) {
      return wrong("stages= has layers a stage, as in stages=8/10/10/4");
    }
    if (slash == std::string_view::npos) return {};
    value.remove_prefix(slash + 1);
  }
}

Status check_degrees(const Degrees& d) {
  std::uint64_t world = d.tp;
  for (const std::uint64_t degree : {d.pp, d.dp, d.cp, d.fsdp}) {
    world *= degree;
    if (world > kDegreeMax) return wrong("more than 2^20 ranks");
  }
  if (d.zero > 3) return wrong(text("zero=", d.zero, "; it is 0, 1, 2 or 3"));
  if (d.zero != 0 && d.fsdp > 1) return wrong("zero and fsdp both cut over the replicas: give one of them");
  if (d.ep > 1 && d.fsdp > 1) return wrong("ep with fsdp is not known here");
  if (d.dp * d.cp * d.tp % (d.ep * d.etp) != 0) {
    return wrong(text("ep=", d.ep, " x etp=", d.etp, " does not divide the ", d.dp * d.cp * d.tp, " ranks of a stage"));
  }
  if (!d.stages.empty() && d.stages.size() != d.pp) return wrong(text(d.stages.size(), " stages, but pp=", d.pp));
  if (!d.stages.empty() && (d.first != 0 || d.last != 0)) return wrong("stages= with first= or last=");
  if ((d.first != 0 || d.last != 0) && d.pp == 1) return wrong("first= or last= without pp=");
  if (d.bucket != 0 && !d.megatron) return wrong("bucket= is of style=megatron");
  if (d.megatron && (d.zero == 0 || d.zero == 3)) return wrong("style=megatron is of zero=1");
  return {};
}

Result<Degrees> parse_degrees(std::string_view all, ModelRules rules) {
  Degrees degrees;
  std::set<std::string_view> seen;
  for (std::string_view rest = all; !rest.empty();) {
    const std::size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    const std::size_t equals = entry.find('=');
    const std::string_view key = entry.substr(0, equals);
    const std::string_view value = equals == std::string_view::npos ? "" : entry.substr(equals + 1);
    if (!seen.insert(key).second) return wrong(text(key, " is there twice"));
    if (key == "stages") {
      PAWL_TRY(parse_stages(value, degrees.stages));
    } else if (key == "style") {
      if (value != "deepspeed" && value != "megatron") return wrong(text("style=", value, "; deepspeed or megatron"));
      degrees.megatron = value == "megatron";
    } else {
      PAWL_TRY(parse_number_key(key, value, degrees));
    }
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) return wrong("it ends with a comma");
  }
  if (degrees.etp == 0) degrees.etp = degrees.tp;
  if (degrees.vocab == 0) degrees.vocab = rules == ModelRules::gpt ? 128 : 1;
  PAWL_TRY(check_degrees(degrees));
  return degrees;
}

// --- what names mean ----------------------------------------------------------------------------------------------

enum class Cut : std::uint8_t {
  vocabulary,     // rows, padded
  column,         // rows of [out, in], and the bias
  gated,          // likewise; gate and up are segments
  fused_qkv,      // likewise; Q, K and V are segments
  row,            // columns of [out, in]; the bias is whole
  column_turned,  // of [in, out]: GPT-2's
  qkv_turned,
  row_turned,
  whole,
};
struct Known {
  const char* names;
  Cut cut;
};

constexpr Known kGpt[] = {
    {R"((^|\.)(word_embeddings|wte|embed_in|embed_out|lm_head|output_layer)\.weight$)", Cut::vocabulary},
    {R"((^|\.)(position_embeddings|tokentype_embeddings|wpe)\.weight$)", Cut::whole},
    {R"(norm\w*\.(weight|bias)$|\.layer_norm_(weight|bias)$|(^|\.)ln_\w+\.(weight|bias)$)", Cut::whole},
    {R"(\.(query_key_value|linear_qkv|linear_fc1|dense_h_to_4h)\.(weight|bias)$)", Cut::column},
    {R"(\.(linear_proj|linear_fc2|dense_4h_to_h|(self_)?attention\.dense)\.(weight|bias)$)", Cut::row},
    {R"(\.attn\.c_attn\.(weight|bias)$)", Cut::qkv_turned},
    {R"(\.mlp\.c_fc\.(weight|bias)$)", Cut::column_turned},
    {R"(\.(attn|mlp)\.c_proj\.(weight|bias)$)", Cut::row_turned},
    {R"(\.router\.(weight|bias|expert_bias)$)", Cut::whole},
    {R"(rotary|inv_freq|\.(attention|attn)\.(masked_)?bias$)", Cut::whole},
};
constexpr Known kLlama[] = {
    {R"((^|\.)(embed_tokens|tok_embeddings|word_embeddings|lm_head|output_layer)\.weight$)", Cut::vocabulary},
    {R"(norm\w*\.(weight|bias)$|\.layer_norm_(weight|bias)$)", Cut::whole},
    {R"(\.qkv_proj\.(weight|bias)$)", Cut::fused_qkv},
    {R"(\.(gate_up_proj|linear_fc1|dense_h_to_4h)(\.(weight|bias))?$)", Cut::gated},
    {R"(\.(q_proj|k_proj|v_proj|gate_proj|up_proj|w1|w3|linear_qkv|query_key_value)\.(weight|bias)$)", Cut::column},
    {R"(\.(o_proj|down_proj|w2|linear_proj|linear_fc2|dense_4h_to_h)(\.(weight|bias))?$)", Cut::row},
    {R"(\.(self_)?attention\.dense\.(weight|bias)$)", Cut::row},
    {R"(\.(block_sparse_moe|mlp)\.(gate|router)\.(weight|bias|expert_bias)$)", Cut::whole},
    {R"(rotary|inv_freq)", Cut::whole},
};

// One name, understood.
struct Meaning {
  Cut cut = Cut::whole;
  bool in_layer = false;
  bool layers_stacked = false;  // dimension 0 is the layer
  std::uint64_t layer = 0;
  bool in_expert = false;
  bool experts_stacked = false;  // the first dimension after the layers' is the expert
  std::uint64_t expert = 0;
  bool is_input = false;   // before the first layer
  bool is_output = false;  // after the last
  bool is_embedding = false;
};

class Dictionary {
 public:
  explicit Dictionary(ModelRules rules)
      : layer_(R"((?:^|\.)(?:layers|layer|h|blocks)\.(\d+)\.)"),
        stack_(R"((?:^|\.)layers\.)"),
        expert_(R"(\.(?:local_)?experts\.(?:local_experts\.)?(\d+)\.)"),
        experts_(R"(\.(?:local_)?experts\.)"),
        embedding_(R"((?:^|\.)(?:word_embeddings|wte|embed_in|embed_tokens|tok_embeddings)\.weight$)"),
        input_(
            R"((?:^|\.)(?:embeddings?|word_embeddings\w*|embed_in|embed_tokens|tok_embeddings|wte|wpe|position_embeddings)\.)"),
        output_(R"((?:^|\.)(?:lm_head|output_layer|embed_out|final_\w*norm\w*|ln_f|norm)\.)") {
    const auto table = rules == ModelRules::gpt ? std::span<const Known>(kGpt) : std::span<const Known>(kLlama);
    for (const Known& known : table) cuts_.emplace_back(std::make_unique<RE2>(known.names), known.cut);
  }

  // Nothing: the rules have no such name.
  [[nodiscard]] std::optional<Meaning> meaning_of(const std::string& name) const {
    const auto found =
        std::ranges::find_if(cuts_, [&](const auto& cut) { return RE2::PartialMatch(name, *cut.first); });
    if (found == cuts_.end()) return std::nullopt;
    Meaning meaning{.cut = found->second};
    if (RE2::PartialMatch(name, layer_, &meaning.layer)) {
      meaning.in_layer = true;
    } else if (RE2::PartialMatch(name, stack_)) {
      meaning.in_layer = meaning.layers_stacked = true;
    } else {
      meaning.is_embedding = RE2::PartialMatch(name, embedding_);
      meaning.is_output = RE2::PartialMatch(name, output_);
      meaning.is_input = !meaning.is_output && RE2::PartialMatch(name, input_);
    }
    if (RE2::PartialMatch(name, expert_, &meaning.expert)) {
      meaning.in_expert = true;
    } else if (RE2::PartialMatch(name, experts_)) {
      meaning.in_expert = meaning.experts_stacked = true;
    }
    return meaning;
  }

 private:
  std::vector<std::pair<std::unique_ptr<RE2>, Cut>> cuts_;
  RE2 layer_, stack_, expert_, experts_, embedding_, input_, output_;
};

// --- the layout ---------------------------------------------------------------------------------------------------

bool is_optimizers(const std::string& role) {
  return role != "weight" && role != "buffer" && role != "step";
}

class Builder {
 public:
  Builder(const Degrees& degrees, const std::vector<NamedTensor>& tensors, ModelRules rules,
          std::vector<std::string>* left_out)
      : degrees_(degrees), tensors_(tensors), left_out_(left_out), dictionary_(rules) {}

  Result<JobLayout> build() {
    PAWL_TRY(understand());
    PAWL_TRY(spread_layers());
    make_meshes();
    FirstFew faults;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      if (!is_known_[t]) continue;
      Status placed = place(t);
      if (placed) continue;
      faults.add(placed.error().what);
      if (left_out_ != nullptr) left_out_->push_back(std::move(placed).error().what);
    }
    if (faults.any() && left_out_ == nullptr) return wrong(faults.sentence());
    if (degrees_.zero != 0) make_groups();
    PAWL_TRY(check_layout(layout_));
    return std::move(layout_);
  }

 private:
  // Names, layers, experts.
  Status understand() {
    std::vector<std::string> unknown;
    for (const NamedTensor& tensor : tensors_) {
      const auto meaning = dictionary_.meaning_of(tensor.name);
      const std::size_t known = unknown.size();
      if (!meaning) unknown.push_back(label_of(tensor.name, tensor.role));
      meanings_.push_back(meaning.value_or(Meaning{}));
      const Meaning& m = meanings_.back();
      const std::size_t stacked = (m.layers_stacked ? 1 : 0) + (m.experts_stacked ? 1 : 0);
      if (tensor.shape.size() < stacked) unknown.push_back(label_of(tensor.name, tensor.role) + " (of that shape)");
      is_known_.push_back(unknown.size() == known);
      if (!is_known_.back()) continue;
      if (m.layers_stacked && !tensor.shape.empty()) layers_ = std::max(layers_, tensor.shape[0]);
      if (m.in_layer && !m.layers_stacked) layers_ = std::max(layers_, m.layer + 1);
      if (m.experts_stacked && tensor.shape.size() >= stacked) experts_ = std::max(experts_, tensor.shape[stacked - 1]);
      if (m.in_expert && !m.experts_stacked) experts_ = std::max(experts_, m.expert + 1);
      has_output_ = has_output_ || (m.is_output && m.cut == Cut::vocabulary);
      shape_of_.emplace(tensor.name, tensor.shape);
    }
    if (left_out_ != nullptr) {
      for (const std::string& label : unknown) left_out_->push_back(label + ": the rules do not know such a tensor");
    } else if (!unknown.empty()) {
      std::string what = "the rules do not know";
      for (std::size_t i = 0; i < std::min(kNamedMax, unknown.size()); ++i)
        what += text(i == 0 ? " " : ", ", unknown[i]);
      if (unknown.size() > kNamedMax) what += text(" and ", unknown.size() - kNamedMax, " more");
      return wrong(what);
    }
    if (layers_ > kDegreeMax || experts_ > kDegreeMax) return wrong("more than 2^20 layers or experts");
    if (degrees_.ep > 1 && (experts_ == 0 || experts_ % degrees_.ep != 0)) {
      return wrong(text(experts_, " experts do not divide into ep=", degrees_.ep));
    }
    return {};
  }

  // counts_[chunk * pp + stage]: how many layers, in the layers' order.
  Status spread_layers() {
    Numbers counts = degrees_.stages;
    if (counts.empty()) {
      const std::uint64_t given = degrees_.first + degrees_.last;
      const std::uint64_t even = degrees_.pp - (degrees_.first != 0 ? 1 : 0) - (degrees_.last != 0 ? 1 : 0);  // stages
      if (given > layers_ || (even == 0 ? given != layers_ : (layers_ - given) % even != 0)) {
        return wrong(text(layers_, " layers do not spread over pp=", degrees_.pp,
                          ": say stages=, first= or last= with the layers they have"));
      }
      counts.assign(degrees_.pp, even == 0 ? 0 : (layers_ - given) / even);
      if (degrees_.first != 0) counts.front() = degrees_.first;
      if (degrees_.last != 0) counts.back() = degrees_.last;
    }
    if (degrees_.vpp > 1 && degrees_.vpp * degrees_.pp > layers_) {
      return wrong(text("pp=", degrees_.pp, " x vpp=", degrees_.vpp, " chunks for ", layers_, " layers"));
    }
    std::uint64_t sum = 0;
    for (const std::uint64_t count : counts) {
      if (count % degrees_.vpp != 0)
        return wrong(text(count, " layers of a stage do not divide into vpp=", degrees_.vpp));
      sum += count;
    }
    if (sum != layers_) return wrong(text("the stages have ", sum, " layers, the model ", layers_));
    for (std::uint64_t chunk = 0; chunk < degrees_.vpp; ++chunk) {
      for (std::uint64_t stage = 0; stage < counts.size(); ++stage) {
        counts_.push_back(counts[stage] / degrees_.vpp);
        stage_of_layer_.insert(stage_of_layer_.end(), counts_.back(), stage);
      }
    }
    return {};
  }

  void make_meshes() {
    const Degrees& d = degrees_;
    layout_.world = static_cast<std::uint32_t>(d.pp * d.dp * d.cp * d.fsdp * d.tp);
    layout_.meshes = {{"dense", {{"pp", d.pp}, {"dp", d.dp}, {"cp", d.cp}, {"fsdp", d.fsdp}, {"tp", d.tp}}}};
    has_expert_mesh_ = experts_ != 0 && (d.ep > 1 || d.etp != d.tp);
    if (has_expert_mesh_) {
      layout_.meshes.push_back({"experts", {{"pp", d.pp}, {"edp", d.experts_data()}, {"ep", d.ep}, {"etp", d.etp}}});
    }
  }

  [[nodiscard]] bool on_expert_mesh(const Meaning& meaning) const { return meaning.in_expert && has_expert_mesh_; }

  Status place(std::size_t t) {
    const NamedTensor& tensor = tensors_[t];
    const Meaning& meaning = meanings_[t];
    JobTensor out{tensor.name, tensor.role, tensor.dtype, tensor.shape, {}, {on_expert_mesh(meaning) ? 1u : 0u, {}}};
    std::vector<AxisPattern>& patterns = out.placement.patterns;
    const bool is_plain = tensor.role == "step" || tensor.role == "buffer" || tensor.shape.empty();
    append_stage(meaning, tensor, patterns);
    if (!is_plain || meaning.in_expert) append_expert(meaning, patterns);
    if (!is_plain) PAWL_TRY(append_tensor_parallel(tensor, meaning, out));
    if (!is_plain && degrees_.fsdp > 1) patterns.push_back(AxisPattern::shard(kFsdp, 0));
    if (!check_placement(out.placement, layout_.meshes[out.placement.mesh], out.placed_shape())) {
      return Error{Code::invalid, text(label_of(tensor.name, tensor.role), ": ", text_of(tensor.shape),
                                       " does not divide as this layout needs it")};
    }
    layout_.tensors.push_back(std::move(out));
    return {};
  }

  void append_stage(const Meaning& meaning, const NamedTensor& tensor, std::vector<AxisPattern>& patterns) const {
    if (degrees_.pp == 1) return;
    const std::uint64_t last = degrees_.pp - 1;
    if (meaning.in_layer && !meaning.layers_stacked) {
      patterns.push_back(AxisPattern::only(kStage, {stage_of_layer_[meaning.layer]}));
    } else if (meaning.layers_stacked && tensor.shape[0] == layers_) {
      AxisPattern cut = AxisPattern::shard_sizes(kStage, 0, counts_);
      for (std::uint64_t chunk = 0; degrees_.vpp > 1 && chunk < degrees_.vpp; ++chunk) {
        const auto first = counts_.begin() + static_cast<std::ptrdiff_t>(chunk * degrees_.pp);
        cut.segments.push_back(
            std::accumulate(first, first + static_cast<std::ptrdiff_t>(degrees_.pp), std::uint64_t{0}));
      }
      patterns.push_back(std::move(cut));
    } else if (meaning.is_embedding && !has_output_) {
      patterns.push_back(AxisPattern::only(kStage, {0, last}));  // tied: it is the output layer, too
    } else if (meaning.is_input || meaning.is_output) {
      patterns.push_back(AxisPattern::only(kStage, {meaning.is_input ? 0 : last}));
    }
  }

  void append_expert(const Meaning& meaning, std::vector<AxisPattern>& patterns) const {
    if (!on_expert_mesh(meaning) || degrees_.ep == 1) return;
    if (meaning.experts_stacked) {
      patterns.push_back(AxisPattern::shard(kExpert, meaning.layers_stacked ? 1 : 0, AxisPattern::Split::even));
    } else {
      patterns.push_back(AxisPattern::only(kExpert, {meaning.expert / (experts_ / degrees_.ep)}));
    }
  }

  Status append_tensor_parallel(const NamedTensor& tensor, const Meaning& meaning, JobTensor& out) const {
    const std::uint32_t axis = on_expert_mesh(meaning) ? std::uint32_t{kExpertTensor} : std::uint32_t{kTensor};
    const std::uint64_t parts = on_expert_mesh(meaning) ? degrees_.etp : degrees_.tp;
    const auto rows = static_cast<std::uint32_t>((meaning.layers_stacked ? 1 : 0) + (meaning.experts_stacked ? 1 : 0));
    const bool is_matrix = tensor.shape.size() == rows + 2;
    const auto cut_evenly = [&](std::uint32_t dimension, Numbers segments = {}) -> Status {
      if (dimension >= tensor.shape.size()) {
        return Error{Code::invalid,
                     text(label_of(tensor.name, tensor.role), ": ", text_of(tensor.shape), " has too few dimensions")};
      }
      if (parts == 1) return {};
      out.placement.patterns.push_back(segments.empty()
                                           ? AxisPattern::shard(axis, dimension, AxisPattern::Split::even)
                                           : AxisPattern::shard_segments(axis, dimension, std::move(segments)));
      return {};
    };
    switch (meaning.cut) {
      case Cut::whole:
        return {};
      case Cut::vocabulary: {
        PAWL_TRY(cut_evenly(rows));
        out.padded = tensor.shape;
        out.padded[rows] = padded_vocabulary(tensor.shape[rows], degrees_.vocab, parts);
        if (out.padded == out.shape) out.padded.clear();
        return {};
      }
      case Cut::column:
        return cut_evenly(rows);
      case Cut::gated:
        return cut_evenly(rows, segments_of(tensor, rows, 2));
      case Cut::fused_qkv: {
        PAWL_ASSIGN(Numbers segments, qkv_segments(tensor, rows));
        return cut_evenly(rows, std::move(segments));
      }
      case Cut::row:
        return is_matrix ? cut_evenly(rows + 1) : Status{};
      case Cut::column_turned:
        return cut_evenly(is_matrix ? rows + 1 : rows);
      case Cut::qkv_turned: {
        const std::uint32_t dimension = is_matrix ? rows + 1 : rows;
        return cut_evenly(dimension, segments_of(tensor, dimension, 3));
      }
      case Cut::row_turned:
        return is_matrix ? cut_evenly(rows) : Status{};
    }
    return {};
  }

  // Equal ones; what does not divide is seen when the placement is checked.
  static Numbers segments_of(const NamedTensor& tensor, std::uint32_t dimension, std::uint64_t count) {
    if (dimension >= tensor.shape.size()) return {};
    Numbers segments(count, tensor.shape[dimension] / count);
    segments.back() += tensor.shape[dimension] % count;
    return segments;
  }

  // Q has as many rows as the output projection has columns; K and V share the rest.
  [[nodiscard]] Result<Numbers> qkv_segments(const NamedTensor& tensor, std::uint32_t rows) const {
    const std::size_t at = tensor.name.rfind("qkv_proj.");
    const auto output = shape_of_.find(tensor.name.substr(0, at) + "o_proj.weight");
    if (output == shape_of_.end() || output->second.size() != 2 || output->second[1] > tensor.shape[rows] ||
        (tensor.shape[rows] - output->second[1]) % 2 != 0) {
      return Error{Code::invalid, text(label_of(tensor.name, tensor.role), ": ", text_of(tensor.shape),
                                       ": no o_proj.weight beside it says which rows are queries")};
    }
    const std::uint64_t queries = output->second[1];
    const std::uint64_t keys = (tensor.shape[rows] - queries) / 2;
    return Numbers{queries, keys, keys};
  }

  // --- ZeRO and the distributed optimizer

  [[nodiscard]] FlatGroup group_form(std::uint32_t mesh) const {
    FlatGroup group{.mesh = mesh};
    std::uint64_t ranks = degrees_.dp * degrees_.cp;
    group.axes = {kData, kContext};
    if (mesh == 1) {
      group.axes = {kExpertData};
      ranks = degrees_.experts_data();
    }
    if (degrees_.zero == 3) {
      group.form = FlatGroup::Form::each_member;
    } else if (degrees_.megatron) {
      group.align = kMegatronStart;
      group.pad = std::lcm(ranks, kMegatronBucketEnd);
    } else {
      group.pad = 2 * ranks;
    }
    return group;
  }

  // What one bucket's ranks have of a tensor: those that `only` patterns say first.
  [[nodiscard]] std::uint64_t local_count(const JobTensor& tensor) const {
    const Mesh& mesh = layout_.meshes[tensor.placement.mesh];
    std::vector<std::uint64_t> coordinates(mesh.axes.size());
    for (const AxisPattern& pattern : tensor.placement.patterns) {
      if (pattern.kind == AxisPattern::Kind::only) coordinates[pattern.axis] = pattern.holders.front();
    }
    LocalArray array;
    if (!local_array(tensor.placement, mesh, tensor.placed_shape(), coordinates, array)) return 0;
    const Shape shape = array.shape();
    return std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<>());
  }

  // DeepSpeed: one group of all tensors of a role and type, in order. Megatron: those that lie on the same ranks, in
  // reverse order, a new bucket as soon as one is full.
  void make_groups() {
    struct Open {
      std::uint32_t group = 0;
      std::uint64_t size = 0;
      std::uint32_t buckets = 0;
    };
    std::map<std::string, Open> open;
    std::vector<std::uint32_t> order(layout_.tensors.size());
    std::iota(order.begin(), order.end(), 0);
    if (degrees_.megatron) std::ranges::reverse(order);
    for (const std::uint32_t t : order) {
      const JobTensor& tensor = layout_.tensors[t];
      const bool is_member = is_optimizers(tensor.role) || (degrees_.zero == 3 && tensor.role == "weight");
      if (!is_member || tensor.shape.empty()) continue;
      std::string key = text(tensor.role, '.', name_of(tensor.dtype), '.', layout_.meshes[tensor.placement.mesh].name);
      for (const AxisPattern& pattern : tensor.placement.patterns) {
        if (degrees_.megatron && pattern.kind == AxisPattern::Kind::only) {
          key += text('.', layout_.meshes[tensor.placement.mesh].axes[pattern.axis].name, text_of(pattern.holders));
        }
      }
      const auto [bucket, is_new] = open.try_emplace(key);
      const bool is_full = degrees_.bucket != 0 && bucket->second.size >= degrees_.bucket;
      if (is_new || is_full) {
        bucket->second = {static_cast<std::uint32_t>(layout_.groups.size()), 0, bucket->second.buckets + 1};
        layout_.groups.push_back(group_form(tensor.placement.mesh));
        layout_.groups.back().name = text("zero.", key, '.', bucket->second.buckets - 1);
      }
      layout_.groups[bucket->second.group].members.push_back({t, 0});
      bucket->second.size += local_count(tensor);
    }
  }

  const Degrees& degrees_;
  const std::vector<NamedTensor>& tensors_;
  std::vector<std::string>* const left_out_;
  Dictionary dictionary_;
  std::vector<Meaning> meanings_;
  std::vector<bool> is_known_;  // of each tensor
  std::unordered_map<std::string, Shape> shape_of_;
  std::uint64_t layers_ = 0;
  std::uint64_t experts_ = 0;
  bool has_output_ = false;
  bool has_expert_mesh_ = false;
  Numbers counts_;
  std::vector<std::uint64_t> stage_of_layer_;
  JobLayout layout_;
};

}  // namespace

std::optional<ModelRules> model_rules_named(std::string_view name) {
  if (name == "gpt") return ModelRules::gpt;
  if (name == "llama") return ModelRules::llama;
  if (name == "mixtral") return ModelRules::mixtral;
  return std::nullopt;
}

Result<JobLayout> parse_short_layout(std::string_view text, ModelRules rules, const std::vector<NamedTensor>& tensors,
                                     std::vector<std::string>* left_out) {
  PAWL_ASSIGN(const Degrees degrees, parse_degrees(text, rules));
  return Builder(degrees, tensors, rules, left_out).build();
}

}  // namespace pawl
