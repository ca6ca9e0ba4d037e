#include "checkpoint/formats/deepspeed/optimizer_states.h"

#include <unordered_map>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Value = Pickle::Value;
constexpr std::size_t kSentenceBytes = 128;  // at most, beside what it names

// ZeroStageEnum(2), or 2.
std::optional<std::uint64_t> stage_of(const Pickle& pickle, Value value) {
  if (pickle.is(value, PickleKind::object)) {
    const std::span<const Value> arguments = pickle.items(pickle.object(value).arguments);
    value = arguments.empty() ? kNothing : arguments[0];
  }
  return pickle.unsigned_(value);
}

std::optional<double> loss_scale_of(const ShardFile& file, Value scaler) {
  const Pickle& pickle = file.pickle();
  const Value scale = pickle.find(pickle.object(scaler).state, "cur_scale");
  if (pickle.is(scale, PickleKind::real)) return pickle.real(scale);
  if (const auto number = pickle.integer(scale)) return static_cast<double>(*number);
  return std::nullopt;
}

// A group's dict of states: {"step": ..., "exp_avg": tensor, ...}.
Status read_group_state(const ShardFile& file, Value dict, std::size_t group, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  const std::span<const Value> pairs = pickle.items(dict);
  if (const std::optional<std::string> form = unread_form(file, dict); form && !pickle.holds_pairs(dict)) {
    PAWL_TRY(file.take_copies(1, file.path().size() + form->size() + kSentenceBytes));
    out.unsupported.push_back(text(file.path(), ": the state of group ", group, ' ', *form, "; dicts are read"));
    return {};
  }
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    if (!pickle.is(pairs[i], PickleKind::string)) continue;
    PAWL_TRY(file.take_copies(1, sizeof(out.groups[0].states[0]) + 2 * pickle.text(pairs[i]).size()));
    const std::string word(pickle.text(pairs[i]));
    if (word == "step") {
      PAWL_ASSIGN(out.groups[group].step, file.number(pairs[i + 1]));
      continue;
    }
    const TorchTensor* tensor = file.tensor(pairs[i + 1]);
    if (tensor == nullptr || tensor->shape.size() != 1) {
      const std::optional<std::string> form = unread_form(file, pairs[i + 1]);
      if (!form) continue;
      PAWL_TRY(file.take_copies(1, file.path().size() + form->size() + kSentenceBytes));
      out.unsupported.push_back(
          text(file.path(), ": ", word, " of group ", group, ' ', *form, "; the flat tensors of a group are read"));
      continue;
    }
    PAWL_ASSIGN(const FlatTensor flat, file.flat(pairs[i + 1], text(word, " of group ", group)));
    out.groups[group].states.emplace_back(word, flat);
  }
  return {};
}

// torch's own form: {"state": {0: {...}, ...}, "param_groups": [...]}.
Status read_torch_form(const ShardFile& file, Value dict, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  const std::span<const Value> pairs = pickle.items(pickle.find(dict, "state"));
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const std::optional<std::uint64_t> index = pickle.unsigned_(pairs[i]);
    if (!index || *index >= out.groups.size())
      return file.damaged(text("the optimizer's state has the key ", pickle.describe(pairs[i]), ", and there are ",
                               out.groups.size(), " groups"));
    PAWL_TRY(read_group_state(file, pairs[i + 1], *index, out));
  }
  const Value list = pickle.find(dict, "param_groups");
  if (const std::optional<std::string> why = oversized_group(pickle, list)) return file.damaged(*why);
  Status fault;
  out.hyperparameters = read_hyper_groups(pickle, list, file.numbers(fault));
  PAWL_TRY(fault);
  const std::vector<std::optional<std::size_t>> group_of = groups_of_numbers(pickle, list, out.groups.size());
  for (std::size_t i = 0; i < out.groups.size(); ++i)
    if (group_of[i] && *group_of[i] < out.hyperparameters.size()) out.groups[i].parameter_group = group_of[i];
  // Some optimizers count steps for a group.
  const std::span<const Value> groups = pickle.items(list);
  for (const Value group : groups) {
    const Value step = pickle.find_field(group, "step");
    if (step == kNothing) continue;
    PAWL_ASSIGN(const std::optional<double> number, file.number(step));
    const std::span<const Value> members = pickle.items(pickle.find_field(group, "params"));
    PAWL_TRY(file.take_copies(members.size(), sizeof members[0]));
    for (const Value member : members)
      if (const auto index = pickle.unsigned_(member); index && *index < out.groups.size() && !out.groups[*index].step)
        out.groups[*index].step = number;
  }
  return {};
}

Status read_elastic(const ShardFile& file, Value list, Value step, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  const std::span<const Value> groups = pickle.items(list);
  if (groups.size() > out.groups.size())
    return file.damaged(text("states of ", groups.size(), " groups, and there are ", out.groups.size()));
  for (std::size_t i = 0; i < groups.size(); ++i) PAWL_TRY(read_group_state(file, groups[i], i, out));
  PAWL_ASSIGN(const std::optional<double> number, file.number(step));
  for (GroupState& group : out.groups)
    if (!group.step) group.step = number;
  return {};
}

