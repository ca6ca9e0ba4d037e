// The atomic form as we write it, read back against the jobs' goldens, bit for bit.
#include "checkpoint/formats/native/atomic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "checkpoint/output/partial_output.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

class AtomicTest : public testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.path(name); }

  void write(const CheckpointView& view, const std::string& path, const WriteOptions& options = {}) {
    const Result<OutputPlan> plan = plan_atomic(view, options);
    ASSERT_TRUE(plan) << plan.error().what;
    Result<PartialOutput> output = PartialOutput::begin(path, partial_options(*plan, true));
    ASSERT_TRUE(output) << output.error().what;
    OutputOptions how;
    how.execution.sync = false;
    how.execution.direct = false;
    const Result<ExecuteReport> report = write_output(*plan, view, *output, how);
    ASSERT_TRUE(report) << report.error().what;
    const Status published = output->publish();
    ASSERT_TRUE(published) << published.error().what;
  }

  const TemporaryDirectory folder_;
};

// A tensor whose bytes lie in the view itself.
void add(CheckpointView& view, const std::string& name, const std::string& role, ElementType type, Shape shape,
         std::string bytes) {
  StoredFile file;
  file.path = "here";
  file.codec = StoredFile::Codec::content;
  file.content = std::move(bytes);
  view.files.push_back(std::move(file));
  const auto number = static_cast<std::uint32_t>(view.files.size() - 1);
  StoredTensor tensor{name, role, type, shape};
  if (!view.files.back().content.empty()) tensor.pieces = {whole_piece(shape, number, 0)};
  view.tensors.push_back(std::move(tensor));
}

std::map<std::string, std::string> values_of(const CheckpointView& view) {
  fixtures::Contents contents(view);
  std::map<std::string, std::string> out;
  for (const StoredTensor& tensor : view.tensors)
    out[text(tensor.name, '/', tensor.role)] =
        text(name_of(tensor.type), text_of(tensor.shape), fixtures::version_of(tensor, contents, 0, 0));
  return out;
}

TEST(AtomicNames, StayReadableAndDiffer) {
  const std::vector<std::string> names = {"model.layers.0.weight",
                                          "a/b",
                                          "../up",
                                          "..",
                                          ".hidden",
                                          "",
                                          "Twin",
                                          "twin",
                                          "twin~2",
                                          "atomic.json",
                                          "é",
                                          "a%2Fb",
                                          std::string(300, 'x'),
                                          std::string(299, 'x') + "y",
                                          "end."};
  const std::vector<std::string> folders = atomic_folder_names(names);
  ASSERT_EQ(folders.size(), names.size());
  EXPECT_EQ(folders[0], "model.layers.0.weight");
  EXPECT_EQ(folders[1], "a%2Fb");
  EXPECT_EQ(folders[2], "%2E.%2Fup");
  EXPECT_EQ(folders[3], "%2E%2E");
  EXPECT_EQ(folders[4], "%2Ehidden");
  EXPECT_EQ(folders[5], "%");
  EXPECT_EQ(folders[6], "Twin");
  EXPECT_EQ(folders[7], "twin~2");
  EXPECT_EQ(folders[8], "twin%7E2");
  EXPECT_EQ(folders[9], "atomic.json~2");
  EXPECT_EQ(folders[11], "a%252Fb");
  std::set<std::string> differing;
  for (const std::string& folder : folders) {
    EXPECT_TRUE(is_plain_file_name(folder)) << folder;
    EXPECT_LE(folder.size(), 220u);
    std::string lower = folder;
    std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
    EXPECT_TRUE(differing.insert(lower).second) << folder;
  }
}

TEST_F(AtomicTest, OurReaderFindsWhatTheSourceHolds) {
  for (const char* source : {"torch/G1b_fsdp2_tied_w3/ckpt", "torch/G3_fsdp2_tp_2x2/ckpt",
                             "torch/I1_llama_gqa_tied/model", "torch/J4_mcore_distopt_dp_reshardable"}) {
    SCOPED_TRACE(source);
    const Result<CheckpointView> view = open_checkpoint(join_path(fixtures::small_set(), source));
    ASSERT_TRUE(view) << view.error().what;
    const std::string path = at(last_name(parent_path(source)));
    write(*view, path);
    const Result<CheckpointView> back = open_checkpoint(path);
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(back->format, "atomic");
    EXPECT_TRUE(back->problems.empty());
    std::map<std::string, std::string> wanted = values_of(*view);
    for (const StoredTensor& tensor : view->tensors) {  // masters stand for their weights
      if (tensor.role != "master") continue;
      const auto master = wanted.find(text(tensor.name, "/master"));
      wanted[text(tensor.name, "/weight")] = master->second;
      wanted.erase(master);
    }
    EXPECT_EQ(values_of(*back), wanted);
    EXPECT_EQ(back->aliases, view->aliases);
  }
}

