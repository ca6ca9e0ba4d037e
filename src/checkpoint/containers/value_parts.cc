#include "checkpoint/containers/value_parts.h"

#include <span>

#include "base/text.h"
#include "checkpoint/containers/dict_keys.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;

void add_items(const Pickle& pickle, Value list, std::vector<ValuePart>& out) {
  const std::span<const Value> items = pickle.items(list);
  for (std::size_t i = 0; i < items.size(); ++i) out.push_back({{PathStep::Kind::index, text(i)}, items[i]});
}

Status add_pairs(const Pickle& pickle, Value pairs, bool are_attributes, CopyBudget& copies,
                 std::vector<ValuePart>& out) {
  const std::span<const Value> items = pickle.items(pairs);
  PAWL_ASSIGN(KeySteps steps, steps_of_keys(pickle, items, copies));
  for (std::size_t i = 0; i < steps.size(); ++i) {
    if (!steps[i]) continue;
    if (are_attributes) steps[i]->kind = PathStep::Kind::attribute;
    out.push_back({std::move(*steps[i]), items[2 * i + 1]});
  }
  return {};
}

// What a call was given: a deque's list, a defaultdict's factory, the fields of a named tuple; what a class of protocols
// 0 and 1 has of the built-in class below it.
Status add_arguments(const Pickle& pickle, const Pickle::Object& object, Value value, CopyBudget& copies,
                     std::vector<ValuePart>& out) {
  const std::span<const Value> arguments = pickle.items(object.arguments);
  if (pickle.class_of(value).is("copyreg", "_reconstructor") && arguments.size() == 3) {
    if (pickle.is(arguments[2], PickleKind::dict)) return add_pairs(pickle, arguments[2], false, copies, out);
    add_items(pickle, arguments[2], out);
    return {};
  }
  const bool is_list = object.call == Pickle::Call::reduce && !arguments.empty() && arguments.size() <= 2 &&
                       pickle.is(arguments[0], PickleKind::list);
  if (is_list) add_items(pickle, arguments[0], out);
  for (std::size_t i = is_list ? 1 : 0; i < arguments.size(); ++i)
    out.push_back({{PathStep::Kind::index, text(i)}, arguments[i]});
  return {};
}

}  // namespace

Status add_state_parts(const Pickle& pickle, Value state, CopyBudget& copies, std::vector<ValuePart>& out) {
  const std::span<const Value> items = pickle.items(state);
  const auto is_attributes = [&](Value half) {
    return pickle.is(half, PickleKind::dict) || pickle.is(half, PickleKind::none);
  };
  if (state == kNothing) return {};
  if (pickle.is(state, PickleKind::dict)) return add_pairs(pickle, state, true, copies, out);
  if (pickle.is(state, PickleKind::tuple) && items.size() == 2 && is_attributes(items[0]) && is_attributes(items[1])) {
    for (const Value half : items)
      if (pickle.is(half, PickleKind::dict)) PAWL_TRY(add_pairs(pickle, half, true, copies, out));
    return {};
  }
  const bool many = pickle.is(state, PickleKind::tuple) || pickle.is(state, PickleKind::list);
  for (std::size_t i = 0; many && i < items.size(); ++i)
    out.push_back({{PathStep::Kind::attribute, text("state_", i)}, items[i]});
  if (!many) out.push_back({{PathStep::Kind::attribute, "state"}, state});
  return {};
}

Status add_parts(const Pickle& pickle, Value value, CopyBudget& copies, std::vector<ValuePart>& out) {
  if (pickle.holds_pairs(value)) {
    PAWL_TRY(add_pairs(pickle, value, false, copies, out));
  } else {
    add_items(pickle, value, out);
  }
  if (!pickle.is(value, PickleKind::object)) return {};
  const Pickle::Object object = pickle.object(value);
  PAWL_TRY(add_state_parts(pickle, object.state, copies, out));
  // Python 2 calls it with a list of the pairs that it holds.
  if (object.holds_pairs && pickle.class_of(value).is("collections", "OrderedDict")) return {};
  return add_arguments(pickle, object, value, copies, out);
}

}  // namespace pawl::checkpoint
