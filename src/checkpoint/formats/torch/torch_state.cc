#include "checkpoint/formats/torch/torch_state.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/containers/dict_keys.h"
#include "checkpoint/formats/torch/parameter_state.h"
#include "checkpoint/formats/torch/torch_optimizers.h"
#include "checkpoint/formats/torch/torch_state_shards.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;
// A view that repeats its bytes (expanded, stride 0) may be larger than its file by this, and always so large.
constexpr std::uint64_t kRepeatMax = 64;
constexpr std::uint64_t kRepeatedBytesAlways = 64 << 20;
// Conjugated or negated tensors are read when the file is opened: so many bytes of one, and of all together no more than
// the file has and this.
constexpr std::uint64_t kValuesBytesMax = 64 << 20;
constexpr std::size_t kKeyBytesMax = 4096;
constexpr std::size_t kTextsMax = 16;  // in a note

bool starts_with(const std::vector<PathStep>& path, const std::vector<PathStep>& head) {
  return path.size() >= head.size() && std::equal(head.begin(), head.end(), path.begin());
}

bool is_integer_key(std::string_view key) {
  return !key.empty() && key.size() < 12 && key.find_first_not_of("0123456789") == std::string_view::npos;
}

class StateReader {
 public:
  StateReader(const std::string& path, ByteSource& source, TorchFile file) : source_(source), file_(std::move(file)) {
    out_.path = path;
    out_.format = file_.format();
    out_.size_bytes = source.size_bytes();
    out_.files.push_back({path});
    out_.notes = file_.notes();
    out_.unsupported = file_.unreached();
    out_.problems = file_.problems();
    copies_ = file_.copies();
    for (const TorchTensor& tensor : file_.tensors()) by_value_.emplace(tensor.value, &tensor);
    file_of_.assign(file_.storages().size(), kNoFile);
  }

  Result<TorchState> read();

 private:
  static constexpr std::uint32_t kNoFile = ~0u;

  Status refuse_megatron() const;
  Status read_top();
  Status find_held();
  Status read_optimizer(const FoundOptimizer& found, const std::optional<HeldParameters>& held,
                        ParameterState& of_parameter);
  Status read_group(Value group, const std::optional<HeldParameters>& held, std::size_t& next,
                    TorchOptimizer::Group& out);
  void read_flat_optimizer(const FoundOptimizer& found);
  [[nodiscard]] std::optional<double> tensor_number(Value value);
  Status read_numbers(Value state, const TorchOptimizer& optimizer, const std::optional<HeldParameters>& held,
                      ParameterState& of_parameter);
  Status read_value_of_state(Value value, const std::vector<PathStep>& path, std::size_t depth);
  void note_texts();
  Status read_tensors();
  Status read_held(const HeldParameters::State& held, bool is_parameter);
  [[nodiscard]] bool is_elsewhere(const TorchTensor& tensor) const;
  Status read_tensor(const TorchTensor& tensor);
  Status read_plain(const TorchTensor& tensor, TorchPart& out);
  Status read_sharded(const TorchTensor& tensor, TorchPart& out);
  Status prove(std::uint32_t number);
  Status read_values(const TorchTensor& tensor, TorchPart& out);
  Status check_repeats(const TorchTensor& tensor, const TorchReach& reach) const;
  std::uint32_t file_of(std::uint32_t storage);

  [[nodiscard]] const Pickle& pickle() const { return file_.pickle(); }

  ByteSource& source_;
  TorchFile file_;
  TorchState out_;
  CopyBudget copies_;
  std::uint64_t values_bytes_ = 0;  // read of conjugated and negated tensors
  TensorsByValue by_value_;
  std::vector<FoundOptimizer> optimizers_;
  std::vector<std::optional<HeldParameters>> held_;        // by each optimizer
  std::vector<std::unordered_set<Value>> held_states_of_;  // likewise: its states' tensors
  std::unordered_set<Value> defaults_;                     // tensors among what optimizers that are objects default to
  std::vector<std::uint32_t> file_of_;                     // of each storage
  std::unordered_set<std::uint32_t> proven_;               // storages
  std::set<std::string> texts_;                            // names of texts in parameters' states
};

