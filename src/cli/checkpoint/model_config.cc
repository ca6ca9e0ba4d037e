#include "cli/checkpoint/model_config.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/output/partial_output.h"

namespace pawl::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::uint64_t kConfigBytesMax = 16 << 20;
constexpr std::uint64_t kExtentMax = std::uint64_t{1} << 40;
constexpr std::uint64_t kModulesMax = 1'000'000;  // layers, or experts of all layers: a config that says more is none
constexpr const char* kConfigName = "config.json";

std::optional<Json> object_of(const std::string& words) {
  Json config = Json::parse(words, nullptr, false);
  if (config.is_discarded() || !config.is_object()) return std::nullopt;
  return config;
}

bool is_of_a_model(const Json& config) {
  const auto type = config.find("model_type");
  return (type != config.end() && type->is_string()) || config.contains("architectures");
}

// 0: not said.
std::uint64_t number_at(const Json& config, const char* key) {
  const auto found = config.find(key);
  if (found == config.end() || !found->is_number_unsigned()) return 0;
  const auto number = found->get<std::uint64_t>();
  return number > kExtentMax ? 0 : number;
}

bool flag_at(const Json& config, const char* key, bool otherwise) {
  const auto found = config.find(key);
  return found != config.end() && found->is_boolean() ? found->get<bool>() : otherwise;
}

struct Expected {
  std::string name;
  Shape shape;  // 0: an extent that the config doesn't say
};

struct Model {
  std::string type;
  std::string prefix;  // of the model without its head: transformers takes the names without it, too
  std::string embedding;
  std::string head;
  bool is_tied = false;
  std::vector<Expected> tensors;  // but embedding and head
  Shape embedding_shape;
};

// With the bias, if there is one: as many as the weight has rows.
void add_linear(Model& model, const std::string& module, std::uint64_t rows, std::uint64_t columns, bool has_bias) {
  model.tensors.push_back({module + ".weight", {rows, columns}});
  if (has_bias) model.tensors.push_back({module + ".bias", {rows}});
}
// GPT-2's layers are stored [in, out].
void add_transposed(Model& model, const std::string& module, std::uint64_t rows, std::uint64_t columns) {
  model.tensors.push_back({module + ".weight", {columns, rows}});
  model.tensors.push_back({module + ".bias", {rows}});
}
void add_norm(Model& model, const std::string& module, std::uint64_t size, bool has_bias) {
  model.tensors.push_back({module + ".weight", {size}});
  if (has_bias) model.tensors.push_back({module + ".bias", {size}});
}

void add_experts(Model& model, const std::string& layer, const Json& config, bool are_fused) {
  const std::uint64_t hidden = number_at(config, "hidden_size"), inner = number_at(config, "intermediate_size");
  const std::uint64_t experts = number_at(config, "num_local_experts");
  if (are_fused) {  // as transformers 5 has them in memory, and reads them
    model.tensors.push_back({layer + ".mlp.gate.weight", {experts, hidden}});
    model.tensors.push_back({layer + ".mlp.experts.gate_up_proj", {experts, 2 * inner, hidden}});
    model.tensors.push_back({layer + ".mlp.experts.down_proj", {experts, hidden, inner}});
    return;
  }
  model.tensors.push_back({layer + ".block_sparse_moe.gate.weight", {experts, hidden}});
  for (std::uint64_t e = 0; e < experts; ++e) {
    const std::string expert = text(layer, ".block_sparse_moe.experts.", e);
    add_linear(model, expert + ".w1", inner, hidden, false);
    add_linear(model, expert + ".w2", hidden, inner, false);
    add_linear(model, expert + ".w3", inner, hidden, false);
  }
}

