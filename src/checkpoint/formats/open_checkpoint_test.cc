#include "checkpoint/formats/open_checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

// A folder of our own in which a checkpoint lies under a name that says nothing; gone with the object.
class Renamed {
 public:
  explicit Renamed(const std::string& target) { EXPECT_EQ(::symlink(target.c_str(), path_.c_str()), 0) << target; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const TemporaryDirectory folder_;
  const std::string path_ = folder_.path("what it is called");
};

// Of each set that has the fixture: what lies at `below` in it, under another name, equals the golden.
void expect_equal(const std::string& fixture, const std::string& below, const std::set<std::string>& may_lack = {},
                  bool allow_more = false, const ReadOptions& options = {}) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/" + fixture;
    if (!path_exists(folder)) continue;
    SCOPED_TRACE(folder + "/" + below);
    const Renamed renamed(folder + "/" + below);
    Result<CheckpointView> view = open_checkpoint(renamed.path(), options);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_TRUE(options.parameter_names_file.empty() || view->unnamed.empty()) << view->unnamed[0];
    EXPECT_GT(fixtures::expect_golden(*view, folder + "/golden.safetensors", may_lack, allow_more), 1u);
  }
}

std::string error_of(const std::string& path, const ReadOptions& options = {}) {
  Result<CheckpointView> view = open_checkpoint(path, options);
  EXPECT_FALSE(view.has_value()) << path;
  return view ? std::string() : view.error().what;
}

TEST(OpenCheckpoint, EveryTrainingTreeOfDcpEqualsItsGolden) {
  for (const std::string name :
       {"G1_fsdp2_w4", "G1b_fsdp2_tied_w3", "G2_hsdp_2x2", "G3_fsdp2_tp_2x2", "G4_tp2_sp", "G7_pp2_dp2"})
    expect_equal("torch/" + name, "ckpt");
  for (const std::string name : {"G5_fsdp1_w4", "G5b_fsdp1_mesh_w2", "G5c_fsdp1_flat_w3"})
    expect_equal("torch/" + name, "sharded");
}

TEST(OpenCheckpoint, EveryVariantOfDcpEqualsItsGolden) {
  for (const std::string name : {"G8a_async_threads", "G8b_file_per_item", "G8c_no_dist", "G8g_boxes_2x2", "G8h_zstd",
                                 "G8i_fs_safetensors", "G8k_no_collectives", "G8l_overwritten", "G8m_w11"})
    expect_equal("torch/" + name, "ckpt");
  expect_equal("torch/G8d_dedup", "balanced");
  expect_equal("torch/G8d_dedup", "lowest_rank");
  const fixtures::GivenNames numbers("0.weight\n0.bias\n1.weight\n1.bias\n");  // an optimizer keys its state by them
  expect_equal("torch/K_dcp_numbered", "ckpt", {}, false, numbers.options());
  expect_equal("torch/G8e_objects", "ckpt", {}, true);  // two tensors are not in the golden, and optimizer states
}

TEST(OpenCheckpoint, APlannersOwnKeysStay) {
  PAWL_NEEDS_WHOLE_SET();
  const std::string folder = fixtures::whole_set() + "/torch/G8f_custom_planner";
  const Renamed renamed(folder + "/ckpt");
  Result<CheckpointView> view = open_checkpoint(renamed.path());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  for (StoredTensor& tensor : view->tensors) {
    ASSERT_TRUE(tensor.name.starts_with("renamed/")) << tensor.name;
    tensor.name.erase(0, std::string("renamed/").size());
  }
  EXPECT_EQ(fixtures::expect_golden(*view, folder + "/golden.safetensors", {}, false), 12u);
  EXPECT_EQ(view->objects, std::vector<std::string>{"renamed/nested"});
}

TEST(OpenCheckpoint, HuggingFaceFoldersEqualTheirGoldens) {
  for (const std::string name :
       {"I1_llama_gqa_tied", "I2_llama_sharded_bf16", "I3_mixtral_4_experts", "I4_gpt2", "I5_qwen2_sharded"})
    expect_equal("torch/" + name, "model");
  for (const std::string below :
       {"sharded_only", "sharded_two_files", "consolidated", "consolidated/sharded", "rank0_full"})
    expect_equal("torch/G8j_huggingface", below);
}