Result<TorchState> StateReader::read() {
  PAWL_TRY(refuse_megatron());
  PAWL_TRY(find_held());
  PAWL_TRY(read_tensors());
  ParameterState of_parameter(pickle(), by_value_, optimizers_, copies_);
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    if (optimizers_[i].is_flat()) {
      read_flat_optimizer(optimizers_[i]);
    } else {
      PAWL_TRY(read_optimizer(optimizers_[i], held_[i], of_parameter));
    }
  }
  note_texts();
  PAWL_TRY(read_top());
  return std::move(out_);
}

// Megatron-LM's own files of one rank: layers are numbered from the stage's first, tensors are a tensor-parallel part.
Status StateReader::refuse_megatron() const {
  const Value root = pickle().root();
  const Value args = pickle().find(root, "args");
  if (pickle().find(root, "checkpoint_version") == kNothing || args == kNothing) return {};
  std::uint64_t ranks = 0;
  if (pickle().is(args, PickleKind::object)) {
    const Value state = pickle().object(args).state;
    const auto tensor = pickle().unsigned_(pickle().find(state, "tensor_model_parallel_size"));
    const auto pipeline = pickle().unsigned_(pickle().find(state, "pipeline_model_parallel_size"));
    if (tensor && pipeline && *tensor == 1 && *pipeline == 1) ranks = 1;
  }
  if (ranks == 1) return {};
  return Error{Code::invalid,
               "a rank's file of Megatron-LM's \"torch\" format, which is not read here: save the checkpoint with "
               "--ckpt-format torch_dist, or convert it with Megatron's own tool first"};
}

Status StateReader::read_top() {
  const Value root = pickle().root();
  if (!pickle().holds_pairs(root)) return {};
  std::unordered_set<std::string_view> with_tensors;
  for (const TorchTensor& tensor : file_.tensors())
    if (!tensor.path.empty()) with_tensors.insert(tensor.path[0].text);
  const std::span<const Value> items = pickle().items(root);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string_view key = pickle().text(items[i]);
    if (!pickle().is(items[i], PickleKind::string) || key.size() > kKeyBytesMax) continue;
    PAWL_TRY(copies_.take(sizeof(std::string) + key.size()));
    if (!with_tensors.contains(key)) out_.objects.emplace_back(key);
    if (const auto number = pickle().integer(items[i + 1]); pickle().is(items[i + 1], PickleKind::integer) && number)
      out_.numbers.emplace_back(key, text(*number));
  }
  return {};
}

Status StateReader::find_held() {
  optimizers_ = find_optimizers(pickle());
  PAWL_ASSIGN(held_, held_parameters(file_, optimizers_, by_value_, copies_));
  for (const std::optional<HeldParameters>& held : held_) {
    std::unordered_set<Value>& tensors = held_states_of_.emplace_back();
    if (!held) continue;
    for (const HeldParameters::State& state : held->states) tensors.insert(state.tensor);
  }
  for (const FoundOptimizer& found : optimizers_) {
    if (found.kind != PathStep::Kind::attribute) continue;
    std::vector<PathStep> head = found.path;
    head.push_back({found.kind, "defaults"});
    for (const TorchTensor& tensor : file_.tensors())
      if (tensor.value != kNothing && starts_with(tensor.path, head)) defaults_.insert(tensor.value);
  }
  return {};
}

// One list of parameters may be named by many groups. `next`: the number of a parameter that is held.
Status StateReader::read_group(Value group, const std::optional<HeldParameters>& held, std::size_t& next,
                               TorchOptimizer::Group& out) {
  const std::span<const Value> keys = pickle().items(pickle().find_field(group, "params"));
  const std::span<const Value> names = pickle().items(pickle().find_field(group, "param_names"));
  PAWL_TRY(copies_.take(sizeof out + (keys.size() + names.size()) * sizeof(std::string)));
  for (const Value key : keys) {
    std::optional<std::uint64_t> index = pickle().unsigned_(key);
    if (held) index = next++;
    out.keys.push_back(index ? text(*index) : step_of_key(pickle(), key, kKeyBytesMax).text);
    PAWL_TRY(copies_.take(out.keys.back().size()));
  }
  if (held && !held->names.empty()) {
    const auto end = held->names.begin() + static_cast<std::ptrdiff_t>(next);
    out.names.assign(end - static_cast<std::ptrdiff_t>(keys.size()), end);
  } else {
    for (const Value name : names) out.names.emplace_back(pickle().text(name).substr(0, kKeyBytesMax));
  }
  for (const std::string& name : out.names) PAWL_TRY(copies_.take(name.size()));
  if (out.names.size() != out.keys.size()) out.names.clear();
  return {};
}

