#include "checkpoint/formats/training/training_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

const std::string kFolders = fixtures::small_set() + "/torch/L_training_folders";

std::string all_of(const std::vector<std::string>& sentences) {
  std::string out;
  for (const std::string& sentence : sentences) append_text(out, text(sentence, '\n'));
  return out;
}

std::string fact(const CheckpointView& view, std::string_view key) {
  for (const auto& [name, value] : view.facts)
    if (name == key) return value;
  return {};
}

bool has_role(const CheckpointView& view, std::string_view role) {
  return std::ranges::any_of(view.tensors, [&](const StoredTensor& tensor) { return tensor.role == role; });
}

ReadOptions named_by(const std::string& file) {
  ReadOptions options;
  options.parameter_names_file = file;
  return options;
}

// A copy of a fixture, without some of its files.
class Copy : public TemporaryDirectory {
 public:
  explicit Copy(const std::string& from, const std::vector<std::string>& without = {}) {
    for (const std::string& name : fixtures::names_in(from))
      if (std::ranges::find(without, name) == without.end() && !fixtures::is_folder(join_path(from, name)))
        write(name, fixtures::content(join_path(from, name)));
  }
  void write(const std::string& name, const std::string& bytes) const {
    EXPECT_TRUE(write_file_atomically(path(name), bytes).has_value());
  }
  [[nodiscard]] CheckpointView view(const ReadOptions& options = {}) const {
    Result<CheckpointView> view = open_checkpoint(path(), options);
    EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
    return view ? std::move(*view) : CheckpointView();
  }
};

struct Case {
  std::string folder, checkpoint, format;
  std::size_t tensors;  // of the golden
};
const Case kTrainer{"trainer", "checkpoint-3", "transformers Trainer", 84};
const Case kPeft{"peft", "checkpoint-3", "transformers Trainer with PEFT", 32};

TEST(TrainingFolder, TrainersWeightsAndOptimizerAreTheGoldenOnceNumbersHaveNames) {
  for (const Case& each : {kTrainer, kPeft}) {
    const std::string folder = join_path(kFolders, each.folder);
    Result<CheckpointView> view =
        open_checkpoint(join_path(folder, each.checkpoint), named_by(join_path(folder, "names.json")));
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_EQ(view->format, each.format);
    EXPECT_EQ(fact(*view, "step"), "3");
    EXPECT_EQ(fact(*view, "epoch"), "1.5");
    EXPECT_TRUE(view->unnamed.empty()) << all_of(view->unnamed);
    EXPECT_EQ(fixtures::expect_golden(*view, join_path(folder, "golden.safetensors"), {}, false), each.tensors);
    EXPECT_NE(view->values.find("\"weight_decay\":0.1"), std::string::npos) << view->values;
  }
}

TEST(TrainingFolder, TrainersNumbersStayWhereNobodyNamesThem) {
  for (const Case& each : {kTrainer, kPeft}) {
    Result<CheckpointView> view = open_checkpoint(join_path(join_path(kFolders, each.folder), each.checkpoint));
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_NE(all_of(view->unnamed).find("--param-names"), std::string::npos) << all_of(view->unnamed);
    EXPECT_TRUE(view->problems.empty()) << all_of(view->problems);
    EXPECT_TRUE(std::ranges::any_of(view->tensors, [](const StoredTensor& tensor) {
      return tensor.name == "optimizer.state.0" && tensor.role == "exp_avg";
    }));
  }
}

TEST(TrainingFolder, AnAdapterInAFolderOfItsNameIsTheTrainingsModel) {
  const std::string from = join_path(kFolders, "peft");
  const Copy copy(join_path(from, "checkpoint-3"), {"adapter_config.json", "adapter_model.safetensors"});
  ASSERT_TRUE(std::filesystem::create_directory(copy.path("mine")));
  for (const std::string name : {"adapter_config.json", "adapter_model.safetensors"})
    copy.write("mine/" + name, fixtures::content(join_path(join_path(from, "checkpoint-3"), name)));
  const CheckpointView view = copy.view(named_by(join_path(from, "names.json")));
  EXPECT_EQ(fixtures::expect_golden(view, join_path(from, "golden.safetensors"), {}, false), 32u);
}

