#include "checkpoint/formats/megatron/megatron.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/megatron/buckets.h"
#include "checkpoint/formats/megatron/common_state.h"
#include "checkpoint/formats/megatron/flattened.h"
#include "checkpoint/formats/megatron/parameter_names.h"
#include "checkpoint/reshape/stored_file.h"
#include "checkpoint/view/pieces.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

constexpr std::string_view kEmbedding = "embedding.word_embeddings.weight";
constexpr std::uint64_t kPartsMax = 1 << 22;     // of one tensor, by layers and experts
constexpr std::uint64_t kEmptyLayersMax = 4096;  // of a tensor without elements
constexpr std::string_view kRemedy =
    "; weights are readable; load the checkpoint in its own job and save it once with "
    "the sharding type fully_reshardable";

Status check_metadata_json(const std::string& folder, Files& files) {
  const std::string path = join_path(folder, "metadata.json");
  Result<std::string> content = read_file(path, 1 << 20, files);
  if (!content && content.error().code == Code::not_found)
    return Error{Code::not_found, text(path, ": it is missing: the save did not finish, or this is not such a folder")};
  if (!content) return std::move(content).error();
  JsonScan json(*content);
  std::string key;
  std::string backend;
  std::uint64_t version = 0;
  json.begin_object();
  while (json.next_key(key)) {
    if (key == "sharded_backend")
      json.string(backend);
    else if (key == "sharded_backend_version")
      json.number(version);
    else
      json.skip();
  }
  json.finish();
  if (json.failed()) return Error(json.error()).within(path);
  if (backend != "torch_dist" || version != 1)
    return Error{Code::invalid, text(path, ": the backend is \"", backend, "\" version ", version,
                                     "; torch_dist version 1 is read: save it in that format")};
  return {};
}

struct OptimizerKey {
  std::string role;
  std::string key;  // of the parameter
};

// "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc2.weight", perhaps of one of several optimizers.
std::optional<OptimizerKey> parse_state_key(std::string_view key) {
  constexpr std::string_view kStates = "optimizer.state.";
  if (key.starts_with("chained_")) key.remove_prefix(std::min(key.find('.'), key.size() - 1) + 1);
  if (!key.starts_with(kStates)) return std::nullopt;
  key.remove_prefix(kStates.size());
  const std::size_t dot = key.find('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  OptimizerKey out{std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
  if (out.role == "param" || out.role == "fp32_param") out.role = "master";
  return out;
}

bool is_optimizer_key(std::string_view key) {
  return key.starts_with("optimizer.") || (key.starts_with("chained_") && key.find(".optimizer.") < 16);
}

}  // namespace

class MegatronReader {
 public:
  MegatronReader(std::string folder, Files& files) : folder_(std::move(folder)), files_(files) {}
  Result<CheckpointView> read();

 private:
  Status open_sources();
  Status check();
  struct ObjectFile {  // a file of torch.save inside one of DCP's
    RangeBytes bytes;
    TorchFile torch;
  };
  [[nodiscard]] Result<ObjectFile> open_object(const DcpObject& object);
  Status read_common();
  Status read_step_of_groups();
  Status read_weights();
  Status read_states();
  Status read_buckets();
  Status append_gathered(const DcpObject& object, std::vector<BucketTensor>& buckets);
  Status append_parameters(const StoredTensor& tensor, const std::string& key, const std::string& role);
  Status join_halves();
  void add_steps();
  void add_tied_output();
  void add_facts();
  void name_unread_states();

  std::string folder_;
  Files& files_;
  DcpCheckpoint dcp_;
  CheckpointView stored_;  // under the keys that the files have
  CommonState common_;
  CheckpointView view_;
  std::vector<std::unique_ptr<ByteSource>> sources_;
  std::unordered_map<std::string, Shape> stored_shapes_;  // of the weights, by key
  std::string layers_differ_;
};

