// ModelConfig: the config.json of Hugging Face that goes beside the weights which convert writes, and whether they are
// the ones that it describes.
//
// transformers makes up at random what a folder lacks, with a warning that is easily overlooked. So, for the
// architectures known here (llama, mistral, qwen2, qwen3, mixtral, gpt2, gpt_neox), names and shapes are compared with
// what config.json says before anything is written. Of other architectures nothing is known, and nothing is refused.
// Pure but for find_model_config(). A config.json is foreign: what can't be understood in it is left as it is.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/output/output_plan.h"
#include "checkpoint/view/checkpoint_view.h"
#include "cli/checkpoint/commands.h"
#include "env/files.h"

namespace pawl::checkpoint {

struct ModelConfig {
  std::string path;
  std::string text;
};

// --config, else the one that lies beside the source. Nothing where there is none, or none of a model.
// Fails for --config: `corrupt` where it is no JSON object; `not_found`, `io`.
[[nodiscard]] Result<std::optional<ModelConfig>> find_model_config(const ConvertOptions& options,
                                                                   const CheckpointView& view,
                                                                   Files& files = real_files());

// What the config tells about names: those of a wrapper in front of all of them go ("model." of a state dict saved
// under that key), and a head that the config does not tie gets a tensor of its own. Returns notes of what was done.
[[nodiscard]] std::vector<std::string> fit_names(const ModelConfig& config, CheckpointView& view);

// Sentences, empty where all fits: tensors that the config's model has and the plan lacks; shapes that differ.
[[nodiscard]] std::vector<std::string> what_differs(const ModelConfig& config, const CheckpointView& view,
                                                    const OutputPlan& plan);

// Puts config.json into the plan; its dtype becomes the one that the weights are written in.
void add_model_config(const ModelConfig& config, OutputPlan& plan);

}  // namespace pawl::checkpoint
