#include "checkpoint/names/families.h"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/names/attention_heads.h"
#include "checkpoint/names/family_rules.h"
#include "checkpoint/names/module_name.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kBody = "transformer.";

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
    const FamilyRule* rule = nullptr;
    std::uint32_t part = 0;  // which of its names
    ModuleName name;
  };
  struct Parts {  // of one fused tensor and role
    const FamilyRule* rule = nullptr;
    ModuleName name;
    std::array<const StoredTensor*, 3> parts{};
  };
  Status take_apart(const StoredTensor& tensor, const Found& found);
  Result<StoredTensor> in_other_form(StoredTensor tensor, ModuleForm form, bool to_huggingface);
  Status put_parts_together(const Parts& parts);
  Result<std::uint64_t> columns_after(const StoredTensor& tensor, std::string_view module, const ModuleName& name);
  Result<AttentionHeads> attention_of_fused(const StoredTensor& tensor, const ModuleName& name);
  Status append(StoredTensor tensor, std::string name);
  Result<CheckpointView> finish(std::string_view names);
  Status check_editable(const StoredTensor& tensor, const FamilyRule& rule);
  void keep(const StoredTensor& tensor);
  void rename_aliases(const std::unordered_map<std::string, std::string>& renamed);

  const CheckpointView& view_;
  std::vector<FamilyRule> rules_;
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
    return unfit_tensor(tensor, "two tensors would get this name");
  out_.tensors.push_back(std::move(tensor));
  return {};
}

void FamilyEdit::keep(const StoredTensor& tensor) {
  if (kept_.empty() || kept_.back() != tensor.name) kept_.push_back(tensor.name);
}

Status FamilyEdit::check_editable(const StoredTensor& tensor, const FamilyRule& rule) {
  if (rule.form == ModuleForm::same) return {};
  if (!tensor.scales.payload.empty() || scaled_.contains(tensor.name))
    return unfit_tensor(tensor, "block-quantised tensors can be renamed, but not split or joined");
  return {};
}

// Columns of the linear layer that follows, of the same layer and expert: as many as rows of what it multiplies.
Result<std::uint64_t> FamilyEdit::columns_after(const StoredTensor& tensor, std::string_view module,
                                                const ModuleName& name) {
  if (columns_.empty())
    for (const StoredTensor& other : view_.tensors)
      if (other.shape.size() == 2) columns_.emplace(without_transformer_engine(other.name), other.shape[1]);
  ModuleName next = name;
  next.part = "weight";
  const auto found = columns_.find(name_of_module(module, next));
  if (found == columns_.end())
    return unfit_tensor(tensor, text("there is no ", name_of_module(module, next), ", which tells its sizes"));
  return found->second;
}

Result<AttentionHeads> FamilyEdit::attention_of_fused(const StoredTensor& tensor, const ModuleName& name) {
  PAWL_ASSIGN(const std::uint64_t query_rows,
              columns_after(tensor, "decoder.layers.L.self_attention.linear_proj", name));
  const std::uint64_t rows = tensor.shape[0];
  if (rows <= query_rows || (rows - query_rows) % 2 != 0)
    return unfit_tensor(tensor, text("its rows are not queries, keys and values of ", query_rows, " columns"));
  return attention_heads_of(tensor, query_rows, (rows - query_rows) / 2, settings_);
}

