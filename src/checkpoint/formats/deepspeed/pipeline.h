// Pipeline layers: under which names the optimizer knows what a pipeline's layer files hold.
//
// A file has its layer's number in its name and plain keys inside. The optimizer says <number>.<key>, or, where the
// layer is a tied module, tied_modules.<word>.<key>; no file says which layer that is. So keys and shapes are
// matched, and equal ones by order: tied modules and layers come in the model's order. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tensor/box.h"

namespace pawl::checkpoint::deepspeed {

using NamedShapes = std::vector<std::pair<std::string, Shape>>;

struct PipelineLayer {
  std::uint32_t number = 0;
  NamedShapes tensors;
};

struct LayerPrefix {
  std::string prefix;          // "3.", "tied_modules.embed."
  bool is_second_use = false;  // a tied module again: an earlier layer's file has it
};

// `layers` in ascending order; `parameters` as the optimizers of all stages name and shape them, stages in order, for
// the same tensor-parallel rank. One prefix a layer.
[[nodiscard]] std::vector<LayerPrefix> layer_prefixes(const std::vector<PipelineLayer>& layers,
                                                      const NamedShapes& parameters);

// The number in front of "3.attention.weight"; false: there is none.
[[nodiscard]] bool layer_number(const std::string& name, std::uint32_t& number);

}  // namespace pawl::checkpoint::deepspeed