Status StateReader::read_optimizer(const FoundOptimizer& found, const std::optional<HeldParameters>& held,
                                   ParameterState& of_parameter) {
  TorchOptimizer optimizer;
  optimizer.path = found.path;
  std::size_t next = 0;
  bool any = false;
  bool all_numbers = true;
  if (const std::optional<std::string> why = oversized_group(pickle(), found.param_groups))
    out_.problems.push_back(text(kOfOptimizerState, ": ", name_of(found.path), ": ", *why));
  std::vector<HyperGroup> hyperparameters =
      read_hyper_groups(pickle(), found.param_groups, [this](Value value) { return tensor_number(value); });
  for (const Value group : pickle().items(found.param_groups)) {
    TorchOptimizer::Group out;
    if (const std::size_t at = optimizer.groups.size(); at < hyperparameters.size())
      out.hyperparameters = std::move(hyperparameters[at]);
    PAWL_TRY(read_group(group, held, next, out));
    any = any || !out.keys.empty();
    for (const Value key : pickle().items(pickle().find_field(group, "params")))
      all_numbers = all_numbers && (held || pickle().unsigned_(key) || is_integer_key(pickle().text(key)));
    optimizer.groups.push_back(std::move(out));
  }
  optimizer.is_indexed = any && all_numbers;
  PAWL_TRY(read_numbers(found.state, optimizer, held, of_parameter));
  out_.optimizers.push_back(std::move(optimizer));
  return {};
}

// "param_groups.<parameter>.<word>": each parameter has its own, which its group had.
void StateReader::read_flat_optimizer(const FoundOptimizer& found) {
  std::vector<HyperGroup> of_parameters;
  std::unordered_map<std::string_view, std::size_t> index;
  const std::span<const Value> items = pickle().items(found.flat);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    const std::string_view key = pickle().text(items[i]);
    const std::size_t dot = key.rfind('.');
    if (!pickle().is(items[i], PickleKind::string) || key.size() > kKeyBytesMax || !key.starts_with(kFlatGroups) ||
        dot < kFlatGroups.size())
      continue;
    const std::string_view parameter = key.substr(kFlatGroups.size(), dot - kFlatGroups.size());
    const auto [at, is_new] = index.emplace(parameter, of_parameters.size());
    if (is_new) of_parameters.emplace_back().parameters.emplace_back(parameter);
    add_hyperparameter(of_parameters[at->second], key.substr(dot + 1), pickle(), items[i + 1],
                       [this](Value value) { return tensor_number(value); });
  }
  TorchOptimizer optimizer;
  optimizer.path = found.path;
  optimizer.is_flat = true;
  for (HyperGroup& group : joined_groups(std::move(of_parameters))) {
    std::vector<std::string> keys = std::move(group.parameters);
    group.parameters.clear();
    optimizer.groups.push_back({std::move(keys), {}, std::move(group)});
  }
  out_.optimizers.push_back(std::move(optimizer));
}

// A hyperparameter that is a tensor. It is a value of its own from here on, so its bytes are proven before.
std::optional<double> StateReader::tensor_number(Value value) {
  const auto found = by_value_.find(value);
  if (found == by_value_.end()) return std::nullopt;
  const TorchTensor& tensor = *found->second;
  const auto fail = [&](const Error& error) -> std::optional<double> {
    out_.problems.push_back(text(kOfOptimizerState, ": tensor ", name_of(tensor.path), ": ", error.what));
    return std::nullopt;
  };
  const Result<std::optional<double>> number = number_of(source_, file_, tensor);
  if (!number && number.error().code != Code::invalid) return fail(number.error());
  if (!number || !*number) return std::nullopt;
  if (Status proven = prove(tensor.storage); !proven) return fail(proven.error());
  return *number;
}