// Llama, Mistral, Qwen 2 and 3, Mixtral.
void add_llama_like(Model& model, const Json& config, bool are_fused) {
  const std::uint64_t hidden = number_at(config, "hidden_size"), inner = number_at(config, "intermediate_size");
  const std::uint64_t heads = number_at(config, "num_attention_heads");
  std::uint64_t head = number_at(config, "head_dim");
  if (head == 0 && model.type != "qwen3" && heads != 0) head = hidden / heads;
  std::uint64_t groups = number_at(config, "num_key_value_heads");
  if (groups == 0 && model.type == "llama") groups = heads;
  const bool is_qwen2 = model.type == "qwen2";
  const bool has_bias = (model.type == "llama" || model.type == "qwen3") && flag_at(config, "attention_bias", false);
  const bool has_mlp_bias = model.type == "llama" && flag_at(config, "mlp_bias", false);
  for (std::uint64_t l = 0; l < number_at(config, "num_hidden_layers"); ++l) {
    const std::string layer = text("model.layers.", l);
    add_norm(model, layer + ".input_layernorm", hidden, false);
    add_linear(model, layer + ".self_attn.q_proj", heads * head, hidden, has_bias || is_qwen2);
    add_linear(model, layer + ".self_attn.k_proj", groups * head, hidden, has_bias || is_qwen2);
    add_linear(model, layer + ".self_attn.v_proj", groups * head, hidden, has_bias || is_qwen2);
    add_linear(model, layer + ".self_attn.o_proj", hidden, heads * head, has_bias);
    if (model.type == "qwen3") {
      add_norm(model, layer + ".self_attn.q_norm", head, false);
      add_norm(model, layer + ".self_attn.k_norm", head, false);
    }
    add_norm(model, layer + ".post_attention_layernorm", hidden, false);
    if (model.type == "mixtral") {
      add_experts(model, layer, config, are_fused);
      continue;
    }
    add_linear(model, layer + ".mlp.gate_proj", inner, hidden, has_mlp_bias);
    add_linear(model, layer + ".mlp.up_proj", inner, hidden, has_mlp_bias);
    add_linear(model, layer + ".mlp.down_proj", hidden, inner, has_mlp_bias);
  }
  add_norm(model, "model.norm", hidden, false);
}

void add_gpt2(Model& model, const Json& config) {
  const std::uint64_t hidden = number_at(config, "n_embd");
  const std::uint64_t told = number_at(config, "n_inner"), inner = told == 0 ? 4 * hidden : told;
  model.tensors.push_back({"transformer.wpe.weight", {number_at(config, "n_positions"), hidden}});
  for (std::uint64_t l = 0; l < number_at(config, "n_layer"); ++l) {
    const std::string layer = text("transformer.h.", l);
    add_norm(model, layer + ".ln_1", hidden, true);
    add_transposed(model, layer + ".attn.c_attn", 3 * hidden, hidden);
    add_transposed(model, layer + ".attn.c_proj", hidden, hidden);
    add_norm(model, layer + ".ln_2", hidden, true);
    add_transposed(model, layer + ".mlp.c_fc", inner, hidden);
    add_transposed(model, layer + ".mlp.c_proj", hidden, inner);
  }
  add_norm(model, "transformer.ln_f", hidden, true);
}

void add_gpt_neox(Model& model, const Json& config) {
  const std::uint64_t hidden = number_at(config, "hidden_size"), inner = number_at(config, "intermediate_size");
  const bool has_bias = flag_at(config, "attention_bias", true);
  for (std::uint64_t l = 0; l < number_at(config, "num_hidden_layers"); ++l) {
    const std::string layer = text("gpt_neox.layers.", l);
    add_norm(model, layer + ".input_layernorm", hidden, true);
    add_norm(model, layer + ".post_attention_layernorm", hidden, true);
    add_linear(model, layer + ".attention.query_key_value", 3 * hidden, hidden, has_bias);
    add_linear(model, layer + ".attention.dense", hidden, hidden, has_bias);
    add_linear(model, layer + ".mlp.dense_h_to_4h", inner, hidden, true);
    add_linear(model, layer + ".mlp.dense_4h_to_h", hidden, inner, true);
  }
  add_norm(model, "gpt_neox.final_layer_norm", hidden, true);
}

// "LlamaForCausalLM" of llama, GPT-2's "GPT2LMHeadModel": what the tables here are of. One of another head is not
// known.
bool is_of_words(const Json& config) {
  const auto architectures = config.find("architectures");
  if (architectures == config.end() || !architectures->is_array() || architectures->empty()) return true;
  if (!architectures->front().is_string()) return false;
  const std::string name = architectures->front().get<std::string>();
  return name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel");
}

// The names decide which form of experts is meant.
std::optional<Model> model_of(const std::string& words, const std::set<std::string_view>& names) {
  const std::optional<Json> config = object_of(words);
  if (!config || !is_of_words(*config) || config->contains("quantization_config")) return std::nullopt;
  const auto type = config->find("model_type");
  if (type == config->end() || !type->is_string()) return std::nullopt;
  Model model;
  model.type = type->get<std::string>();
  const bool is_gpt2 = model.type == "gpt2";
  const std::uint64_t layers = number_at(*config, is_gpt2 ? "n_layer" : "num_hidden_layers");
  const std::uint64_t experts = std::max<std::uint64_t>(number_at(*config, "num_local_experts"), 1);
  if (layers > kModulesMax || experts > kModulesMax || layers * experts > kModulesMax) return std::nullopt;
  model.is_tied = flag_at(*config, "tie_word_embeddings", is_gpt2);
  model.embedding_shape = {number_at(*config, "vocab_size"), number_at(*config, is_gpt2 ? "n_embd" : "hidden_size")};
  model.head = "lm_head.weight";
  if (is_gpt2) {
    model.prefix = "transformer.";
    model.embedding = "transformer.wte.weight";
    add_gpt2(model, *config);
  } else if (model.type == "gpt_neox") {
    model.prefix = "gpt_neox.";
    model.embedding = "gpt_neox.embed_in.weight";
    model.head = "embed_out.weight";
    add_gpt_neox(model, *config);
  } else if (model.type == "llama" || model.type == "mistral" || model.type == "qwen2" || model.type == "qwen3" ||
             model.type == "mixtral") {
    const bool are_fused =
        std::ranges::any_of(names, [](std::string_view name) { return name.ends_with(".mlp.experts.gate_up_proj"); });
    model.prefix = "model.";
    model.embedding = "model.embed_tokens.weight";
    add_llama_like(model, *config, are_fused);
  } else {
    return std::nullopt;
  }
  return model;
}

