#include "checkpoint/formats/deepspeed/plain_optimizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/formats/deepspeed/optimizer_states.h"
#include "checkpoint/names/state_names.h"
#include "checkpoint/view/pieces.h"

namespace pawl::checkpoint::deepspeed {
namespace {

using Value = Pickle::Value;

using States = std::unordered_map<std::uint64_t, Value>;

// What the state of parameter `number` has: words, and what they name. Fails: `full` where many share a large dict.
Result<std::span<const Value>> words_of(const ShardFile& file, Value state, std::uint64_t number) {
  const std::span<const Value> pairs = file.pickle().items(state);
  if (Status fits = file.take_copies(pairs.size(), 1); !fits)
    return std::move(fits).error().within(text("the state of the optimizer's parameter ", number));
  return pairs;
}

States states_by_number(const Pickle& pickle, Value dict) {
  States out;
  const std::span<const Value> pairs = pickle.items(dict);
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2)
    if (const auto number = pickle.unsigned_(pairs[i])) out[*number] = pairs[i + 1];
  return out;
}

// The shape that all tensors of a number's state have; single numbers, as the step, have none.
Result<std::optional<Shape>> shape_of_state(const ShardFile& file, Value state, std::uint64_t number) {
  std::optional<Shape> out;
  PAWL_ASSIGN(const std::span<const Value> pairs, words_of(file, state, number));
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const TorchTensor* tensor = file.tensor(pairs[i + 1]);
    if (tensor == nullptr || file.pickle().text(pairs[i]) == "step") continue;
    if (tensor->shape.empty() && !has_parameter_shape(file.pickle().text(pairs[i]))) continue;
    if (out && *out != tensor->shape) return std::optional<Shape>();
    out = tensor->shape;
  }
  return out;
}

class Adder {
 public:
  Adder(const ShardFile& file, const PlainOptimizer& optimizer, const PlainNames& names, const PlainOptions& options,
        ParameterTable& table, std::vector<std::string>& unsupported)
      : file_(file),
        optimizer_(optimizer),
        names_(names),
        options_(options),
        table_(table),
        unsupported_(unsupported),
        states_(states_by_number(file.pickle(), optimizer.states)) {}

  Result<std::vector<HyperGroup>> add() {
    for (const PlainOptimizer::Group& group : optimizer_.groups) told_.push_back(group.hyperparameters);
    PAWL_TRY(add_kind(false));
    PAWL_TRY(add_kind(true));
    return std::move(told_);
  }

 private:
  // The groups of experts, or the others: their names are two lists, each in the model's order.
  Status add_kind(bool of_experts);
  Status add_fused(const std::vector<std::size_t>& groups, const std::vector<NamedShape>& names);
  Status add_number(const PlainOptimizer::Group& group, std::size_t index, const NamedShape& name);
  Status add_tensor(Value value, std::string_view role, const std::string& name, const Shape& shape);
  Status leave_out(Value value, std::string_view role, const std::string& name);
  Status add_part(Value value, std::string_view role, const NamedShape& name, std::uint64_t at);
  [[nodiscard]] Result<NameIndices> deal(const std::vector<std::size_t>& groups, const std::vector<NamedShape>& names,
                                         bool is_given) const;
  [[nodiscard]] std::vector<std::vector<NamedShape>> given_sections(const std::vector<NamedShape>& names) const;

  const ShardFile& file_;
  const PlainOptimizer& optimizer_;
  const PlainNames& names_;
  const PlainOptions& options_;
  ParameterTable& table_;
  std::vector<std::string>& unsupported_;
  States states_;
  std::vector<HyperGroup> told_;  // of each group
};

// The given names, under the names and with the shapes that the model has. Names of others (experts, or all that are
// none) are not in it.
std::vector<std::vector<NamedShape>> Adder::given_sections(const std::vector<NamedShape>& names) const {
  std::unordered_map<std::string, const NamedShape*> known;
  for (const NamedShape& name : names) {
    known[name.name] = &name;
    known.try_emplace(model_name(name.name), &name);
  }
  std::vector<std::vector<NamedShape>> out;
  for (const auto& section : names_.given->sections) {
    std::vector<NamedShape> made;
    for (const auto& entry : section)
      if (const auto found = known.find(entry.name); found != known.end()) made.push_back(*found->second);
    if (!made.empty()) out.push_back(std::move(made));
  }
  return out;
}

