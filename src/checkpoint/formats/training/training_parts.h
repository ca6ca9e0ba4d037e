// TrainingParts: which files of a folder are the weights, the optimizers and the rest of one training's checkpoint.
//
// Hugging Face's Trainer, PEFT, Accelerate and Lightning write them as files, and as folders of
// torch.distributed.checkpoint, whose names are always the same: model.safetensors and optimizer.pt;
// model_1.safetensors and optimizer_1.bin; pytorch_model_fsdp_0 and optimizer_0. Pure: decides by names alone; what the
// files hold is for training_folder.h.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

struct TrainingPart {
  enum class Form : std::uint8_t {
    huggingface,  // safetensors, or files that an index names
    torch,        // of torch.save: one file, or one of each rank
    dcp,          // a folder of torch.distributed.checkpoint
  };
  Form form = Form::huggingface;
  std::uint32_t number = 0;                                  // of model_1.safetensors: 1
  std::vector<std::pair<std::uint32_t, std::string>> files;  // rank (kNoRank: not a rank's), name
  bool is_below = false;  // huggingface: the name is that of a folder, in which the files are
};

struct TrainingParts {
  std::string writer;
  std::vector<TrainingPart> models;      // by number
  std::vector<TrainingPart> optimizers;  // likewise
  std::string progress;                  // the file that says the step; empty: there is none
  std::string scheduler;                 // the first one's state; likewise
  std::vector<std::string> others;       // files of the training that hold no weights and no optimizer
  std::vector<std::string> notes;
  std::vector<std::string> problems;  // parts that are missing
  std::string conflict;               // two files that claim to be the same part; empty: none
};

// `adapters`: those of the names that are folders of PEFT's adapters. Nothing where the names are not those of such a
// folder: a model's alone, or another format's.
[[nodiscard]] std::optional<TrainingParts> find_training_parts(std::span<const std::string> names,
                                                               std::span<const std::string> adapters = {});

}  // namespace pawl::checkpoint
