#include "checkpoint/formats/deepspeed/universal.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"
#include "checkpoint/formats/deepspeed/universal_writer.h"
#include "checkpoint/formats/deepspeed/zero_flat.h"
#include "checkpoint/names/hyperparameters.h"
#include "checkpoint/view/pieces.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

using namespace deepspeed;
using Value = Pickle::Value;

constexpr std::string_view kStateSuffix = ".pt";

// The ranks' copies of model_states, in the order of their model-parallel and then data-parallel rank.
struct RankStates {
  ShardName name;
  std::uint32_t file = 0;
  ModelStates states;
};

std::string role_of(std::string_view state) {
  return std::string(state == "fp32" ? "master" : state);
}

using WeightsByName = std::map<std::string_view, const StoredTensor*>;

class UniversalReader {
 public:
  UniversalReader(std::string folder, Files& files) : folder_(std::move(folder)), files_(files) {}

  Result<CheckpointView> read() {
    view_.format = "DeepSpeed universal";
    PAWL_ASSIGN(const std::vector<std::string> entries, files_.list(folder_));
    PAWL_ASSIGN(const std::vector<std::string> names, files_.list(join_path(folder_, "zero")));
    read_model_states_files(entries);
    learn_names();
    count_ranks();
    append_kept();
    for (const std::string& name : names) PAWL_TRY(read_parameter(name));
    check_complete();
    read_optimizer_state();
    append_facts(entries);
    return std::move(view_);
  }

 private:
  std::uint32_t add_file(const std::string& path) {
    view_.files.push_back({path});
    return static_cast<std::uint32_t>(view_.files.size() - 1);
  }

  // Opens a file that is then one of the view's. A damaged one is a problem, and nothing.
  std::optional<ShardFile> open(const std::string& path, std::string_view of = {}) {
    const std::uint32_t index = add_file(path);
    Result<ShardFile> file = ShardFile::open(path, index, files_);
    if (file) return std::move(*file);
    view_.problems.push_back(text(of, file.error().what));
    return std::nullopt;
  }

  void read_model_states_files(const std::vector<std::string>& entries) {
    std::vector<ShardName> found;
    for (const std::string& entry : entries) {
      const std::optional<ShardName> name = parse_shard_name(entry);
      if (name && (name->kind == ShardName::Kind::model || name->kind == ShardName::Kind::zero_model))
        found.push_back(*name);
    }
    std::ranges::sort(found, {}, [](const ShardName& name) { return std::pair(name.model_rank, name.data_rank); });
    for (const ShardName& name : found) {
      const std::optional<ShardFile> file = open(join_path(folder_, name.name));
      if (!file || file->find(kTwinKey) != Pickle::kNothing) continue;
      Result<ModelStates> states = read_model_states(*file);
      if (!states) {
        view_.problems.push_back(states.error().what);
        continue;
      }
      for (const std::string& note : states->notes) view_.notes.push_back(note);
      if (ranks_.empty()) {
        training_type_ = type_of_configuration(*file);
        Result<TensorParallelRules> rules = TensorParallelRules::read(file->pickle(), states->universal_info);
        if (rules)
          rules_ = std::move(*rules);
        else
          view_.problems.push_back(std::move(rules).error().within(file->path()).what);
      }
      ranks_.push_back({name, static_cast<std::uint32_t>(view_.files.size() - 1), std::move(*states)});
    }
    if (ranks_.empty())
      view_.problems.push_back(text(folder_,
                                    ": no model_states file can be read: which tensors are buffers or frozen is "
                                    "not known, nor the shapes of flat ones"));
  }

  // float32 unless the job switched another one on.
  static std::optional<ElementType> type_of_configuration(const ShardFile& file) {
    const Pickle& pickle = file.pickle();
    const Value config = file.find("ds_config");
    if (config == Pickle::kNothing) return std::nullopt;
    for (const std::string_view key : {"bf16", "bfloat16"})
      if (flag_at(pickle, pickle.find(config, key), "enabled")) return ElementType::bfloat16;
    return flag_at(pickle, pickle.find(config, "fp16"), "enabled") ? ElementType::float16 : ElementType::float32;
  }