TEST(TrainingFolder, AccelerateFsdp2sTwoFoldersAreOneCheckpoint) {
  const std::string folder = join_path(kFolders, "accelerate_fsdp2");
  Result<CheckpointView> view = open_checkpoint(join_path(folder, "state"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, "Accelerate");
  EXPECT_EQ(fact(*view, "step"), "2");
  EXPECT_EQ(fixtures::expect_golden(*view, join_path(folder, "golden.safetensors"), {}, false), 16u);
  EXPECT_NE(view->values.find("\"weight_decay\":0.1"), std::string::npos) << view->values;
}

TEST(TrainingFolder, AFolderOfFsdpWithoutItsOptimizersMetadataKeepsItsWeights) {
  const TemporaryDirectory folder;
  std::filesystem::copy(join_path(kFolders, "accelerate_fsdp2/state"), folder.path(),
                        std::filesystem::copy_options::recursive);
  std::filesystem::remove(folder.path("optimizer_0/.metadata"));
  Result<CheckpointView> view = open_checkpoint(folder.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(has_role(*view, "weight"));
  EXPECT_NE(all_of(view->problems).find("optimizer state: "), std::string::npos) << all_of(view->problems);
}

TEST(TrainingFolder, AnOptimizerThatIsMissingOrDamagedIsAProblemOfTheOptimizerAlone) {
  const std::string from = join_path(join_path(kFolders, "trainer"), "checkpoint-3");
  const Copy missing(from, {"optimizer.pt"});
  const Copy cut(from);
  cut.write("optimizer.pt", fixtures::content(from + "/optimizer.pt").substr(0, 20000));
  for (const Copy* const copy : {&missing, &cut}) {
    const CheckpointView view = copy->view();
    ASSERT_EQ(view.problems.size(), 1u) << all_of(view.problems);
    EXPECT_TRUE(view.problems[0].starts_with("optimizer state: ")) << view.problems[0];
    EXPECT_TRUE(has_role(view, "weight"));
    EXPECT_FALSE(has_role(view, "exp_avg"));
  }
}

TEST(TrainingFolder, WeightsThatAreMissingAreAProblem) {
  const Copy copy(join_path(join_path(kFolders, "trainer"), "checkpoint-3"), {"model.safetensors"});
  EXPECT_NE(all_of(copy.view().problems).find("the weights are missing"), std::string::npos);
}

TEST(TrainingFolder, AFileThatNobodyKnowsIsSaid) {
  const std::string from = join_path(join_path(kFolders, "trainer"), "checkpoint-3");
  const Copy copy(from);
  copy.write("non_lora_state_dict.bin", fixtures::content(from + "/optimizer.pt"));
  EXPECT_NE(all_of(copy.view().notes).find("non_lora_state_dict.bin may hold tensors"), std::string::npos)
      << all_of(copy.view().notes);
}

TEST(TrainingFolder, FilesUnderNamesOfTheProgramsOwnAreReadAsBefore) {
  const std::string from = join_path(join_path(kFolders, "trainer"), "checkpoint-3");
  const Copy copy(from, {"model.safetensors", "trainer_state.json", "config.json"});
  copy.write("weights.pt", fixtures::content(join_path(kFolders, "lightning/last.ckpt")));
  const CheckpointView view = copy.view();
  EXPECT_NE(view.format, "transformers Trainer");
  EXPECT_TRUE(has_role(view, "weight"));
}

TEST(TrainingFolder, FilesOfDifferentSavesAreSaid) {
  const Copy copy(join_path(join_path(kFolders, "trainer"), "checkpoint-3"));
  const std::string state = fixtures::content(copy.path("trainer_state.json"));
  const auto with_step = [&](std::string_view step) {
    std::string changed = state;
    const std::size_t at = changed.find("\"global_step\": 3");
    EXPECT_NE(at, std::string::npos);
    copy.write("trainer_state.json", changed.replace(at + 15, 1, step));
    return copy.view();
  };
  const CheckpointView ahead = with_step("2");
  EXPECT_NE(all_of(ahead.problems).find("optimizer state: it has done 3 steps, and trainer_state.json says 2"),
            std::string::npos)
      << all_of(ahead.problems);
  const CheckpointView several = with_step("1");  // each with three updates
  EXPECT_TRUE(several.problems.empty()) << all_of(several.problems);
  EXPECT_NE(all_of(several.notes).find("it does several in each"), std::string::npos) << all_of(several.notes);
  const CheckpointView behind = with_step("12");
  EXPECT_TRUE(behind.problems.empty()) << all_of(behind.problems);
  EXPECT_NE(all_of(behind.notes).find("the optimizer has done 3 steps, and trainer_state.json says 12"),
            std::string::npos)
      << all_of(behind.notes);
  EXPECT_NE(all_of(behind.notes).find("scheduler.pt is at step 3"), std::string::npos) << all_of(behind.notes);
  copy.write("trainer_state.json", "{\"best_metric\": NaN, \"global_step\": 3}");
  EXPECT_NE(all_of(copy.view().notes).find("trainer_state.json does not say the step"), std::string::npos);
}

TEST(TrainingFolder, CheckpointsBelowAModelAreSaid) {
  const std::string from = join_path(join_path(kFolders, "trainer"), "checkpoint-3");
  const Copy copy(from, {"optimizer.pt", "scheduler.pt", "trainer_state.json"});
  EXPECT_EQ(all_of(copy.view().notes), "");
  for (const std::string name : {"checkpoint-3", "checkpoint-12"})
    std::filesystem::copy(from, copy.path(name), std::filesystem::copy_options::recursive);
  const CheckpointView model = copy.view();
  EXPECT_FALSE(has_role(model, "exp_avg"));
  EXPECT_NE(all_of(model.notes).find("checkpoint-12 and 1 more are checkpoints of their own"), std::string::npos)
      << all_of(model.notes);
  ReadOptions options;
  options.tag = "checkpoint-3";
  EXPECT_TRUE(has_role(copy.view(options), "exp_avg"));
}

TEST(TrainingFolder, WhatDeepSpeedWroteBesideATrainersFilesIsReadByItsPointer) {
  const Copy copy(join_path(join_path(kFolders, "trainer"), "checkpoint-3"), {"optimizer.pt"});
  std::filesystem::copy(fixtures::small_set() + "/deepspeed/zero2_w1_empty/ckpt", copy.path(),
                        std::filesystem::copy_options::recursive);
  const CheckpointView pointed = copy.view();
  EXPECT_TRUE(pointed.format.starts_with("DeepSpeed")) << pointed.format;
  EXPECT_TRUE(has_role(pointed, "exp_avg"));
  std::filesystem::remove(copy.path("latest"));
  EXPECT_NE(all_of(copy.view().problems).find("optimizer state: it is in global_step3 (DeepSpeed); --tag global_step3"),
            std::string::npos);
}

TEST(TrainingFolder, TwoOptimizersFilesAreNotChosenFrom) {
  const Copy copy(join_path(join_path(kFolders, "trainer"), "checkpoint-3"));
  copy.write("optimizer.bin", fixtures::content(copy.path("optimizer.pt")));
  const Result<CheckpointView> view = open_checkpoint(copy.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().code, Code::invalid);
  EXPECT_NE(view.error().what.find("optimizer.bin and optimizer.pt claim to be the same part"), std::string::npos)
      << view.error().what;
}

TEST(TrainingFolder, AcceleratesTwoModelsHaveNamesThatSayWhich) {
  const std::string folder = join_path(kFolders, "accelerate");
  Result<CheckpointView> view = open_checkpoint(join_path(folder, "state"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, "Accelerate");
  EXPECT_EQ(fact(*view, "step"), "2");
  EXPECT_TRUE(view->unnamed.empty()) << all_of(view->unnamed);
  EXPECT_EQ(fixtures::expect_golden(*view, join_path(folder, "golden.safetensors"), {}, false), 27u);
}

TEST(TrainingFolder, LightningsFileHasBothOptimizersStates) {
  const std::string folder = join_path(kFolders, "lightning");
  Result<CheckpointView> view = open_checkpoint(join_path(folder, "last.ckpt"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->unnamed.empty()) << all_of(view->unnamed);
  EXPECT_EQ(fixtures::expect_golden(*view, join_path(folder, "golden.safetensors"), {}, false), 27u);
}

}  // namespace
}  // namespace pawl::checkpoint
