#include "checkpoint/formats/megatron/common_state.h"

#include <array>
#include <cmath>
#include <cstring>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

using Value = Pickle::Value;

// A number, or a tensor of one element, which must be finite.
std::optional<double> number_of(ByteSource& source, const TorchFile& file, Value value) {
  const Pickle& pickle = file.pickle();
  std::optional<double> out;
  if (pickle.is(value, PickleKind::real)) out = pickle.real(value);
  if (const std::optional<std::int64_t> integer = pickle.integer(value)) out = static_cast<double>(*integer);
  for (const TorchTensor& tensor : file.tensors()) {
    if (tensor.value != value) continue;
    Result<std::string> bytes = read_elements(source, file, tensor, 8);
    if (!bytes) return std::nullopt;
    float single = 0;
    std::int64_t integer = 0;
    if (tensor.type == ElementType::float32 && bytes->size() == sizeof single) {
      std::memcpy(&single, bytes->data(), sizeof single);
      out = static_cast<double>(single);
    } else if (tensor.type == ElementType::int64 && bytes->size() == sizeof integer) {
      std::memcpy(&integer, bytes->data(), sizeof integer);
      out = static_cast<double>(integer);
    }
    break;
  }
  return out && std::isfinite(*out) ? out : std::nullopt;
}

Value item(const Pickle& pickle, Value value, std::size_t index) {
  const std::span<const Value> items = pickle.items(value);
  return index < items.size() ? items[index] : Pickle::kNothing;
}

std::string text_in(const Pickle& pickle, Value dict, std::string_view key) {
  const Value value = pickle.find(dict, key);
  return pickle.is(value, PickleKind::string) ? std::string(pickle.text(value)) : std::string();
}

std::optional<std::uint64_t> count_in(const Pickle& pickle, Value dict, std::string_view key) {
  const Value value = pickle.find(dict, key);
  if (!pickle.is(value, PickleKind::integer)) return std::nullopt;
  return pickle.unsigned_(value);
}

void add_layout(const Pickle& pickle, Value args, CommonState& out) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 6> kAxes = {{
      {"tp", "tensor_model_parallel_size"},
      {"pp", "pipeline_model_parallel_size"},
      {"vp", "virtual_pipeline_model_parallel_size"},
      {"cp", "context_parallel_size"},
      {"ep", "expert_model_parallel_size"},
      {"etp", "expert_tensor_parallel_size"},
  }};
  if (const auto world = count_in(pickle, args, "world_size")) out.facts.emplace_back("world", text(*world));
  std::string layout;
  for (const auto& [axis, key] : kAxes)
    if (const auto size = count_in(pickle, args, key)) layout += text(layout.empty() ? "" : " ", axis, '=', *size);
  if (!layout.empty()) out.facts.emplace_back("layout", layout);
}

void add_model(const Pickle& pickle, Value args, CommonState& out) {
  out.layers = count_in(pickle, args, "num_layers");
  if (out.layers) out.facts.emplace_back("layers", text(*out.layers));
  const auto heads = count_in(pickle, args, "num_attention_heads");
  if (heads) out.facts.emplace_back("attention heads", text(*heads));
  // Without grouped-query attention the number of groups is a default that nothing reads.
  const Value grouped = pickle.find(args, "group_query_attention");
  const auto groups = pickle.is(grouped, PickleKind::boolean) && !pickle.boolean(grouped)
                          ? heads
                          : count_in(pickle, args, "num_query_groups");
  if (groups) out.facts.emplace_back("query groups", text(*groups));
  if (const auto size = count_in(pickle, args, "kv_channels")) out.facts.emplace_back("head size", text(*size));
  if (const auto rows = count_in(pickle, args, "padded_vocab_size"))
    out.facts.emplace_back("padded vocabulary", text(*rows));
}

}  // namespace

std::optional<double> find_step(ByteSource& source, const TorchFile& file, Value state) {
  const Pickle& pickle = file.pickle();
  // Of chained optimizers the first; below a precision wrapper the optimizer itself.
  std::vector<Value> look = {state};
  for (std::size_t at = 0; at < look.size() && at < 16; ++at) {
    const Value value = look[at];
    for (const std::string_view key : {"common_step", "step"})
      if (const auto step = number_of(source, file, pickle.find(value, key))) return step;
    for (const std::string_view key : {"optimizer", "state", "param_groups", "param_state"})
      if (const Value next = pickle.find(value, key); next != Pickle::kNothing) look.push_back(next);
    if (pickle.is(value, PickleKind::list)) look.push_back(item(pickle, value, 0));
    if (pickle.is(value, PickleKind::dict) && pickle.integer(item(pickle, value, 0)))  // keyed by number
      look.push_back(item(pickle, value, 1));
  }
  return std::nullopt;
}

CommonState read_common_state(ByteSource& source, const TorchFile& file) {
  const Pickle& pickle = file.pickle();
  Value root = pickle.root();
  if (pickle.is(root, PickleKind::list)) root = item(pickle, root, 0);
  CommonState out;
  out.iteration = count_in(pickle, root, "iteration");
  const Value optimizer = pickle.find(root, "optimizer");
  out.optimizer_step = find_step(source, file, optimizer);
  out.sharding_type = text_in(pickle, optimizer, "param_state_sharding_type");
  if (out.sharding_type.empty())
    out.sharding_type = text_in(pickle, pickle.find(root, "content_metadata"), "distrib_optim_sharding_type");
  const Value args = pickle.object(pickle.find(root, "args")).state;
  out.transformer_engine = text_in(pickle, args, "transformer_impl") == "transformer_engine";
  add_layout(pickle, args, out);
  add_model(pickle, args, out);
  return out;
}

}  // namespace pawl::checkpoint