// What of a parameter's state is no tensor: numbers, as tensors of their own.
Status StateReader::read_numbers(Value state, const TorchOptimizer& optimizer,
                                 const std::optional<HeldParameters>& held, ParameterState& of_parameter) {
  const std::span<const Value> items = pickle().items(state);
  PAWL_ASSIGN(const KeySteps keys, steps_of_keys(pickle(), items, copies_));
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (!keys[i] || keys[i]->text.size() > kKeyBytesMax) continue;
    const Value parameter = items[2 * i];
    const bool is_held = held && held->number_of.contains(parameter);
    std::vector<PathStep> path = optimizer.path;
    path.push_back({PathStep::Kind::key, "state"});
    path.push_back(is_held ? PathStep{PathStep::Kind::index, text(held->number_of.at(parameter))} : *keys[i]);
    const std::string label = name_of(path);
    const std::size_t depth = path.size();
    Status read = of_parameter.walk(items[2 * i + 1], std::move(path), [&](Value value, const auto& below) {
      return read_value_of_state(value, below, depth);
    });
    if (!read) return std::move(read).error().within(label);
  }
  return {};
}

Status StateReader::read_value_of_state(Value value, const std::vector<PathStep>& path, std::size_t depth) {
  if (by_value_.contains(value) || pickle().is(value, PickleKind::none)) return {};
  PAWL_TRY(copies_.take(2 * bytes_of(path) + sizeof(TorchPart) + sizeof(StoredFile) + sizeof(StoredPiece)));
  PAWL_TRY(copies_.take(pickle().items(value).size(), sizeof(std::uint64_t)));
  if (is_state_text(pickle(), value)) {
    if (texts_.size() < kTextsMax)
      texts_.insert(name_of({path.begin() + static_cast<std::ptrdiff_t>(depth), path.end()}));
    return {};
  }
  const bool is_own = path.size() == depth + 1;
  std::optional<StateNumbers> numbers = state_numbers(pickle(), value, is_own ? path.back().text : std::string_view());
  if (!numbers) {
    out_.unsupported.push_back(no_form(name_of(path), pickle(), value));
    return {};
  }
  StoredFile file;
  file.path = text(out_.path, accessor_of(path));
  file.codec = StoredFile::Codec::content;
  file.content = std::move(numbers->elements);
  TorchPart part;
  part.path = path;
  part.type = numbers->type;
  part.pieces.push_back(whole_piece(numbers->shape, static_cast<std::uint32_t>(out_.files.size()), 0));
  part.shape = std::move(numbers->shape);
  out_.files.push_back(std::move(file));
  out_.parts.push_back(std::move(part));
  return {};
}

void StateReader::note_texts() {
  std::string names;
  for (const std::string& name : texts_) append_text(names, text(names.empty() ? "" : ", ", name));
  if (!names.empty())
    out_.notes.push_back(text("the optimizer keeps texts in its parameters' state, which are left out: ", names));
}

Status StateReader::read_tensors() {
  const std::vector<TorchTensor>& tensors = file_.tensors();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TorchTensor& tensor = tensors[i];
    if (!is_elsewhere(tensor)) PAWL_TRY(read_tensor(tensor));
    if (!is_sharded(tensor)) continue;  // what lies below is its local part, and its mesh
    while (i + 1 < tensors.size() && tensors[i + 1].path.size() > tensor.path.size() &&
           starts_with(tensors[i + 1].path, tensor.path))
      ++i;
  }
  for (const std::optional<HeldParameters>& held : held_) {
    if (!held) continue;
    for (const HeldParameters::State& state : held->states) PAWL_TRY(read_held(state, false));
    for (const HeldParameters::State& parameter : held->parameters) PAWL_TRY(read_held(parameter, true));
  }
  return {};
}

Status StateReader::read_held(const HeldParameters::State& held, bool is_parameter) {
  TorchTensor tensor = *by_value_.at(held.tensor);
  tensor.path = held.path;
  const std::size_t before = out_.parts.size();
  PAWL_TRY(read_tensor(tensor));
  if (out_.parts.size() > before) out_.parts.back().is_held = is_parameter;
  return {};
}