Result<CheckpointView> MegatronReader::read() {
  PAWL_TRY(check_metadata_json(folder_, files_));
  PAWL_ASSIGN(dcp_, open_dcp(folder_, files_));
  PAWL_ASSIGN(stored_, view_dcp_keys(dcp_, files_));
  view_.format = "Megatron-Core torch_dist";
  view_.files = stored_.files;
  view_.objects = stored_.objects;
  view_.notes = stored_.notes;
  view_.problems = stored_.problems;
  PAWL_TRY(open_sources());
  PAWL_TRY(read_common());
  PAWL_TRY(read_weights());
  PAWL_TRY(read_states());
  PAWL_TRY(join_halves());
  PAWL_TRY(read_buckets());
  PAWL_TRY(read_step_of_groups());
  name_unread_states();
  add_facts();
  add_tied_output();
  add_steps();
  PAWL_TRY(check());
  return std::move(view_);
}

// What is missing in the files was said of the stored tensors: saying it again of each layer helps nobody.
Status MegatronReader::check() {
  std::vector<std::string> known = view_.problems;
  std::vector<std::uint64_t> sizes = dcp_.file_bytes;
  sizes.resize(view_.files.size());
  PAWL_TRY(check_view(view_, sizes));
  if (!stored_.problems.empty()) view_.problems = std::move(known);
  return {};
}

// Files that are missing are a problem already: nothing is read in them.
Status MegatronReader::open_sources() {
  for (const StoredFile& file : stored_.files) {
    Result<std::unique_ptr<ByteSource>> source = open_stored(file, files_);
    if (!source && source.error().code == Code::not_found)
      sources_.push_back(std::make_unique<MemoryBytes>(std::string_view()));
    else if (!source)
      return std::move(source).error();
    else
      sources_.push_back(std::move(*source));
  }
  return {};
}

// Fails: as the file does, naming it and the object's key.
Result<MegatronReader::ObjectFile> MegatronReader::open_object(const DcpObject& object) {
  Result<ObjectFile> opened = [&]() -> Result<ObjectFile> {
    PAWL_ASSIGN(RangeBytes bytes,
                RangeBytes::open(*sources_[object.place.file], object.place.offset_bytes, object.place.length_bytes));
    PAWL_ASSIGN(TorchFile torch, TorchFile::read(bytes));
    return ObjectFile{bytes, std::move(torch)};
  }();
  if (!opened) return std::move(opened).error().within(text(dcp_.files[object.place.file], ": ", object.key));
  return opened;
}

Status MegatronReader::read_common() {
  const std::string path = join_path(folder_, "common.pt");
  if (files_.exists(path)) {
    PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files_));
    Result<TorchFile> file = TorchFile::read(*source);
    if (!file) return std::move(file).error().within(path);
    common_ = read_common_state(*source, *file);
    return {};
  }
  for (const DcpObject& object : dcp_.objects) {
    if (object.key != "common_state" && !object.key.starts_with("common_state/")) continue;
    PAWL_ASSIGN(ObjectFile opened, open_object(object));
    common_ = read_common_state(opened.bytes, opened.torch);
    return {};
  }
  view_.notes.push_back("there is no common.pt and no common_state: the step and the arguments are not known");
  return {};
}

// dp_reshardable: each group's optimizer is an object, and says the step.
Status MegatronReader::read_step_of_groups() {
  if (common_.optimizer_step) return {};
  for (const DcpObject& object : dcp_.objects) {
    if (object.key.find(".dp_group_idx_") == std::string::npos || object.key.find(".optimizer/") == std::string::npos)
      continue;
    PAWL_ASSIGN(ObjectFile opened, open_object(object));
    common_.optimizer_step = find_step(opened.bytes, opened.torch, opened.torch.pickle().root());
    if (common_.optimizer_step) return {};
  }
  return {};
}

Status MegatronReader::read_weights() {
  for (const StoredTensor& tensor : stored_.tensors) {
    if (is_optimizer_key(tensor.name)) continue;
    stored_shapes_.emplace(tensor.name, tensor.shape);
    PAWL_TRY(append_parameters(tensor, tensor.name, "weight"));
  }
  return {};
}