Status read_masters(const ShardFile& file, Value list, std::string_view what, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  if (!pickle.is(list, PickleKind::list)) return file.damaged(text(what, " is ", pickle.describe(list)));
  const std::span<const Value> items = pickle.items(list);
  PAWL_TRY(file.take_copies(items.size(), sizeof(GroupState)));
  out.groups.resize(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    PAWL_ASSIGN(out.groups[i].master, file.flat(items[i], text(what, '[', i, ']')));
  }
  return {};
}

// Numbers that are one a group: a list, or one for all.
void read_counts(const Pickle& pickle, Value value, OptimizerStates& out) {
  const std::span<const Value> items = pickle.items(value);
  for (std::size_t i = 0; i < out.groups.size(); ++i)
    out.groups[i].partition_count = pickle.unsigned_(i < items.size() ? items[i] : value);
}

Status read_gaps(const ShardFile& file, Value list, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  const std::span<const Value> groups = pickle.items(list);
  for (std::size_t i = 0; i < groups.size() && i < out.groups.size(); ++i) {
    const std::span<const Value> gaps = pickle.items(groups[i]);
    PAWL_TRY(file.take_copies(gaps.size(), sizeof out.groups[i].gaps[0]));
    for (const Value item : gaps) {
      const std::optional<std::uint64_t> gap = pickle.unsigned_(item);
      if (!gap) return file.damaged(text("param_alignment_paddings holds ", pickle.describe(item)));
      out.groups[i].gaps.push_back(*gap);
    }
  }
  return {};
}

Status read_flat_zero(const ShardFile& file, Value states, OptimizerStates& out) {
  const Pickle& pickle = file.pickle();
  PAWL_TRY(read_masters(file, pickle.find(states, "single_partition_of_fp32_groups"), "single_partition_of_fp32_groups",
                        out));
  read_counts(pickle, pickle.find(states, "partition_count"), out);
  PAWL_TRY(read_gaps(file, pickle.find(states, "param_alignment_paddings"), out));
  const std::span<const Value> paddings = pickle.items(pickle.find(states, "group_paddings"));
  for (std::size_t i = 0; i < paddings.size() && i < out.groups.size(); ++i)
    out.groups[i].padding = pickle.unsigned_(paddings[i]);
  const Value base = pickle.find(states, "base_optimizer_state");
  if (pickle.is(base, PickleKind::list))
    return read_elastic(file, base, pickle.find(states, "base_optimizer_state_step"), out);
  return read_torch_form(file, base, out);
}

}  // namespace

Result<OptimizerStates> read_optimizer_states(const ShardFile& file) {
  const Pickle& pickle = file.pickle();
  const Value states = file.find("optimizer_state_dict");
  if (states == kNothing) return file.damaged("has no key optimizer_state_dict: not a ZeRO rank's states");
  OptimizerStates out;
  const Value stage = pickle.find(states, "zero_stage");
  out.stage = stage_of(pickle, stage).value_or(1);
  out.loss_scale = loss_scale_of(file, pickle.find(states, "loss_scaler"));
  out.writer_version = text_at(pickle, pickle.root(), "ds_version");
  if (out.writer_version.empty()) out.writer_version = text_at(pickle, states, "ds_version");
  if (out.stage >= 3 || pickle.find(states, "fp32_flat_groups") != kNothing) {
    out.stage = 3;
    out.class_name = "DeepSpeedZeroOptimizer_Stage3";
    out.master_has_padding = true;
    out.has_autoep = !pickle.items(pickle.find(states, "ds_zero_partition_groups")).empty();
    PAWL_TRY(read_masters(file, pickle.find(states, "fp32_flat_groups"), "fp32_flat_groups", out));
    read_counts(pickle, pickle.find(states, "partition_count"), out);
    PAWL_TRY(read_torch_form(file, pickle.find(states, "optimizer_state_dict"), out));
    return out;
  }
  out.master_has_padding = stage == kNothing;
  out.class_name = out.master_has_padding ? "BF16_Optimizer" : "DeepSpeedZeroOptimizer";
  PAWL_TRY(read_flat_zero(file, states, out));
  return out;
}

std::optional<std::string> unread_form(const ShardFile& file, Value value) {
  const Pickle& pickle = file.pickle();
  if (const TorchTensor* tensor = file.tensor(value)) return text("has the shape ", text_of(tensor->shape));
  const bool is_silent = value == kNothing || pickle.is(value, PickleKind::none) ||
                         pickle.is(value, PickleKind::boolean) || pickle.is(value, PickleKind::string);
  const bool has_items =
      pickle.is(value, PickleKind::list) || pickle.is(value, PickleKind::tuple) || pickle.is(value, PickleKind::dict);
  if (is_silent || (has_items && pickle.items(value).empty())) return std::nullopt;
  return text("is ", pickle.describe(value));
}

Value state_of(const Pickle& pickle, Value states, std::uint64_t index) {
  const std::span<const Value> pairs = pickle.items(states);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
    if (pickle.unsigned_(pairs[i]) == index) return pairs[i + 1];
  return kNothing;
}

}  // namespace pawl::checkpoint::deepspeed
