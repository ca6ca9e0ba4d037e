#include "checkpoint/formats/training/training_parts.h"

#include <gtest/gtest.h>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

using Names = std::vector<std::string>;

std::string files_of(const std::vector<TrainingPart>& parts) {
  std::string out;
  for (const TrainingPart& part : parts)
    for (const auto& [rank, name] : part.files) append_text(out, text(part.number, ':', name, ' '));
  return out;
}

std::string all_of(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) append_text(out, text(sentence, '\n'));
  return out;
}

bool says(const std::vector<std::string>& sentences, std::string_view what) {
  return all_of(sentences).find(what) != std::string::npos;
}

TEST(TrainingParts, TrainerWritesOneModelAndOneOptimizer) {
  for (const Names& weights :
       {Names{"model.safetensors"},
        Names{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json"},
        Names{"pytorch_model.bin"}, Names{"adapter_config.json", "adapter_model.safetensors"}}) {
    Names names = weights;
    for (const char* const name : {"config.json", "optimizer.pt", "rng_state_0.pth", "rng_state_1.pth", "scheduler.pt",
                                   "trainer_state.json", "training_args.bin"})
      names.emplace_back(name);
    const std::optional<TrainingParts> parts = find_training_parts(names);
    ASSERT_TRUE(parts.has_value()) << weights[0];
    EXPECT_EQ(parts->models.size(), 1u);
    EXPECT_EQ(files_of(parts->optimizers), "0:optimizer.pt ");
    EXPECT_EQ(parts->progress, "trainer_state.json");
    EXPECT_EQ(parts->writer, weights.size() == 2 ? "transformers Trainer with PEFT" : "transformers Trainer");
    EXPECT_EQ(parts->others.size(), 5u) << all_of(parts->others);
    EXPECT_TRUE(parts->problems.empty()) << all_of(parts->problems);
    EXPECT_TRUE(parts->notes.empty()) << all_of(parts->notes);
    EXPECT_EQ(parts->conflict, "");
  }
}

TEST(TrainingParts, AccelerateNumbersModelsAndOptimizers) {
  const std::optional<TrainingParts> parts = find_training_parts(
      Names{"custom_checkpoint_0.pkl", "model.safetensors", "model_1.safetensors", "model_10.safetensors",
            "model_2.safetensors", "model_3.safetensors", "model_4.safetensors", "model_5.safetensors",
            "model_6.safetensors", "model_7.safetensors", "model_8.safetensors", "model_9.safetensors", "optimizer.bin",
            "optimizer_1.bin", "random_states_0.pkl", "sampler.bin", "sampler_1.bin"});
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(parts->writer, "Accelerate");
  ASSERT_EQ(parts->models.size(), 11u);
  EXPECT_EQ(parts->models[10].files[0].second, "model_10.safetensors");
  EXPECT_EQ(files_of(parts->optimizers), "0:optimizer.bin 1:optimizer_1.bin ");
  EXPECT_TRUE(says(parts->notes, "custom_checkpoint_0.pkl"));
  EXPECT_TRUE(parts->problems.empty()) << all_of(parts->problems);
}

TEST(TrainingParts, FoldersOfFsdpAreOneTraining) {
  const std::optional<TrainingParts> folders =
      find_training_parts(Names{"optimizer_0", "pytorch_model_fsdp_0", "random_states_0.pkl"});
  ASSERT_TRUE(folders.has_value());
  EXPECT_EQ(folders->models.at(0).form, TrainingPart::Form::dcp);
  EXPECT_EQ(folders->optimizers.at(0).form, TrainingPart::Form::dcp);
  const std::optional<TrainingParts> ranks =
      find_training_parts(Names{"optimizer_0_rank0.bin", "optimizer_0_rank1.bin", "pytorch_model_fsdp_0_rank0.bin",
                                "pytorch_model_fsdp_0_rank1.bin"});
  ASSERT_TRUE(ranks.has_value());
  EXPECT_EQ(files_of(ranks->models), "0:pytorch_model_fsdp_0_rank0.bin 0:pytorch_model_fsdp_0_rank1.bin ");
  EXPECT_EQ(ranks->optimizers.at(0).files.at(1).first, 1u);
  EXPECT_EQ(ranks->conflict, "");
  EXPECT_TRUE(ranks->problems.empty()) << all_of(ranks->problems);
  const std::optional<TrainingParts> lacking = find_training_parts(
      Names{"optimizer_0_rank0.bin", "pytorch_model_fsdp_0_rank0.bin", "pytorch_model_fsdp_0_rank1.bin"});
  ASSERT_TRUE(lacking.has_value());
  EXPECT_EQ(all_of(lacking->problems), "optimizer state: rank 1's file is missing beside optimizer_0_rank0.bin\n");
}

TEST(TrainingParts, OtherFoldersAreNone) {
  for (const Names& names :
       {Names{}, Names{"config.json", "model.safetensors"}, Names{"model.pt", "optimizer.pt"},
        Names{"optimizer_0", "other"}, Names{".metadata", "__0_0.distcp"}, Names{"rank0.pt", "rank1.pt"},
        Names{"model_index.json", "scheduler", "unet"}, Names{"model_1.safetensors", "model_2.safetensors"},
        Names{"latest", "global_step3", "zero_to_fp32.py"}})
    EXPECT_FALSE(find_training_parts(names).has_value()) << (names.empty() ? "" : names[0]);
}

TEST(TrainingParts, WhatIsMissingIsSaid) {
  const auto problem = [](Names names) { return all_of(find_training_parts(names).value().problems); };
  EXPECT_NE(problem({"model.safetensors", "rng_state.pth", "trainer_state.json"})
                .find("optimizer state: its file is missing: rng_state.pth is there"),
            std::string::npos);
  EXPECT_NE(problem({"model.safetensors", "random_states_0.pkl", "scheduler.bin"}).find("scheduler.bin is there"),
            std::string::npos);
  EXPECT_NE(problem({"optimizer.pt", "scheduler.pt", "trainer_state.json"}).find("the weights are missing"),
            std::string::npos);
  EXPECT_NE(problem({"model.safetensors", "model_2.safetensors", "optimizer.bin"})
                .find("model number 1 is missing, and model_2.safetensors is there"),
            std::string::npos);
  EXPECT_NE(problem({"model.safetensors", "optimizer_1.bin"}).find("optimizer state: optimizer number 0 is missing"),
            std::string::npos);
  EXPECT_NE(problem({"global_step3", "model.safetensors", "scheduler.pt", "trainer_state.json"}).find("global_step3"),
            std::string::npos);
  EXPECT_NE(problem({"model.safetensors", "rank0-of-2-optimizer.pt", "trainer_state.json"}).find("torch-xla"),
            std::string::npos);
}

TEST(TrainingParts, WeightsAloneAreNoFault) {
  const std::optional<TrainingParts> parts = find_training_parts(Names{"model.safetensors", "trainer_state.json"});
  ASSERT_TRUE(parts.has_value());
  EXPECT_TRUE(parts->problems.empty());
  EXPECT_TRUE(says(parts->notes, "saved alone"));
}

TEST(TrainingParts, AnAdapterWithANameOfItsOwnLiesInAFolder) {
  const Names names = {"mine", "optimizer.pt", "other", "scheduler.pt", "trainer_state.json"};
  const std::optional<TrainingParts> one = find_training_parts(names, Names{"mine"});
  ASSERT_TRUE(one.has_value());
  EXPECT_EQ(files_of(one->models), "0:mine ");
  EXPECT_TRUE(one->models[0].is_below);
  EXPECT_TRUE(one->problems.empty()) << all_of(one->problems);
  EXPECT_EQ(one->writer, "transformers Trainer with PEFT");
  const std::optional<TrainingParts> several = find_training_parts(names, Names{"mine", "other"});
  ASSERT_TRUE(several.has_value());
  EXPECT_TRUE(says(several->problems, "the weights are missing")) << all_of(several->problems);
  EXPECT_TRUE(says(several->notes, "the adapter in other is not read"));
}

TEST(TrainingParts, TwoFilesOfOnePartAreAConflict) {
  EXPECT_NE(find_training_parts(Names{"model.safetensors", "optimizer.bin", "optimizer.pt"}).value().conflict, "");
  EXPECT_NE(find_training_parts(Names{"model.safetensors", "optimizer.bin", "optimizer_0"}).value().conflict, "");
}

TEST(TrainingParts, OfWeightsThatAreThereTwiceTheTrainingsOwnAreTaken) {
  const std::optional<TrainingParts> parts = find_training_parts(
      Names{"model.safetensors", "optimizer.bin", "pytorch_model.bin", "pytorch_model_fsdp.bin", "trainer_state.json"});
  ASSERT_TRUE(parts.has_value());
  EXPECT_EQ(files_of(parts->models), "0:pytorch_model_fsdp.bin ");
  EXPECT_TRUE(says(parts->notes, "model.safetensors has weights, too"));
  EXPECT_TRUE(says(parts->notes, "pytorch_model.bin has weights, too"));
}

}  // namespace
}  // namespace pawl::checkpoint