  void learn_names() {
    for (const RankStates& rank : ranks_) {
      buffers_.insert(rank.states.buffers.begin(), rank.states.buffers.end());
      for (const auto& [alias, name] : rank.states.ties)
        if (alias != name) ties_.emplace(alias, name);
      for (const ParameterShape& frozen : rank.states.frozen) frozen_.emplace(frozen.name, frozen.count);
      for (std::size_t group = 0; group < rank.states.groups.size(); ++group)
        for (const ParameterShape& parameter : rank.states.groups[group])
          if (trainable_.emplace(parameter.name, Trainable{parameter.shape, parameter.count, group}).second)
            order_.push_back(parameter.name);
    }
    for (const auto& [alias, name] : ties_) view_.aliases.emplace_back(alias, name);
  }

  // How many tensor-parallel ranks there are; pipelines have no weights here that would have to be joined.
  void count_ranks() {
    for (const RankStates& rank : ranks_)
      if (heads_.empty() || heads_.back()->name.model_rank != rank.name.model_rank) heads_.push_back(&rank);
    for (std::size_t i = 0; i < heads_.size(); ++i)
      if (heads_[i]->name.model_rank != i) {
        view_.problems.push_back(text(folder_, ": the model_states file of model-parallel rank ", i, " is missing"));
        break;
      }
    tensor_ranks_ = std::max<std::size_t>(heads_.size(), 1);
    if (heads_.empty()) return;
    const std::optional<std::uint64_t> said = heads_[0]->states.tensor_degree;
    if (said && *said > 0 && *said <= heads_.size()) tensor_ranks_ = *said;
  }

  [[nodiscard]] bool is_alias(const std::string& name) const { return ties_.contains(name); }

  // What only the copies of model_states keep as it was: weights, buffers, frozen parameters.
  void append_kept() {
    std::vector<WeightsByName> weights(heads_.size());
    for (std::size_t i = 0; i < heads_.size(); ++i)
      for (const StoredTensor& tensor : heads_[i]->states.weights) weights[i].emplace(tensor.name, &tensor);
    for (const RankStates* head : heads_)
      for (const StoredTensor& tensor : head->states.weights) {
        if (is_alias(tensor.name) || kept_.contains(tensor.name)) continue;
        if (buffers_.contains(tensor.name))
          append_buffer(tensor);
        else if (is_placeholder(tensor))
          placeholder_types_.emplace(tensor.name, tensor.type);
        else
          append_joined(tensor.name, weights);
      }
    for (const RankStates* head : heads_)
      for (const ParameterShape& frozen : head->states.frozen)
        if (!kept_.contains(frozen.name) && !is_alias(frozen.name)) append_frozen_parts(frozen.name);
  }

  // ZeRO-3 leaves an empty tensor where a parameter was.
  [[nodiscard]] bool is_placeholder(const StoredTensor& tensor) const {
    if (!tensor.pieces.empty()) return false;
    if (const auto at = trainable_.find(tensor.name); at != trainable_.end()) return at->second.count != 0;
    const auto at = frozen_.find(tensor.name);
    return at != frozen_.end() && at->second != 0;
  }

  // Every rank has all of it; which copy is taken does not matter here, since DeepSpeed takes none.
  void append_buffer(StoredTensor tensor) {
    kept_.insert(tensor.name);
    tensor.role = "buffer";
    view_.tensors.push_back(std::move(tensor));
  }

