#include "checkpoint/formats/deepspeed/zero_states.h"

#include <algorithm>

#include "base/text.h"
#include "checkpoint/containers/damaged.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint::deepspeed {
ZeroStates::ZeroStates(ZeroJob job, ParameterTable& table, CheckpointView& view)
    : job_(std::move(job)), table_(table), view_(view) {
  job_.experts = local_experts(job_.model->groups);
}

Status ZeroStates::add(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path) {
  Status done = states.has_autoep
                    ? Status(Error{Code::invalid, "experts that are cut by ZeRO-3 (AutoEP) are not read yet"})
                : states.stage == 3 ? add_parted(states, data_rank, path)
                                    : add_joined(states, data_rank, path);
  if (!done) return std::move(done).error().within(path);
  return {};
}

std::optional<double> ZeroStates::step() const {
  std::optional<double> out;
  for (const auto& [group, seen] : steps_) out = std::max(out.value_or(seen.step), seen.step);
  return out;
}

Status ZeroStates::check_partition(const OptimizerStates& states, std::size_t index, std::uint64_t group_size,
                                   std::uint64_t parts, std::uint64_t partition_size, std::uint64_t part) {
  const auto [seen, is_first] = partition_size_.try_emplace(index, partition_size);
  if (seen->second != partition_size)
    return damaged(text("its part of group ", index, " has ", partition_size, " elements, and another rank's has ",
                        seen->second, ": files of different checkpoints, or of another world size"));
  std::uint64_t whole = 0;
  if (__builtin_mul_overflow(partition_size, parts, &whole) || whole < group_size || whole - group_size >= 2 * parts)
    return damaged(text("group ", index, " has ", group_size, " elements by the model's shapes, and ", parts,
                        " parts of ", partition_size, " don't fit them: another world size, or another model's file"));
  const std::uint64_t expected =
      states.master_has_padding ? partition_size : real_size(group_size, partition_size, part);
  if (states.groups[index].master->count != expected)
    return damaged(text("its part of group ", index, " has ", states.groups[index].master->count,
                        " elements, where the model's shapes make it ", expected));
  return {};
}

Result<ZeroStates::Group> ZeroStates::joined_group(const OptimizerStates& states, std::size_t index,
                                                   std::uint64_t data_rank) {
  const GroupState& state = states.groups[index];
  const std::uint64_t parts = state.partition_count.value_or(job_.degrees.data);
  if (parts == 0 || job_.degrees.data % parts != 0)
    return damaged(text("group ", index, " is cut over ", parts, " ranks, and the world has ", job_.degrees.data));
  Group group;
  const ExpertPlace place = expert_place(data_rank, job_.degrees.data, parts, job_.model->facts.data_before_expert);
  group.expert_rank = place.expert_rank;
  expert_degree_ = std::max(expert_degree_, job_.degrees.data / parts);
  for (ParameterShape parameter : job_.model->groups[index]) {
    const std::optional<ExpertName> expert = parse_expert_name(parameter.name);
    if (parts != job_.degrees.data && !expert)
      return damaged(text("group ", index, " is cut over ", parts, " ranks, the world has ", job_.degrees.data,
                          ", and ", parameter.name, " is not an expert's: another world size"));
    if (expert)
      parameter.name =
          text(expert->path, place.expert_rank * job_.experts[expert->path] + expert->expert, expert->rest);
    group.counts.push_back(parameter.count);
    group.parameters.push_back(std::move(parameter));
  }
  PAWL_ASSIGN(const std::vector<std::uint64_t> offsets, group_offsets(group.counts, state.gaps));
  std::uint64_t partition_size = state.master->count;
  if (!states.master_has_padding && !state.padding)  // of old: only the optimizer's own states have the whole size
    for (const auto& [word, flat] : state.states) partition_size = std::max(partition_size, flat.count);
  else if (!states.master_has_padding && __builtin_add_overflow(partition_size, *state.padding, &partition_size))
    return damaged(text("group ", index, " has ", *state.padding, " elements of padding"));
  PAWL_TRY(check_partition(states, index, offsets.back(), parts, partition_size, place.part));
  group.fragments = fragments_of_partition(group.counts, offsets, partition_size, place.part);
  return group;
}

Status ZeroStates::add_joined(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path) {
  if (states.groups.size() != job_.model->groups.size())
    return damaged(
        text("has ", states.groups.size(), " groups, and the model's states name ", job_.model->groups.size()));
  std::vector<Group> groups;
  for (std::size_t i = 0; i < states.groups.size(); ++i) {
    PAWL_ASSIGN(Group group, joined_group(states, i, data_rank));
    groups.push_back(std::move(group));
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    PAWL_TRY(add_group(groups[i], states.groups[i], i, data_rank, path));
    add_names(groups[i], states, i);
  }
  return {};
}

