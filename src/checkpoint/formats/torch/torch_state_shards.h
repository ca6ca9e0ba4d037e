// TorchShards: which boxes of a whole tensor a rank's DTensor or ShardedTensor holds, as torch.save wrote the object.
//
// A DTensor tells its mesh, its placements and where in the mesh its rank stands; that gives the boxes (torch's uneven
// chunks, any order of the axes, _StridedShard). A ShardedTensor lists its boxes. A Partial DTensor holds terms of a
// sum that was never computed: an error.
//
// What always holds: boxes lie inside the tensor and don't overlap; each lies inside the local tensor that holds it.
// Pure: values of a pickle in, boxes out; no bytes are looked at.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/containers/torch_file.h"
#include "tensor/box.h"

namespace pawl::checkpoint {

struct TorchShard {
  struct Part {
    Pickle::Value local = Pickle::kNothing;  // a tensor of the file
    Box box;                                 // of the whole
    PerDimension from{};                     // where that begins in the local tensor
  };
  std::vector<Part> parts = {};
  Shape shape = {};         // the whole tensor's
  std::string layout = {};  // for people, and equal on all ranks that hold the tensor: "dp=4 tp=2: Shard(0), Replicate"
  std::uint64_t world = 0;  // the job has at least so many ranks
};

[[nodiscard]] bool is_sharded(const TorchTensor& tensor);
// `local_of(value)` finds a tensor of the file, or null. Fails: `corrupt` where the object contradicts itself;
// `invalid` for what no box can tell: Partial, more than eight dimensions, versions of torch that we don't know.
using TorchTensorFinder = std::function<const TorchTensor*(Pickle::Value)>;
[[nodiscard]] Result<TorchShard> shard_of(const Pickle& pickle, const TorchTensor& tensor,
                                          const TorchTensorFinder& local_of);

}  // namespace pawl::checkpoint
