// Universal folders against the goldens of the jobs whose checkpoints DeepSpeed converted, and damaged ones.
#include "checkpoint/formats/deepspeed/universal.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "checkpoint/formats/deepspeed/golden_steps.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

namespace fs = std::filesystem;
using fixtures::json;

// The fixtures that were converted.
std::vector<std::string> converted() {
  std::vector<std::string> out;
  for (const std::string& set : fixtures::sets()) {
    if (!path_exists(set + "/deepspeed")) continue;
    for (const auto& entry : fs::directory_iterator(set + "/deepspeed"))
      if (fs::is_directory(entry.path() / "universal")) out.push_back(entry.path().string());
  }
  std::ranges::sort(out);
  return out;
}

// What DeepSpeed itself could not restore from the folder, of trainable parameters: weights of which tensor-parallel
// ranks had different copies. Buffers and frozen parameters it could not restore are in the folder all the same.
std::set<std::string> cannot_be_there(const std::string& fixture) {
  const json golden = fixtures::golden(fixture);
  std::set<std::string> out;
  for (const json& reload : golden["reloads"])
    if (reload.contains("topology"))
      for (const std::string key : reload["differing"]) {
        const json layout = golden["params"].value(key.substr(0, key.rfind('/')), json::object());
        if (layout.value("layout", json::array()) == json::array({"avg"})) out.insert(key);
      }
  return out;
}

std::size_t expect_golden(CheckpointView view, const std::string& fixture) {
  const std::set<std::string> lacking = cannot_be_there(fixture);
  std::erase_if(view.tensors,
                [&](const StoredTensor& tensor) { return lacking.contains(tensor.name + "/" + tensor.role); });
  return fixtures::expect_golden(view, fixture + "/golden.safetensors", lacking);
}

bool is_wrong_conversion(const std::string& fixture) {
  return fixture.ends_with("/zero2_w3_round_robin");
}

TEST(Universal, EqualsGoldenWhereTheConversionWasRight) {
  std::size_t folders = 0;
  for (const std::string& fixture : converted()) {
    if (is_wrong_conversion(fixture)) continue;
    SCOPED_TRACE(fixture);
    const Result<CheckpointView> view = view_universal(fixture + "/universal");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_GT(expect_golden(*view, fixture), 40u);
    ++folders;
  }
  EXPECT_GE(folders, 2u);
}

TEST(Universal, WholeSet) {
  PAWL_NEEDS_WHOLE_SET();
  EXPECT_GE(converted().size(), 20u);
}

// What DeepSpeed converted wrongly is read as it is: other values, of the right shapes.
TEST(Universal, WrongConversionIsReadAsItIs) {
  PAWL_NEEDS_WHOLE_SET();
  const std::string fixture = fixtures::whole_set() + "/deepspeed/zero2_w3_round_robin";
  const Result<CheckpointView> view = view_universal(fixture + "/universal");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const std::string bytes = fixtures::content(fixture + "/golden.safetensors");
  MemoryBytes source(bytes);
  const Result<SafetensorsFile> golden = read_safetensors(source);
  fixtures::Contents contents(*view);
  std::size_t equal = 0, different = 0;
  for (const StoredTensor& tensor : view->tensors)
    for (const SafetensorsEntry& entry : golden->tensors)
      if (entry.name == tensor.name + "/" + tensor.role) {
        EXPECT_EQ(entry.shape, tensor.shape) << entry.name;
        const bool is_equal =
            fixtures::whole_of(tensor, contents) == bytes.substr(entry.offset_bytes, entry.size_bytes);
        ++(is_equal ? equal : different);
        EXPECT_TRUE(is_equal || (tensor.role != "weight" && tensor.role != "buffer")) << entry.name;
      }
  EXPECT_GT(different, 20u);
  EXPECT_GT(equal, 10u);
}

TEST(Universal, Steps) {
  for (const std::string& fixture : converted()) {
    SCOPED_TRACE(fixture);
    const Result<CheckpointView> view = view_universal(fixture + "/universal");
    ASSERT_TRUE(view.has_value());
    fixtures::expect_golden_steps(*view, fixtures::golden(fixture));
  }
}