  // A weight of which each tensor-parallel rank has its part, whole.
  void append_joined(const std::string& name, const std::vector<WeightsByName>& weights) {
    std::vector<const StoredTensor*> parts;
    std::vector<Shape> shapes;
    for (std::size_t rank = 0; rank < tensor_ranks_; ++rank) {
      const auto at = weights[rank].find(name);
      if (at == weights[rank].end() || (!parts.empty() && at->second->type != parts[0]->type)) break;
      parts.push_back(at->second);
      shapes.push_back(at->second->shape);
    }
    kept_.insert(name);
    if (parts.size() != tensor_ranks_) {
      view_.problems.push_back(text("weight of ", name, ": ", parts.size(), " of ", tensor_ranks_,
                                    " tensor-parallel ranks have it with one type"));
      return;
    }
    append_merge(name, parts[0]->type, shapes, [&](const MergedParameter& merged, StoredTensor& out) {
      for (std::uint32_t rank = 0; rank < parts.size(); ++rank)
        for (const StoredPiece& piece : parts[rank]->pieces) append_merged(merged, rank, piece, out.type, out.pieces);
    });
  }

  template <class AppendPieces>
  void append_merge(const std::string& name, ElementType type, const std::vector<Shape>& shapes,
                    AppendPieces append_pieces) {
    const Result<MergedParameter> merged = rules_.merge(name, shapes);
    if (!merged) {
      view_.problems.push_back(merged.error().what);
      return;
    }
    StoredTensor out;
    out.name = name;
    out.type = type;
    out.shape = merged->shape;
    out.versions = merged->versions;
    append_pieces(*merged, out);
    view_.tensors.push_back(std::move(out));
  }

  // ZeRO-3: every data-parallel rank keeps a flat part of a frozen parameter.
  void append_frozen_parts(const std::string& name) {
    std::vector<Shape> shapes;
    std::vector<std::vector<StoredPiece>> local;
    std::optional<ElementType> type;
    std::uint64_t wanted = 0, found = 0;
    for (std::size_t model = 0; model < tensor_ranks_; ++model) {
      const ParameterGroup& frozen = heads_[model]->states.frozen;
      const auto at = std::ranges::find(frozen, name, &ParameterShape::name);
      if (at == frozen.end()) return;
      shapes.push_back(at->shape);
      local.emplace_back();
      wanted += at->count;
      std::uint32_t world = 0;
      for (const RankStates& rank : ranks_) world += rank.name.model_rank == heads_[model]->name.model_rank ? 1 : 0;
      for (const RankStates& rank : ranks_)
        if (rank.name.model_rank == heads_[model]->name.model_rank)
          found += append_frozen_part(rank, *at, world, type, local.back());
    }
    if (found == 0 && wanted != 0) return;  // not stored, or whole: then zero/ has it, as float32
    kept_.insert(name);
    if (found != wanted) {
      view_.problems.push_back(
          text("frozen parameter ", name, ": ", found, " of its ", wanted, " elements are in the model_states files"));
      return;
    }
    append_merge(name, type.value_or(ElementType::float32), shapes,
                 [&](const MergedParameter& merged, StoredTensor& out) {
                   for (std::uint32_t rank = 0; rank < local.size(); ++rank)
                     for (const StoredPiece& piece : local[rank])
                       append_merged(merged, rank, piece, out.type, out.pieces);
                 });
  }

  // How many elements of the parameter that rank holds: 0 too where its part is not the one that it should be.
  static std::uint64_t append_frozen_part(const RankStates& rank, const ParameterShape& frozen, std::uint32_t world,
                                          std::optional<ElementType>& type, std::vector<StoredPiece>& out) {
    const auto at = rank.states.frozen_parts.find(frozen.name);
    const std::uint64_t each = part_size(frozen.count, world);
    if (at == rank.states.frozen_parts.end() || at->second.pieces.size() != 1 || at->second.shape != Shape{each} ||
        at->second.pieces[0].stride[0] != 1 || rank.name.data_rank >= world ||
        type.value_or(at->second.type) != at->second.type)
      return 0;
    type = at->second.type;
    const std::uint64_t begin = std::min(frozen.count, each * rank.name.data_rank);
    const std::uint64_t end = std::min(frozen.count, begin + each);
    StoredPiece first = at->second.pieces[0];
    first.rank = rank.name.data_rank;
    if (begin != end) append_interval(frozen.shape, begin, end, at->second.type, first, out);
    return end - begin;
  }

