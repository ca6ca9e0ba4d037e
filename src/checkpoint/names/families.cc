#include "checkpoint/names/families.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/view/pieces.h"
#include "tensor/enumerate.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kGroupsMax = 65536;
constexpr std::string_view kBody = "transformer.";

enum class Form : std::uint8_t {
  same,
  qkv_of_heads,    // the same where each head is a group of its own
  transposed,      // matrices are; biases are the same
  qkv,             // query, key and value of each group, joined: three tensors
  qkv_transposed,  // the same; all queries, all keys, all values in one tensor
  halves,          // two tensors, one after the other
};

// A module under both names, without the weight or bias at the end. L is a layer's number, E an expert's.
struct Rule {
  std::string_view megatron;
  std::array<std::string_view, 3> huggingface;
  Form form = Form::same;
};

constexpr std::array kLlama = {
    Rule{"embedding.word_embeddings", {"model.embed_tokens"}},
    Rule{"decoder.layers.L.input_layernorm", {"model.layers.L.input_layernorm"}},
    Rule{"decoder.layers.L.self_attention.linear_qkv",
         {"model.layers.L.self_attn.q_proj", "model.layers.L.self_attn.k_proj", "model.layers.L.self_attn.v_proj"},
         Form::qkv},
    Rule{"decoder.layers.L.self_attention.linear_proj", {"model.layers.L.self_attn.o_proj"}},
    Rule{"decoder.layers.L.self_attention.q_layernorm", {"model.layers.L.self_attn.q_norm"}},
    Rule{"decoder.layers.L.self_attention.k_layernorm", {"model.layers.L.self_attn.k_norm"}},
    Rule{"decoder.layers.L.pre_mlp_layernorm", {"model.layers.L.post_attention_layernorm"}},
    Rule{"decoder.layers.L.mlp.linear_fc1",
         {"model.layers.L.mlp.gate_proj", "model.layers.L.mlp.up_proj"},
         Form::halves},
    Rule{"decoder.layers.L.mlp.linear_fc2", {"model.layers.L.mlp.down_proj"}},
    Rule{"decoder.final_layernorm", {"model.norm"}},
    Rule{"output_layer", {"lm_head"}},
};
constexpr std::array kMixtral = {
    Rule{"embedding.word_embeddings", {"model.embed_tokens"}},
    Rule{"decoder.layers.L.input_layernorm", {"model.layers.L.input_layernorm"}},
    Rule{"decoder.layers.L.self_attention.linear_qkv",
         {"model.layers.L.self_attn.q_proj", "model.layers.L.self_attn.k_proj", "model.layers.L.self_attn.v_proj"},
         Form::qkv},
    Rule{"decoder.layers.L.self_attention.linear_proj", {"model.layers.L.self_attn.o_proj"}},
    Rule{"decoder.layers.L.pre_mlp_layernorm", {"model.layers.L.post_attention_layernorm"}},
    Rule{"decoder.layers.L.mlp.router", {"model.layers.L.block_sparse_moe.gate"}},
    Rule{"decoder.layers.L.mlp.experts.local_experts.E.linear_fc1",
         {"model.layers.L.block_sparse_moe.experts.E.w1", "model.layers.L.block_sparse_moe.experts.E.w3"},
         Form::halves},
    Rule{"decoder.layers.L.mlp.experts.local_experts.E.linear_fc2", {"model.layers.L.block_sparse_moe.experts.E.w2"}},
    Rule{"decoder.final_layernorm", {"model.norm"}},
    Rule{"output_layer", {"lm_head"}},
};
constexpr std::array kGpt = {
    Rule{"embedding.word_embeddings", {"transformer.wte"}},
    Rule{"embedding.position_embeddings", {"transformer.wpe"}},
    Rule{"decoder.layers.L.input_layernorm", {"transformer.h.L.ln_1"}},
    Rule{"decoder.layers.L.self_attention.linear_qkv", {"transformer.h.L.attn.c_attn"}, Form::qkv_transposed},
    Rule{"decoder.layers.L.self_attention.linear_proj", {"transformer.h.L.attn.c_proj"}, Form::transposed},
    Rule{"decoder.layers.L.pre_mlp_layernorm", {"transformer.h.L.ln_2"}},
    Rule{"decoder.layers.L.mlp.linear_fc1", {"transformer.h.L.mlp.c_fc"}, Form::transposed},
    Rule{"decoder.layers.L.mlp.linear_fc2", {"transformer.h.L.mlp.c_proj"}, Form::transposed},
    Rule{"decoder.final_layernorm", {"transformer.ln_f"}},
    Rule{"output_layer", {"lm_head"}},
};
constexpr std::array kGptNeox = {
    Rule{"embedding.word_embeddings", {"gpt_neox.embed_in"}},
    Rule{"decoder.layers.L.input_layernorm", {"gpt_neox.layers.L.input_layernorm"}},
    Rule{"decoder.layers.L.self_attention.linear_qkv",
         {"gpt_neox.layers.L.attention.query_key_value"},
         Form::qkv_of_heads},
    Rule{"decoder.layers.L.self_attention.linear_proj", {"gpt_neox.layers.L.attention.dense"}},
    Rule{"decoder.layers.L.pre_mlp_layernorm", {"gpt_neox.layers.L.post_attention_layernorm"}},
    Rule{"decoder.layers.L.mlp.linear_fc1", {"gpt_neox.layers.L.mlp.dense_h_to_4h"}},
    Rule{"decoder.layers.L.mlp.linear_fc2", {"gpt_neox.layers.L.mlp.dense_4h_to_h"}},
    Rule{"decoder.final_layernorm", {"gpt_neox.final_layer_norm"}},
    Rule{"output_layer", {"embed_out"}},
};

