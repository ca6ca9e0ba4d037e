#include "checkpoint/formats/torch/parameter_state.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "base/contains.h"

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

// Of a call by itself only who is called knows what it gives, unless it was given a container. A set has no order.
bool ParameterState::is_whole(Value value) const {
  if (by_value_.contains(value) || !may_have_parts(value) || is_number_list(pickle_, value)) return true;
  if (!pickle_.is(value, PickleKind::object)) return false;
  const PickleSymbol& what = pickle_.class_of(value);
  if (what.module.starts_with("numpy") || what.is("builtins", "set") || what.is("builtins", "frozenset")) return true;
  const Pickle::Object object = pickle_.object(value);
  const std::span<const Value> arguments = pickle_.items(object.arguments);
  return object.call == Pickle::Call::reduce && object.state == kNothing && pickle_.items(value).empty() &&
         !arguments.empty() && std::ranges::none_of(arguments, [&](Value argument) {
           return may_have_parts(argument) && !pickle_.is(argument, PickleKind::object);
         });
}

// What is called has its numbers and texts for itself: a deque's length, a defaultdict's factory.
Status ParameterState::enter(Value value) {
  is_closed_[value] = true;
  Frame& frame = stack_.emplace_back(Frame{value, {}});
  PAWL_TRY(add_parts(pickle_, value, copies_, frame.parts));
  const Pickle::Object object = pickle_.object(value);
  if (object.callable != kNothing && object.call == Pickle::Call::reduce) {
    const std::span<const Value> given = pickle_.items(object.arguments);
    const std::unordered_set<Value> arguments(given.begin(), given.end());
    std::erase_if(frame.parts,
                  [&](const ValuePart& part) { return !may_have_parts(part.value) && arguments.contains(part.value); });
  }
  return copies_.take(frame.parts.size(), sizeof(ValuePart));
}

Status ParameterState::walk(Value state, std::vector<PathStep> path, const Visit& visit) {
  stack_.clear();
  if (is_whole(state)) return visit(state, path);
  if (is_closed_[state]) return {};
  PAWL_TRY(enter(state));
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
    if (is_whole(value)) {
      PAWL_TRY(visit(value, path));
    } else if (!is_closed_[value]) {
      PAWL_TRY(enter(value));
      continue;
    }
    path.pop_back();
  }
  return {};
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
  } else if (!is_list && contains(kFloatWords, word) && std::abs(real_of(pickle, value)) <= kFloatIntegersMax &&
             (has(PickleKind::integer) || has(PickleKind::real))) {
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

bool is_state_text(const Pickle& pickle, Value value) {
  return pickle.is(value, PickleKind::string) || pickle.is(value, PickleKind::global) ||
         pickle.class_of(value).is("torch", "device");
}

}  // namespace pawl::checkpoint