class UniversalCopy : public ::testing::Test {
 protected:
  // The universal folder of a fixture of the small set, under another name and without the pointer to it.
  std::string copy_of(const std::string& fixture) {
    const std::string from = fixtures::small_set() + "/deepspeed/" + fixture + "/universal";
    for (const auto& entry : fs::directory_iterator(from))
      if (entry.is_directory()) fs::copy(entry.path(), root_ / "renamed", fs::copy_options::recursive);
    return (root_ / "renamed").string();
  }
  static std::string problems_of(const std::string& folder) {
    const Result<CheckpointView> view = view_universal(folder);
    if (!view) return "failed: " + view.error().what;
    std::string out;
    for (const std::string& problem : view->problems) out += problem + "\n";
    return out;
  }
  const TemporaryDirectory folder_;
  const fs::path root_ = folder_.path();
};

TEST_F(UniversalCopy, OfAnyName) {
  for (const std::string name : {"zero2_w1_empty", "zero3_w2_bf16"}) {
    const std::string fixture = fixtures::small_set() + "/deepspeed/" + name;
    const std::string folder = copy_of(name);
    const Result<CheckpointView> view = view_universal(folder);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    expect_golden(*view, fixture);
    fs::remove_all(folder);
  }
}

TEST_F(UniversalCopy, DamageIsAProblemThatNamesTheFile) {
  const std::string folder = copy_of("zero2_w1_empty");
  EXPECT_EQ(problems_of(folder), "");
  const fs::path parameter = fs::path(folder) / "zero" / "ln_f.weight";
  fs::resize_file(parameter / "exp_avg.pt", fs::file_size(parameter / "exp_avg.pt") / 2);
  EXPECT_NE(problems_of(folder).find("ln_f.weight/exp_avg.pt"), std::string::npos);
  fs::remove(parameter / "exp_avg.pt");
  EXPECT_NE(problems_of(folder).find("ln_f.weight has no exp_avg.pt"), std::string::npos);
  fs::remove_all(parameter);
  EXPECT_NE(problems_of(folder).find("ln_f.weight is missing"), std::string::npos);
  fs::create_directories(parameter);
  EXPECT_NE(problems_of(folder).find("ln_f.weight"), std::string::npos);
  fs::remove_all(fs::path(folder) / "zero");
  EXPECT_NE(problems_of(folder).find("failed: "), std::string::npos);
}

TEST_F(UniversalCopy, FlatTensorsNeedModelStates) {
  const std::string folder = copy_of("zero3_w2_bf16");
  fs::create_directories(fs::path(folder) / "tmp");
  Result<CheckpointView> view = view_universal(folder);
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(view->problems.empty());
  EXPECT_TRUE(std::ranges::any_of(
      view->notes, [](const std::string& note) { return note.find("/tmp was left") != std::string::npos; }));
  for (int rank = 0; rank < 2; ++rank)
    fs::remove(fs::path(folder) / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt"));
  EXPECT_NE(problems_of(folder).find("shape"), std::string::npos);
}

TEST_F(UniversalCopy, ThePointerStaysInItsFolder) {
  const std::string folder = copy_of("zero2_w1_empty");
  const auto point_to = [&](const std::string& name) { std::ofstream(root_ / "latest_universal") << name; };
  point_to("renamed\n");
  EXPECT_EQ(problems_of(root_.string()), "");
  point_to("../renamed");
  EXPECT_NE(problems_of(root_.string()).find("names no folder beside itself"), std::string::npos);
  point_to("another");
  EXPECT_NE(problems_of(root_.string()).find("another"), std::string::npos);
  ReadOptions options;
  options.tag = "renamed";
  EXPECT_TRUE(view_universal(root_.string(), options).has_value());
  fs::remove(root_ / "latest_universal");
  EXPECT_FALSE(view_universal(root_.string()).has_value());
  EXPECT_TRUE(is_universal(folder));
  EXPECT_FALSE(is_universal(root_.string()));
}

// No two files may be taken for one, whatever they are called; what isn't a parameter's is said.
TEST_F(UniversalCopy, OtherFilesAreNoted) {
  const std::string folder = copy_of("zero2_w1_empty");
  std::ofstream(fs::path(folder) / "zero" / "gain" / "README") << "x";
  std::ofstream(fs::path(folder) / "zero" / "stray.pt") << "x";
  const Result<CheckpointView> view = view_universal(folder);
  ASSERT_TRUE(view.has_value());
  EXPECT_TRUE(view->problems.empty()) << view->problems[0];
  EXPECT_EQ(std::ranges::count_if(view->notes,
                                  [](const std::string& note) { return note.find("ignored") != std::string::npos; }),
            2);
}

}  // namespace
}  // namespace pawl::checkpoint