std::span<const Rule> rules_of(Family family) {
  switch (family) {
    case Family::gpt:
      return kGpt;
    case Family::llama:
      return kLlama;
    case Family::mixtral:
      return kMixtral;
    case Family::gpt_neox:
      break;
  }
  return kGptNeox;
}

// A parameter's name with its numbers taken out: "decoder.layers.L.mlp.linear_fc2", layer 3, "weight".
struct ParsedName {
  std::string module;
  std::string layer;
  std::string expert;
  std::string part;
};

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char letter) { return letter >= '0' && letter <= '9'; });
}

ParsedName parse_name(std::string_view name) {
  ParsedName out;
  std::string_view before;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view word = name.substr(0, dot);
    if (dot == std::string_view::npos) {
      out.part = word;
      return out;
    }
    if (!out.module.empty()) out.module += '.';
    if (is_number(word) && (before == "layers" || before == "h") && out.layer.empty()) {
      out.layer = word;
      out.module += 'L';
    } else if (is_number(word) && (before == "experts" || before == "local_experts") && out.expert.empty()) {
      out.expert = word;
      out.module += 'E';
    } else {
      out.module += word;
    }
    before = word;
    name.remove_prefix(dot + 1);
  }
}

std::string put_together(std::string_view module, const ParsedName& from) {
  std::string out;
  while (true) {
    const std::size_t dot = module.find('.');
    const std::string_view word = module.substr(0, dot);
    out += word == "L" ? std::string_view(from.layer) : word == "E" ? std::string_view(from.expert) : word;
    out += '.';
    if (dot == std::string_view::npos) return out += from.part;
    module.remove_prefix(dot + 1);
  }
}

