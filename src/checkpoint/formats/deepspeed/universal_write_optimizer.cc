#include "checkpoint/formats/deepspeed/universal_write_optimizer.h"

#include <algorithm>
#include <utility>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/stored_groups.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Value = Pickle::Value;

// DeepSpeed goes through its own groups and ours side by side, up to the shorter: one without entries changes nothing.
constexpr std::size_t kGroupsOfAnyTraining = 256;

// What of a source's file is written in the forms of all stages.
struct SourceGroups {
  Value groups = kNothing;  // the list of param groups
  Value states = kNothing;  // by number; the first one's step is taken
};

void append_version(TorchWriter& writer, std::string_view version) {
  writer.pickle().string("ds_version");
  writer.pickle().string(version);
  writer.pickle().set_item();
}

void begin_groups(PickleWriter& to) {
  to.string("param_groups");
  to.empty_list();
  to.mark();
}

// Empty groups behind `count`: a training with more groups would else leave its last ones unloaded.
void end_groups(std::size_t count, PickleWriter& to) {
  for (; count < kGroupsOfAnyTraining; ++count) to.empty_dict();
  to.append_items();
  to.set_item();
}

void append_groups(const Pickle& pickle, Value groups, TorchWriter& writer, TorchCopy& copy) {
  begin_groups(writer.pickle());
  std::size_t count = 0;
  if (groups != kNothing)
    for (const Value group : pickle.items(groups)) {
      if (copy.fits(group))  // what can't be copied says nothing
        (void)copy.copy(group);
      else
        writer.pickle().empty_dict();
      ++count;
    }
  end_groups(count, writer.pickle());
}

void append_groups(const std::vector<StoredGroup>& groups, TorchWriter& writer) {
  begin_groups(writer.pickle());
  for (const StoredGroup& group : groups) write_stored_group(group, writer.pickle());
  end_groups(groups.size(), writer.pickle());
}

// What ZeRO-3 opens: the step of its first sub-group, which it gives to all, and the groups once more.
// `push_step` and `push_groups` write them.
template <class PushStep, class PushGroups>
void append_inner(TorchWriter& writer, PushStep push_step, PushGroups push_groups) {
  PickleWriter& to = writer.pickle();
  to.string("optimizer_state_dict");
  to.empty_dict();
  to.string("state");
  to.empty_dict();
  to.integer(0);
  to.empty_dict();
  to.string("step");
  push_step();
  for (int dicts = 0; dicts < 3; ++dicts) to.set_item();
  push_groups();
  to.set_item();
}

// The groups of a DeepSpeed source, in the forms of all stages.
void append_source_groups(const Pickle& pickle, const SourceGroups& source, const StepCounts& steps,
                          TorchWriter& writer, TorchCopy& copy) {
  append_groups(pickle, source.groups, writer, copy);
  const Value step = source.states == kNothing ? kNothing : pickle.find(state_of(pickle, source.states, 0), "step");
  const auto push_step = [&] {
    if (step != kNothing && copy.fits(step))
      (void)copy.copy(step);
    else
      append_step(steps, writer);
  };
  append_inner(writer, push_step, [&] { append_groups(pickle, source.groups, writer, copy); });
}

// The groups of pawl's store; of another source none is known. ZeRO-3's loader gives every group what the first one
// has, so it is shown only what all of them have: a training with several keeps its own of the rest.
void append_stored_groups(const std::vector<StoredGroup>& groups, const StepCounts& steps, TorchWriter& writer,
                          std::vector<std::string>& notes) {
  const StoredGroup common = common_to(groups);
  append_groups(groups, writer);
  append_inner(
      writer, [&] { append_step(steps, writer); },
      [&] { append_groups(std::vector<StoredGroup>(groups.empty() ? 0 : 1, common), writer); });
  if (groups.empty())
    notes.push_back(
        "hyperparameters (learning rates, decay) are not in the source: the training that loads this keeps its own "
        "values");
  else if (std::ranges::any_of(groups, [&](const StoredGroup& group) { return group != common; }))
    notes.push_back(
        "the param groups differ: DeepSpeed takes them over by their order; with ZeRO-3, which can't tell them "
        "apart, it keeps its own of what differs");
}