  [[nodiscard]] bool is_stage3() const { return !ranks_.empty() && ranks_[0].name.kind == ShardName::Kind::zero_model; }

  // --- zero/<name>/<state>.pt

  Status read_parameter(const std::string& name) {
    const std::string path = join_path(join_path(folder_, "zero"), name);
    if (name.ends_with(kStateSuffix)) {
      if (name == "optimizer_state.pt")
        view_.objects.push_back("optimizer_state");
      else
        view_.notes.push_back(text(path, " is no parameter's: not looked at"));
      return {};
    }
    Result<std::vector<std::string>> entries = files_.list(path);
    if (!entries) {
      view_.problems.push_back(entries.error().what);
      return {};
    }
    std::vector<std::string> states;
    for (const std::string& entry : *entries)
      if (entry.ends_with(kStateSuffix) && entry.size() > kStateSuffix.size())
        states.push_back(entry.substr(0, entry.size() - kStateSuffix.size()));
      else
        view_.notes.push_back(text(join_path(path, entry), " is no state of a parameter: not looked at"));
    // The converter gives the others fp32.pt alone: no model_states file may name it (ZeRO-0, other ranks' experts).
    if (std::ranges::any_of(states, [](const std::string& state) { return state != "fp32" && state != "step"; }))
      with_states_.insert(name);
    if (is_alias(name) || (!with_states_.contains(name) && kept_elsewhere(name))) return {};
    if (states.empty()) {
      view_.problems.push_back(text(path, " holds no state of the parameter"));
      return {};
    }
    found_[name] = std::set<std::string>(states.begin(), states.end());
    for (const std::string& state : states) read_state(name, state, join_path(path, text(state, kStateSuffix)));
    return {};
  }

  // What model_states has as it was, and the converter wrote again as float32.
  bool kept_elsewhere(const std::string& name) {
    if (trainable_.contains(name) || ranks_.empty()) return false;
    if (!kept_.contains(name)) return false;
    if (buffers_.contains(name)) ++buffers_written_;
    return true;
  }

  void read_state(const std::string& name, const std::string& state, const std::string& path) {
    const std::string of = state == "fp32" ? "" : text(kOfOptimizerState, ": ");
    const std::optional<ShardFile> file = open(path, of);
    if (!file) return;
    Status done = state == "step" ? read_step(*file, name) : read_tensor(*file, name, state);
    if (!done) view_.problems.push_back(of + done.error().what);
  }

  Status read_tensor(const ShardFile& file, const std::string& name, const std::string& state) {
    const Pickle& pickle = file.pickle();
    const bool is_dict = pickle.is(pickle.root(), PickleKind::dict) || pickle.object(pickle.root()).holds_pairs;
    const TorchTensor* tensor = file.tensor(is_dict ? file.find("param") : pickle.root());
    if (tensor == nullptr) return file.damaged(is_dict ? "has no tensor under the key param" : "is no tensor");
    PAWL_ASSIGN(StoredTensor out, file.stored(*tensor, name));
    out.role = role_of(state);
    const bool is_trainable = trainable_.contains(name) || with_states_.contains(name) || ranks_.empty();
    if (!is_trainable && state == "fp32") out.role = buffers_.contains(name) ? "buffer" : "weight";
    if (!is_dict) PAWL_TRY(reshape(file, out));
    if (out.role == "master" && !ranks_.empty() && !kept_.contains(name)) append_rounded(out);
    view_.tensors.push_back(std::move(out));
    return {};
  }

