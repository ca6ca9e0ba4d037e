// ParameterState: what an optimizer keeps of one parameter, however deep it lies: in dicts, lists, named tuples and
// attributes of objects.
//
// Steps are those of checkpoint/containers/value_parts.h. A part that leads back to an optimizer, or to what it lies in,
// is not followed. Pure: looks at the values of a pickle.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/value_parts.h"
#include "checkpoint/formats/torch/torch_optimizers.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

class ParameterState {
 public:
  // `by_value`: the file's tensors. All of them outlive this.
  ParameterState(const Pickle& pickle, const TensorsByValue& by_value, std::span<const FoundOptimizer> optimizers,
                 CopyBudget& copies);

  // A tensor, a list or tuple of numbers (torch.Size is one), or what has no parts that could be tensors or numbers: a
  // number, None, a text, an object that only its class can make. With the path to it, good during the call.
  using Visit = std::function<Status(Pickle::Value value, const std::vector<PathStep>& path)>;
  // Visits all of a state. `path` leads to it. Fails: as `visit`; `full` where states share more than `copies` has left.
  [[nodiscard]] Status walk(Pickle::Value state, std::vector<PathStep> path, const Visit& visit);

 private:
  struct Frame {  // a value on the way down
    Pickle::Value value;
    std::vector<ValuePart> parts;
    std::size_t next = 0;
  };
  Status visit_or_enter(Pickle::Value value, const std::vector<PathStep>& path, const Visit& visit);
  Status enter(Pickle::Value value);
  [[nodiscard]] Result<bool> is_whole(Pickle::Value value);
  [[nodiscard]] bool may_have_parts(Pickle::Value value) const;

  const Pickle& pickle_;
  const TensorsByValue& by_value_;
  CopyBudget& copies_;
  std::vector<bool> is_closed_;  // of each value: on the way down, or an optimizer's
  std::vector<Frame> stack_;
};

// Numbers of a state as a tensor: one has no dimensions, a list or tuple of some has one. int64, float64 or bool.
struct StateNumbers {
  ElementType type = ElementType::float64;
  Shape shape;
  std::string elements;
};
// Nothing where the value is neither. `word`: under which the state itself has it; empty where it lies deeper. Under
// "step", "mu_product", "mu" and "eta" torch keeps float32 tensors, and makes them of older optimizers' numbers: so here.
[[nodiscard]] std::optional<StateNumbers> state_numbers(const Pickle& pickle, Pickle::Value value,
                                                        std::string_view word);
// Why a conversion refuses a value that is none of these.
[[nodiscard]] std::string no_form(std::string_view name, const Pickle& pickle, Pickle::Value value);
// Whether it is a text, or what stands for one: a dtype, a device. There are no tensors of those.
[[nodiscard]] bool is_state_text(const Pickle& pickle, Pickle::Value value);

}  // namespace pawl::checkpoint