// One tensor of all layers and experts becomes one for each. Work and memory are linear in the pieces.
Status MegatronReader::append_parameters(const StoredTensor& tensor, const std::string& key, const std::string& role) {
  const MegatronKey parsed = parse_megatron_key(key);
  const std::uint32_t axes = parsed.axes();
  if (tensor.shape.size() < axes)
    return Error{Code::corrupt, text(tensor.name, ' ', text_of(tensor.shape), " has no ", axes, " leading axes")};
  if (axes != 0 && size_bits(tensor.type) % 8 != 0)
    return Error{Code::invalid, text(tensor.name, ": packed elements of ", name_of(tensor.type), " cannot be cut")};
  const std::uint64_t layers = parsed.has_layer_axis ? tensor.shape[0] : 1;
  const std::uint64_t experts = parsed.has_expert_axis ? tensor.shape[axes - 1] : 1;
  if (parsed.has_layer_axis && common_.layers && *common_.layers != layers && layers_differ_.empty())
    layers_differ_ = text(tensor.name, " has ", layers, " layers; the arguments say ", *common_.layers);
  std::map<std::uint64_t, StoredTensor> parameters;  // by layer * experts + expert
  std::uint64_t parts = 0;
  for (const StoredPiece& piece : tensor.pieces) {
    std::uint64_t cells = 1;
    for (std::uint32_t d = 0; d < axes; ++d) cells *= piece.box.size[d];
    parts += cells;
    if (parts > kPartsMax)
      return Error{Code::full, text(tensor.name, ' ', text_of(tensor.shape), " has more than ", kPartsMax,
                                    " parts of layers and experts")};
    for (std::uint64_t cell = 0; cell < cells; ++cell) {
      StoredPiece part = piece;
      std::uint64_t rest = cell;
      std::uint64_t number = 0;
      std::uint64_t scale = 1;
      for (std::uint32_t d = axes; d-- > 0; rest /= piece.box.size[d]) {
        const std::uint64_t at = rest % piece.box.size[d];
        part.offset_bytes += at * piece.stride[d] * (size_bits(tensor.type) / 8);
        number += (piece.box.begin[d] + at) * scale;
        scale *= tensor.shape[d];
      }
      part.box = {piece.box.dimensions - axes, {}, {}};
      part.stride = {};
      std::copy(piece.box.begin.begin() + axes, piece.box.begin.end(), part.box.begin.begin());
      std::copy(piece.box.size.begin() + axes, piece.box.size.end(), part.box.size.begin());
      std::copy(piece.stride.begin() + axes, piece.stride.end(), part.stride.begin());
      parameters[number].pieces.push_back(part);
    }
  }
  const std::uint64_t all = layers * experts;
  const bool is_empty = std::ranges::find(tensor.shape, std::uint64_t{0}) != tensor.shape.end();
  if (tensor.pieces.empty() && (axes == 0 || (is_empty && all <= kEmptyLayersMax)))
    for (std::uint64_t number = 0; number < all; ++number) parameters.try_emplace(number);
  if (parameters.size() != all)
    view_.problems.push_back(text(tensor.name, ' ', text_of(tensor.shape), ": ", parameters.size(), " of its ", all,
                                  " layers and experts are in files"));
  for (auto& [number, parameter] : parameters) {
    parameter.name = name_of(parsed, number / experts, number % experts, {common_.transformer_engine});
    parameter.role = role;
    parameter.type = tensor.type;
    parameter.shape.assign(tensor.shape.begin() + axes, tensor.shape.end());
    view_.tensors.push_back(std::move(parameter));
  }
  return {};
}

Status MegatronReader::read_states() {
  std::optional<std::unordered_map<std::string, Shape>> true_shapes;
  for (const StoredTensor& tensor : stored_.tensors) {
    const std::optional<OptimizerKey> state = parse_state_key(tensor.name);
    if (!state) continue;
    const auto weight = stored_shapes_.find(state->key);
    if (weight != stored_shapes_.end() && tensor.shape.size() == weight->second.size() + 1) {
      if (!true_shapes) {
        PAWL_ASSIGN(true_shapes, read_true_shapes(folder_, files_));
      }
      const auto known = true_shapes->find(tensor.name);
      if (known != true_shapes->end() && known->second != weight->second)
        return Error{Code::corrupt, text(tensor.name, " is of shape ", text_of(known->second), ", its weight ",
                                         text_of(weight->second))};
      PAWL_ASSIGN(const StoredTensor whole, unflatten(tensor, weight->second));
      PAWL_TRY(append_parameters(whole, state->key, state->role));
      continue;
    }
    PAWL_TRY(append_parameters(tensor, state->key, state->role));
  }
  return {};
}

