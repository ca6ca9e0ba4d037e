#include "checkpoint/formats/deepspeed/universal_writer.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/first_few.h"
#include "base/text.h"
#include "checkpoint/containers/torch_writer.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/deepspeed/stored_groups.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_info.h"
#include "checkpoint/formats/deepspeed/tensor_parallel_joins.h"
#include "checkpoint/reshape/cast.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {
namespace {

using namespace deepspeed;
using Value = Pickle::Value;
constexpr Value kNothing = Pickle::kNothing;

// DeepSpeed goes through its own groups and ours side by side, up to the shorter: one without entries changes nothing.
constexpr std::size_t kGroupsOfAnyTraining = 256;
constexpr const char* kWriterVersion = "0.19.8";  // whose form the files have
constexpr std::size_t kNameBytesMax = 255;

// The folder that the view was read from, if it is one of DeepSpeed's own.
struct SourceFolder {
  std::string path;
  std::vector<ShardName> models;      // the model_states files, in the order of their ranks
  std::vector<ShardName> optimizers;  // likewise the optimizer's
  bool is_universal = false;
  [[nodiscard]] bool is_stage3() const { return !models.empty() && models[0].kind == ShardName::Kind::zero_model; }
};

// A file of torch.save, opened for copying.
struct OpenedFile {
  std::unique_ptr<ByteSource> bytes;
  TorchFile torch;
  [[nodiscard]] const Pickle& pickle() const { return torch.pickle(); }
  [[nodiscard]] Value find(std::string_view key) const { return pickle().find(pickle().root(), key); }

  static Result<OpenedFile> open(const std::string& path, Files& files) {
    OpenedFile out;
    PAWL_ASSIGN(out.bytes, open_bytes(path, files));
    Result<TorchFile> torch = TorchFile::read(*out.bytes);
    if (!torch) return std::move(torch).error().within(path);
    out.torch = std::move(*torch);
    return out;
  }
};

std::string last_of(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

// Items of a dict that are copied under their own keys. Those that can't be (large tensors, storages) are left out.
void copy_items_but(const OpenedFile& from, Value dict, const std::set<std::string_view>& left_out, TorchWriter& to,
                    TorchCopy& copy, std::vector<std::string>& skipped) {
  const std::vector<Value> items(from.pickle().items(dict).begin(), from.pickle().items(dict).end());
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (!from.pickle().is(items[i], PickleKind::string)) continue;
    const std::string_view key = from.pickle().text(items[i]);
    if (left_out.contains(key)) continue;
    if (!copy.fits(items[i + 1])) {
      skipped.emplace_back(key);
      continue;
    }
    to.pickle().string(key);
    (void)copy.copy(items[i + 1]);  // fits
    to.pickle().set_item();
  }
}

class UniversalPlanner {
 public:
  UniversalPlanner(CheckpointView view, const WriteOptions& options, Files& files)
      : view_(std::move(view)), options_(options), files_(files) {}

  Result<UniversalOutput> plan() {
    if (options_.type && *options_.type != ElementType::float32)
      return Error{Code::invalid, text("a universal checkpoint of DeepSpeed holds float32, and ",
                                       name_of(*options_.type), " is wanted: leave the type out")};
    find_source();
    PAWL_TRY(read_rules());
    PAWL_TRY(choose_states());
    find_step();
    for (const auto& [name, states] : states_) {
      for (const auto& [state, tensor] : states) PAWL_TRY(plan_state(name, state, tensor));
      if (states.contains("exp_avg") && !states.contains("step") && step_) PAWL_TRY(make_step(name));
    }
    PAWL_TRY(plan_optimizer());
    PAWL_TRY(source_.models.empty() ? make_model_states() : carry_model_states());
    plan_pointer();
    finish_plan();
    return UniversalOutput{std::move(plan_), std::move(view_)};
  }

 private:
  // --- What there is.

