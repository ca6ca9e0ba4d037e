// AttentionHeads: how the rows of a fused QKV tensor are dealt to heads and query groups.
//
// Megatron-Core keeps, for each query group, the queries of its heads, then one key and one value. What always holds:
// heads = groups * queries, and the sizes fit the tensor's rows. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/names/families.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/enumerate.h"

namespace pawl::checkpoint {

struct AttentionHeads {
  std::uint64_t groups = 0;
  std::uint64_t queries = 0;  // heads of queries in each group
  std::uint64_t head_size = 0;

  // In the fused tensor, of query (0), key (1), value (2): its rows of all groups.
  [[nodiscard]] std::vector<Span> fused_spans(std::uint32_t which) const;
  // All queries, all keys, all values: where each span of the fused tensor comes from, or goes to.
  [[nodiscard]] std::vector<Span> block_spans() const;
};

// From rows of queries and of keys and what `settings` say; the rest follows, and everything has to fit.
// Fails: `invalid`, naming the tensor, if it doesn't fit, or if nothing says how many heads there are.
[[nodiscard]] Result<AttentionHeads> attention_heads_of(const StoredTensor& tensor, std::uint64_t query_rows,
                                                        std::uint64_t key_rows, const FamilySettings& settings);

// `invalid`, with the tensor's label and shape.
[[nodiscard]] Error unfit_tensor(const StoredTensor& tensor, std::string why);

}  // namespace pawl::checkpoint