// Where layers are tensors of their own, so are the two halves of a gated fc1: linear_fc1.weight_w and ..._v.
Status MegatronReader::join_halves() {
  std::unordered_map<std::string, std::size_t> others;
  for (std::size_t i = 0; i < view_.tensors.size(); ++i) {
    const StoredTensor& tensor = view_.tensors[i];
    if (tensor.name.ends_with("_v") && tensor.name.find(".linear_fc1.") != std::string::npos)
      others.emplace(text(tensor.role, '\n', tensor.name.substr(0, tensor.name.size() - 2)), i);
  }
  if (others.empty()) return {};
  std::unordered_set<std::size_t> joined;
  for (std::size_t i = 0; i < view_.tensors.size(); ++i) {
    StoredTensor& tensor = view_.tensors[i];
    if (!tensor.name.ends_with("_w")) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - 2);
    const auto other = others.find(text(tensor.role, '\n', name));
    if (other == others.end()) continue;
    std::vector<StoredTensor> halves;
    halves.push_back(std::move(tensor));
    halves.push_back(std::move(view_.tensors[other->second]));
    PAWL_ASSIGN(view_.tensors[i], concatenate(std::move(halves), 0));
    view_.tensors[i].name = name;
    joined.insert(other->second);
  }
  std::vector<StoredTensor> kept;
  for (std::size_t i = 0; i < view_.tensors.size(); ++i)
    if (!joined.contains(i)) kept.push_back(std::move(view_.tensors[i]));
  view_.tensors = std::move(kept);
  return {};
}

// dp_zero_gather_scatter: the buffers of one group, gathered and saved as one object. In each the buckets follow one
// another without their ends' padding, so it is as if it had one.
Status MegatronReader::append_gathered(const DcpObject& object, std::vector<BucketTensor>& buckets) {
  PAWL_ASSIGN(const ObjectFile opened, open_object(object));
  const std::size_t before = buckets.size();
  for (StoredTensor& tensor : view_of(opened.torch, dcp_.files[object.place.file]).tensors) {
    const std::size_t dot = tensor.name.rfind('.');
    if (dot == std::string::npos || tensor.shape.size() != 1) continue;
    if (std::ranges::any_of(tensor.pieces, [](const StoredPiece& piece) { return piece.file != 0; }))
      continue;  // packed
    BucketTensor bucket;
    bucket.buffer = text(object.key, ' ', tensor.name.substr(0, dot));
    tensor.role = tensor.name.substr(dot + 1);
    tensor.name = text(object.key, ' ', tensor.name);
    for (StoredPiece& piece : tensor.pieces) {
      piece.file = object.place.file;
      piece.offset_bytes += object.place.offset_bytes;
    }
    bucket.tensor = std::move(tensor);
    buckets.push_back(std::move(bucket));
  }
  if (buckets.size() == before)
    view_.problems.push_back(text(kOfOptimizerState, ": ", object.key, " holds no flat tensors", kRemedy));
  return {};
}

Status MegatronReader::read_buckets() {
  std::vector<BucketTensor> buckets;
  for (const StoredTensor& tensor : stored_.tensors) {
    std::optional<BucketTensor> bucket = parse_bucket_key(tensor.name);
    if (!bucket) continue;
    const std::string role = bucket->tensor.role;
    bucket->tensor = tensor;
    bucket->tensor.role = role;
    buckets.push_back(std::move(*bucket));
  }
  for (const DcpObject& object : dcp_.objects)
    if (object.key.find("dp_group_idx_") != std::string::npos && object.key.find(".param_state") != std::string::npos)
      PAWL_TRY(append_gathered(object, buckets));
  if (buckets.empty()) return {};
  Result<std::vector<StoredTensor>> states = place_buckets(view_, std::move(buckets), sources_, view_.notes);
  if (states) {
    std::ranges::move(*states, std::back_inserter(view_.tensors));
  } else if (states.error().code == Code::invalid || states.error().code == Code::corrupt) {
    view_.problems.push_back(text(kOfOptimizerState, " (distributed): ", states.error().what, kRemedy));
  } else {
    return std::move(states).error();
  }
  return {};
}