  void find_source() {
    if (!view_.format.starts_with("DeepSpeed")) return;
    for (const StoredFile& file : view_.files) {
      if (file.path.empty()) continue;
      const std::string folder = parent_path(file.path);
      if (parse_shard_name(last_of(file.path)))
        source_.path = folder;
      else if (last_of(parent_path(folder)) == "zero")
        source_.path = parent_path(parent_path(folder));
      if (!source_.path.empty()) break;
    }
    const Result<std::vector<std::string>> names = files_.list(source_.path);
    if (source_.path.empty() || !names) return;
    source_.is_universal = view_.format.find("universal") != std::string::npos;
    for (const std::string& name : *names) {
      std::optional<ShardName> shard = parse_shard_name(name);
      if (!shard) continue;
      if (shard->kind == ShardName::Kind::model || shard->kind == ShardName::Kind::zero_model)
        source_.models.push_back(std::move(*shard));
      else if (shard->kind == ShardName::Kind::optimizer)
        source_.optimizers.push_back(std::move(*shard));
    }
    const auto rank = [](const ShardName& name) { return std::pair(name.model_rank, name.data_rank); };
    std::ranges::sort(source_.models, {}, rank);
    std::ranges::sort(source_.optimizers, {}, rank);
    drop_twins();
  }

  void drop_twins() {
    std::erase_if(source_.models, [&](const ShardName& name) {
      const Result<OpenedFile> file = OpenedFile::open(join_path(source_.path, name.name), files_);
      return file && file->find(kTwinKey) != kNothing;
    });
  }

  Status read_rules() {
    if (source_.models.empty()) return {};
    PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(join_path(source_.path, source_.models[0].name), files_));
    Result<TensorParallelInfo> rules = read_tensor_parallel_info(file.pickle(), file.find("universal_checkpoint_info"));
    if (!rules) return std::move(rules).error().within(source_.models[0].name);
    rules_ = std::move(*rules);
    return {};
  }

  // Of each parameter which tensor is which file.
  Status choose_states() {
    std::set<std::string_view> with_master;
    for (const StoredTensor& tensor : view_.tensors)
      if (tensor.role == "master" && is_wanted(tensor.role)) with_master.insert(tensor.name);
    FirstFew bad_names;
    for (std::uint32_t i = 0; i < view_.tensors.size(); ++i) {
      const StoredTensor& tensor = view_.tensors[i];
      const bool is_weight = tensor.role == "weight";
      if (tensor.role == "buffer" || !is_wanted(tensor.role) || (is_weight && with_master.contains(tensor.name)))
        continue;
      if (tensor.role != "step" && tensor.type != ElementType::float32 &&
          !can_cast(tensor.type, ElementType::float32)) {
        ++kept_out_;
        continue;
      }
      const std::string state = is_weight || tensor.role == "master" ? "fp32" : tensor.role;
      if (!is_plain_file_name(tensor.name) || tensor.name.size() > kNameBytesMax || !is_plain_file_name(state))
        bad_names.add(text(tensor.name, " (", tensor.role, ")"));
      states_[tensor.name][state] = i;
      has_states_ = has_states_ || state != "fp32";
    }
    if (bad_names.any())
      return Error{Code::invalid, text("a universal checkpoint has a folder for each parameter, and these are no names "
                                       "of folders: ",
                                       bad_names.sentence(), "; DeepSpeed names no parameter so")};
    for (const auto& [name, states] : states_)
      if (states.contains("fp32")) return {};
    return Error{Code::not_found, "the checkpoint holds no weight: there is nothing to make a universal one of"};
  }

  [[nodiscard]] bool is_wanted(const std::string& role) const {
    return options_.roles.empty() || std::ranges::find(options_.roles, role) != options_.roles.end();
  }
  // Something trains it: without any optimizer state in the checkpoint, all are taken to be trained.
  [[nodiscard]] bool is_trained(const std::map<std::string, std::uint32_t>& states) const {
    return !has_states_ || states.size() > 1 || view_.tensors[states.begin()->second].role == "master";
  }

