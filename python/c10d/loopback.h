// Loopback: what each collective leaves in its tensors when this process is alone in its group.
//
// The answer is the one that the group would give if every other rank held what this rank holds, as far as that can be
// said without adding: gathers give copies of the own part, scatters the own slice, reductions and broadcasts leave the
// tensor as it is, a receive gives zeros. Shapes, types and devices are always those of the real collective. Where the
// parts have different sizes and the own one does not fit, zeros take its place.
//
// Pure but for the tensors. Nothing is recorded for autograd and no version counter moves, as with real collectives.
#pragma once

#include "torch_headers.h"

namespace pawl::loopback {

void zero(const Tensors& tensors);
// outputs[i] holds the parts of all ranks for inputs[i].
void all_gather(const TensorLists& outputs, const Tensors& inputs);
// outputs[rank][i] is that rank's inputs[i].
void all_gather_coalesced(const TensorLists& outputs, const Tensors& inputs);
void all_gather_into(const at::Tensor& output, const at::Tensor& input, int size);
void reduce_scatter(const Tensors& outputs, const TensorLists& inputs, int rank);
void reduce_scatter_from(const at::Tensor& output, const at::Tensor& input, int rank, int size);
// `inputs` is empty where this rank is not the root: zeros.
void scatter(const Tensors& outputs, const TensorLists& inputs, int rank);
void all_to_all(const Tensors& outputs, const Tensors& inputs, int rank);
// Splits are along the first dimension; empty: even.
void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                       const std::vector<int64_t>& input_splits, int rank, int size);

}  // namespace pawl::loopback
