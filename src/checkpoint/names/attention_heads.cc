#include "checkpoint/names/attention_heads.h"

#include <utility>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint64_t kGroupsMax = 65536;

}  // namespace

std::vector<Span> AttentionHeads::fused_spans(std::uint32_t which) const {
  std::vector<Span> out;
  const std::uint64_t group_rows = (queries + 2) * head_size;
  const std::uint64_t begin = which == 0 ? 0 : (queries + which - 1) * head_size;
  for (std::uint64_t group = 0; group < groups; ++group)
    out.push_back({group * group_rows + begin, which == 0 ? queries * head_size : head_size});
  return out;
}

std::vector<Span> AttentionHeads::block_spans() const {
  std::vector<Span> out;
  for (std::uint32_t which = 0; which < 3; ++which) {
    const std::vector<Span> spans = fused_spans(which);
    out.insert(out.end(), spans.begin(), spans.end());
  }
  return out;
}

Result<AttentionHeads> attention_heads_of(const StoredTensor& tensor, std::uint64_t query_rows, std::uint64_t key_rows,
                                          const FamilySettings& settings) {
  AttentionHeads out;
  if (key_rows == 0 || query_rows % key_rows != 0)
    return unfit_tensor(tensor,
                        text(query_rows, " rows of queries and ", key_rows, " of keys are not heads in groups"));
  out.queries = query_rows / key_rows;
  if (settings.query_groups != 0)
    out.groups = settings.query_groups;
  else if (settings.attention_heads != 0)
    out.groups = settings.attention_heads / out.queries;
  else if (settings.head_size != 0)
    out.groups = key_rows / settings.head_size;
  else
    return unfit_tensor(
        tensor,
        "the checkpoint does not say how many attention heads it has: pass --heads, --query-groups or --head-size");
  out.head_size = out.groups == 0 ? 0 : key_rows / out.groups;
  const bool fits = out.groups != 0 && out.groups <= kGroupsMax && out.head_size * out.groups == key_rows &&
                    (settings.attention_heads == 0 || settings.attention_heads == out.groups * out.queries) &&
                    (settings.head_size == 0 || settings.head_size == out.head_size);
  if (!fits)
    return unfit_tensor(
        tensor, text(query_rows, " rows of queries and ", key_rows, " of keys don't fit ", settings.attention_heads,
                     " heads in ", settings.query_groups, " groups of size ", settings.head_size, " (0: not given)"));
  return out;
}

Error unfit_tensor(const StoredTensor& tensor, std::string why) {
  return {Code::invalid, text(label_of(tensor.name, tensor.role), ' ', text_of(tensor.shape), ": ", why)};
}

}  // namespace pawl::checkpoint