  // A weight that was not stored: DeepSpeed would make it of its master, and so is it here.
  void append_rounded(StoredTensor weight) {
    weight.role = "weight";
    const auto at = placeholder_types_.find(weight.name);
    const std::optional<ElementType> type = at != placeholder_types_.end() ? at->second : training_type_;
    if (!type) return;
    if (*type != weight.type && !weight.pieces.empty()) {
      StoredPiece& piece = weight.pieces[0];
      const bool is_half = *type == ElementType::bfloat16 || *type == ElementType::float16;
      if (!is_half || weight.type != ElementType::float32 || piece.swapped || piece.stride != dense_stride(piece.box)) {
        view_.notes.push_back(text("weight of ", weight.name, " was not stored"));
        return;
      }
      StoredFile rounded = view_.files[piece.file];
      rounded.codec = *type == ElementType::bfloat16 ? StoredFile::Codec::bfloat16 : StoredFile::Codec::float16;
      rounded.offset_bytes = piece.offset_bytes;
      rounded.length_bytes = volume(piece.box) * 4;
      rounded.decoded_bytes = volume(piece.box) * 2;
      piece.file = static_cast<std::uint32_t>(view_.files.size());
      piece.offset_bytes = 0;
      view_.files.push_back(std::move(rounded));
    }
    weight.type = *type;
    view_.tensors.push_back(std::move(weight));
    ++weights_rounded_;
  }

  // A flat tensor in the shape that model_states says it has.
  Status reshape(const ShardFile& file, StoredTensor& tensor) const {
    const auto at = trainable_.find(tensor.name);
    if (at == trainable_.end())
      return file.damaged(text("is flat, and no model_states file says which shape ", tensor.name, " has"));
    const std::uint64_t count = volume(whole_box(tensor.shape));
    if (tensor.shape.size() != 1 || count != at->second.count)
      return file.damaged(
          text("has shape ", text_of(tensor.shape), ", and ", tensor.name, " has ", text_of(at->second.shape)));
    tensor.shape = at->second.shape;
    if (tensor.pieces.empty()) return {};
    if (tensor.pieces[0].stride[0] != 1 && count > 1) return file.damaged("is flat and not dense");
    tensor.pieces[0].box = whole_box(tensor.shape);
    tensor.pieces[0].stride = dense_stride(tensor.pieces[0].box);
    return {};
  }

  Status read_step(const ShardFile& file, const std::string& name) {
    const Value root = file.pickle().root();
    if (const TorchTensor* tensor = file.tensor(root)) {
      PAWL_ASSIGN(StoredTensor out, file.stored(*tensor, name));
      out.role = "step";
      view_.tensors.push_back(std::move(out));
    } else {
      PAWL_ASSIGN(const std::optional<double> number, file.number(root));
      if (!number) return file.damaged(text("should hold a step, and holds ", file.pickle().describe(root)));
      append_number(name, file.path(), *number);
    }
    return {};
  }

  // A number that no tensor holds is a float32 of no dimensions, as torch's optimizers keep it.
  void append_number(const std::string& name, const std::string& path, double number) {
    const float value = static_cast<float>(number);
    StoredFile content{.path = path, .codec = StoredFile::Codec::content, .content = std::string(sizeof value, '\0')};
    std::memcpy(content.content.data(), &value, sizeof value);
    view_.files.push_back(std::move(content));
    StoredTensor out;
    out.name = name;
    out.role = "step";
    out.pieces = {whole_piece({}, static_cast<std::uint32_t>(view_.files.size() - 1), 0)};
    view_.tensors.push_back(std::move(out));
  }

  // optimizer_state.pt is rank 0's own. ZeRO-3 keeps its steps there, with the groups; the others what the groups say.
  void read_optimizer_state() {
    if (view_.objects.empty()) return;
    const bool has_steps = std::ranges::any_of(found_, [](const auto& entry) { return entry.second.contains("step"); });
    const bool has_their_steps = is_stage3() && !has_steps;
    const std::size_t problems = view_.problems.size();
    const std::optional<ShardFile> file =
        open(join_path(join_path(folder_, "zero"), "optimizer_state.pt"), text(kOfOptimizerState, ": "));
    if (!file && !has_their_steps) {  // then no tensor is missing
      view_.notes.push_back(std::move(view_.problems.back()));
      view_.problems.resize(problems);
    }
    if (!file) return;
    if (has_their_steps) append_shared_steps(*file);
    add_param_groups(file->pickle(), file->find("param_groups"));
  }