bool fits(const Shape& stored, const Shape& expected) {
  return std::ranges::equal(stored, expected,
                            [](std::uint64_t is, std::uint64_t told) { return told == 0 || is == told; });
}

std::string text_of_expected(const Shape& shape) {
  std::string out;
  for (const std::uint64_t extent : shape)
    out += text(out.empty() ? "" : ",", extent == 0 ? std::string("?") : text(extent));
  return text('[', out, ']');
}

// A tensor of the model by its name, or by the one that it has in the model without its head.
const Shape* find_tensor(const std::map<std::string_view, const Shape*>& there, const Model& model,
                         std::string_view name) {
  auto found = there.find(name);
  if (found == there.end() && name.starts_with(model.prefix)) found = there.find(name.substr(model.prefix.size()));
  return found == there.end() ? nullptr : found->second;
}

std::set<std::string_view> weight_names(const CheckpointView& view) {
  std::set<std::string_view> names;
  for (const StoredTensor& tensor : view.tensors)
    if (tensor.role == "weight") names.insert(tensor.name);
  return names;
}

// What lies in front of each name of the model; empty: nothing does, or not of all.
std::string wrapper_of(const Model& model, const std::set<std::string_view>& names) {
  const std::string_view probe = model.tensors.empty() ? std::string_view() : model.tensors.back().name;
  if (probe.empty() || names.contains(probe)) return {};
  for (const std::string_view name : names) {
    if (!name.ends_with(probe) || name[name.size() - probe.size() - 1] != '.') continue;
    std::string front(name.substr(0, name.size() - probe.size()));
    const bool is_whole =
        std::ranges::all_of(model.tensors, [&](const Expected& tensor) { return names.contains(front + tensor.name); });
    if (is_whole) return front;
  }
  return {};
}

void drop_wrapper(const std::string& front, CheckpointView& view, std::vector<std::string>& notes) {
  const auto drop = [&](std::string& name) {
    if (name.starts_with(front)) name.erase(0, front.size());
  };
  std::set<std::string> labels;
  for (const StoredTensor& tensor : view.tensors) {
    std::string name = tensor.name;
    drop(name);
    if (!labels.insert(text(name, '\n', tensor.role)).second) return;  // the check says what is missing
  }
  for (StoredTensor& tensor : view.tensors) {
    drop(tensor.name);
    drop(tensor.scales.payload);
  }
  for (auto& [alias, name] : view.aliases) {
    drop(alias);
    drop(name);
  }
  notes.push_back(text("\"", front, "\" in front of all names is left out: config.json's model has none"));
}

// A head that is the embedding's tensor in the checkpoint, and a tensor of its own in the config's model.
void untie_head(const Model& model, CheckpointView& view, std::vector<std::string>& notes) {
  if (model.is_tied) return;
  for (auto alias = view.aliases.begin(); alias != view.aliases.end(); ++alias) {
    if (alias->first != model.head && alias->first != model.embedding) continue;
    const std::string other = alias->second;
    const auto kept = std::ranges::find_if(
        view.tensors, [&](const StoredTensor& tensor) { return tensor.name == other && tensor.role == "weight"; });
    if (kept == view.tensors.end()) return;
    StoredTensor own = *kept;
    own.name = alias->first;
    notes.push_back(
        text(own.name, " is tied to ", other, " in the checkpoint, and not by config.json: both are written"));
    view.aliases.erase(alias);
    view.tensors.push_back(std::move(own));
    return;
  }
}

// Of all weights that are numbers; nothing where they differ.
std::optional<std::string_view> only_type(const OutputPlan& plan) {
  std::set<ElementType> types;
  for (const PlannedTensor& tensor : plan.tensors)
    for (const ElementType type :
         {ElementType::float64, ElementType::float32, ElementType::float16, ElementType::bfloat16})
      if (tensor.type == type) types.insert(type);
  if (types.size() != 1) return std::nullopt;
  return name_of(*types.begin());
}

}  // namespace