// Names that Megatron-Core gives with Transformer Engine, in the form that it gives without.
std::string plain_name(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kNorms = {
      {{".self_attention.linear_qkv.layer_norm_", ".input_layernorm."},
       {".mlp.linear_fc1.layer_norm_", ".pre_mlp_layernorm."}}};
  std::string out(name);
  for (const auto& [from, to] : kNorms)
    if (const std::size_t at = out.find(from); at != std::string::npos) out.replace(at, from.size(), to);
  for (const std::string_view layer : {".experts.linear_fc1.weight", ".experts.linear_fc2.weight"}) {
    const std::size_t at = out.find(layer);  // grouped: weight0, weight1, ...
    if (at == std::string::npos || !is_number(std::string_view(out).substr(at + layer.size()))) continue;
    const std::string number = out.substr(at + layer.size());
    out = text(out.substr(0, at), ".experts.local_experts.", number, layer.substr(8));
  }
  return out;
}

Error refused(const StoredTensor& tensor, std::string why) {
  return {Code::invalid, text(label_of(tensor.name, tensor.role), ' ', text_of(tensor.shape), ": ", why)};
}

// Numbers of attention: heads = groups * queries.
struct Attention {
  std::uint64_t groups = 0;
  std::uint64_t queries = 0;  // heads of queries in each group
  std::uint64_t head_size = 0;
  [[nodiscard]] std::uint64_t query_rows() const { return groups * queries * head_size; }
  [[nodiscard]] std::uint64_t key_rows() const { return groups * head_size; }
  // In the fused tensor, of query (0), key (1), value (2): its rows of all groups.
  [[nodiscard]] std::vector<Span> fused_spans(std::uint32_t which) const {
    std::vector<Span> out;
    const std::uint64_t group_rows = (queries + 2) * head_size;
    const std::uint64_t begin = which == 0 ? 0 : (queries + which - 1) * head_size;
    for (std::uint64_t group = 0; group < groups; ++group)
      out.push_back({group * group_rows + begin, which == 0 ? queries * head_size : head_size});
    return out;
  }
  // All queries, all keys, all values: where each span of the fused tensor comes from, or goes to.
  [[nodiscard]] std::vector<Span> block_spans() const {
    std::vector<Span> out;
    for (std::uint32_t which = 0; which < 3; ++which) {
      const std::vector<Span> spans = fused_spans(which);
      out.insert(out.end(), spans.begin(), spans.end());
    }
    return out;
  }
};

FamilySettings with_facts(const CheckpointView& view, FamilySettings settings) {
  const bool told = settings.attention_heads != 0 || settings.query_groups != 0 || settings.head_size != 0;
  for (const auto& [key, value] : view.facts) {
    std::uint64_t number = 0;
    if (told || !parse_number(value, number)) continue;
    if (key == "attention heads") settings.attention_heads = number;
    if (key == "query groups") settings.query_groups = number;
    if (key == "head size") settings.head_size = number;
  }
  return settings;
}

// What is told, and rows of queries and of keys: the rest follows, and everything has to fit.
Result<Attention> attention_of(const StoredTensor& tensor, std::uint64_t query_rows, std::uint64_t key_rows,
                               const FamilySettings& settings) {
  Attention out;
  if (key_rows == 0 || query_rows % key_rows != 0)
    return refused(tensor, text(query_rows, " rows of queries and ", key_rows, " of keys are not heads in groups"));
  out.queries = query_rows / key_rows;
  if (settings.query_groups != 0)
    out.groups = settings.query_groups;
  else if (settings.attention_heads != 0)
    out.groups = settings.attention_heads / out.queries;
  else if (settings.head_size != 0)
    out.groups = key_rows / settings.head_size;
  else
    return refused(tensor,
                   "the checkpoint doesn't say how many heads it has: tell --heads, --query-groups or --head-size");
  out.head_size = out.groups == 0 ? 0 : key_rows / out.groups;
  const bool fits = out.groups != 0 && out.groups <= kGroupsMax && out.head_size * out.groups == key_rows &&
                    (settings.attention_heads == 0 || settings.attention_heads == out.groups * out.queries) &&
                    (settings.head_size == 0 || settings.head_size == out.head_size);
  if (!fits)
    return refused(tensor,
                   text(query_rows, " rows of queries and ", key_rows, " of keys don't fit ", settings.attention_heads,
                        " heads in ", settings.query_groups, " groups of size ", settings.head_size, " (0: not told)"));
  return out;
}