Status ZeroStates::add_parted(const OptimizerStates& states, std::uint64_t data_rank, const std::string& path) {
  std::vector<ParameterShape> all;
  std::vector<std::uint64_t> counts;
  for (const ParameterGroup& group : job_.model->groups)
    for (const ParameterShape& parameter : group) {
      all.push_back(parameter);
      counts.push_back(parameter.count);
    }
  std::size_t first = 0;
  std::vector<Group> groups;
  for (std::size_t i = 0; i < states.groups.size(); ++i) {
    const std::uint64_t parts = states.groups[i].partition_count.value_or(job_.degrees.data);
    if (parts != job_.degrees.data)
      return damaged(text("sub-group ", i, " is cut over ", parts, " ranks, and the world has ", job_.degrees.data));
    const std::span<const std::uint64_t> rest = std::span(counts).subspan(first);
    Result<std::size_t> taken = parameters_in(rest, parts, states.groups[i].master->count);
    if (!taken) return std::move(taken).error().within(text("sub-group ", i));
    Group& group = groups.emplace_back();
    group.parameters.assign(all.begin() + static_cast<std::ptrdiff_t>(first),
                            all.begin() + static_cast<std::ptrdiff_t>(first + *taken));
    group.counts.assign(rest.begin(), rest.begin() + static_cast<std::ptrdiff_t>(*taken));
    group.fragments = fragments_of_parts(group.counts, parts, data_rank);
    first += *taken;
  }
  for (; first < counts.size(); ++first)
    if (counts[first] != 0) return damaged(text("parameter ", all[first].name, " is in no sub-group"));
  for (std::size_t i = 0; i < groups.size(); ++i) {
    PAWL_TRY(add_group(groups[i], states.groups[i], i, data_rank, path));
    add_names(groups[i], states, i);
  }
  return {};
}

// Ranks that say the same of a group have one together.
void ZeroStates::add_names(const Group& group, const OptimizerStates& states, std::size_t index) {
  const std::optional<std::size_t> in = states.groups[index].parameter_group;
  if (!in) return;
  const HyperGroup& said = states.hyperparameters[*in];
  Told& told = told_[{*in, group.expert_rank, said.values}];
  if (!told.of.insert(index).second) return;
  told.group.values = said.values;
  told.group.left_out = said.left_out;
  for (const ParameterShape& parameter : group.parameters) told.group.parameters.push_back(model_name(parameter.name));
}

std::vector<HyperGroup> ZeroStates::param_groups() const {
  std::vector<HyperGroup> out;
  for (const auto& [key, told] : told_) out.push_back(told.group);
  return out;
}

Status ZeroStates::add_group(const Group& group, const GroupState& state, std::size_t index, std::uint64_t data_rank,
                             const std::string& path) {
  if (state.step) {
    const auto [seen, is_first] = steps_.try_emplace({index, group.expert_rank}, Seen{*state.step, path});
    if (seen->second.step != *state.step)
      return damaged(text("group ", index, " is at the optimizer's step ", *state.step, ", and in ", seen->second.path,
                          " at ", seen->second.step, ": the folder mixes files of different steps"));
  }
  std::uint64_t needed = 0;
  for (const FlatFragment& fragment : group.fragments) needed = std::max(needed, fragment.at + fragment.count);
  for (const auto& [word, flat] : state.states)
    if (flat.count < needed)
      return damaged(
          text(word, " of group ", index, " has ", flat.count, " elements, where the model's shapes need ", needed));
  add_flat(group, *state.master, "master", data_rank);
  if (job_.adds_weights) add_rounded_weights(group, *state.master, data_rank);
  for (const auto& [word, flat] : state.states) add_flat(group, flat, word, data_rank);
  for (const ParameterShape& parameter : group.parameters) {
    table_.declare(parameter.name, job_.position, parameter.shape);
    if (state.step && parameter.count != 0) table_.add_step(parameter.name, job_.position, *state.step, path);
  }
  return {};
}

void ZeroStates::add_fragment(const ParameterShape& parameter, const FlatFragment& fragment, const FlatTensor& flat,
                              std::uint64_t at, std::string_view role, std::uint64_t data_rank) {
  StoredPiece first;
  first.file = flat.file;
  first.offset_bytes = flat.offset_bytes + at * (size_bits(flat.type) / 8);
  first.swapped = flat.swapped;
  first.rank = job_.degrees.rank_of(job_.position, data_rank);
  std::vector<StoredPiece> pieces;
  append_interval(parameter.shape, fragment.begin, fragment.begin + fragment.count, flat.type, first, pieces);
  table_.add(parameter.name, job_.position, parameter.shape, role, flat.type, pieces);
}

void ZeroStates::add_flat(const Group& group, const FlatTensor& flat, std::string_view role, std::uint64_t data_rank) {
  for (const FlatFragment& fragment : group.fragments)
    add_fragment(group.parameters[fragment.parameter], fragment, flat, fragment.at, role, data_rank);
}

// Each part of a parameter is a range of its own: decoding one takes that part's memory.
void ZeroStates::add_rounded_weights(const Group& group, const FlatTensor& master, std::uint64_t data_rank) {
  for (const FlatFragment& fragment : group.fragments) {
    const ParameterShape& parameter = group.parameters[fragment.parameter];
    const auto known = job_.types.find(parameter.name);
    const ElementType type = known == job_.types.end() ? master.type : known->second;
    if (type == master.type) {
      add_fragment(parameter, fragment, master, fragment.at, "weight", data_rank);
      continue;
    }
    const bool is_bfloat16 = type == ElementType::bfloat16;
    if (master.type != ElementType::float32 || (!is_bfloat16 && type != ElementType::float16) || master.swapped) {
      weights_left_out_.insert(parameter.name);
      continue;
    }
    StoredFile file;
    file.path = view_.files[master.file].path;
    file.codec = is_bfloat16 ? StoredFile::Codec::bfloat16 : StoredFile::Codec::float16;
    file.offset_bytes = master.offset_bytes + fragment.at * sizeof(float);
    file.length_bytes = fragment.count * sizeof(float);
    file.decoded_bytes = fragment.count * 2;
    const FlatTensor weights{static_cast<std::uint32_t>(view_.files.size()), 0, fragment.count, type, false};
    view_.files.push_back(std::move(file));
    add_fragment(parameter, fragment, weights, 0, "weight", data_rank);
  }
}

}  // namespace pawl::checkpoint::deepspeed
