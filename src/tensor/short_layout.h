// The short form of a layout, as people type it: "tp=2,pp=2,dp=4,zero=1", with rules that know the tensors' names.
//
//   tp=N         tensor parallel: columns, rows and vocabularies are cut; fused tensors segment by segment
//   pp=N         pipeline stages; layers are spread evenly, or as stages=8/10/10/4, first=N and last=N say
//   vpp=N        chunks of each stage, interleaved
//   dp=N, cp=N   replicas: data and context parallel
//   fsdp=N       shard(0) of all of a tensor, after tensor parallelism (FSDP2); with dp=N: HSDP
//   ep=N, etp=N  experts: over ep ranks, each cut over etp (default: tp); their replicas are what is left
//   zero=0..3    1, 2: optimizer roles in flat groups over dp and cp; 3: weights too, each by itself
//   style=S      of zero=1, 2: how a flat group is aligned and padded: deepspeed or megatron
//   bucket=N     of style=megatron: elements of a bucket
//   vocab=N      vocabularies are padded to a multiple of N x tp (default: gpt 128, else 1)
//
// Ranks are counted tp fastest, then fsdp, cp, dp, pp, as Megatron's default and DeepSpeed's pipe topology do (experts:
// etp, ep, replicas, pp). Names are those of the whole model: one tensor a layer, or Megatron's with a layer axis.
// Roles: "weight" is the weight; "buffer" and "step" are never cut but by pipeline stages; all others are the
// optimizer's.
// `pawl inspect --layout` shows what comes out. Pure; the layout is checked.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/enumerate.h"
#include "tensor/rules.h"

namespace pawl {

// Which names the rules know.
enum class ModelRules : std::uint8_t {
  gpt,      // Megatron GPT, GPT-2 and GPT-NeoX
  llama,    // Hugging Face's names, and Megatron's with gated layers
  mixtral,  // llama with experts
};
[[nodiscard]] std::optional<ModelRules> model_rules_named(std::string_view name);

// `left_out`: if given, tensors that the rules do not know or that don't divide are left out of the layout, and each is
// named there with the reason. Fails: `invalid`, naming the key; without `left_out` also for such tensors, naming five.
[[nodiscard]] Result<JobLayout> parse_short_layout(std::string_view text, ModelRules rules,
                                                   const std::vector<NamedTensor>& tensors,
                                                   std::vector<std::string>* left_out = nullptr);

}  // namespace pawl