  // Groups list their flat tensors by number: ZeRO-3's sub-groups, and else themselves; model_states has the names.
  void add_param_groups(const Pickle& pickle, Value list) {
    std::size_t count = 0;
    for (const auto& [name, parameter] : trainable_) count = std::max(count, parameter.group + 1);
    const std::vector<std::optional<std::size_t>> group_of = groups_of_numbers(pickle, list, count);
    std::vector<HyperGroup> groups = read_hyper_groups(pickle, list);
    for (const std::string& name : order_)
      if (const std::optional<std::size_t> group = group_of[trainable_[name].group]; group && *group < groups.size())
        groups[*group].parameters.push_back(name);
    add_hyper_groups(groups, view_);
  }

  void append_shared_steps(const ShardFile& file) {
    const Pickle& pickle = file.pickle();
    const Value states = pickle.find(file.find("optimizer_state_dict"), "state");
    std::map<std::size_t, std::optional<StoredTensor>> steps;
    std::map<std::size_t, std::optional<double>> numbers;
    for (const std::string& name : order_) {
      if (!found_.contains(name)) continue;
      const std::size_t group = trainable_[name].group;
      if (!steps.contains(group)) {
        const Value step = pickle.find(state_of(pickle, states, group), "step");
        const TorchTensor* tensor = file.tensor(step);
        Result<StoredTensor> stored = tensor != nullptr ? file.stored(*tensor, "step") : file.damaged("no step");
        steps[group] = stored ? std::optional(std::move(*stored)) : std::nullopt;
        Result<std::optional<double>> number = file.number(step);
        numbers[group] = number ? *number : std::nullopt;
      }
      if (steps[group]) {
        StoredTensor out = *steps[group];
        out.name = name;
        out.role = "step";
        view_.tensors.push_back(std::move(out));
      } else if (numbers[group]) {
        append_number(name, file.path(), *numbers[group]);
      }
    }
  }

  // --- What should be there.

  void check_complete() {
    for (const std::string& name : order_) {
      const auto at = found_.find(name);
      if (at == found_.end()) {
        if (!is_alias(name) && trainable_[name].count != 0)
          view_.problems.push_back(
              text("parameter ", name, " is missing: ", folder_, "/zero has no folder of that name"));
        continue;
      }
      if (!at->second.contains("fp32")) view_.problems.push_back(text("parameter ", name, " has no fp32.pt"));
      const bool has_first = at->second.contains("exp_avg"), has_second = at->second.contains("exp_avg_sq");
      if (has_first != has_second)
        view_.problems.push_back(
            text(kOfOptimizerState, ": parameter ", name, " has no ", has_first ? "exp_avg_sq.pt" : "exp_avg.pt"));
    }
    std::size_t without = 0, with = 0;
    const std::string* first = nullptr;
    for (const std::string& name : order_) {
      const auto at = found_.find(name);
      if (at == found_.end() || trainable_[name].count == 0) continue;
      const bool is_alone =
          std::ranges::all_of(at->second, [](const std::string& state) { return state == "fp32" || state == "step"; });
      ++(is_alone ? without : with);
      if (is_alone && first == nullptr) first = &name;
    }
    if (without != 0 && with != 0)
      view_.problems.push_back(text("parameter ", *first,
                                    without > 1 ? text(" and ", without - 1, " more have") : " has",
                                    " no state of the optimizer, and others have"));
  }