// An optimizer's view of what is read by another name: a parameter that is the model's, or its own state, whose key is
// a parameter, or what it gives new groups ("defaults"). Schedulers lead to the same optimizer once more.
bool StateReader::is_elsewhere(const TorchTensor& tensor) const {
  if (defaults_.contains(tensor.value) && has_step(tensor.path, "defaults")) return true;
  for (std::size_t i = 0; i < optimizers_.size(); ++i) {
    if (!held_[i]) continue;
    if (held_states_of_[i].contains(tensor.value) && has_step(tensor.path, "state")) return true;
    if (held_[i]->number_of.contains(tensor.value) && has_step(tensor.path, "param_groups")) return true;
  }
  return false;
}

Status StateReader::read_tensor(const TorchTensor& tensor) {
  TorchPart part;
  part.path = tensor.path;
  std::erase_if(part.path, is_module_part);
  part.type = tensor.type;
  part.shape = tensor.shape;
  const std::string label = text("tensor ", tensor.path.empty() ? "(the object itself)" : name_of(tensor.path));
  if (is_sharded(tensor)) {
    if (Status status = read_sharded(tensor, part); !status) {
      if (status.error().code == Code::full) return std::move(status).error().within(label);
      out_.problems.push_back(text(label, ": ", status.error().what));
      return {};
    }
    out_.parts.push_back(std::move(part));
    return {};
  }
  const bool has_bytes = tensor.storage != kNoStorage && file_.storages()[tensor.storage].has_data;
  if (!has_bytes || !tensor.layout.empty()) {
    const std::string kind = tensor.layout.empty() ? "its device has no data" : text("it is ", tensor.layout);
    out_.unsupported.push_back(text(label, " (", tensor.class_name, ") has no plain bytes: ", kind));
    return {};
  }
  if (tensor.shape.size() > kDimensionsMax) {
    out_.problems.push_back(
        text(label, " has ", tensor.shape.size(), " dimensions; at most ", kDimensionsMax, " are read"));
    return {};
  }
  const bool has_value = tensor.conjugated || tensor.negated;
  if (Status status = has_value ? read_values(tensor, part) : read_plain(tensor, part); !status) {
    out_.problems.push_back(text(label, ": ", status.error().what));
    return {};
  }
  out_.parts.push_back(std::move(part));
  return {};
}

std::uint32_t StateReader::file_of(std::uint32_t storage) {
  if (!file_.storages()[storage].deflated) return 0;
  if (file_of_[storage] == kNoFile) {
    file_of_[storage] = static_cast<std::uint32_t>(out_.files.size());
    out_.files.push_back(stored_file_of(file_.storages()[storage], out_.path));
  }
  return file_of_[storage];
}

Status StateReader::check_repeats(const TorchTensor& tensor, const TorchReach& reach) const {
  const std::optional<std::uint64_t> bytes = size_bytes(tensor.type, reach.count);
  if (!bytes) return Error{Code::invalid, text(reach.count, " elements are more than a file can hold")};
  if (*bytes > kRepeatedBytesAlways && *bytes / kRepeatMax > file_.storages()[tensor.storage].size_bytes)
    return Error{Code::invalid, text("it repeats ", file_.storages()[tensor.storage].size_bytes, " stored bytes to ",
                                     *bytes, ": save it before it is expanded")};
  return {};
}

Status StateReader::read_plain(const TorchTensor& tensor, TorchPart& out) {
  const std::optional<TorchReach> reach = reach_of(tensor);
  if (!reach) return Error{Code::corrupt, "sizes and strides overflow"};
  if (reach->count == 0) return {};
  PAWL_TRY(check_repeats(tensor, *reach));
  const TorchStorage& storage = file_.storages()[tensor.storage];
  const std::uint32_t bits = size_bits(tensor.type);
  StoredPiece piece = whole_piece(tensor.shape, file_of(tensor.storage), origin_of(storage));
  const PerDimension dense = piece.stride;
  std::ranges::copy(tensor.strides, piece.stride.begin());
  if (bits % 8 != 0) {
    bool is_dense = tensor.storage_offset == 0 && size_bytes(tensor.type, reach->count).has_value();
    for (std::size_t d = 0; d < tensor.shape.size(); ++d)
      is_dense = is_dense && (tensor.shape[d] == 1 || tensor.strides[d] == dense[d]);
    if (!is_dense) return Error{Code::invalid, text("a view of packed elements of ", bits, " bits is not read")};
    piece.stride = dense;
  } else {
    piece.offset_bytes += tensor.storage_offset * (bits / 8);
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)  // where it does not count, torch's may be anything
      if (piece.box.size[d] == 1) piece.stride[d] = dense[d];
  }
  piece.swapped = file_.is_big_endian() && swapped_bytes(tensor.type) > 1;
  out.pieces.push_back(piece);
  return {};
}