// Renames and edits the tensors of a view one after another; what becomes several tensors, or one of several, included.
class FamilyEdit {
 public:
  FamilyEdit(const CheckpointView& view, Family family, const FamilySettings& settings)
      : view_(view), rules_(rules_of(family)), settings_(with_facts(view, settings)) {
    for (const StoredTensor& tensor : view.tensors)
      if (!tensor.scales.payload.empty()) scaled_.insert(tensor.scales.payload);
  }
  Result<CheckpointView> to_huggingface();
  Result<CheckpointView> from_huggingface();

 private:
  struct Found {
    const Rule* rule = nullptr;
    std::uint32_t part = 0;  // which of its names
    ParsedName name;
  };
  struct Parts {  // of one fused tensor and role
    const Rule* rule = nullptr;
    ParsedName name;
    std::array<const StoredTensor*, 3> parts{};
  };
  Status take_apart(const StoredTensor& tensor, const Found& found);
  Result<StoredTensor> in_other_form(StoredTensor tensor, Form form, bool to_huggingface);
  Status put_parts_together(const Parts& parts);
  Result<std::uint64_t> columns_after(const StoredTensor& tensor, std::string_view module, const ParsedName& name);
  Result<Attention> attention_of_fused(const StoredTensor& tensor, const ParsedName& name);
  Status append(StoredTensor tensor, std::string name);
  Result<CheckpointView> finish(std::string_view names);
  Status check_editable(const StoredTensor& tensor, const Rule& rule);
  void keep(const StoredTensor& tensor);
  void rename_aliases(const std::unordered_map<std::string, std::string>& renamed);

  const CheckpointView& view_;
  std::span<const Rule> rules_;
  FamilySettings settings_;
  CheckpointView out_;
  std::unordered_set<std::string> labels_;
  std::unordered_set<std::string> scaled_;                  // payloads of scales
  std::vector<std::string> kept_;                           // names that the family doesn't know
  std::unordered_map<std::string, std::uint64_t> columns_;  // of matrices, by plain name
};

Status FamilyEdit::append(StoredTensor tensor, std::string name) {
  tensor.name = std::move(name);
  if (!labels_.insert(label_of(tensor.name, tensor.role)).second)
    return refused(tensor, "two tensors would get this name");
  out_.tensors.push_back(std::move(tensor));
  return {};
}

void FamilyEdit::keep(const StoredTensor& tensor) {
  if (kept_.empty() || kept_.back() != tensor.name) kept_.push_back(tensor.name);
}

Status FamilyEdit::check_editable(const StoredTensor& tensor, const Rule& rule) {
  if (rule.form == Form::same) return {};
  if (!tensor.scales.payload.empty() || scaled_.contains(tensor.name))
    return refused(tensor, "block-quantised tensors are renamed only, neither taken apart nor put together");
  return {};
}

// Columns of the linear layer that follows, of the same layer and expert: as many as rows of what it multiplies.
Result<std::uint64_t> FamilyEdit::columns_after(const StoredTensor& tensor, std::string_view module,
                                                const ParsedName& name) {
  if (columns_.empty())
    for (const StoredTensor& other : view_.tensors)
      if (other.shape.size() == 2) columns_.emplace(plain_name(other.name), other.shape[1]);
  ParsedName next = name;
  next.part = "weight";
  const auto found = columns_.find(put_together(module, next));
  if (found == columns_.end()) return refused(tensor, text("there is no ", put_together(module, next), " to go by"));
  return found->second;
}