  void find_step() {
    for (const auto& [key, value] : view_.facts)
      if (std::uint64_t number = 0; key == "step" && parse_number(value, number)) step_ = number;
    optimizer_step_ = first_step();
    if (optimizer_step_ && !step_ && *optimizer_step_ >= 0 && *optimizer_step_ < 1e15)
      step_ = static_cast<std::uint64_t>(*optimizer_step_);
  }

  // The optimizer's own count of steps, which may be less than the job's: skipped ones.
  [[nodiscard]] std::optional<double> first_step() const {
    for (const StoredTensor& tensor : view_.tensors) {
      if (tensor.role != "step" || tensor.pieces.empty() || tensor.pieces[0].swapped) continue;
      const StoredPiece& piece = tensor.pieces[0];
      const StoredFile& file = view_.files[piece.file];
      char bytes[8] = {};
      const std::size_t size = size_bits(tensor.type) / 8;
      if (size == 0 || size > sizeof bytes) continue;
      if (file.codec == StoredFile::Codec::content) {
        if (piece.offset_bytes + size > file.content.size()) continue;
        std::memcpy(bytes, file.content.data() + piece.offset_bytes, size);
      } else if (file.codec == StoredFile::Codec::none) {
        const Result<std::unique_ptr<ByteSource>> source = open_bytes(file.path, files_);
        if (!source || !(*source)->read(piece.offset_bytes, std::as_writable_bytes(std::span(bytes, size)))) continue;
      } else {
        continue;
      }
      if (const std::optional<double> value = number_of(tensor.type, bytes)) return value;
    }
    return std::nullopt;
  }
  static std::optional<double> number_of(ElementType type, const char* bytes) {
    if (type == ElementType::int64) {
      std::int64_t value = 0;
      std::memcpy(&value, bytes, sizeof value);
      return static_cast<double>(value);
    }
    double wide = 0;
    if (type == ElementType::float64) return std::memcpy(&wide, bytes, sizeof wide), wide;
    float value = 0;
    if (type == ElementType::float32) return std::memcpy(&value, bytes, sizeof value), value;
    return std::nullopt;
  }

  // --- zero/<parameter>/<state>.pt

  [[nodiscard]] std::uint32_t next_file() const { return static_cast<std::uint32_t>(plan_.files.size()); }

  // Record `record` of the file is that tensor of the view.
  void add_tensor(std::uint32_t tensor, std::string key, ElementType type, const TorchLayout& layout,
                  std::size_t record) {
    PlannedTensor& planned = plan_.tensors.emplace_back();
    planned.tensor = tensor;
    planned.key = std::move(key);
    planned.type = type;
    planned.file = next_file();
    planned.offset_bytes = layout.offset_bytes[record];
    const Result<std::uint64_t> count = element_count(view_.tensors[tensor].shape);
    planned.size_bytes = count ? size_bytes(type, *count).value_or(0) : 0;
  }

  Status plan_state(const std::string& name, const std::string& state, std::uint32_t tensor) {
    const StoredTensor& stored = view_.tensors[tensor];
    const bool is_step = state == "step";
    const ElementType type = is_step ? stored.type : ElementType::float32;
    TorchWriter writer;
    if (!is_step) {
      writer.pickle().empty_dict();
      writer.pickle().mark();
      writer.pickle().string("param");
    }
    writer.tensor(type, stored.shape);
    if (!is_step) {
      PAWL_TRY(append_rule(writer.pickle(), name, stored.shape));
      writer.pickle().set_items();
    }
    PAWL_ASSIGN(TorchLayout layout, std::move(writer).finish(text("zero/", name, '/', state, ".pt"), next_file()));
    add_tensor(tensor, text(name, '/', state), type, layout, 0);
    plan_.files.push_back(std::move(layout.file));
    return {};
  }

  // Torch's Adam does not go on without; the source has one for all, and only said it.
  Status make_step(const std::string& name) {
    TorchWriter writer;
    append_step(writer);
    return add_small_file(text("zero/", name, "/step.pt"), std::move(writer));
  }

