#include "checkpoint/formats/deepspeed/deepspeed.h"

#include <algorithm>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/experts.h"
#include "checkpoint/formats/deepspeed/model_states.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/parameters.h"
#include "checkpoint/formats/deepspeed/pipeline.h"
#include "checkpoint/formats/deepspeed/plain_optimizer.h"
#include "checkpoint/formats/deepspeed/tag_folder.h"
#include "checkpoint/formats/deepspeed/tensor_parallel.h"
#include "checkpoint/formats/deepspeed/zero_states.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint {
namespace deepspeed {
namespace {

using Kind = ShardName::Kind;

std::string two_digits(std::uint64_t number) {
  return text(number < 10 ? "0" : "", number);
}

std::string listed(const std::vector<std::string>& words) {
  constexpr std::size_t kWordsMax = 4;
  std::string out;
  for (std::size_t i = 0; i < std::min(words.size(), kWordsMax); ++i) out += text(i == 0 ? "" : ", ", words[i]);
  if (words.size() > kWordsMax) out += text(" and ", words.size() - kWordsMax, " more");
  return out;
}

// An optimizer's state with names by number in a file that is named as a ZeRO rank's.
bool is_plain_state(const ShardFile& file) {
  const Pickle::Value states = file.find("optimizer_state_dict");
  const Pickle& pickle = file.pickle();
  const auto has = [&](std::string_view key) { return pickle.find(states, key) != Pickle::kNothing; };
  return !has("single_partition_of_fp32_groups") && !has("fp32_flat_groups") &&
         (has("fp32_groups") || has("fp32_groups_flat") || (has("state") && has("param_groups")));
}

// Reads a folder's files one after another into a table of parameters.
class Reader {
 public:
  Reader(TagFolder folder, const ReadOptions& options, Files& files)
      : folder_(std::move(folder)), options_(options), files_(files) {}
  Result<CheckpointView> read();

 private:
  // The states of one model-parallel rank, by its first data-parallel rank.
  struct Main {
    std::uint32_t model_rank = 0;
    ShardFile file;
    ModelStates states;
  };
  struct FrozenParts {  // ZeRO-3: of another data-parallel rank
    std::uint32_t model_rank = 0, data_rank = 0;
    std::map<std::string, StoredTensor> parts;
  };

  [[nodiscard]] std::vector<const ShardName*> shards(Kind kind) const;  // by numbers, ascending
  std::optional<ShardFile> open(const ShardName& name);
  void problem(std::string sentence) { view_.problems.push_back(std::move(sentence)); }
  void problem(const Status& status) {
    if (!status) problem(status.error().what);
  }
  [[nodiscard]] BufferPlace place_of(std::uint32_t model_rank) const {
    return {model_rank / tensor_degree_, model_rank % tensor_degree_};
  }

  void refuse_doubles();
  void read_models();
  void compare_facts(const ModelStates& states, const std::string& path);
  Status find_degrees();
  Status read_rules();
  Status read_names();

  void add_modules();
  void add_module(const Main& main);
  void add_zero3_parameters(const Main& main);
  void add_frozen_parts();
  void add_layers();
  std::vector<PipelineLayer> read_layers(std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<StoredTensor>>&);
  void add_layer(const LayerPrefix& prefix, std::uint32_t tensor, std::vector<StoredTensor> tensors);
  void expect_layers(const std::vector<PipelineLayer>& layers, bool has_model_axis);
  void add_experts();
  void add_weight(StoredTensor tensor, BufferPlace place);

  void add_optimizers();
  void add_zero_optimizers();
  void compare_steps(const Main& main, std::optional<double> optimizer_step);
  void add_plain_optimizers();
  void add_plain(const ShardFile& file, Pickle::Value optimizer, const Main& main,
                 std::optional<std::uint32_t> expert_rank);
  [[nodiscard]] std::vector<NamedShape> dense_names(const Main& main) const;
  [[nodiscard]] std::vector<NamedShape> expert_names(std::uint32_t model_rank, std::uint32_t expert_rank) const;
  void expect_shards();

  void describe();
  Result<CheckpointView> finish();