// Kinds of optimizer state that are not known.
void MegatronReader::name_unread_states() {
  std::size_t others = 0;
  std::string first;
  for (const StoredTensor& tensor : stored_.tensors) {
    if (!is_optimizer_key(tensor.name) || parse_state_key(tensor.name) || parse_bucket_key(tensor.name)) continue;
    if (others++ == 0) first = tensor.name;
  }
  if (others != 0)
    view_.problems.push_back(
        text(kOfOptimizerState, ": ", others, " tensors of a kind that is not known, the first ", first));
}

void MegatronReader::add_facts() {
  view_.facts.emplace_back("writer", "Megatron-Core");
  if (common_.iteration) view_.facts.emplace_back("step", text(*common_.iteration));
  bool has_states = false;
  for (const StoredTensor& tensor : view_.tensors) has_states = has_states || tensor.role != "weight";
  if (!common_.sharding_type.empty())
    common_.facts.emplace_back("optimizer", text("distributed, ", common_.sharding_type));
  else if (has_states)
    common_.facts.emplace_back("optimizer", "sharded as the model");
  for (const auto& fact : common_.facts) view_.facts.push_back(fact);
  if (!layers_differ_.empty()) view_.notes.push_back(layers_differ_);
  for (const StoredTensor& tensor : view_.tensors)
    if (tensor.name == kEmbedding && tensor.role == "weight" && !tensor.shape.empty())
      view_.notes.push_back(text("the vocabulary is as stored, ", tensor.shape[0],
                                 " rows: Megatron pads it, and the files don't say from which size"));
}

// A GPT without an output layer of its own uses the embedding.
void MegatronReader::add_tied_output() {
  bool has_embedding = false;
  bool is_gpt = false;
  for (const StoredTensor& tensor : view_.tensors) {
    if (tensor.name == "output_layer.weight") return;
    has_embedding = has_embedding || tensor.name == kEmbedding;
    is_gpt = is_gpt || tensor.name == "decoder.final_layernorm.weight";
  }
  if (has_embedding && is_gpt) view_.aliases.emplace_back("output_layer.weight", std::string(kEmbedding));
}

// The step is one number for all parameters: each that has a moment gets it.
void MegatronReader::add_steps() {
  if (!common_.optimizer_step) return;
  const auto step = static_cast<float>(*common_.optimizer_step);
  std::unordered_set<std::string> has_step;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : view_.tensors) {
    if (tensor.role == "step") has_step.insert(tensor.name);
    if (tensor.role == "exp_avg" && has_step.insert(tensor.name).second) names.push_back(tensor.name);
  }
  if (names.empty()) return;
  StoredFile file;
  file.path = files_.exists(join_path(folder_, "common.pt")) ? join_path(folder_, "common.pt") : folder_;
  file.codec = StoredFile::Codec::content;
  file.content.assign(reinterpret_cast<const char*>(&step), sizeof step);
  const auto number = static_cast<std::uint32_t>(view_.files.size());
  view_.files.push_back(std::move(file));
  for (std::string& name : names) {
    StoredTensor tensor{std::move(name), "step", ElementType::float32, {}};
    tensor.pieces.push_back(whole_piece({}, number, 0));
    view_.tensors.push_back(std::move(tensor));
  }
}

Result<CheckpointView> view_megatron(const std::string& folder, const ReadOptions& options, Files& files) {
  (void)options;  // names are in the files, and which checkpoint it is was decided by the folder
  return MegatronReader(folder, files).read();
}

}  // namespace pawl::checkpoint