  // How tensor-parallel ranks are to cut it: in the words of DeepSpeed's own converter.
  Status append_rule(PickleWriter& pickle, const std::string& name, const Shape& shape) const {
    if (rules_.said_nothing || !rules_.affine_patterns.matches(name).empty() ||
        !rules_.replicated.matches(name).empty() || !rules_.averaged.matches(name).empty())
      return {};
    const bool is_pair = !rules_.two_sub_parameters.matches(name).empty();
    const std::vector<std::uint32_t> subs = rules_.sub_patterns.matches(name);
    if (!is_pair && !subs.empty()) return append_sub_parameters(pickle, name, shape, subs[0]);
    pickle.string("cat_dim");
    pickle.integer(!is_pair && !rules_.row_parallel.matches(name).empty() ? 1 : 0);
    if (is_pair) {
      pickle.string("param_n_sub_params");
      pickle.integer(2);
    } else if (!rules_.vocabulary.matches(name).empty()) {
      pickle.string("vocab_tensor");
      pickle.boolean(true);
    }
    return {};
  }

  Status append_sub_parameters(PickleWriter& pickle, const std::string& name, const Shape& shape,
                               std::uint32_t pattern) const {
    const SubParameters& sub = rules_.subs[rules_.sub_of_pattern[pattern]];
    PAWL_ASSIGN(const auto widths, even_widths(name, sub, {&shape, 1}));
    pickle.string("sub_param_shape");
    pickle.global("deepspeed.checkpoint.universal_checkpoint", "SubparamShape");
    pickle.empty_tuple();
    pickle.newobj();
    pickle.empty_dict();
    pickle.mark();
    pickle.string("patterns");
    pickle.empty_list();
    pickle.string(rules_.sub_patterns.pattern(pattern));
    pickle.append_item();
    pickle.string("shape");
    pickle.mark();
    for (std::size_t d = 0; d < sub.shape.size(); ++d) {
      if (d != sub.dimension) {
        pickle.integer(sub.shape[d]);
        continue;
      }
      pickle.mark();
      for (const std::vector<std::uint64_t>& width : widths) pickle.unsigned_(width[0]);
      pickle.tuple();
    }
    pickle.tuple();
    pickle.string("partition_dim");
    pickle.unsigned_(sub.dimension);
    pickle.set_items();
    pickle.build();
    return {};
  }

  // --- zero/optimizer_state.pt

  Status plan_optimizer() {
    TorchWriter writer;
    writer.pickle().empty_dict();
    bool is_known = false;
    if (source_.is_universal) {
      const std::string path = join_path(join_path(source_.path, "zero"), "optimizer_state.pt");
      PAWL_ASSIGN(is_known, copy_optimizer(path, false, writer));
    } else if (!source_.optimizers.empty()) {
      PAWL_ASSIGN(is_known, copy_optimizer(join_path(source_.path, source_.optimizers[0].name), true, writer));
    } else if (!source_.models.empty()) {
      PAWL_ASSIGN(is_known, copy_plain_optimizer(join_path(source_.path, source_.models[0].name), writer));
    }
    if (!is_known) {
      append_stored_groups(read_stored_groups(view_.values), writer);
      append_version(writer, kWriterVersion);
    }
    return add_small_file("zero/optimizer_state.pt", std::move(writer));
  }

  static void append_version(TorchWriter& writer, std::string_view version) {
    writer.pickle().string("ds_version");
    writer.pickle().string(version);
    writer.pickle().set_item();
  }