  TagFolder folder_;
  const ReadOptions& options_;
  Files& files_;
  CheckpointView view_;
  std::vector<std::uint64_t> file_sizes_;
  std::vector<Main> mains_;  // by model-parallel rank
  std::vector<FrozenParts> frozen_parts_;
  std::uint32_t pipeline_degree_ = 1, tensor_degree_ = 1;
  std::uint64_t world_ = 1;  // data-parallel ranks
  std::uint64_t expert_degree_ = 1;
  std::uint64_t stage_ = 0;
  bool has_zero_files_ = false, is_zero3_ = false;
  std::string optimizer_class_, writer_version_;
  std::optional<double> loss_scale_;
  TensorParallelRules rules_;
  std::optional<ParameterNames> said_names_;
  std::unique_ptr<ParameterTable> table_;
  std::set<std::string> buffers_;
  std::map<std::string, std::string> ties_;
  struct ExpertWeight {
    std::uint32_t layer = 0, expert = 0, model_rank = 0;
    NamedShape name;
  };
  std::vector<ExpertWeight> expert_weights_;
  std::vector<std::pair<std::uint32_t, NamedShape>> layer_weights_;  // of each tensor-parallel rank
  std::vector<HyperGroup> param_groups_;                             // of all ranks
  std::vector<std::string> missing_;
  std::optional<Error> first_error_;
};

std::vector<const ShardName*> Reader::shards(Kind kind) const {
  std::vector<const ShardName*> out;
  for (const ShardName& shard : folder_.shards)
    if (shard.kind == kind) out.push_back(&shard);
  std::ranges::sort(out, {}, [](const ShardName* s) { return s->coordinates(); });
  return out;
}

// bf16_zero_pp_rank_0 beside zero_pp_rank_0, say: which one is the save's can't be told.
void Reader::refuse_doubles() {
  std::map<std::tuple<Kind, ShardName::Coordinates>, std::string> first;
  std::erase_if(folder_.shards, [&](const ShardName& shard) {
    const auto [at, is_new] = first.try_emplace({shard.kind, shard.coordinates()}, shard.name);
    if (!is_new)
      problem(text(folder_.path, ": ", at->second, " and ", shard.name,
                   " are of one rank: files of two saves lie in one folder"));
    return !is_new;
  });
}

std::optional<ShardFile> Reader::open(const ShardName& name) {
  const std::string path = join_path(folder_.path, name.name);
  const auto index = static_cast<std::uint32_t>(view_.files.size());
  view_.files.push_back({.path = path});
  file_sizes_.resize(view_.files.size());
  Result<ShardFile> file = ShardFile::open(path, index, files_);
  if (!file) {
    if (!first_error_) first_error_ = file.error();
    problem(std::move(file.error().what));
    return std::nullopt;
  }
  file_sizes_[index] = file->size_bytes();
  return std::move(*file);
}

// --- The model's states.

void Reader::compare_facts(const ModelStates& states, const std::string& path) {
  if (mains_.empty()) return;
  const ModelStates& first = mains_[0].states;
  const auto differ = [&](std::string_view what, const std::optional<std::uint64_t>& a,
                          const std::optional<std::uint64_t>& b) {
    if (a && b && *a != *b)
      problem(text(path, ": its ", what, " is ", *b, ", and ", mains_[0].file.path(), " has ", *a,
                   ": files of different saves lie in one folder"));
  };
  differ("step (global_steps)", first.step, states.step);
  differ("iteration", first.iteration, states.iteration);
  differ("number of data-parallel ranks (dp_world_size)", first.data_world, states.data_world);
  differ("number of model-parallel ranks (mp_world_size)", first.model_world, states.model_world);
}

void Reader::read_models() {
  std::vector<const ShardName*> names = shards(Kind::model);
  const std::vector<const ShardName*> of_zero3 = shards(Kind::zero_model);
  is_zero3_ = names.empty() && !of_zero3.empty();
  if (!names.empty() && !of_zero3.empty())
    problem(text(folder_.path, ": ", names[0]->name, " and ", of_zero3[0]->name,
                 " are of two saves: one with ZeRO-3 and one without"));
  else if (is_zero3_)
    names = of_zero3;
  for (const ShardName* name : names) {
    std::optional<ShardFile> file = open(*name);
    if (!file) continue;
    Result<ModelStates> states = read_model_states(*file);
    if (!states) {
      if (!first_error_) first_error_ = states.error();
      problem(std::move(states.error().what));
      continue;
    }
    compare_facts(*states, file->path());
    view_.notes.insert(view_.notes.end(), states->notes.begin(), states->notes.end());
    if (is_zero3_) {
      frozen_parts_.push_back({name->model_rank, name->data_rank, states->frozen_parts});
    }
    if (!mains_.empty() && mains_.back().model_rank == name->model_rank) continue;
    buffers_.insert(states->buffers.begin(), states->buffers.end());
    ties_.insert(states->ties.begin(), states->ties.end());
    mains_.push_back({name->model_rank, std::move(*file), std::move(*states)});
  }
}

Status Reader::find_degrees() {
  std::uint64_t pipeline = 0, tensor = 0, ranks = 1, data = 0;
  if (!mains_.empty()) {
    const ModelStates& first = mains_[0].states;
    pipeline = first.pipeline_degree.value_or(0);
    tensor = first.tensor_degree.value_or(0);
    ranks = std::max<std::uint64_t>(first.model_world.value_or(1), mains_.back().model_rank + 1);
    data = first.data_world.value_or(0);
  }
  const std::vector<const ShardName*> layers = shards(Kind::layer);
  std::uint64_t model_axis = 0, data_files = 1;
  for (const ShardName* layer : layers)
    if (layer->has_model_axis) model_axis = std::max<std::uint64_t>(model_axis, layer->model_rank + 1);
  for (const ShardName* shard : shards(Kind::optimizer))
    data_files = std::max<std::uint64_t>(data_files, shard->data_rank + 1);
  if (tensor == 0) tensor = layers.empty() ? ranks : std::max<std::uint64_t>(model_axis, 1);
  if (pipeline == 0) pipeline = std::max<std::uint64_t>(ranks / tensor, 1);
  if (data == 0) data = data_files;
  // Each rank has a file, so numbers far beyond the files are no degrees. What is sized by them stays small.
  const std::uint64_t ranks_max = 64 * folder_.shards.size() + 64;
  if (pipeline > ranks_max || tensor > ranks_max || data > ranks_max || pipeline * tensor > ranks_max)
    return Error{Code::corrupt, text(folder_.path, ": its files say that there were ", data, " data-parallel, ",
                                     pipeline, " pipeline and ", tensor, " tensor-parallel ranks, and there are ",
                                     folder_.shards.size(), " files")};
  pipeline_degree_ = static_cast<std::uint32_t>(pipeline);
  tensor_degree_ = static_cast<std::uint32_t>(tensor);
  world_ = data;
  table_ = std::make_unique<ParameterTable>(tensor_degree_);
  std::vector<std::string> stale;
  std::erase_if(mains_, [&](const Main& main) {
    if (main.model_rank < pipeline * tensor) return false;
    stale.push_back(last_name(main.file.path()));
    return true;
  });
  if (!stale.empty())
    view_.notes.push_back(text(listed(stale), " are beyond the ", pipeline * tensor,
                               " model-parallel ranks of this save, and are not looked at"));
  return {};
}

Status Reader::read_rules() {
  for (const Main& main : mains_) {
    const Pickle::Value info = main.states.universal_info;
    if (info == Pickle::kNothing || main.file.pickle().is(info, PickleKind::none)) continue;
    Result<TensorParallelRules> rules = TensorParallelRules::read(main.file.pickle(), info);
    if (!rules) return std::move(rules).error().within(main.file.path());
    rules_ = std::move(*rules);
    return {};
  }
  return {};
}

Status Reader::read_names() {
  if (options_.parameter_names_file.empty()) return {};
  PAWL_ASSIGN(const std::string bytes, read_file(options_.parameter_names_file, 256 << 20, files_));
  Result<ParameterNames> names = parse_parameter_names(bytes);
  if (!names) return std::move(names).error().within(options_.parameter_names_file);
  said_names_ = std::move(*names);
  return {};
}

// --- Weights.

void Reader::add_weight(StoredTensor tensor, BufferPlace place) {
  if (ties_.contains(tensor.name)) return;
  if (buffers_.contains(tensor.name)) {
    if (place.tensor == 0) table_->add_buffer(std::move(tensor));
    return;
  }
  for (StoredPiece& piece : tensor.pieces)
    piece.rank = static_cast<std::uint32_t>(place.stage * world_ * tensor_degree_ + place.tensor);
  table_->add(tensor.name, place, tensor.shape, "weight", tensor.type, tensor.pieces);
}

void Reader::add_modules() {
  for (const Main& main : mains_) {
    if (is_zero3_)
      add_zero3_parameters(main);
    else
      add_module(main);
  }
}

void Reader::add_module(const Main& main) {
  // A tie that no list names: two names for the same bytes.
  std::map<std::tuple<std::uint64_t, Shape, PerDimension, ElementType>, std::string> first_name;
  for (const StoredTensor& tensor : main.states.weights) {
    if (!tensor.pieces.empty() && !buffers_.contains(tensor.name)) {
      const StoredPiece& piece = tensor.pieces[0];
      const auto [at, is_new] =
          first_name.try_emplace({piece.offset_bytes, tensor.shape, piece.stride, tensor.type}, tensor.name);
      if (!is_new && !ties_.contains(tensor.name) && !ties_.contains(at->second)) ties_[tensor.name] = at->second;
    }
    add_weight(tensor, place_of(main.model_rank));
  }
}

// Names in the module's order; their weights come with the optimizer's masters. Buffers are real.
void Reader::add_zero3_parameters(const Main& main) {
  const BufferPlace place = place_of(main.model_rank);
  std::unordered_map<std::string, const ParameterShape*> shapes;
  for (const ParameterGroup& group : main.states.groups)
    for (const ParameterShape& parameter : group) shapes[parameter.name] = &parameter;
  for (const ParameterShape& parameter : main.states.frozen) shapes[parameter.name] = &parameter;
  std::vector<std::string> without_shape;
  for (const StoredTensor& tensor : main.states.weights) {
    const auto known = shapes.find(tensor.name);
    const bool is_placeholder = tensor.shape == Shape{0} && !buffers_.contains(tensor.name);
    if (known == shapes.end() && is_placeholder && !ties_.contains(tensor.name))
      without_shape.push_back(tensor.name);
    else if (known == shapes.end())
      add_weight(tensor, place);
    else  // without pieces yet: what no rank's file brings is seen to be missing
      table_->add(tensor.name, place, known->second->shape, "weight", tensor.type, {});
  }
  if (!without_shape.empty())
    view_.notes.push_back(text(main.file.path(), " says nothing of what these hold: ", listed(without_shape)));
}

void Reader::add_frozen_parts() {
  for (const FrozenParts& rank : frozen_parts_) {
    const auto main = std::ranges::find(mains_, rank.model_rank, &Main::model_rank);
    if (main == mains_.end()) continue;
    const BufferPlace place = place_of(rank.model_rank);
    for (const ParameterShape& parameter : main->states.frozen) {
      const auto part = rank.parts.find(parameter.name);
      if (part == rank.parts.end() || parameter.count == 0) continue;
      const std::uint64_t each = part_size(parameter.count, world_);
      const std::uint64_t real = real_size(parameter.count, each, rank.data_rank);
      const StoredTensor& flat = part->second;
      if (flat.shape.size() != 1 || flat.shape[0] < real ||
          (!flat.pieces.empty() && flat.pieces[0].stride[0] != 1 && flat.shape[0] > 1)) {
        problem(text("frozen parameter ", parameter.name, ": the part of data-parallel rank ", rank.data_rank,
                     " has the shape ", text_of(flat.shape), ", where ", real, " elements are expected"));
        continue;
      }
      std::vector<StoredPiece> pieces;
      if (real != 0) {
        StoredPiece first = flat.pieces[0];
        first.rank =
            static_cast<std::uint32_t>((place.stage * world_ + rank.data_rank) * tensor_degree_ + place.tensor);
        append_interval(parameter.shape, each * rank.data_rank, each * rank.data_rank + real, flat.type, first, pieces);
      }
      table_->add(parameter.name, place, parameter.shape, "weight", flat.type, pieces);
    }
  }
}

// --- Pipeline layers.

std::vector<PipelineLayer> Reader::read_layers(
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<StoredTensor>>& tensors) {
  std::vector<PipelineLayer> layers;
  for (const ShardName* shard : shards(Kind::layer)) {
    if (shard->model_rank >= tensor_degree_) {
      view_.notes.push_back(text(shard->name, " is beyond the ", tensor_degree_,
                                 " tensor-parallel ranks of this save, and is not looked at"));
      continue;
    }
    if (layers.empty() || layers.back().number != shard->layer) layers.push_back({shard->layer, {}});
    std::optional<ShardFile> file = open(*shard);
    if (!file) continue;
    Result<std::vector<StoredTensor>> held = read_weights(*file, view_.notes);
    if (!held) {
      problem(std::move(held.error().what));
      continue;
    }
    if (layers.back().tensors.empty())
      for (const StoredTensor& tensor : *held) layers.back().tensors.emplace_back(tensor.name, tensor.shape);
    tensors[{shard->layer, shard->model_rank}] = std::move(*held);
  }
  return layers;
}

void Reader::add_layers() {
  const std::vector<const ShardName*> names = shards(Kind::layer);
  if (names.empty()) return;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<StoredTensor>> tensors;
  const std::vector<PipelineLayer> layers = read_layers(tensors);
  NamedShapes parameters;
  for (const Main& main : mains_)
    if (place_of(main.model_rank).tensor == 0)
      for (const ParameterGroup& group : main.states.groups)
        for (const ParameterShape& parameter : group) parameters.emplace_back(parameter.name, parameter.shape);
  const std::vector<LayerPrefix> prefixes = layer_prefixes(layers, parameters);
  for (std::size_t i = 0; i < layers.size(); ++i)
    for (std::uint32_t tensor = 0; tensor < tensor_degree_; ++tensor)
      if (const auto held = tensors.find({layers[i].number, tensor}); held != tensors.end())
        add_layer(prefixes[i], tensor, std::move(held->second));
  expect_layers(layers, names[0]->has_model_axis);
}

void Reader::add_layer(const LayerPrefix& prefix, std::uint32_t tensor, std::vector<StoredTensor> tensors) {
  if (prefix.is_second_use) return;
  // The stage is the first whose optimizer has a name of this layer.
  BufferPlace place{0, tensor};
  for (const Main& main : mains_) {
    const bool has = std::ranges::any_of(main.states.groups, [&](const ParameterGroup& group) {
      return std::ranges::any_of(group, [&](const ParameterShape& p) { return p.name.starts_with(prefix.prefix); });
    });
    if (!has) continue;
    place.stage = place_of(main.model_rank).stage;
    break;
  }
  for (StoredTensor& held : tensors) {
    held.name = prefix.prefix + held.name;
    if (!buffers_.contains(held.name)) layer_weights_.emplace_back(tensor, NamedShape{held.name, held.shape});
    add_weight(std::move(held), place);
  }
}

void Reader::expect_layers(const std::vector<PipelineLayer>& layers, bool has_model_axis) {
  std::set<std::uint32_t> expected;
  for (const PipelineLayer& layer : layers) expected.insert(layer.number);
  for (const Main& main : mains_)
    for (const ParameterGroup& group : main.states.groups)
      for (const ParameterShape& parameter : group)
        if (std::uint32_t number = 0; layer_number(parameter.name, number)) expected.insert(number);
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;
  for (const ShardName* shard : shards(Kind::layer)) there.emplace(shard->layer, shard->model_rank);
  for (const std::uint32_t number : expected)
    for (std::uint32_t tensor = 0; tensor < (has_model_axis ? tensor_degree_ : 1); ++tensor)
      if (!there.contains({number, tensor}))
        missing_.push_back(text("layer_", two_digits(number), has_model_axis ? text("-model_", two_digits(tensor)) : "",
                                "-model_states.pt"));
}

// --- Experts.

void Reader::add_experts() {
  std::set<std::pair<std::uint32_t, std::uint32_t>> there;  // layer and expert
  for (const ShardName* shard : shards(Kind::expert)) {
    there.emplace(shard->layer, shard->expert);
    if (shard->model_rank >= std::uint64_t{pipeline_degree_} * tensor_degree_) continue;
    std::optional<ShardFile> file = open(*shard);
    if (!file) continue;
    Result<std::vector<StoredTensor>> held = read_weights(*file, view_.notes);
    if (!held) {
      problem(std::move(held.error().what));
      continue;
    }
    for (StoredTensor& tensor : *held) {
      expert_weights_.push_back({shard->layer, shard->expert, shard->model_rank, {tensor.name, tensor.shape}});
      add_weight(std::move(tensor), place_of(shard->model_rank));
    }
  }
  if (mains_.empty() || there.empty()) return;
  const std::vector<std::uint64_t>& counts = mains_[0].states.expert_counts;
  for (std::uint32_t layer = 0; layer < counts.size(); ++layer)
    for (std::uint32_t expert = 0; expert < std::min<std::uint64_t>(counts[layer], 64 * folder_.shards.size());
         ++expert)
      if (!there.contains({layer, expert}))
        missing_.push_back(text("layer_", layer, "_expert_", expert, "_mp_rank_00_model_states.pt"));
}

// --- Optimizers.

void Reader::add_optimizers() {
  has_zero_files_ = !shards(Kind::optimizer).empty();
  if (has_zero_files_)
    add_zero_optimizers();
  else
    add_plain_optimizers();
}

void Reader::add_zero_optimizers() {
  const std::vector<const ShardName*> names = shards(Kind::optimizer);
  std::vector<std::string> stale;
  std::set<std::string> without_weights;
  for (const Main& main : mains_) {
    ZeroJob job;
    job.model = &main.states;
    job.place = place_of(main.model_rank);
    job.world = world_;
    job.pipeline_degree = pipeline_degree_;
    job.tensor_degree = tensor_degree_;
    job.adds_weights = is_zero3_;
    for (const StoredTensor& placeholder : main.states.weights) job.types[placeholder.name] = placeholder.type;
    ZeroStates states(std::move(job), *table_, view_);
    for (const ShardName* name : names) {
      if (name->model_rank != main.model_rank) continue;
      if (name->data_rank >= world_) {
        stale.push_back(name->name);
        continue;
      }
      std::optional<ShardFile> file = open(*name);
      if (!file) continue;
      if (is_plain_state(*file)) {  // bf16 without ZeRO: each rank writes all of it
        if (name->data_rank == 0) add_plain(*file, file->find("optimizer_state_dict"), main, std::nullopt);
        continue;
      }
      Result<OptimizerStates> read = read_optimizer_states(*file);
      if (!read) {
        if (!first_error_) first_error_ = read.error();
        problem(std::move(read.error().what));
        continue;
      }
      problem(states.add(*read, name->data_rank, file->path()));
      view_.notes.insert(view_.notes.end(), read->notes.begin(), read->notes.end());
      stage_ = std::max(stage_, read->stage);
      optimizer_class_ = read->class_name;
      if (!loss_scale_) loss_scale_ = read->loss_scale;
      if (writer_version_.empty()) writer_version_ = read->writer_version;
    }
    file_sizes_.resize(view_.files.size());
    compare_steps(main, states.step());
    for (HyperGroup& group : states.param_groups()) param_groups_.push_back(std::move(group));
    expert_degree_ = std::max(expert_degree_, states.expert_degree());
    without_weights.insert(states.weights_left_out().begin(), states.weights_left_out().end());
  }
  if (!stale.empty())
    view_.notes.push_back(text(listed(stale), stale.size() == 1 ? " is" : " are", " beyond the ", world_,
                               " data-parallel ranks of this save, and not looked at"));
  if (!without_weights.empty())
    view_.notes.push_back(
        text(without_weights.size(), " weights are not in the files, and not made of the masters' type"));
}

// Optimizers count the steps that were not skipped. One that began anew has counted fewer; none can have counted more.
void Reader::compare_steps(const Main& main, std::optional<double> optimizer_step) {
  if (!optimizer_step || !main.states.step) return;
  const auto taken =
      static_cast<double>(*main.states.step) - static_cast<double>(main.states.skipped_steps.value_or(0));
  if (*optimizer_step == taken) return;
  const std::string sentence =
      text(main.file.path(), ": the model is at step ", *main.states.step, ", of which ",
           main.states.skipped_steps.value_or(0), " were skipped, and the optimizer at ", *optimizer_step);
  if (*optimizer_step > taken)
    problem(text(sentence, ": files of different steps lie in one folder"));
  else
    view_.notes.push_back(text(sentence, ": it began anew, or files of different steps lie in one folder"));
}

std::vector<NamedShape> Reader::dense_names(const Main& main) const {
  std::vector<NamedShape> out;
  for (const StoredTensor& tensor : main.states.weights)
    if (!buffers_.contains(tensor.name) && !ties_.contains(tensor.name)) out.push_back({tensor.name, tensor.shape});
  for (const auto& [tensor, name] : layer_weights_)  // a pipeline's: which stage has them no file says
    if (!main.states.has_module && tensor == place_of(main.model_rank).tensor) out.push_back(name);
  return out;
}

// The experts that an expert-parallel rank holds, in the model's order: each layer's are dealt in equal runs.
std::vector<NamedShape> Reader::expert_names(std::uint32_t model_rank, std::uint32_t expert_rank) const {
  std::map<std::uint32_t, std::uint64_t> count;
  for (const ExpertWeight& weight : expert_weights_)
    count[weight.layer] = std::max<std::uint64_t>(count[weight.layer], weight.expert + 1);
  std::vector<NamedShape> out;
  for (const ExpertWeight& weight : expert_weights_) {
    const std::uint64_t each = std::max<std::uint64_t>(count[weight.layer] / expert_degree_, 1);
    if (weight.model_rank == model_rank && weight.expert / each == expert_rank) out.push_back(weight.name);
  }
  return out;
}

void Reader::add_plain(const ShardFile& file, Pickle::Value optimizer, const Main& main,
                       std::optional<std::uint32_t> expert_rank) {
  Result<PlainOptimizer> read = read_plain_optimizer(file, optimizer);
  if (!read) return problem(text(kOfOptimizerState, ": ", read.error().what));
  optimizer_class_ = read->class_name;
  if (!loss_scale_) loss_scale_ = read->loss_scale;
  PlainNames names;
  names.dense = dense_names(main);
  names.experts = expert_names(main.model_rank, expert_rank.value_or(0));
  names.said = said_names_;
  if (main.states.has_groups) {  // then it's known who is in each group
    names.said.emplace();
    for (const ParameterGroup& group : main.states.groups) {
      auto& section = names.said->sections.emplace_back();
      for (const ParameterShape& parameter : group) section.push_back({parameter.name, parameter.shape});
    }
  }
  for (const PlainOptimizer::Group& group : read->groups)
    if (group.expert_degree != 0 && group.expert_degree != expert_degree_)
      return problem(text(file.path(), ": experts over ", group.expert_degree, " ranks beside others over ",
                          expert_degree_, " are not read yet without ZeRO"));
  PlainOptions options;
  options.place = place_of(main.model_rank);
  options.skips_dense = expert_rank.value_or(0) != 0;
  options.rank = static_cast<std::uint32_t>(options.place.stage * world_ * tensor_degree_ + options.place.tensor);
  Result<std::vector<HyperGroup>> told = add_plain_optimizer(file, *read, names, options, *table_, view_.notes);
  if (!told) return problem(text(kOfOptimizerState, ": ", told.error().what));
  for (HyperGroup& group : *told) param_groups_.push_back(std::move(group));
}

void Reader::add_plain_optimizers() {
  const std::vector<const ShardName*> of_experts = shards(Kind::expert_optimizer);
  for (const ShardName* name : of_experts)
    expert_degree_ = std::max<std::uint64_t>(expert_degree_, name->data_rank + 1);
  for (const Main& main : mains_) {
    bool has_files = false;
    for (const ShardName* name : of_experts) {
      if (name->model_rank != main.model_rank) continue;
      has_files = true;
      const std::optional<ShardFile> file = open(*name);
      if (file) add_plain(*file, file->find("optimizer"), main, name->data_rank);
    }
    if (!has_files && main.states.optimizer != Pickle::kNothing)
      add_plain(main.file, main.states.optimizer, main, std::nullopt);
  }
}

// --- What should be there.

void Reader::expect_shards() {
  std::set<std::tuple<Kind, std::uint32_t, std::uint32_t>> there;
  std::string prefix = "zero_pp_rank_";
  for (const ShardName& shard : folder_.shards) {
    there.emplace(shard.kind, shard.model_rank, shard.data_rank);
    if (shard.kind == Kind::optimizer) prefix = shard.name.substr(0, shard.name.find("zero_pp")) + "zero_pp_rank_";
  }
  const bool is_zero =
      has_zero_files_ || std::ranges::any_of(mains_, [](const Main& main) { return main.states.has_groups; });
  constexpr std::size_t kMissingMax = 10'000;  // names; more say no more
  for (std::uint32_t model = 0; model < std::uint64_t{pipeline_degree_} * tensor_degree_; ++model) {
    if (!is_zero3_ && !there.contains({Kind::model, model, 0}))
      missing_.push_back(text("mp_rank_", two_digits(model), "_model_states.pt"));
    for (std::uint32_t data = 0; data < world_ && missing_.size() < kMissingMax; ++data) {
      const std::string rank = text(data, "_mp_rank_", two_digits(model));
      if (is_zero3_ && !there.contains({Kind::zero_model, model, data}))
        missing_.push_back(text("zero_pp_rank_", rank, "_model_states.pt"));
      if (is_zero && !there.contains({Kind::optimizer, model, data}))
        missing_.push_back(text(prefix, rank, "_optim_states.pt"));
    }
  }
  const std::vector<const ShardName*> of_experts = shards(Kind::expert_optimizer);
  for (std::uint32_t rank = 0; !of_experts.empty() && rank < expert_degree_; ++rank)
    if (std::ranges::none_of(of_experts, [&](const ShardName* s) { return s->data_rank == rank; }))
      missing_.push_back(text("expp_rank_", rank, "_mp_rank_00_optim_states.pt"));
  if (!missing_.empty())
    problem(text(folder_.path, ": ", missing_.size() == 1 ? "a file is" : text(missing_.size(), " files are"),
                 " missing: ", listed(missing_)));
}

void Reader::describe() {
  const ModelStates* first = mains_.empty() ? nullptr : &mains_[0].states;
  if (first != nullptr && writer_version_.empty()) writer_version_ = first->writer_version;
  if (!has_zero_files_ && first != nullptr) stage_ = first->stage;
  view_.format = text("DeepSpeed ZeRO-", stage_);
  const auto fact = [&](std::string_view key, std::string value) { view_.facts.emplace_back(key, std::move(value)); };
  fact("writer", text("DeepSpeed ", writer_version_.empty() ? "of an unknown version" : writer_version_));
  if (first != nullptr && first->step) fact("step", text(*first->step));
  fact("world", text(world_ * pipeline_degree_ * tensor_degree_));
  std::string layout;
  if (pipeline_degree_ > 1 || !shards(Kind::layer).empty()) layout += text("pp=", pipeline_degree_, ' ');
  if (tensor_degree_ > 1) layout += text("tp=", tensor_degree_, ' ');
  layout += text("dp=", world_, " zero=", stage_);
  if (expert_degree_ > 1) layout += text(" ep=", expert_degree_);
  fact("layout", std::move(layout));
  std::string optimizer = optimizer_class_;
  if (first != nullptr && !first->optimizer_name.empty())
    optimizer = text(first->optimizer_name, optimizer.empty() ? "" : " in ", optimizer);
  if (!optimizer.empty()) fact("optimizer", std::move(optimizer));
  if (loss_scale_) fact("loss scale", text(*loss_scale_));
  if (first != nullptr && first->iteration) fact("iteration", text(*first->iteration));
  if (first != nullptr) view_.objects = first->objects;
}

Result<CheckpointView> Reader::finish() {
  table_->finish(rules_, view_);
  add_hyper_groups(param_groups_, view_);
  std::set<std::string> names;
  for (const StoredTensor& tensor : view_.tensors) names.insert(tensor.name);
  for (const auto& [alias, name] : ties_)
    if (names.contains(model_name(name)) && !names.contains(model_name(alias)))
      view_.aliases.emplace_back(model_name(alias), model_name(name));
  if (view_.tensors.empty()) {
    if (first_error_) return std::move(*first_error_);
    return Error{Code::corrupt, view_.problems.empty() ? text(folder_.path, ": files of DeepSpeed, and no tensor")
                                                       : view_.problems[0]};
  }
  file_sizes_.resize(view_.files.size());
  if (Status sound = check_view(view_, file_sizes_); !sound) return std::move(sound).error().within(folder_.path);
  return std::move(view_);
}

Result<CheckpointView> Reader::read() {
  PAWL_TRY(read_names());
  refuse_doubles();
  read_models();
  PAWL_TRY(find_degrees());
  problem(read_rules());
  add_modules();
  add_layers();
  add_experts();
  if (is_zero3_) add_frozen_parts();
  add_optimizers();
  expect_shards();
  describe();
  return finish();
}

}  // namespace
}  // namespace deepspeed

Result<CheckpointView> view_deepspeed(const std::string& folder, const ReadOptions& options, Files& files) {
  PAWL_ASSIGN(deepspeed::TagFolder found, deepspeed::find_tag_folder(folder, options, files));
  return deepspeed::Reader(std::move(found), options, files).read();
}

}  // namespace pawl::checkpoint