Result<NameIndices> Adder::deal(const std::vector<std::size_t>& groups, const std::vector<NamedShape>& names,
                                bool is_given) const {
  std::vector<IndexedGroup> indexed;
  for (const std::size_t index : groups) {
    const PlainOptimizer::Group& group = optimizer_.groups[index];
    IndexedGroup& out = indexed.emplace_back();
    for (std::size_t i = 0; i < group.numbers.size(); ++i) {
      const TorchTensor* master = i < group.masters.size() ? file_.tensor(group.masters[i]) : nullptr;
      const auto state = states_.find(group.numbers[i]);
      std::optional<Shape>& shape = out.emplace_back();
      if (master != nullptr) {
        shape = master->shape;
      } else if (state != states_.end()) {
        PAWL_ASSIGN(shape, shape_of_state(file_, state->second, group.numbers[i]));
      }
    }
  }
  if (!is_given) return name_by_shape(names, indexed);
  std::vector<std::vector<NamedShape>> sections = given_sections(names);
  if (!names_.given->says_groups && indexed.size() < 2)
    return order_parameters(sections.empty() ? std::span<const NamedShape>() : sections[0], indexed);
  if (!names_.given->says_groups) {
    std::vector<std::size_t> sizes;
    for (const IndexedGroup& group : indexed) sizes.push_back(group.size());
    PAWL_ASSIGN(sections, sections_by_number(std::move(sections), sizes));
  }
  return order_parameters_in(sections, indexed);
}

Status Adder::add_kind(bool of_experts) {
  if (!of_experts && options_.skips_dense) return {};
  std::vector<std::size_t> groups;
  for (std::size_t i = 0; i < optimizer_.groups.size(); ++i)
    if (optimizer_.groups[i].is_expert == of_experts) groups.push_back(i);
  if (groups.empty()) return {};
  const std::vector<NamedShape>& names = of_experts ? names_.experts : names_.dense;
  if (optimizer_.is_fused) return add_fused(groups, names);
  // The given names may leave out those of experts, which are one rank's or all ranks'.
  const bool is_given = names_.given && !(of_experts && given_sections(names).empty());
  Result<NameIndices> dealt = deal(groups, names, is_given);
  if (!dealt) return std::move(dealt).error().within(text(file_.path(), ": the optimizer's states"));
  std::vector<NamedShape> numbered = names;
  if (is_given) {
    numbered.clear();
    for (auto& section : given_sections(names)) numbered.insert(numbered.end(), section.begin(), section.end());
  }
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (std::size_t i = 0; i < (*dealt)[g].size(); ++i) {
      PAWL_TRY(add_number(optimizer_.groups[groups[g]], i, numbered[(*dealt)[g][i]]));
      told_[groups[g]].parameters.push_back(model_name(numbered[(*dealt)[g][i]].name));
    }
  return {};
}

Status Adder::add_number(const PlainOptimizer::Group& group, std::size_t index, const NamedShape& name) {
  if (!name.shape) return file_.damaged(text("no weight has the name ", name.name));
  const Shape& shape = *name.shape;
  const std::string& stored_as = name.name;
  const std::optional<ParameterTable::Held> weight = table_.held(stored_as, options_.position.tensor, "weight");
  if (index < group.masters.size()) {
    PAWL_TRY(add_tensor(group.masters[index], "master", stored_as, shape));
  } else if (weight && weight->type == ElementType::float32) {
    table_.add(stored_as, options_.position, shape, "master", weight->type, weight->pieces);
  }
  const auto state = states_.find(group.numbers[index]);
  if (state == states_.end()) return {};
  if (!file_.pickle().holds_pairs(state->second)) return leave_out(state->second, "the state", stored_as);
  PAWL_ASSIGN(const std::span<const Value> pairs, words_of(file_, state->second, group.numbers[index]));
  for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
    const std::string word(file_.pickle().text(pairs[i]));
    if (word == "step") {
      PAWL_ASSIGN(const std::optional<double> step, file_.number(pairs[i + 1]));
      if (step) table_.add_step(stored_as, options_.position, *step, file_.path());
    } else if (const TorchTensor* tensor = file_.tensor(pairs[i + 1]); tensor == nullptr || tensor->shape != shape) {
      PAWL_TRY(leave_out(pairs[i + 1], word, stored_as));
    } else {
      PAWL_TRY(add_tensor(pairs[i + 1], word, stored_as, shape));
    }
  }
  return {};
}