Result<StoredTensor> FamilyEdit::in_other_form(StoredTensor tensor, ModuleForm form, bool to_huggingface) {
  if (form == ModuleForm::qkv_of_heads && tensor.shape.size() == 2 && tensor.shape[0] != 3 * tensor.shape[1])
    return unfit_tensor(tensor, "not one key and one value for each head, which GPT-NeoX has");
  if (form != ModuleForm::transposed && form != ModuleForm::qkv_transposed) return tensor;
  if (tensor.shape.size() == 2 && !to_huggingface) {
    PAWL_ASSIGN(tensor, transpose(std::move(tensor), {1, 0}));
  }
  if (form == ModuleForm::qkv_transposed) {
    if (tensor.shape[0] % 3 != 0) return unfit_tensor(tensor, "its rows are not as many queries, keys and values");
    PAWL_ASSIGN(const AttentionHeads attention,
                attention_heads_of(tensor, tensor.shape[0] / 3, tensor.shape[0] / 3, settings_));
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
  const FamilyRule& rule = *found.rule;
  std::vector<std::vector<Span>> parts;
  if (rule.form == ModuleForm::qkv) {
    PAWL_ASSIGN(const AttentionHeads attention, attention_of_fused(tensor, found.name));
    for (std::uint32_t which = 0; which < 3; ++which) parts.push_back(attention.fused_spans(which));
  } else {
    std::string after(rule.megatron);
    after.replace(after.rfind("linear_fc1"), after.npos, "linear_fc2");
    PAWL_ASSIGN(const std::uint64_t half, columns_after(tensor, after, found.name));
    if (tensor.shape[0] != 2 * half)
      return unfit_tensor(tensor, text("its rows are not two halves for ", half, " columns: the MLP is not gated"));
    parts = {{{0, half}}, {{half, half}}};
  }
  for (std::uint32_t i = 0; i < parts.size(); ++i) {
    PAWL_ASSIGN(StoredTensor part, select(tensor, 0, parts[i]));
    PAWL_TRY(append(std::move(part), name_of_module(rule.huggingface[i], found.name)));
  }
  return {};
}

Result<CheckpointView> FamilyEdit::to_huggingface() {
  std::unordered_map<std::string_view, const FamilyRule*> rules;
  for (const FamilyRule& rule : rules_) rules.emplace(rule.megatron, &rule);
  std::unordered_map<std::string, std::string> renamed;
  for (const StoredTensor& tensor : view_.tensors) {
    Found found{nullptr, 0, parse_module_name(without_transformer_engine(tensor.name))};
    const auto rule = rules.find(found.name.module);
    if (rule == rules.end()) {
      keep(tensor);
      PAWL_TRY(append(tensor, tensor.name));
      continue;
    }
    found.rule = rule->second;
    PAWL_TRY(check_editable(tensor, *found.rule));
    const bool is_fused = found.rule->form == ModuleForm::qkv || found.rule->form == ModuleForm::halves;
    if (is_fused && !tensor.shape.empty()) {
      PAWL_TRY(take_apart(tensor, found));
      continue;
    }
    if (is_fused) {  // the step of all parts
      for (const std::string_view name : found.rule->huggingface)
        if (!name.empty()) PAWL_TRY(append(tensor, name_of_module(name, found.name)));
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
        return unfit_tensor(edited, text("it has fewer rows than the vocabulary of ", settings_.vocabulary));
      PAWL_ASSIGN(edited, select(std::move(edited), 0, {{0, settings_.vocabulary}}));
    }
    std::string name = name_of_module(found.rule->huggingface[0], found.name);
    renamed[tensor.name] = name;
    PAWL_TRY(append(std::move(edited), std::move(name)));
  }
  for (const auto& [alias, kept] : view_.aliases) {  // "output_layer.weight" is no tensor here
    const ModuleName name = parse_module_name(without_transformer_engine(alias));
    const auto rule = rules.find(name.module);
    if (rule != rules.end() && rule->second->form == ModuleForm::same)
      renamed[alias] = name_of_module(rule->second->huggingface[0], name);
  }
  rename_aliases(renamed);
  return finish("Hugging Face's");
}

Status FamilyEdit::put_parts_together(const Parts& parts) {
  const FamilyRule& rule = *parts.rule;
  const StoredTensor& first =
      **std::ranges::find_if(parts.parts, [](const StoredTensor* part) { return part != nullptr; });
  std::vector<StoredTensor> all;
  std::uint32_t copies = kNoRank;
  for (std::uint32_t i = 0; i < parts.parts.size() && !rule.huggingface[i].empty(); ++i) {
    if (parts.parts[i] == nullptr)
      return unfit_tensor(first, text(name_of_module(rule.huggingface[i], parts.name),
                                      ", which belongs to the same tensor, is missing"));
    if (parts.parts[i]->shape.size() != first.shape.size())
      return unfit_tensor(first, text(parts.parts[i]->name, " is ", text_of(parts.parts[i]->shape)));
    std::uint32_t own = 0;
    for (const StoredPiece& piece : parts.parts[i]->pieces) own = std::max(own, piece.copy + 1);
    copies = std::min(copies, own);
    all.push_back(*parts.parts[i]);
  }
  std::string name = name_of_module(rule.megatron, parts.name);
  if (first.shape.empty()) return append(first, std::move(name));  // a step: the same for all parts
  for (StoredTensor& part : all) part = without_copies_beyond(std::move(part), copies);
  StoredTensor whole;
  if (rule.form == ModuleForm::qkv) {
    if (all[1].shape[0] != all[2].shape[0])
      return unfit_tensor(all[1], text("keys and values differ: ", all[2].name, " is ", text_of(all[2].shape)));
    PAWL_ASSIGN(const AttentionHeads attention,
                attention_heads_of(all[0], all[0].shape[0], all[1].shape[0], settings_));
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
      return unfit_tensor(all[0], text("the halves differ: ", all[1].name, " is ", text_of(all[1].shape)));
    PAWL_ASSIGN(whole, concatenate(std::move(all), 0));
  }
  return append(std::move(whole), std::move(name));
}

Result<CheckpointView> FamilyEdit::from_huggingface() {
  std::unordered_map<std::string_view, std::pair<const FamilyRule*, std::uint32_t>> rules;
  for (const FamilyRule& rule : rules_)
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
    const ModuleName name = parse_module_name(tensor.name);
    const auto found = rules.find(name.module);
    if (found == rules.end()) {
      keep(tensor);
      PAWL_TRY(append(tensor, tensor.name));
      continue;
    }
    const auto& [rule, part] = found->second;
    PAWL_TRY(check_editable(tensor, *rule));
    std::string new_name = name_of_module(rule->megatron, name);
    if (rule->form == ModuleForm::qkv || rule->form == ModuleForm::halves) {
      Parts& parts = fused[label_of(new_name, tensor.role)];
      parts.rule = rule;
      parts.name = name;
      if (parts.parts[part] != nullptr) return unfit_tensor(tensor, "it appears twice");
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
    const ModuleName name = parse_module_name(alias);
    const auto rule = rules.find(name.module);
    if (rule != rules.end() && rule->second.first->form == ModuleForm::same)
      renamed[alias] = name_of_module(rule->second.first->megatron, name);
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
  out_.unnamed = view_.unnamed;
  out_.unsupported = view_.unsupported;
  out_.problems = view_.problems;
  std::ranges::sort(kept_);
  kept_.erase(std::unique(kept_.begin(), kept_.end()), kept_.end());
  if (!kept_.empty())
    out_.notes.push_back(text(kept_.size(), kept_.size() == 1 ? " parameter has" : " parameters have",
                              " no name among ", names, " and keep their own, the first ", kept_.front()));
  return std::move(out_);
}

Error not_known(std::string_view whose) {
  return {Code::invalid, text("these are not ", whose,
                              " names of a known family: pass --family gpt, llama, "
                              "mixtral or gpt_neox")};
}

}  // namespace

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