Result<Attention> FamilyEdit::attention_of_fused(const StoredTensor& tensor, const ParsedName& name) {
  PAWL_ASSIGN(const std::uint64_t query_rows,
              columns_after(tensor, "decoder.layers.L.self_attention.linear_proj", name));
  const std::uint64_t rows = tensor.shape[0];
  if (rows <= query_rows || (rows - query_rows) % 2 != 0)
    return refused(tensor, text("its rows are not queries, keys and values of ", query_rows, " columns"));
  return attention_of(tensor, query_rows, (rows - query_rows) / 2, settings_);
}

Result<StoredTensor> FamilyEdit::in_other_form(StoredTensor tensor, Form form, bool to_huggingface) {
  if (form == Form::qkv_of_heads && tensor.shape.size() == 2 && tensor.shape[0] != 3 * tensor.shape[1])
    return refused(tensor, "not one key and one value for each head, which GPT-NeoX has");
  if (form != Form::transposed && form != Form::qkv_transposed) return tensor;
  if (tensor.shape.size() == 2 && !to_huggingface) {
    PAWL_ASSIGN(tensor, transpose(std::move(tensor), {1, 0}));
  }
  if (form == Form::qkv_transposed) {
    if (tensor.shape[0] % 3 != 0) return refused(tensor, "its rows are not as many queries, keys and values");
    PAWL_ASSIGN(const Attention attention, attention_of(tensor, tensor.shape[0] / 3, tensor.shape[0] / 3, settings_));
    if (to_huggingface) {
      PAWL_ASSIGN(tensor, select(std::move(tensor), 0, attention.block_spans()));
    } else {
      const std::uint64_t rows = tensor.shape[0];
      PAWL_ASSIGN(tensor, spread(std::move(tensor), 0, attention.block_spans(), rows));
    }
  }
  if (tensor.shape.size() == 2 && to_huggingface) {
    PAWL_ASSIGN(tensor, transpose(std::move(tensor), {1, 0}));
  }
  return tensor;
}

Status FamilyEdit::take_apart(const StoredTensor& tensor, const Found& found) {
  const Rule& rule = *found.rule;
  std::vector<std::vector<Span>> parts;
  if (rule.form == Form::qkv) {
    PAWL_ASSIGN(const Attention attention, attention_of_fused(tensor, found.name));
    for (std::uint32_t which = 0; which < 3; ++which) parts.push_back(attention.fused_spans(which));
  } else {
    std::string after(rule.megatron);
    after.replace(after.rfind("linear_fc1"), after.npos, "linear_fc2");
    PAWL_ASSIGN(const std::uint64_t half, columns_after(tensor, after, found.name));
    if (tensor.shape[0] != 2 * half)
      return refused(tensor, text("its rows are not two halves for ", half, " columns: the MLP is not gated"));
    parts = {{{0, half}}, {{half, half}}};
  }
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    PAWL_ASSIGN(StoredTensor part, select(tensor, 0, parts[i]));
    PAWL_TRY(append(std::move(part), put_together(rule.huggingface[i], found.name)));
  }
  return {};
}