  void append_facts(const std::vector<std::string>& entries) {
    if (!ranks_.empty()) {
      const ModelStates& first = ranks_[0].states;
      const auto fact = [&](std::string key, std::string value) {
        if (!value.empty()) view_.facts.emplace_back(std::move(key), std::move(value));
      };
      fact("writer", first.writer_version.empty() ? "" : text("DeepSpeed ", first.writer_version));
      if (first.step) fact("step", text(*first.step));
      if (first.data_world && first.model_world && *first.model_world < 1 << 20 && *first.data_world < 1 << 20)
        fact("world", text(*first.data_world * *first.model_world));
      const std::uint64_t pipeline = first.pipeline_degree.value_or(1);
      if (first.data_world) fact("layout", text("pp=", pipeline, " tp=", tensor_ranks_, " dp=", *first.data_world));
      fact("optimizer", first.optimizer_name);
      fact("zero", text(first.stage));
      for (const std::string& object : first.objects) view_.objects.push_back(object);
    }
    if (buffers_written_ != 0)
      view_.notes.push_back(text(buffers_written_,
                                 " buffers are there a second time, as float32: those of model_states "
                                 "are taken, which DeepSpeed itself would not load"));
    if (weights_rounded_ != 0)
      view_.notes.push_back(text(weights_rounded_,
                                 " weights are not stored: they are the masters, rounded to the "
                                 "training's type, as DeepSpeed makes them when it loads this"));
    if (std::ranges::find(entries, "tmp") != entries.end())
      view_.notes.push_back(text(folder_, "/tmp was left by a conversion that was ended early or told to keep it"));
  }

  struct Trainable {
    Shape shape;  // of the first tensor-parallel rank's part
    std::uint64_t count = 0;
    std::size_t group = 0;  // ZeRO-3: the sub-group
  };

  std::string folder_;
  Files& files_;
  CheckpointView view_;
  std::vector<RankStates> ranks_;
  TensorParallelRules rules_;
  std::vector<const RankStates*> heads_;  // of each model-parallel rank, the first data-parallel one
  std::size_t tensor_ranks_ = 1;          // the first so many of them
  std::map<std::string, Trainable> trainable_;
  std::vector<std::string> order_;  // of trainable_, as in the model
  std::set<std::string> buffers_;
  std::map<std::string, std::uint64_t> frozen_;  // their element counts
  std::map<std::string, std::string> ties_;
  std::set<std::string> kept_;                            // tensors taken from model_states
  std::map<std::string, std::set<std::string>> found_;    // parameter -> its states
  std::set<std::string> with_states_;                     // those with more than a weight
  std::map<std::string, ElementType> placeholder_types_;  // the training's own, where ZeRO-3 left empty tensors
  std::optional<ElementType> training_type_;
  std::size_t buffers_written_ = 0;
  std::size_t weights_rounded_ = 0;
};

// The folder itself, or the one that it points to.
Result<std::string> find_folder(const std::string& folder, const ReadOptions& options, Files& files) {
  if (options.tag.empty() && is_universal(folder, files)) return folder;
  std::string tag = options.tag;
  if (tag.empty()) {
    const Result<std::string> pointer = read_file(join_path(folder, "latest_universal"), 4096, files);
    if (!pointer)
      return Error{Code::not_found, text(folder,
                                         ": no universal checkpoint of DeepSpeed: no folder zero with the "
                                         "parameters in it, and no latest_universal")};
    tag = pointer->substr(0, pointer->find_last_not_of(" \r\n\t") + 1);
  }
  if (!is_plain_file_name(tag))
    return Error{Code::corrupt, text(join_path(folder, "latest_universal"), ": names no folder beside itself")};
  std::string out = join_path(folder, tag);
  if (!is_universal(out, files))
    return Error{Code::not_found, text(out,
                                       ": no universal checkpoint of DeepSpeed: no folder zero with the "
                                       "parameters in it")};
  return out;
}

}  // namespace

bool is_universal(const std::string& folder, Files& files) {
  const std::string zero = join_path(folder, "zero");
  const Result<std::vector<std::string>> names = files.list(zero);
  if (!names) return false;
  for (const std::string& name : *names) {
    if (name.ends_with(kStateSuffix)) continue;
    const Result<std::vector<std::string>> states = files.list(join_path(zero, name));
    if (states && std::ranges::find(*states, "fp32.pt") != states->end()) return true;
  }
  return false;
}

Result<CheckpointView> view_universal(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(const std::string found, find_folder(folder, options, files));
  return UniversalReader(found, files).read();
}

}  // namespace pawl::checkpoint