TEST(OpenCheckpoint, TiedHeadsAreAliases) {
  PAWL_NEEDS_WHOLE_SET();
  using Aliases = std::vector<std::pair<std::string, std::string>>;
  const auto aliases = [](const std::string& name) {
    Result<CheckpointView> view = open_checkpoint(fixtures::whole_set() + "/torch/" + name + "/model");
    return view ? view->aliases : Aliases();
  };
  EXPECT_EQ(aliases("I1_llama_gqa_tied"), (Aliases{{"lm_head.weight", "model.embed_tokens.weight"}}));
  EXPECT_EQ(aliases("I4_gpt2"), (Aliases{{"lm_head.weight", "transformer.wte.weight"}}));
  EXPECT_EQ(aliases("I5_qwen2_sharded"), (Aliases{{"lm_head.weight", "model.embed_tokens.weight"}}));
  EXPECT_EQ(aliases("I2_llama_sharded_bf16"), Aliases());
}

TEST(OpenCheckpoint, OneFileIsACheckpointToo) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/I6_formats";
    for (const std::string& name : fixtures::names_in(folder)) {
      if (!name.ends_with(".safetensors")) continue;
      const Renamed renamed(join_path(folder, name));
      Result<CheckpointView> view = open_checkpoint(renamed.path());
      EXPECT_TRUE(view.has_value()) << name << ": " << (view ? "" : view.error().what);
    }
  }
}

TEST(OpenCheckpoint, HostileSafetensorsAreRefusedThroughTheirFolder) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/I7_hostile";
    const fixtures::json golden = fixtures::golden(folder);  // items() refers to it
    for (const auto& [name, expected] : golden["files"].items()) {
      const std::string rule = expected["expected"];
      if (rule != "error") continue;
      Result<CheckpointView> view = open_checkpoint(join_path(folder, name));
      EXPECT_FALSE(view.has_value()) << name;
      if (!view) {
        EXPECT_NE(view.error().what.find(name), std::string::npos) << view.error().what;
      }
    }
  }
}

// What is found in a folder under another name; its own reader's test compares the elements.
std::string format_of(const std::string& folder) {
  const Renamed renamed(folder);
  Result<CheckpointView> view = open_checkpoint(renamed.path());
  EXPECT_TRUE(view.has_value()) << folder << ": " << (view ? "" : view.error().what);
  if (!view) return "";
  EXPECT_FALSE(view->tensors.empty()) << folder;
  return view->format;
}

TEST(OpenCheckpoint, DeepSpeedIsFoundInItsFolderAndInATags) {
  for (const std::string& set : fixtures::sets())
    for (const std::string& name : fixtures::names_in(set + "/deepspeed")) {
      const std::string folder = set + "/deepspeed/" + name;
      if (!fixtures::is_folder(folder + "/ckpt")) continue;
      const std::string tag = fixtures::content(folder + "/ckpt/latest");
      EXPECT_TRUE(format_of(folder + "/ckpt").starts_with("DeepSpeed")) << folder;
      EXPECT_TRUE(format_of(folder + "/ckpt/" + tag).starts_with("DeepSpeed")) << folder;
      if (!fixtures::is_folder(folder + "/universal")) continue;
      const std::string universal = fixtures::content(folder + "/universal/latest_universal");
      EXPECT_TRUE(format_of(folder + "/universal").starts_with("DeepSpeed universal")) << folder;
      EXPECT_TRUE(format_of(folder + "/universal/" + universal).starts_with("DeepSpeed universal")) << folder;
    }
}

TEST(OpenCheckpoint, MegatronIsFoundInItsFolderAndInAnIterations) {
  for (const std::string& set : fixtures::sets())
    for (const std::string& name : fixtures::names_in(set + "/torch")) {
      if (!name.starts_with("J")) continue;
      EXPECT_TRUE(format_of(set + "/torch/" + name).starts_with("Megatron")) << name;
      EXPECT_TRUE(format_of(set + "/torch/" + name + "/iter_0000003").starts_with("Megatron")) << name;
    }
}

TEST(OpenCheckpoint, FilesOfTorchSaveAreFoundAloneAndAsRanks) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/H_dtensor_ranks_w2";
    if (!path_exists(folder)) continue;
    EXPECT_FALSE(format_of(folder + "/rank0.pt").empty());
    const TemporaryDirectory ranks;
    for (const std::string& name : fixtures::names_in(folder))
      if (name.ends_with(".pt")) {
        ASSERT_EQ(::symlink(join_path(folder, name).c_str(), ranks.path(name).c_str()), 0);
      }
    EXPECT_FALSE(format_of(ranks.path()).empty());
  }
}