Status Adder::add_tensor(Value value, std::string_view role, const std::string& name, const Shape& shape) {
  const TorchTensor* tensor = file_.tensor(value);
  if (tensor == nullptr) return file_.damaged(text(role, " of ", name, " is not a tensor"));
  PAWL_ASSIGN(StoredTensor stored, file_.stored(*tensor, text(role, " of ", name)));
  if (stored.shape != shape) return leave_out(value, role, name);
  for (StoredPiece& piece : stored.pieces) piece.rank = options_.rank;
  table_.add(name, options_.position, shape, role, stored.type, stored.pieces);
  return {};
}

Status Adder::leave_out(Value value, std::string_view role, const std::string& name) {
  const std::optional<std::string> form = unread_form(file_, value);
  if (!form) return {};
  constexpr std::size_t kSentenceBytes = 128;  // at most, beside what it names
  PAWL_TRY(file_.take_copies(1, file_.path().size() + role.size() + name.size() + form->size() + kSentenceBytes));
  unsupported_.push_back(
      text(file_.path(), ": ", role, " of ", name, ' ', *form, "; tensors of the parameter's own shape are read"));
  return {};
}

Status Adder::add_part(Value value, std::string_view role, const NamedShape& name, std::uint64_t at) {
  PAWL_ASSIGN(const FlatTensor flat, file_.flat(value, text(role, " of a group")));
  PAWL_ASSIGN(const std::uint64_t count, element_count(*name.shape));
  if (at > flat.count || count > flat.count - at) return file_.damaged(text(role, " of ", name.name, " is cut short"));
  StoredPiece first;
  first.file = flat.file;
  first.offset_bytes = flat.offset_bytes + at * (size_bits(flat.type) / 8);
  first.swapped = flat.swapped;
  first.rank = options_.rank;
  std::vector<StoredPiece> pieces;
  append_interval(*name.shape, 0, count, flat.type, first, pieces);
  table_.add(name.name, options_.position, *name.shape, role, flat.type, pieces);
  return {};
}

// One flat tensor a group: shapes don't tell who is in it. One group has all; else a person has to say.
Status Adder::add_fused(const std::vector<std::size_t>& groups, const std::vector<NamedShape>& names) {
  std::vector<std::vector<NamedShape>> sections = {names};
  if (names_.given) sections = given_sections(names);
  if (sections.size() != groups.size())
    return Error{Code::invalid,
                 text(file_.path(), ": the optimizer keeps ", groups.size(), " flat groups and no names",
                      "; pass them with --param-names FILE: one name a line, in the optimizer's order, and an empty "
                      "line between two groups")};
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const PlainOptimizer::Group& group = optimizer_.groups[groups[g]];
    PAWL_ASSIGN(const FlatTensor master, file_.flat(group.flat_master, "fp32_groups_flat"));
    std::uint64_t at = 0;
    for (const NamedShape& name : sections[g]) {
      PAWL_ASSIGN(const std::uint64_t count, element_count(name.shape.value_or(Shape{0})));
      if (__builtin_add_overflow(at, count, &at)) at = ~std::uint64_t{0};
    }
    if (at != master.count)
      return Error{Code::invalid, text(file_.path(), ": group ", groups[g], " has ", master.count,
                                       " elements, and the parameters named for it have ", at)};
    const auto state = group.numbers.empty() ? states_.end() : states_.find(group.numbers[0]);
    at = 0;
    for (const NamedShape& name : sections[g]) {
      told_[groups[g]].parameters.push_back(model_name(name.name));
      PAWL_TRY(add_part(group.flat_master, "master", name, at));
      std::span<const Value> pairs;
      if (state != states_.end()) {
        if (!file_.pickle().holds_pairs(state->second)) PAWL_TRY(leave_out(state->second, "the state", name.name));
        PAWL_ASSIGN(pairs, words_of(file_, state->second, group.numbers[0]));
      }
      for (std::size_t i = 0; i + 1 < pairs.size(); i += 2) {
        const std::string word(file_.pickle().text(pairs[i]));
        if (word == "step") {
          PAWL_ASSIGN(const std::optional<double> step, file_.number(pairs[i + 1]));
          if (step) table_.add_step(name.name, options_.position, *step, file_.path());
        } else if (const TorchTensor* tensor = file_.tensor(pairs[i + 1]);
                   tensor != nullptr && tensor->shape.size() == 1) {
          PAWL_TRY(add_part(pairs[i + 1], word, name, at));
        } else {
          PAWL_TRY(leave_out(pairs[i + 1], word, name.name));
        }
      }
      at += element_count(*name.shape).value_or(0);
    }
  }
  return {};
}

}  // namespace