// By its checksum, once: values that are made of it have none.
Status StateReader::prove(std::uint32_t number) {
  if (proven_.contains(number)) return {};
  PAWL_TRY(prove_storage(source_, file_, number));
  proven_.insert(number);
  return {};
}

// What is stored is not the value: the value is computed here, once, and kept.
Status StateReader::read_values(const TorchTensor& tensor, TorchPart& out) {
  const TorchStorage& storage = file_.storages()[tensor.storage];
  const std::optional<TorchReach> reach = reach_of(tensor);
  const std::uint64_t bytes = reach ? size_bytes(tensor.type, reach->count).value_or(0) : 0;  // else not read either
  values_bytes_ += std::min(bytes, kValuesBytesMax) + (storage.deflated ? storage.size_bytes : 0);
  if (values_bytes_ > source_.size_bytes() + kValuesBytesMax)
    return Error{Code::invalid,
                 "conjugated and negated tensors have more bytes than their file: save their values "
                 "(resolve_conj, resolve_neg)"};
  PAWL_TRY(prove(tensor.storage));
  PAWL_ASSIGN(std::string elements, read_elements(source_, file_, tensor, kValuesBytesMax));
  if (elements.empty()) return {};
  StoredFile file;
  file.path = text(out_.path, accessor_of(tensor.path));
  file.codec = StoredFile::Codec::content;
  file.content = std::move(elements);
  out.pieces.push_back(whole_piece(tensor.shape, static_cast<std::uint32_t>(out_.files.size()), 0));
  out_.files.push_back(std::move(file));
  return {};
}

Status StateReader::read_sharded(const TorchTensor& tensor, TorchPart& out) {
  const auto local_of = [&](Value value) -> const TorchTensor* {
    const auto found = by_value_.find(value);
    return found == by_value_.end() ? nullptr : found->second;
  };
  PAWL_ASSIGN(const TorchShard shard, shard_of(pickle(), tensor, local_of));
  out.shape = shard.shape;
  out.layout = shard.layout;
  out_.world = std::max(out_.world, shard.world);
  PAWL_TRY(copies_.take(shard.parts.size(), sizeof(StoredPiece)));  // a few axes make many boxes of every tensor
  if (out_.layout.empty()) out_.layout = shard.layout;
  for (const TorchShard::Part& part : shard.parts) {
    const TorchTensor& local = *local_of(part.local);
    TorchPart whole;
    if (local.type != tensor.type)
      return Error{Code::corrupt,
                   text("its local part is ", name_of(local.type), ", and it is ", name_of(tensor.type))};
    if (size_bits(local.type) % 8 != 0) return Error{Code::invalid, "packed elements that are cut are not read"};
    if (local.storage == kNoStorage || !local.layout.empty() || local.conjugated || local.negated ||
        !file_.storages()[local.storage].has_data || local.shape.size() > kDimensionsMax)
      return Error{Code::invalid, "its local part has no plain bytes"};
    PAWL_TRY(read_plain(local, whole));
    if (whole.pieces.empty()) continue;
    StoredPiece piece = whole.pieces[0];
    piece.box = part.box;
    for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
      piece.offset_bytes += part.from[d] * piece.stride[d] * (size_bits(local.type) / 8);
    out.pieces.push_back(piece);
  }
  return {};
}

}  // namespace

Result<TorchState> read_torch_state(const std::string& path, Files& files) {
  PAWL_ASSIGN(const std::unique_ptr<ByteSource> source, open_bytes(path, files));
  Result<TorchFile> file = TorchFile::read(*source);
  if (!file) return std::move(file).error().within(path);
  Result<TorchState> state = StateReader(path, *source, std::move(*file)).read();
  if (!state) return std::move(state).error().within(path);
  return state;
}

}  // namespace pawl::checkpoint
