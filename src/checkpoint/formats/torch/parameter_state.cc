#include "checkpoint/formats/torch/parameter_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "base/contains.h"
#include "base/text.h"

namespace pawl::checkpoint {

using Value = Pickle::Value;

namespace {

// Numbers of all optimizers, NAdam and ASGD that torch has as float32 tensors.
constexpr std::array<std::string_view, 4> kFloatWords = {"step", "mu_product", "mu", "eta"};
constexpr double kFloatIntegersMax = 1 << 24;  // beyond it float32 doesn't have all integers

// Whether it is a list or a tuple of integers and reals, and has some.
bool is_number_list(const Pickle& pickle, Value value) {
  if (!pickle.is(value, PickleKind::list) && !pickle.is(value, PickleKind::tuple)) return false;
  const std::span<const Value> items = pickle.items(value);
  return !items.empty() && std::ranges::all_of(items, [&](Value item) {
    return pickle.is(item, PickleKind::integer) || pickle.is(item, PickleKind::real);
  });
}

// The tuple that a torch.Size is; other values themselves.
Value without_size(const Pickle& pickle, Value value) {
  if (!pickle.class_of(value).is("torch", "Size")) return value;
  const std::span<const Value> arguments = pickle.items(pickle.object(value).arguments);
  return arguments.size() == 1 && pickle.is(arguments[0], PickleKind::tuple) ? arguments[0] : value;
}

double real_of(const Pickle& pickle, Value number) {
  const std::optional<std::int64_t> whole = pickle.integer(number);
  return whole ? static_cast<double>(*whole) : pickle.real(number);
}

}  // namespace

ParameterState::ParameterState(const Pickle& pickle, const TensorsByValue& by_value,
                               std::span<const FoundOptimizer> optimizers, CopyBudget& copies)
    : pickle_(pickle), by_value_(by_value), copies_(copies), is_closed_(pickle.count(), false) {
  for (const FoundOptimizer& optimizer : optimizers)
    for (const Value value : {optimizer.value, optimizer.state, optimizer.param_groups})
      if (value < is_closed_.size()) is_closed_[value] = true;
}

bool ParameterState::may_have_parts(Value value) const {
  return by_value_.contains(value) || pickle_.is(value, PickleKind::list) || pickle_.is(value, PickleKind::tuple) ||
         pickle_.is(value, PickleKind::dict) || pickle_.is(value, PickleKind::object);
}

// Of a call by itself only who is called knows what it gives, unless it was given a container, or nothing but classes: an
// empty defaultdict's factory. A set has no order. Many states may share a value, so each look at its items is paid for.
Result<bool> ParameterState::is_whole(Value value) {
  if (by_value_.contains(value) || !may_have_parts(value)) return true;
  if (!pickle_.is(value, PickleKind::object)) {
    PAWL_TRY(copies_.take(pickle_.items(value).size(), sizeof(Value)));
    return is_number_list(pickle_, value);
  }
  const PickleSymbol& what = pickle_.class_of(value);
  if (what.module.starts_with("numpy") || what.is("builtins", "set") || what.is("builtins", "frozenset")) return true;
  const Pickle::Object object = pickle_.object(value);
  if (object.call != Pickle::Call::reduce || object.state != kNothing || !pickle_.items(value).empty()) return false;
  const std::span<const Value> arguments = pickle_.items(object.arguments);
  PAWL_TRY(copies_.take(arguments.size(), sizeof(Value)));
  const auto is_container = [&](Value argument) {
    return may_have_parts(argument) && !pickle_.is(argument, PickleKind::object);
  };
  const auto says_nothing = [&](Value argument) {
    return pickle_.is(argument, PickleKind::global) || pickle_.is(argument, PickleKind::none);
  };
  return std::ranges::none_of(arguments, is_container) && !std::ranges::all_of(arguments, says_nothing);
}

// What is called has its numbers and texts for itself: a deque's length, a defaultdict's factory.
Status ParameterState::enter(Value value) {
  is_closed_[value] = true;
  Frame& frame = stack_.emplace_back(Frame{value, {}});
  PAWL_TRY(add_parts(pickle_, value, copies_, frame.parts));
  PAWL_TRY(copies_.take(frame.parts.size(), sizeof(ValuePart)));
  const Pickle::Object object = pickle_.object(value);
  if (object.callable != kNothing && object.call == Pickle::Call::reduce) {
    const std::span<const Value> given = pickle_.items(object.arguments);
    const std::unordered_set<Value> arguments(given.begin(), given.end());
    std::erase_if(frame.parts,
                  [&](const ValuePart& part) { return !may_have_parts(part.value) && arguments.contains(part.value); });
  }
  return {};
}

Status ParameterState::walk(Value state, std::vector<PathStep> path, const Visit& visit) {
  stack_.clear();
  PAWL_TRY(visit_or_enter(state, path, visit));
  while (!stack_.empty()) {
    Frame& top = stack_.back();
    if (top.next == top.parts.size()) {
      is_closed_[top.value] = false;
      stack_.pop_back();
      if (!stack_.empty()) path.pop_back();
      continue;
    }
    auto& [step, value] = top.parts[top.next++];
    path.push_back(std::move(step));
    const std::size_t depth = stack_.size();
    PAWL_TRY(visit_or_enter(value, path, visit));
    if (stack_.size() == depth) path.pop_back();
  }
  return {};
}

Status ParameterState::visit_or_enter(Value value, const std::vector<PathStep>& path, const Visit& visit) {
  value = without_size(pickle_, value);
  if (is_closed_[value]) return {};
  PAWL_ASSIGN(const bool whole, is_whole(value));
  return whole ? visit(value, path) : enter(value);
}

std::optional<StateNumbers> state_numbers(const Pickle& pickle, Value value, std::string_view word) {
  const bool is_list = is_number_list(pickle, value);
  const std::span<const Value> numbers = is_list ? pickle.items(value) : std::span(&value, 1);
  const auto has = [&](PickleKind kind) {
    return std::ranges::any_of(numbers, [&](Value number) { return pickle.is(number, kind); });
  };
  StateNumbers out;
  if (has(PickleKind::boolean)) {
    out.type = ElementType::boolean;
  } else if (!is_list && contains(kFloatWords, word) &&
             (has(PickleKind::real) ||
              (has(PickleKind::integer) && std::abs(real_of(pickle, value)) <= kFloatIntegersMax))) {
    out.type = ElementType::float32;
  } else if (!has(PickleKind::real)) {
    if (!has(PickleKind::integer)) return std::nullopt;
    out.type = ElementType::int64;
  }
  if (is_list) out.shape = {numbers.size()};
  static_assert(std::endian::native == std::endian::little);
  const auto append = [&](auto number) { out.elements.append(reinterpret_cast<const char*>(&number), sizeof number); };
  for (const Value number : numbers) {
    if (out.type == ElementType::boolean) append(static_cast<std::uint8_t>(pickle.boolean(number)));
    if (out.type == ElementType::int64) append(pickle.integer(number).value_or(0));
    if (out.type == ElementType::float64) append(real_of(pickle, number));
    if (out.type == ElementType::float32) append(static_cast<float>(real_of(pickle, number)));
  }
  return out;
}

std::string no_form(std::string_view name, const Pickle& pickle, Value value) {
  return text(name, " is ", pickle.describe(value), "; of a parameter's state tensors and numbers are read");
}

bool is_state_text(const Pickle& pickle, Value value) {
  return pickle.is(value, PickleKind::string) || pickle.is(value, PickleKind::global) ||
         pickle.class_of(value).is("torch", "device");
}

}  // namespace pawl::checkpoint