// What a rank's file, or a universal one, says of the groups.
Status append_zero_optimizer(const std::string& path, bool is_rank_file, const StepCounts& steps, Files& files,
                             TorchWriter& writer, std::vector<std::string>& notes) {
  PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(path, files));
  const Pickle& pickle = file.pickle();
  const Value states = is_rank_file ? file.find("optimizer_state_dict") : pickle.root();
  const Value base = pickle.find(states, "base_optimizer_state");
  const Value inner = pickle.find(states, "optimizer_state_dict");  // ZeRO-3
  SourceGroups found;
  found.groups = pickle.find(states, "param_groups");
  for (const Value holder : {base, inner})
    if (found.groups == kNothing && pickle.is(holder, PickleKind::dict))
      found.groups = pickle.find(holder, "param_groups");
  found.states = pickle.find(base != kNothing ? base : inner, "state");
  TorchCopy copy(*file.bytes, file.torch, writer);
  const std::vector<std::string> skipped =
      copy_items_but({"base_optimizer_state", "param_slice_mappings", "single_partition_of_fp32_groups",
                      "optimizer_state_dict", "fp32_flat_groups", "ds_zero_partition_groups", "param_groups"},
                     file, states, writer, copy);
  if (!skipped.empty())
    notes.push_back(text(last_name(path), ": ", skipped[0], " is too large to copy and is left out"));
  if (pickle.find(states, "ds_version") == kNothing) {
    const std::string version = text_at(pickle, pickle.root(), "ds_version");
    append_version(writer, version.empty() ? kUniversalWriterVersion : version);
  }
  if (found.groups == kNothing)  // elastic files have none
    append_stored_groups({}, steps, writer, notes);
  else
    append_source_groups(pickle, found, steps, writer, copy);
  return {};
}

// Without ZeRO: torch's own state, or what DeepSpeed's 16-bit optimizers wrap around it. False: the file has none.
Result<bool> append_plain_optimizer(const std::string& path, const StepCounts& steps, Files& files,
                                    TorchWriter& writer) {
  PAWL_ASSIGN(const OpenedFile file, OpenedFile::open(path, files));
  const Pickle& pickle = file.pickle();
  const Value optimizer = file.find("optimizer");
  Value inner = pickle.find(optimizer, "optimizer_state_dict");
  if (inner == kNothing) inner = optimizer;
  const SourceGroups found{pickle.find(inner, "param_groups"), pickle.find(inner, "state")};
  if (found.groups == kNothing) return false;
  TorchCopy copy(*file.bytes, file.torch, writer);
  append_version(writer, kUniversalWriterVersion);
  append_source_groups(pickle, found, steps, writer, copy);
  return true;
}

// False: the source has no file that says something of its optimizer.
Result<bool> append_source_optimizer(const UniversalSource& source, const StepCounts& steps, Files& files,
                                     TorchWriter& writer, std::vector<std::string>& notes) {
  if (source.is_universal || !source.optimizers.empty()) {
    const std::string path = source.is_universal ? join_path(join_path(source.path, "zero"), "optimizer_state.pt")
                                                 : join_path(source.path, source.optimizers[0].name);
    PAWL_TRY(append_zero_optimizer(path, !source.is_universal, steps, files, writer, notes));
    return true;
  }
  if (source.models.empty()) return false;
  return append_plain_optimizer(join_path(source.path, source.models[0].name), steps, files, writer);
}

}  // namespace

Status plan_optimizer_file(const UniversalSource& source, const StepCounts& steps, Files& files, UniversalOutput& out) {
  TorchWriter writer;
  writer.pickle().empty_dict();
  PAWL_ASSIGN(const bool is_known, append_source_optimizer(source, steps, files, writer, out.plan.notes));
  if (!is_known) {
    append_stored_groups(read_stored_groups(out.view.values), steps, writer, out.plan.notes);
    append_version(writer, kUniversalWriterVersion);
  }
  return add_torch_file("zero/optimizer_state.pt", std::move(writer), {}, out);
}

}  // namespace pawl::checkpoint::deepspeed