Result<CheckpointView> FamilyEdit::to_huggingface() {
  std::unordered_map<std::string_view, const Rule*> rules;
  for (const Rule& rule : rules_) rules.emplace(rule.megatron, &rule);
  std::unordered_map<std::string, std::string> renamed;
  for (const StoredTensor& tensor : view_.tensors) {
    Found found{nullptr, 0, parse_name(plain_name(tensor.name))};
    const auto rule = rules.find(found.name.module);
    if (rule == rules.end()) {
      keep(tensor);
      PAWL_TRY(append(tensor, tensor.name));
      continue;
    }
    found.rule = rule->second;
    PAWL_TRY(check_editable(tensor, *found.rule));
    const bool is_fused = found.rule->form == Form::qkv || found.rule->form == Form::halves;
    if (is_fused && !tensor.shape.empty()) {
      PAWL_TRY(take_apart(tensor, found));
      continue;
    }
    if (is_fused) {  // the step of all parts
      for (const std::string_view name : found.rule->huggingface)
        if (!name.empty()) PAWL_TRY(append(tensor, put_together(name, found.name)));
      continue;
    }
    StoredTensor edited = tensor;
    if (!tensor.shape.empty()) {
      PAWL_ASSIGN(edited, in_other_form(tensor, found.rule->form, true));
    }
    const bool is_vocabulary =
        found.rule->megatron == "embedding.word_embeddings" || found.rule->megatron == "output_layer";
    if (is_vocabulary && settings_.vocabulary != 0 && !edited.shape.empty()) {
      if (edited.shape[0] < settings_.vocabulary)
        return refused(edited, text("it has fewer rows than the vocabulary of ", settings_.vocabulary));
      PAWL_ASSIGN(edited, select(std::move(edited), 0, {{0, settings_.vocabulary}}));
    }
    std::string name = put_together(found.rule->huggingface[0], found.name);
    renamed[tensor.name] = name;
    PAWL_TRY(append(std::move(edited), std::move(name)));
  }
  for (const auto& [alias, kept] : view_.aliases) {  // "output_layer.weight" is no tensor here
    const ParsedName name = parse_name(plain_name(alias));
    const auto rule = rules.find(name.module);
    if (rule != rules.end() && rule->second->form == Form::same)
      renamed[alias] = put_together(rule->second->huggingface[0], name);
  }
  rename_aliases(renamed);
  return finish("Hugging Face's");
}

Status FamilyEdit::put_parts_together(const Parts& parts) {
  const Rule& rule = *parts.rule;
  const StoredTensor& first =
      **std::ranges::find_if(parts.parts, [](const StoredTensor* part) { return part != nullptr; });
  std::vector<StoredTensor> all;
  std::uint32_t copies = kNoRank;
  for (std::uint32_t i = 0; i < parts.parts.size() && !rule.huggingface[i].empty(); ++i) {
    if (parts.parts[i] == nullptr)
      return refused(first,
                     text(put_together(rule.huggingface[i], parts.name), " is missing, which would be joined to it"));
    if (parts.parts[i]->shape.size() != first.shape.size())
      return refused(first, text(parts.parts[i]->name, " is ", text_of(parts.parts[i]->shape)));
    std::uint32_t own = 0;
    for (const StoredPiece& piece : parts.parts[i]->pieces) own = std::max(own, piece.copy + 1);
    copies = std::min(copies, own);
    all.push_back(*parts.parts[i]);
  }
  std::string name = put_together(rule.megatron, parts.name);
  if (first.shape.empty()) return append(first, std::move(name));  // a step: the same for all parts
  for (StoredTensor& part : all) part = without_copies_beyond(std::move(part), copies);
  StoredTensor whole;
  if (rule.form == Form::qkv) {
    if (all[1].shape[0] != all[2].shape[0])
      return refused(all[1], text("keys and values differ: ", all[2].name, " is ", text_of(all[2].shape)));
    PAWL_ASSIGN(const Attention attention, attention_of(all[0], all[0].shape[0], all[1].shape[0], settings_));
    std::vector<std::vector<Span>> spans;
    std::uint64_t rows = 0;
    for (std::uint32_t which = 0; which < 3; ++which) {
      spans.push_back(attention.fused_spans(which));
      rows += all[which].shape[0];
    }
    for (std::uint32_t which = 0; which < 3; ++which) {
      PAWL_ASSIGN(all[which], spread(std::move(all[which]), 0, spans[which], rows));
    }
    PAWL_ASSIGN(whole, gather(std::move(all)));
  } else {
    if (all[0].shape != all[1].shape)
      return refused(all[0], text("the halves differ: ", all[1].name, " is ", text_of(all[1].shape)));
    PAWL_ASSIGN(whole, concatenate(std::move(all), 0));
  }
  return append(std::move(whole), std::move(name));
}