Result<PlainOptimizer> read_plain_optimizer(const ShardFile& file, Value optimizer) {
  const Pickle& pickle = file.pickle();
  PlainOptimizer out;
  const Value inner = pickle.find(optimizer, "optimizer_state_dict");
  const Value torch = inner == kNothing ? optimizer : inner;
  out.states = pickle.find(torch, "state");
  const Value groups = pickle.find(torch, "param_groups");
  if (out.states == kNothing || !pickle.is(groups, PickleKind::list))
    return file.damaged("its optimizer has no state and param_groups");
  const Value flat = pickle.find(optimizer, "fp32_groups_flat");
  const Value masters = pickle.find(optimizer, "fp32_groups");
  out.is_fused = flat != kNothing;
  if (inner != kNothing) out.class_name = out.is_fused ? "FP16_Optimizer" : "FP16_UnfusedOptimizer";
  if (const Value scale = pickle.find(optimizer, "cur_scale"); pickle.is(scale, PickleKind::real))
    out.loss_scale = pickle.real(scale);
  const std::span<const Value> listed = pickle.items(groups);
  if (const std::optional<std::string> why = oversized_group(pickle, groups)) return file.damaged(*why);
  Status fault;
  std::vector<HyperGroup> hyperparameters = read_hyper_groups(pickle, groups, file.numbers(fault));
  PAWL_TRY(fault);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const std::span<const Value> numbers = pickle.items(pickle.find_field(listed[i], "params"));
    PAWL_TRY(file.take_copies(1, sizeof(PlainOptimizer::Group)));
    PAWL_TRY(file.take_copies(numbers.size(), sizeof(std::uint64_t) + sizeof(Value)));
    PlainOptimizer::Group& group = out.groups.emplace_back();
    if (i < hyperparameters.size()) group.hyperparameters = std::move(hyperparameters[i]);
    group.is_expert = pickle.boolean(pickle.find_field(listed[i], "moe"));
    constexpr std::string_view kDegree = "ep_size_";
    if (const std::string_view name = pickle.text(pickle.find_field(listed[i], "name"));
        group.is_expert && name.starts_with(kDegree))
      (void)parse_number(name.substr(kDegree.size()), group.expert_degree);
    for (const Value number : numbers) {
      const std::optional<std::uint64_t> value = pickle.unsigned_(number);
      if (!value) return file.damaged(text("param_groups[", i, "] lists ", pickle.describe(number)));
      group.numbers.push_back(*value);
    }
    if (const std::span<const Value> tensors = pickle.items(masters); i < tensors.size()) {
      const std::span<const Value> members = pickle.items(tensors[i]);
      if (members.size() != group.numbers.size())
        return file.damaged(
            text("fp32_groups[", i, "] has ", members.size(), " tensors for ", group.numbers.size(), " parameters"));
      group.masters.assign(members.begin(), members.end());
    }
    if (const std::span<const Value> tensors = pickle.items(flat); i < tensors.size()) group.flat_master = tensors[i];
  }
  return out;
}

Result<std::vector<HyperGroup>> add_plain_optimizer(const ShardFile& file, const PlainOptimizer& optimizer,
                                                    const PlainNames& names, const PlainOptions& options,
                                                    ParameterTable& table, std::vector<std::string>& unsupported) {
  return Adder(file, optimizer, names, options, table, unsupported).add();
}

}  // namespace pawl::checkpoint::deepspeed
