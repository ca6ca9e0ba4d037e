#include "checkpoint/formats/deepspeed/shard_names.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

// Takes a name from its left, part by part. After a part that isn't there nothing more is taken.
class NameScanner {
 public:
  explicit NameScanner(std::string_view rest) : rest_(rest) {}

  bool take(std::string_view literal) {
    if (!rest_.starts_with(literal)) return false;
    rest_.remove_prefix(literal.size());
    return true;
  }
  bool take(std::string_view literal, std::uint32_t& number) {
    const std::string_view before = rest_;
    if (take(literal)) {
      const std::size_t digits = std::min(rest_.find_first_not_of("0123456789"), rest_.size());
      if (digits != 0 && digits <= 7 && parse_number(rest_.substr(0, digits), number)) {
        rest_.remove_prefix(digits);
        return true;
      }
    }
    rest_ = before;
    return false;
  }
  [[nodiscard]] bool is(std::string_view end) const { return rest_ == end; }

 private:
  std::string_view rest_;
};

bool parse_zero(NameScanner rest, ShardName& out) {
  if (!rest.take("bf16_")) rest.take("fp16_");
  if (!rest.take("zero_pp_rank_", out.data_rank) || !rest.take("_mp_rank_", out.model_rank)) return false;
  out.kind = rest.is("_model_states.pt") ? ShardName::Kind::zero_model : ShardName::Kind::optimizer;
  return rest.is("_model_states.pt") || rest.is("_optim_states.pt") || rest.is("optim_states.pt");
}

bool parse_layer(NameScanner rest, ShardName& out) {
  if (!rest.take("layer_", out.layer)) return false;
  out.kind = ShardName::Kind::layer;
  out.has_model_axis = rest.take("-model_", out.model_rank);
  return rest.is("-model_states.pt");
}

bool parse_expert(NameScanner rest, ShardName& out) {
  if (rest.take("layer_", out.layer) && !rest.take("_")) return false;
  out.kind = ShardName::Kind::expert;
  return rest.take("expert_", out.expert) && rest.take("_mp_rank_", out.model_rank) && rest.is("_model_states.pt");
}

bool parse_expert_optimizer(NameScanner rest, ShardName& out) {
  out.kind = ShardName::Kind::expert_optimizer;
  return rest.take("expp_rank_", out.data_rank) && rest.take("_mp_rank_", out.model_rank) &&
         rest.is("_optim_states.pt");
}

bool parse_model(NameScanner rest, ShardName& out) {
  out.kind = ShardName::Kind::model;
  return rest.take("mp_rank_", out.model_rank) && rest.is("_model_states.pt");
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view name) {
  for (const auto parse : {parse_model, parse_zero, parse_layer, parse_expert, parse_expert_optimizer}) {
    ShardName out;
    if (!parse(NameScanner(name), out)) continue;
    out.name = std::string(name);
    return out;
  }
  return std::nullopt;
}

}  // namespace pawl::checkpoint::deepspeed