// An export beside what it was made from: which of them is meant has to be said.
TEST(OpenCheckpoint, RankFilesBesideASafetensorsFileAreAChoice) {
  const std::string folder = fixtures::small_set() + "/torch/H_dtensor_ranks_w2";  // with its golden in it
  ASSERT_TRUE(path_exists(folder + "/golden.safetensors"));
  const std::string several = error_of(folder);
  EXPECT_NE(several.find("several checkpoints"), std::string::npos) << several;
  EXPECT_TRUE(open_checkpoint(folder + "/golden.safetensors").has_value());
  Result<CheckpointView> chosen = open_checkpoint(folder, {.parameter_names_file = {}, .tag = "rank#.pt"});
  ASSERT_TRUE(chosen.has_value()) << chosen.error().what;
  EXPECT_GT(fixtures::expect_golden(*chosen, folder + "/golden.safetensors"), 1u);
}

TEST(OpenCheckpoint, FoldersAboveAreFollowedAndChoicesAreAsked) {
  const TemporaryDirectory folder;
  const std::string& top = folder.path();
  const std::string dcp = fixtures::small_set() + "/torch/G8c_no_dist/ckpt";
  const std::string huggingface = fixtures::small_set() + "/torch/I2_llama_sharded_bf16/model";
  EXPECT_NE(error_of(top).find("no checkpoint is recognised"), std::string::npos);
  ASSERT_EQ(::symlink(dcp.c_str(), join_path(top, "first").c_str()), 0);
  ASSERT_TRUE(open_checkpoint(top).has_value()) << open_checkpoint(top).error().what;
  EXPECT_EQ(open_checkpoint(top + "//")->format, "PyTorch DCP");
  ASSERT_EQ(::symlink(huggingface.c_str(), join_path(top, "second").c_str()), 0);
  const std::string several = error_of(top);
  EXPECT_NE(several.find("first (PyTorch DCP), second (Hugging Face)"), std::string::npos) << several;
  EXPECT_NE(several.find("--tag"), std::string::npos) << several;
  Result<CheckpointView> chosen = open_checkpoint(top, {.parameter_names_file = {}, .tag = "second"});
  ASSERT_TRUE(chosen.has_value()) << chosen.error().what;
  EXPECT_EQ(chosen->format, "Hugging Face safetensors");
  EXPECT_NE(error_of(top, {.parameter_names_file = {}, .tag = "third"}).find("third"), std::string::npos);
  ASSERT_TRUE(write_file_atomically(join_path(top, "latest"), "first\n").has_value());
  chosen = open_checkpoint(top);
  ASSERT_TRUE(chosen.has_value()) << chosen.error().what;
  EXPECT_EQ(chosen->format, "PyTorch DCP");
  ASSERT_TRUE(write_file_atomically(join_path(top, "latest"), "gone").has_value());
  EXPECT_NE(error_of(top).find("latest names gone"), std::string::npos) << error_of(top);
  ASSERT_TRUE(write_file_atomically(join_path(top, "latest"), "../first").has_value());
  EXPECT_FALSE(open_checkpoint(top).has_value());
}

TEST(OpenCheckpoint, WhatIsNoCheckpointIsSaid) {
  EXPECT_NE(error_of("/nowhere/at all").find("no such file"), std::string::npos);
  EXPECT_NE(error_of(fixtures::small_set() + "/torch/G8c_no_dist/golden.json").find("not a checkpoint"),
            std::string::npos);
  EXPECT_NE(error_of(fixtures::small_set() + "/torch/G8c_no_dist/ckpt/__0_0.distcp").find("give its folder"),
            std::string::npos);
}

TEST(OpenCheckpoint, ASaveThatDidNotEndIsIncomplete) {
  const TemporaryDirectory folder;
  const std::string from = fixtures::small_set() + "/torch/G8c_no_dist/ckpt";
  ASSERT_EQ(::symlink((from + "/__0_0.distcp").c_str(), folder.path("__0_0.distcp").c_str()), 0);
  const std::string error = error_of(folder.path());
  EXPECT_NE(error.find("incomplete checkpoint"), std::string::npos) << error;
}

}  // namespace
}  // namespace pawl::checkpoint
