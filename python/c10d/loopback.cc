#include "loopback.h"

namespace pawl::loopback {
namespace {

void put(const at::Tensor& output, const at::Tensor& input) {
  if (output.is_same(input)) return;
  if (output.numel() == input.numel()) {
    output.copy_(input.reshape(output.sizes()));
  } else {
    output.zero_();
  }
}

// Dimension 0 of the tensor cut into the group's parts.
Tensors cut(const at::Tensor& tensor, const std::vector<int64_t>& splits, int size) {
  if (splits.empty()) return tensor.tensor_split(size);
  return tensor.split_with_sizes(splits);
}

}  // namespace

void zero(const Tensors& tensors) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (const at::Tensor& tensor : tensors) tensor.zero_();
}

void all_gather(const TensorLists& outputs, const Tensors& inputs) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (const at::Tensor& output : outputs[i]) put(output, inputs.at(i));
  }
}

void all_gather_coalesced(const TensorLists& outputs, const Tensors& inputs) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (const Tensors& of_rank : outputs) {
    for (std::size_t i = 0; i < of_rank.size(); ++i) put(of_rank[i], inputs.at(i));
  }
}

void all_gather_into(const at::Tensor& output, const at::Tensor& input, int size) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  // The input may be a slice of the output.
  const at::Tensor part = input.reshape({1, -1}).clone();
  output.view({size, -1}).copy_(part.expand({size, part.size(1)}));
}

void reduce_scatter(const Tensors& outputs, const TensorLists& inputs, int rank) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (std::size_t i = 0; i < outputs.size(); ++i) put(outputs[i], inputs.at(i).at(rank));
}

void reduce_scatter_from(const at::Tensor& output, const at::Tensor& input, int rank, int size) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  output.view({-1}).copy_(input.reshape({size, -1}).select(0, rank).clone());
}

void scatter(const Tensors& outputs, const TensorLists& inputs, int rank) {
  if (inputs.empty() || inputs[0].empty()) return zero(outputs);
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  for (std::size_t i = 0; i < outputs.size(); ++i) put(outputs[i], inputs.at(i).at(rank));
}

void all_to_all(const Tensors& outputs, const Tensors& inputs, int rank) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const at::Tensor own = inputs.at(rank).clone();
  for (const at::Tensor& output : outputs) put(output, own);
}

void all_to_all_single(const at::Tensor& output, const at::Tensor& input, const std::vector<int64_t>& output_splits,
                       const std::vector<int64_t>& input_splits, int rank, int size) {
  const at::AutoDispatchBelowADInplaceOrView unrecorded;
  const at::Tensor own = cut(input, input_splits, size).at(rank).clone();
  for (const at::Tensor& part : cut(output, output_splits, size)) put(part, own);
}

}  // namespace pawl::loopback