  // What a rank's file, or a universal one, says of the groups, in the forms of all stages.
  Result<bool> copy_optimizer(const std::string& path, bool is_rank_file, TorchWriter& writer) {
    PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(path, files_));
    const Pickle& pickle = file.pickle();
    const Value states = is_rank_file ? file.find("optimizer_state_dict") : pickle.root();
    const Value base = pickle.find(states, "base_optimizer_state");
    const Value inner = pickle.find(states, "optimizer_state_dict");  // ZeRO-3
    Value groups = pickle.find(states, "param_groups");
    for (const Value holder : {base, inner})
      if (groups == kNothing && pickle.is(holder, PickleKind::dict)) groups = pickle.find(holder, "param_groups");
    TorchCopy copy(*file.bytes, file.torch, writer);
    std::vector<std::string> skipped;
    copy_items_but(file, states,
                   {"base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups",
                    "optimizer_state_dict", "fp32_flat_groups", "ds_zero_partition_groups", "param_groups"},
                   writer, copy, skipped);
    if (!skipped.empty())
      plan_.notes.push_back(text(last_of(path), ": ", skipped[0], " is too large to be carried over"));
    if (pickle.find(states, "ds_version") == kNothing) {
      const std::string version = text_at(pickle, pickle.root(), "ds_version");
      append_version(writer, version.empty() ? kWriterVersion : version);
    }
    if (groups == kNothing) return append_stored_groups({}, writer), true;  // elastic files have none
    append_groups(pickle, groups, writer, copy);
    const Value sub_states = base != kNothing ? pickle.find(base, "state") : pickle.find(inner, "state");
    append_inner(pickle, groups, step_value(pickle, sub_states), writer, copy);
    return true;
  }

  // Without ZeRO: torch's own state, or what DeepSpeed's 16-bit optimizers wrap around it.
  Result<bool> copy_plain_optimizer(const std::string& path, TorchWriter& writer) {
    PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(path, files_));
    const Pickle& pickle = file.pickle();
    const Value optimizer = file.find("optimizer");
    Value inner = pickle.find(optimizer, "optimizer_state_dict");
    if (inner == kNothing) inner = optimizer;
    const Value groups = pickle.find(inner, "param_groups");
    if (groups == kNothing) return false;
    TorchCopy copy(*file.bytes, file.torch, writer);
    append_version(writer, kWriterVersion);
    append_groups(pickle, groups, writer, copy);
    append_inner(pickle, groups, step_value(pickle, pickle.find(inner, "state")), writer, copy);
    return true;
  }

  // Those of pawl's store; of another source none is known. ZeRO-3's loader gives every group what the first one has,
  // so it is shown only what all of them have: a training with several keeps its own of the rest.
  void append_stored_groups(const std::vector<StoredGroup>& groups, TorchWriter& writer) {
    PickleWriter& to = writer.pickle();
    const StoredGroup common = common_to(groups);
    append_list_of(groups, writer);
    begin_inner(to);
    append_step(writer);
    end_step(to);
    append_list_of(std::vector<StoredGroup>(groups.empty() ? 0 : 1, common), writer);
    to.set_item();
    if (groups.empty())
      plan_.notes.push_back(
          "hyperparameters (learning rates, decay) are not in the source: a training that loads this keeps its own");
    else if (std::ranges::any_of(groups, [&](const StoredGroup& group) { return group != common; }))
      plan_.notes.push_back(
          "the param groups differ: DeepSpeed takes them over by their order; with ZeRO-3, which can't tell them "
          "apart, it keeps its own of what differs");
  }

  static void append_list_of(const std::vector<StoredGroup>& groups, TorchWriter& writer) {
    PickleWriter& to = writer.pickle();
    to.string("param_groups");
    to.empty_list();
    to.mark();
    for (const StoredGroup& group : groups) write_stored_group(group, to);
    for (std::size_t count = groups.size(); count < kGroupsOfAnyTraining; ++count) to.empty_dict();
    to.append_items();
    to.set_item();
  }

  static Value step_value(const Pickle& pickle, Value states) {
    return states == kNothing ? kNothing : pickle.find(state_of(pickle, states, 0), "step");
  }

  // The groups, and empty ones behind them: a training with more groups would else leave its last ones unloaded.
  static void append_groups(const Pickle& pickle, Value groups, TorchWriter& writer, TorchCopy& copy) {
    PickleWriter& to = writer.pickle();
    to.string("param_groups");
    to.empty_list();
    to.mark();
    std::size_t count = 0;
    if (groups != kNothing)
      for (const Value group : pickle.items(groups)) {
        if (copy.fits(group))  // what can't be copied says nothing
          (void)copy.copy(group);
        else
          to.empty_dict();
        ++count;
      }
    for (; count < kGroupsOfAnyTraining; ++count) to.empty_dict();
    to.append_items();
    to.set_item();
  }

  // What ZeRO-3 opens: the step of its first sub-group, which it gives to all, and the groups once more.
  void append_inner(const Pickle& pickle, Value groups, Value step, TorchWriter& writer, TorchCopy& copy) const {
    PickleWriter& to = writer.pickle();
    begin_inner(to);
    if (step != kNothing && copy.fits(step))
      (void)copy.copy(step);
    else
      append_step(writer);
    end_step(to);
    append_groups(pickle, groups, writer, copy);
    to.set_item();
  }
  static void begin_inner(PickleWriter& to) {
    to.string("optimizer_state_dict");
    to.empty_dict();
    to.string("state");
    to.empty_dict();
    to.integer(0);
    to.empty_dict();
    to.string("step");
  }
  static void end_step(PickleWriter& to) {
    for (int dicts = 0; dicts < 3; ++dicts) to.set_item();
  }

  void append_step(TorchWriter& writer) const {
    const auto step = static_cast<float>(optimizer_step_.value_or(static_cast<double>(step_.value_or(0))));
    std::string bytes(sizeof step, '\0');
    std::memcpy(bytes.data(), &step, sizeof step);
    writer.tensor(ElementType::float32, {}, std::move(bytes));
  }

  Status add_small_file(const std::string& name, TorchWriter writer) {
    PAWL_ASSIGN(TorchLayout layout, std::move(writer).finish(name, next_file()));
    plan_.files.push_back(std::move(layout.file));
    return {};
  }

  // --- *_model_states.pt

  // The source's own, and a small twin of each model-parallel rank's first under the name that the other stages open.
  Status carry_model_states() {
    for (const ShardName& model : source_.models) PAWL_TRY(carry_file(model.name));
    std::set<std::uint32_t> done;
    for (const ShardName& model : source_.models)
      if (done.insert(model.model_rank).second) PAWL_TRY(make_twin(model));
    return {};
  }

  Status carry_file(const std::string& name) {
    const std::string path = join_path(source_.path, name);
    PAWL_ASSIGN(const std::unique_ptr<ByteSource> bytes, open_bytes(path, files_));
    StoredTensor tensor{name, "file", ElementType::uint8, {bytes->size_bytes()}};
    tensor.pieces = {whole_piece(tensor.shape, static_cast<std::uint32_t>(view_.files.size()), 0)};
    view_.files.push_back({path});
    PlannedTensor& planned = plan_.tensors.emplace_back();
    planned.tensor = static_cast<std::uint32_t>(view_.tensors.size());
    planned.key = name;
    planned.type = ElementType::uint8;
    planned.file = next_file();
    planned.size_bytes = bytes->size_bytes();
    plan_.files.push_back({name, bytes->size_bytes()});
    view_.tensors.push_back(std::move(tensor));
    return {};
  }

  static std::string twin_name(const ShardName& model) {
    const std::string rank = text(model.model_rank < 10 ? "0" : "", model.model_rank);
    return model.kind == ShardName::Kind::zero_model ? text("mp_rank_", rank, "_model_states.pt")
                                                     : text("zero_pp_rank_0_mp_rank_", rank, "_model_states.pt");
  }

  Status make_twin(const ShardName& model) {
    PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(join_path(source_.path, model.name), files_));
    TorchWriter writer;
    PickleWriter& to = writer.pickle();
    to.empty_dict();
    TorchCopy copy(*file.bytes, file.torch, writer);
    std::vector<std::string> skipped;
    copy_items_but(file, file.pickle().root(), {"module", "optimizer", "frozen_param_fragments"}, writer, copy,
                   skipped);
    if (!skipped.empty())
      plan_.notes.push_back(text(twin_name(model), ": ", skipped[0], skipped.size() > 1 ? " and others are" : " is",
                                 " only in ", model.name));
    to.mark();
    to.string("module");
    to.empty_dict();
    to.string("optimizer");
    to.none();
    to.string(kTwinKey);
    to.string(model.name);
    to.set_items();
    return add_small_file(twin_name(model), std::move(writer));
  }

  // Of a source that has none.
  Status make_model_states() {
    TorchWriter states;
    std::vector<std::uint32_t> records;
    append_made_states(states, false, records);
    PAWL_ASSIGN(TorchLayout layout, std::move(states).finish("mp_rank_00_model_states.pt", next_file()));
    for (std::size_t i = 0; i < records.size(); ++i)
      if (records[i] != kPlaceholder)
        add_tensor(records[i], view_.tensors[records[i]].name, view_.tensors[records[i]].type, layout, i);
    plan_.files.push_back(std::move(layout.file));
    TorchWriter twin;
    append_made_states(twin, true, records);
    PAWL_TRY(add_small_file("zero_pp_rank_0_mp_rank_00_model_states.pt", std::move(twin)));
    plan_.notes.push_back(
        "the source has no scheduler's state and none of the job's own: load this with load_lr_scheduler_states=False, "
        "or set the scheduler's step yourself");
    return {};
  }

  static constexpr std::uint32_t kPlaceholder = ~0u;

  void append_made_states(TorchWriter& writer, bool is_twin, std::vector<std::uint32_t>& records) {
    PickleWriter& to = writer.pickle();
    to.empty_dict();
    to.mark();
    to.string("module");
    append_module(writer, is_twin, records);
    to.string("buffer_names");
    to.empty_list();
    to.mark();
    for (const StoredTensor& tensor : view_.tensors)
      if (tensor.role == "buffer") to.string(tensor.name);
    to.append_items();
    for (const bool is_frozen : {false, true}) {
      to.string(is_frozen ? "frozen_param_shapes" : "param_shapes");
      if (!is_frozen) to.empty_list();
      append_shapes(writer, is_frozen);
      if (!is_frozen) to.append_item();
    }
    to.string("frozen_param_fragments");
    to.none();
    to.string("shared_params");
    to.empty_dict();
    to.mark();
    for (const auto& [alias, name] : view_.aliases) {
      to.string(alias);
      to.string(name);
    }
    to.set_items();
    for (const std::string_view key : {"optimizer", "lr_scheduler", "data_sampler", "random_ltd"}) {
      to.string(key);
      to.none();
    }
    append_counters(to);
    if (is_twin) {
      to.string(kTwinKey);
      to.string("mp_rank_00_model_states.pt");
    }
    to.set_items();
  }

  void append_counters(PickleWriter& to) const {
    const std::pair<std::string_view, std::uint64_t> counters[] = {
        {"skipped_steps", 0}, {"global_steps", step_.value_or(0)}, {"dp_world_size", 1}, {"mp_world_size", 1}};
    for (const auto& [key, value] : counters) {
      to.string(key);
      to.unsigned_(value);
    }
    to.string("ds_version");
    to.string(kWriterVersion);
    to.string("ds_config");
    to.empty_dict();
    const ElementType type = training_type();
    if (type == ElementType::bfloat16 || type == ElementType::float16) {
      to.string(type == ElementType::bfloat16 ? "bf16" : "fp16");
      to.empty_dict();
      to.string("enabled");
      to.boolean(true);
      to.set_item();
      to.set_item();
    }
    to.string("universal_checkpoint_info");
    to.empty_dict();
    to.string("universal_checkpoint_version");
    to.real(0.2);
    to.set_item();
  }

  // That of the first trained weight.
  [[nodiscard]] ElementType training_type() const {
    for (const StoredTensor& tensor : view_.tensors)
      if (tensor.role == "weight") return tensor.type;
    return ElementType::float32;
  }

  // Buffers and what no optimizer trains, as they are; of the others an empty tensor that says their type, as ZeRO-3
  // leaves them. `records` gets which tensor of the view each record is.
  void append_module(TorchWriter& writer, bool is_twin, std::vector<std::uint32_t>& records) {
    PickleWriter& to = writer.pickle();
    to.empty_dict();
    to.mark();
    records.clear();
    const auto count = static_cast<std::uint32_t>(is_twin ? 0 : view_.tensors.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const StoredTensor tensor = view_.tensors[i];  // a copy: copy_of() may move them
      if (tensor.role != "weight" && tensor.role != "buffer") continue;
      const auto at = states_.find(tensor.name);
      const bool is_written = at != states_.end() && at->second.contains("fp32");
      const bool is_whole = tensor.role == "buffer" || !is_written || !is_trained(at->second);
      to.string(tensor.name);
      writer.tensor(tensor.type, is_whole ? tensor.shape : Shape{0});
      records.push_back(!is_whole ? kPlaceholder : is_written ? copy_of(i) : i);
    }
    to.set_items();
  }

  // The same tensor under another role: what is written to two places.
  std::uint32_t copy_of(std::uint32_t tensor) {
    StoredTensor copy = view_.tensors[tensor];
    copy.role = "frozen";
    view_.tensors.push_back(std::move(copy));
    return static_cast<std::uint32_t>(view_.tensors.size() - 1);
  }

  void append_shapes(TorchWriter& writer, bool is_frozen) {
    PickleWriter& to = writer.pickle();
    to.empty_dict();
    to.mark();
    for (const auto& [name, states] : states_) {
      const auto at = states.find("fp32");
      if (at == states.end() || is_trained(states) == is_frozen) continue;
      to.string(name);
      writer.size(view_.tensors[at->second].shape);
    }
    to.set_items();
  }

  // --- The rest.

  void plan_pointer() {
    PlannedFile pointer;
    pointer.name = "latest_universal";
    pointer.size_bytes = 1;
    pointer.texts = {{0, "."}};  // this very folder
    plan_.files.push_back(std::move(pointer));
    plan_.marker = "latest_universal";
  }

  void finish_plan() {
    plan_.is_folder = true;
    std::ranges::sort(plan_.tensors, {}, &PlannedTensor::tensor);
    for (const PlannedTensor& tensor : plan_.tensors) plan_.data_bytes += tensor.size_bytes;
    for (const PlannedFile& file : plan_.files) plan_.all_bytes += file.size_bytes;
    for (const auto& [alias, name] : view_.aliases)
      plan_.notes.push_back(text(alias, " is tied to ", name, ", and is not written a second time"));
    if (kept_out_ != 0)
      plan_.notes.push_back(text(kept_out_, " tensors have types that are no floats: they have no folder in zero/"));
    for (const auto& [name, states] : states_)
      if (name.find(".deepspeed_moe.experts.deepspeed_experts.") != std::string::npos) {
        plan_.notes.push_back(
            "experts have the numbers that they have among all: DeepSpeed looks for each rank's own numbers, so load "
            "this without expert parallelism");
        break;
      }
  }

  CheckpointView view_;
  const WriteOptions& options_;
  Files& files_;
  OutputPlan plan_;
  SourceFolder source_;
  TensorParallelInfo rules_;
  std::map<std::string, std::map<std::string, std::uint32_t>> states_;  // parameter, state: tensor of the view
  bool has_states_ = false;
  std::uint64_t kept_out_ = 0;
  std::optional<std::uint64_t> step_;     // the job's
  std::optional<double> optimizer_step_;  // may be less: skipped ones
};

}  // namespace

Result<UniversalOutput> plan_universal(CheckpointView view, const WriteOptions& options, Files& files) {
  return UniversalPlanner(std::move(view), options, files).plan();
}

}  // namespace pawl::checkpoint