Result<std::optional<ModelConfig>> find_model_config(const ConvertOptions& options, const CheckpointView& view,
                                                     Files& files) {
  if (!options.config_file.empty()) {
    PAWL_ASSIGN(std::string words, read_file(options.config_file, kConfigBytesMax, files));
    if (!object_of(words)) return Error{Code::corrupt, text(options.config_file, ": not a JSON object")};
    return std::optional(ModelConfig{options.config_file, std::move(words)});
  }
  std::vector<std::string> folders = {options.source, parent_path(options.source)};
  if (files.list(options.source)) folders.pop_back();  // what lies beside a folder may be another model's
  if (!view.files.empty()) folders.push_back(parent_path(view.files[0].path));
  for (const std::string& folder : folders) {
    const std::string path = join_path(folder, kConfigName);
    Result<std::string> words = read_file(path, kConfigBytesMax, files);
    if (!words) continue;
    const std::optional<Json> config = object_of(*words);
    if (config && is_of_a_model(*config)) return std::optional(ModelConfig{path, std::move(*words)});
  }
  return std::optional<ModelConfig>();
}

std::vector<std::string> fit_names(const ModelConfig& config, CheckpointView& view) {
  std::vector<std::string> notes;
  const std::optional<Model> model = model_of(config.text, weight_names(view));
  if (!model) return notes;
  const std::string front = wrapper_of(*model, weight_names(view));
  if (!front.empty()) drop_wrapper(front, view, notes);
  untie_head(*model, view, notes);
  return notes;
}

std::vector<std::string> what_differs(const ModelConfig& config, const CheckpointView& view, const OutputPlan& plan) {
  std::map<std::string_view, const Shape*> there;
  std::set<std::string_view> names;
  for (const PlannedTensor& tensor : plan.tensors) {
    there.emplace(tensor.key, &view.tensors[tensor.tensor].shape);
    names.insert(tensor.key);
  }
  std::optional<Model> model = model_of(config.text, names);
  if (!model) return {};
  const bool has_embedding = find_tensor(there, *model, model->embedding) != nullptr;
  const bool has_head = find_tensor(there, *model, model->head) != nullptr;
  if (has_embedding || !model->is_tied || !has_head)
    model->tensors.push_back({model->embedding, model->embedding_shape});
  if (has_head || !model->is_tied) model->tensors.push_back({model->head, model->embedding_shape});
  FirstFew missing, wrong;
  std::size_t missing_count = 0, wrong_count = 0;
  for (const Expected& tensor : model->tensors) {
    const Shape* const shape = find_tensor(there, *model, tensor.name);
    if (shape == nullptr) {
      missing.add(text(tensor.name, ' ', text_of_expected(tensor.shape)));
      ++missing_count;
    } else if (!fits(*shape, tensor.shape)) {
      wrong.add(text(tensor.name, " is ", text_of(*shape), ", and ", text_of_expected(tensor.shape), " there"));
      ++wrong_count;
    }
  }
  std::vector<std::string> out;
  if (missing.any())
    out.push_back(text(missing_count, missing_count == 1 ? " tensor" : " tensors", " of the ", model->type,
                       " model in ", config.path, missing_count == 1 ? " is" : " are",
                       " not in the checkpoint: ", missing.sentence()));
  if (wrong.any())
    out.push_back(text(wrong_count, wrong_count == 1 ? " tensor has" : " tensors have", " another shape in ",
                       config.path, ": ", wrong.sentence()));
  return out;
}

void add_model_config(const ModelConfig& config, OutputPlan& plan) {
  PlannedFile file;
  file.name = kConfigName;
  std::string words = config.text;
  std::optional<Json> document = object_of(words);
  const std::optional<std::string_view> type = only_type(plan);
  for (const char* key : {"dtype", "torch_dtype"}) {  // transformers 5, 4: it casts to that when it loads
    if (!document || !type) break;
    const auto told = document->find(key);
    if (told == document->end() || !told->is_string() || told->get<std::string>() == *type) continue;
    plan.notes.push_back(text("config.json says ", key, " ", told->get<std::string>(), "; written with ", *type,
                              ", as the weights are"));
    *told = std::string(*type);
    words = document->dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  }
  file.size_bytes = words.size();
  file.texts.push_back({0, std::move(words)});
  plan.all_bytes += file.size_bytes;
  const bool has_index = !plan.files.empty() && plan.files.back().name == kHuggingFaceIndexName;  // stays the last one
  plan.files.insert(plan.files.end() - (has_index ? 1 : 0), std::move(file));
}

}  // namespace pawl::checkpoint
