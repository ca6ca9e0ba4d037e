#include "checkpoint/formats/deepspeed/experts.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {

std::optional<ExpertName> parse_expert_name(const std::string& name) {
  constexpr std::string_view kWord = "deepspeed_experts.";
  const std::size_t at = name.rfind(kWord);
  if (at == std::string::npos || (at != 0 && name[at - 1] != '.')) return std::nullopt;
  const std::size_t digits = at + kWord.size();
  const std::size_t end = std::min(name.find('.', digits), name.size());
  std::uint32_t expert = 0;
  if (end - digits > 7 || !parse_number(std::string_view(name).substr(digits, end - digits), expert))
    return std::nullopt;
  return ExpertName{name.substr(0, digits), expert, name.substr(end)};
}

std::map<std::string, std::uint64_t> local_experts(const std::vector<ParameterGroup>& groups) {
  std::map<std::string, std::uint64_t> out;
  for (const ParameterGroup& group : groups)
    for (const ParameterShape& parameter : group)
      if (const std::optional<ExpertName> name = parse_expert_name(parameter.name))
        out[name->path] = std::max(out[name->path], name->expert + 1);
  return out;
}

}  // namespace pawl::checkpoint::deepspeed