TEST_F(AtomicTest, SixteenBitsBecomeThirtyTwoAndTheRestStays) {
  CheckpointView view;
  view.format = "test";
  view.facts.emplace_back("step", "7");
  add(view, "w", "weight", ElementType::bfloat16, {2}, std::string("\x80\x3f\x00\xc0", 4));  // 1, -2
  add(view, "w", "step", ElementType::int64, {}, std::string("\x07\0\0\0\0\0\0\0", 8));
  add(view, "W", "weight", ElementType::float32, {1}, std::string("\0\0\x20\x41", 4));
  add(view, "count", "buffer", ElementType::int64, {1}, std::string("\x09\0\0\0\0\0\0\0", 8));
  add(view, "../../etc/x", "weight", ElementType::complex128, {1}, std::string(16, '\1'));
  add(view, "none", "weight", ElementType::float32, {0, 3}, "");
  view.aliases.emplace_back("head", "w");
  write(view, at("out"));
  const Result<CheckpointView> back = open_checkpoint(at("out"));
  ASSERT_TRUE(back) << back.error().what;
  std::map<std::string, std::string> wanted = values_of(view);
  wanted["w/weight"] = "float32[2]" + std::string("\0\0\x80\x3f\0\0\0\xc0", 8);
  EXPECT_EQ(values_of(*back), wanted);
  EXPECT_EQ(back->aliases, view.aliases);
  ASSERT_FALSE(back->facts.empty());
  EXPECT_EQ(back->facts[0], (std::pair<std::string, std::string>("step", "7")));
  EXPECT_TRUE(std::filesystem::exists(at("out/w/weight.safetensors")));
  EXPECT_TRUE(std::filesystem::exists(at("out/W~2/weight.safetensors"))) << "one folder where case doesn't count";
  WriteOptions narrow;
  narrow.type = ElementType::bfloat16;
  EXPECT_FALSE(plan_atomic(view, narrow));
}

TEST_F(AtomicTest, StandsInOneFolderForMastersAndWeights) {
  CheckpointView view;
  add(view, "w", "weight", ElementType::bfloat16, {1}, std::string("\x80\x3f", 2));
  add(view, "w", "master", ElementType::float32, {1}, std::string("\1\0\x80\x3f", 4));
  add(view, "w", "exp_avg", ElementType::float32, {1}, std::string(4, '\0'));
  WriteOptions weights;
  weights.roles = {"weight"};
  for (const WriteOptions& options : {WriteOptions(), weights}) {
    write(view, at("out"), options);
    const Result<CheckpointView> back = open_checkpoint(at("out"));
    ASSERT_TRUE(back) << back.error().what;
    EXPECT_EQ(values_of(*back).at("w/weight"), "float32[1]" + std::string("\1\0\x80\x3f", 4));
    EXPECT_EQ(back->tensors.size(), options.roles.empty() ? 2u : 1u);
  }
}

TEST_F(AtomicTest, NamesWhatIsMissingOrAnothers) {
  CheckpointView view;
  add(view, "a", "weight", ElementType::float32, {1}, "aaaa");
  add(view, "b", "weight", ElementType::float32, {1}, "bbbb");
  add(view, "b", "exp_avg", ElementType::float32, {1}, "cccc");
  write(view, at("out"));
  namespace fs = std::filesystem;
  fs::remove(at("out/b/exp_avg.safetensors"));
  Result<CheckpointView> back = view_atomic(at("out"));
  ASSERT_TRUE(back) << back.error().what;
  ASSERT_EQ(back->problems.size(), 1u);
  EXPECT_TRUE(back->problems[0].starts_with(kOfOptimizerState)) << back->problems[0];
  fs::copy_file(at("out/a/weight.safetensors"), at("out/b/weight.safetensors"), fs::copy_options::overwrite_existing);
  back = view_atomic(at("out"));
  ASSERT_TRUE(back) << back.error().what;
  ASSERT_EQ(back->problems.size(), 2u);
  EXPECT_NE(back->problems[0].find("b/weight"), std::string::npos) << back->problems[0];
  fs::remove(at("out/atomic.json"));
  EXPECT_FALSE(view_atomic(at("out")));
}

TEST_F(AtomicTest, RefusesAnIndexThatLeadsOutside) {
  std::filesystem::create_directory(at("bad"));
  const std::string head = R"({"format": "pawl atomic", "version": 1, "parameters": [{"name": "a", )";
  for (const std::string& rest : std::vector<std::string>{
           R"("folder": "..", "states": {"weight": "x"}}]})", R"("folder": "a/b", "states": {"weight": "x"}}]})",
           R"("folder": "a", "states": {"weight": "../x"}}]})", R"("states": {"weight": "x"}}]})", "}"}) {
    std::FILE* file = std::fopen(at("bad/atomic.json").c_str(), "w");
    ASSERT_NE(file, nullptr);
    std::fputs((head + rest).c_str(), file);
    std::fclose(file);
    const Result<CheckpointView> view = view_atomic(at("bad"));
    EXPECT_FALSE(view) << rest;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