Result<CheckpointView> FamilyEdit::from_huggingface() {
  std::unordered_map<std::string_view, std::pair<const Rule*, std::uint32_t>> rules;
  for (const Rule& rule : rules_)
    for (std::uint32_t i = 0; i < rule.huggingface.size() && !rule.huggingface[i].empty(); ++i) {
      std::string_view name = rule.huggingface[i];
      rules.emplace(name, std::pair(&rule, i));
      if (!name.starts_with(kBody)) continue;  // GPT-2's own checkpoints are of the body alone
      name.remove_prefix(kBody.size());
      rules.emplace(name, std::pair(&rule, i));
    }
  std::map<std::string, Parts> fused;  // by label
  std::unordered_map<std::string, std::string> renamed;
  for (const StoredTensor& tensor : view_.tensors) {
    const ParsedName name = parse_name(tensor.name);
    const auto found = rules.find(name.module);
    if (found == rules.end()) {
      keep(tensor);
      PAWL_TRY(append(tensor, tensor.name));
      continue;
    }
    const auto& [rule, part] = found->second;
    PAWL_TRY(check_editable(tensor, *rule));
    std::string new_name = put_together(rule->megatron, name);
    if (rule->form == Form::qkv || rule->form == Form::halves) {
      Parts& parts = fused[label_of(new_name, tensor.role)];
      parts.rule = rule;
      parts.name = name;
      if (parts.parts[part] != nullptr) return refused(tensor, "it is there twice");
      parts.parts[part] = &tensor;
      continue;
    }
    StoredTensor edited = tensor;
    if (!tensor.shape.empty()) {
      PAWL_ASSIGN(edited, in_other_form(tensor, rule->form, false));
    }
    renamed[tensor.name] = new_name;
    PAWL_TRY(append(std::move(edited), std::move(new_name)));
  }
  for (const auto& [label, parts] : fused) PAWL_TRY(put_parts_together(parts));
  for (const auto& [alias, kept] : view_.aliases) {
    const ParsedName name = parse_name(alias);
    const auto rule = rules.find(name.module);
    if (rule != rules.end() && rule->second.first->form == Form::same)
      renamed[alias] = put_together(rule->second.first->megatron, name);
  }
  rename_aliases(renamed);
  return finish("Megatron-Core's");
}

void FamilyEdit::rename_aliases(const std::unordered_map<std::string, std::string>& renamed) {
  std::unordered_set<std::string> names;
  for (const StoredTensor& tensor : out_.tensors) names.insert(tensor.name);
  const auto new_name = [&](const std::string& name) {
    const auto found = renamed.find(name);
    return found == renamed.end() ? name : found->second;
  };
  for (const auto& [alias, kept] : view_.aliases)
    if (names.contains(new_name(kept)) && !names.contains(new_name(alias)))
      out_.aliases.emplace_back(new_name(alias), new_name(kept));
  for (StoredTensor& tensor : out_.tensors)
    if (!tensor.scales.payload.empty()) tensor.scales.payload = new_name(tensor.scales.payload);
}

Result<CheckpointView> FamilyEdit::finish(std::string_view names) {
  out_.format = view_.format;
  out_.facts = view_.facts;
  out_.facts.emplace_back("names", std::string(names));
  out_.files = view_.files;
  out_.objects = view_.objects;
  out_.notes = view_.notes;
  out_.problems = view_.problems;
  std::ranges::sort(kept_);
  kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
  if (!kept_.empty())
    out_.notes.push_back(text(kept_.size(), kept_.size() == 1 ? " parameter has" : " parameters have",
                              " no name among ", names, " and keep their own, the first ", kept_.front()));
  return std::move(out_);
}

bool any_name(const CheckpointView& view, std::string_view word) {
  return std::ranges::any_of(view.tensors,
                             [&](const StoredTensor& tensor) { return tensor.name.find(word) != std::string::npos; });
}

Error not_known(std::string_view whose) {
  return {Code::invalid, text("these are not ", whose,
                              " names of a family that is known: tell --family gpt, llama, "
                              "mixtral or gpt_neox")};
}

}  // namespace

