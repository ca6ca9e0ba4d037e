// Buckets: the optimizer state that Megatron-Core's distributed optimizer stores as it lies in memory (dp_reshardable).
//
// Each group of data-parallel ranks has buffers, each buffer buckets, each bucket three flat tensors: param, exp_avg
// and exp_avg_sq. In them the group's parameters follow one another, each at a multiple of 64 elements; no file says
// where one lies. But `param` is the fp32 copy of weights that the checkpoint also has, tensor by tensor: so each place
// is found by its contents, rounded to the type of the weight, and proven by more of them. Parameters with equal
// contents are told apart by Megatron's order (parameter_names.h). Weights that are not found, or found twice, are an
// error. Reads a few elements of each parameter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"

namespace pawl::checkpoint {

struct BucketTensor {
  std::string buffer;  // its key up to the bucket: one group, buffer and type
  std::uint64_t bucket = 0;
  StoredTensor tensor;  // flat; its role is param, exp_avg, exp_avg_sq
};

// What a key of these says; nothing if it is another's. The tensor is left empty but for its name and role.
[[nodiscard]] std::optional<BucketTensor> parse_bucket_key(std::string_view key);

// The optimizer states of the weights in `view`, with the weights' names, as master, exp_avg, exp_avg_sq.
// `sources` are the view's files, opened. `notes` gets a sentence where the order had to decide.
// Fails: `invalid` where a place can't be proven, with buffer, bucket and offset; `corrupt`, `io`.
[[nodiscard]] Result<std::vector<StoredTensor>> place_buckets(const CheckpointView& view,
                                                              std::vector<BucketTensor> buckets,
                                                              const std::vector<std::unique_ptr<ByteSource>>& sources,
                                                              std::vector<std::string>& notes);

}  // namespace pawl::checkpoint