std::string_view name_of(Family family) {
  constexpr std::array<std::string_view, 4> kNames = {"gpt", "llama", "mixtral", "gpt_neox"};
  return kNames[static_cast<std::size_t>(family)];
}

std::optional<Family> family_named(std::string_view name) {
  for (const Family family : {Family::gpt, Family::llama, Family::mixtral, Family::gpt_neox})
    if (name_of(family) == name) return family;
  return std::nullopt;
}

Result<FamilySettings> settings_of_config(std::string_view config_json, FamilySettings told) {
  JsonScan json(config_json);
  const bool is_told = told.attention_heads != 0 || told.query_groups != 0 || told.head_size != 0;
  FamilySettings out = told;
  std::string key;
  json.begin_object();
  while (json.next_key(key)) {
    std::uint64_t number = 0;
    if (json.peek() != '0') {
      json.skip();
      continue;
    }
    if (key == "vocab_size" && told.vocabulary == 0) {
      json.number(out.vocabulary);
      continue;
    }
    const bool is_ours =
        key == "num_attention_heads" || key == "n_head" || key == "num_key_value_heads" || key == "head_dim";
    if (!is_ours || is_told) {
      json.skip();
      continue;
    }
    json.number(number);
    (key == "head_dim"              ? out.head_size
     : key == "num_key_value_heads" ? out.query_groups
                                    : out.attention_heads) = number;
  }
  json.finish();
  if (json.failed()) return json.error();
  return out;
}

std::optional<Family> family_of_megatron(const CheckpointView& view) {
  if (!any_name(view, "decoder.layers.") || !any_name(view, ".self_attention.linear_qkv.")) return std::nullopt;
  if (any_name(view, ".local_experts.") || any_name(view, ".mlp.experts.linear_fc1.")) return Family::mixtral;
  // A gated fc1 has twice the rows that fc2 has columns: no name says so.
  std::unordered_map<std::string, std::uint64_t> rows;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.shape.size() == 2 && tensor.name.ends_with(".mlp.linear_fc1.weight"))
      rows[tensor.name.substr(0, tensor.name.size() - 10)] = tensor.shape[0];
  for (const StoredTensor& tensor : view.tensors) {
    if (tensor.shape.size() != 2 || !tensor.name.ends_with(".mlp.linear_fc2.weight")) continue;
    const auto found = rows.find(tensor.name.substr(0, tensor.name.size() - 10));
    if (found == rows.end()) continue;
    if (found->second == 2 * tensor.shape[1]) return Family::llama;
    return any_name(view, "embedding.position_embeddings.") ? Family::gpt : Family::gpt_neox;
  }
  return std::nullopt;
}

std::optional<Family> family_of_huggingface(const CheckpointView& view) {
  if (any_name(view, ".block_sparse_moe.")) return Family::mixtral;
  if (any_name(view, "gpt_neox.layers.")) return Family::gpt_neox;
  if (any_name(view, "h.0.attn.c_attn.")) return Family::gpt;
  if (any_name(view, "model.layers.") && any_name(view, ".mlp.gate_proj.") && any_name(view, ".self_attn.q_proj."))
    return Family::llama;
  return std::nullopt;
}

Result<CheckpointView> to_huggingface(const CheckpointView& view, const FamilySettings& settings) {
  const std::optional<Family> family = settings.family ? settings.family : family_of_megatron(view);
  if (!family) return not_known("Megatron-Core's");
  return FamilyEdit(view, *family, settings).to_huggingface();
}

Result<CheckpointView> from_huggingface(const CheckpointView& view, const FamilySettings& settings) {
  const std::optional<Family> family = settings.family ? settings.family : family_of_huggingface(view);
  if (!family) return not_known("Hugging Face's");
  return FamilyEdit(view, *family, settings).from_huggingface();
}

}  // namespace pawl::checkpoint
