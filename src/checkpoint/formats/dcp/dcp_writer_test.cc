// What the DCP writer lays out, and what our own reader finds in it. torch's is test/torch/test_convert_dcp.py.
#include "checkpoint/formats/dcp/dcp_writer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/containers/torch_file.h"
#include "checkpoint/containers/zip.h"
#include "checkpoint/formats/dcp/dcp.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "checkpoint/reshape/range_checksums.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

class DcpWriterTest : public testing::Test {
 protected:
  [[nodiscard]] std::string at(const std::string& name) const { return folder_.path(name); }

  void write(const CheckpointView& view, const WriteOptions& options, const std::string& path) {
    const Result<OutputPlan> plan = plan_dcp(view, options);
    ASSERT_TRUE(plan) << plan.error().what;
    Result<PartialOutput> output = PartialOutput::begin(path, partial_options(*plan, true));
    ASSERT_TRUE(output) << output.error().what;
    const Result<ExecuteReport> report = write_output(*plan, view, *output, {});
    ASSERT_TRUE(report) << report.error().what;
    const Status published = output->publish();
    ASSERT_TRUE(published) << published.error().what;
  }

  const TemporaryDirectory folder_;
};

// Each item is a zip archive whose checksums were computed while the data went by.
void expect_sound_items(const std::string& folder) {
  const Result<DcpCheckpoint> checkpoint = open_dcp(folder);
  ASSERT_TRUE(checkpoint) << checkpoint.error().what;
  std::vector<std::string> contents;
  for (const std::string& path : checkpoint->files) contents.push_back(fixtures::content(path));
  for (const DcpTensor& tensor : checkpoint->tensors) {
    ASSERT_EQ(tensor.chunks.size(), 1u);
    const DcpPlace& place = tensor.chunks[0].place;
    const std::string_view content = contents[place.file];
    MemoryBytes item(content.substr(place.offset_bytes, place.length_bytes));
    const Result<TorchFile> file = TorchFile::read(item);
    ASSERT_TRUE(file) << tensor.key << ": " << file.error().what;
    EXPECT_FALSE(file->records().empty());
    for (const ZipRecord& record : file->records()) {
      const Result<std::string> bytes = read_text(item, record.offset_bytes, record.size_bytes);
      ASSERT_TRUE(bytes);
      EXPECT_EQ(record.crc32, checksum(ChecksumKind::crc32, std::as_bytes(std::span(*bytes)))) << tensor.key;
    }
  }
}

TEST_F(DcpWriterTest, OurReaderFindsTheGoldenBitForBit) {
  const std::vector<std::string> sources = {"torch/G1b_fsdp2_tied_w3/ckpt", "torch/G3_fsdp2_tp_2x2/ckpt",
                                            "torch/I1_llama_gqa_tied/model", "torch/I2_llama_sharded_bf16/model",
                                            "deepspeed/zero3_w2_bf16/ckpt"};
  for (const std::string& source : sources) {
    SCOPED_TRACE(source);
    const std::string path = join_path(fixtures::small_set(), source);
    const Result<CheckpointView> view = open_checkpoint(path);
    ASSERT_TRUE(view) << view.error().what;
    WriteOptions options;
    options.file_bytes_max = 100'000;
    write(*view, options, at("out"));  // without an optimizer's state too: the paths tell where the model is
    Result<CheckpointView> back = open_checkpoint(at("out"));
    ASSERT_TRUE(back) << back.error().what;
    std::map<std::string, std::string> model_roles;  // DCP does not tell buffers from weights
    for (const StoredTensor& tensor : view->tensors)
      if (tensor.role == "buffer") model_roles[tensor.name] = tensor.role;
    for (StoredTensor& tensor : back->tensors)
      if (tensor.role == "weight" && model_roles.contains(tensor.name)) tensor.role = "buffer";
    EXPECT_GT(fixtures::expect_golden(*back, join_path(parent_path(path), "golden.safetensors")), 1u);
    expect_sound_items(at("out"));
  }
}

// A view of tensors that lie in memory, one file's content.
CheckpointView small_view() {
  CheckpointView view;
  view.format = "test";
  StoredFile file;
  file.codec = StoredFile::Codec::content;
  for (int i = 0; i < 64; ++i) file.content.push_back(static_cast<char>(i + 1));
  file.decoded_bytes = file.content.size();
  view.files.push_back(file);
  const auto add = [&](const char* name, const char* role, ElementType type, Shape shape, std::uint64_t offset) {
    StoredTensor tensor{name, role, type, shape};
    tensor.pieces.push_back(whole_piece(shape, 0, offset));
    view.tensors.push_back(std::move(tensor));
  };
  add("w", "weight", ElementType::float32, {2, 2}, 0);
  add("w", "exp_avg", ElementType::float32, {2, 2}, 16);
  add("w", "step", ElementType::float32, {}, 32);
  add("a.b", "buffer", ElementType::int64, {1}, 40);
  view.aliases = {{"tied", "w"}};
  return view;
}

TEST_F(DcpWriterTest, KeysAreThoseOfGetStateDict) {
  const CheckpointView view = small_view();
  write(view, {}, at("out"));
  const Result<DcpCheckpoint> back = open_dcp(at("out"));
  ASSERT_TRUE(back) << back.error().what;
  std::map<std::string, std::vector<std::string>> paths;
  std::map<std::string, std::uint64_t> places;
  for (const DcpTensor& tensor : back->tensors) {
    paths[tensor.key] = tensor.path;
    places[tensor.key] = tensor.chunks[0].place.offset_bytes;
  }
  EXPECT_EQ(paths, (std::map<std::string, std::vector<std::string>>{
                       {"model.w", {"model", "w"}},
                       {"model.tied", {"model", "tied"}},
                       {"optim.state.w.exp_avg", {"optim", "state", "w", "exp_avg"}},
                       {"optim.state.tied.exp_avg", {"optim", "state", "tied", "exp_avg"}},
                       {"optim.state.w.step", {"optim", "state", "w", "step"}},
                       {"optim.state.tied.step", {"optim", "state", "tied", "step"}},
                       {"model.a.b", {"model", "a.b"}}}));
  EXPECT_EQ(places["model.w"], places["model.tied"]);
  EXPECT_NE(places["model.w"], places["optim.state.w.exp_avg"]);

  WriteOptions flat;
  flat.flat_names = true;
  flat.roles = {"weight", "buffer"};
  write(view, flat, at("out"));
  const Result<DcpCheckpoint> names = open_dcp(at("out"));
  ASSERT_TRUE(names) << names.error().what;
  std::vector<std::string> keys;
  for (const DcpTensor& tensor : names->tensors) keys.push_back(tensor.key);
  std::ranges::sort(keys);
  EXPECT_EQ(keys, (std::vector<std::string>{"a.b", "tied", "w"}));
}

TEST_F(DcpWriterTest, MetadataIsTheLastFile) {
  WriteOptions options;
  options.file_bytes_max = 16;
  const Result<OutputPlan> plan = plan_dcp(small_view(), options);
  ASSERT_TRUE(plan) << plan.error().what;
  std::vector<std::string> names;
  std::uint64_t bytes = 0;
  for (const PlannedFile& file : plan->files) {
    names.push_back(file.name);
    bytes += file.size_bytes;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"__0_0.distcp", "__0_1.distcp", "__0_2.distcp", ".metadata"}));
  EXPECT_EQ(plan->all_bytes, bytes);
  EXPECT_EQ(plan->marker, ".metadata");
}

TEST_F(DcpWriterTest, RefusesWhatTorchHasNotAndKeysThatAreThereTwice) {
  CheckpointView view = small_view();
  view.aliases = {{"a.b", "w"}};
  const Result<OutputPlan> twice = plan_dcp(view, {});
  ASSERT_FALSE(twice);
  EXPECT_NE(twice.error().what.find("tensor model.a.b would be there twice"), std::string::npos) << twice.error().what;
  view = small_view();
  view.tensors[0].type = ElementType::qint32;
  const Result<OutputPlan> strange = plan_dcp(view, {});
  ASSERT_FALSE(strange);
  EXPECT_NE(strange.error().what.find("tensor w (weight) can't be written"), std::string::npos) << strange.error().what;
}

TEST_F(DcpWriterTest, ReplacesACheckpointWholeAndNothingElse) {
  const CheckpointView view = small_view();
  WriteOptions spread;
  spread.file_bytes_max = 16;
  write(view, spread, at("out"));
  write(view, {}, at("out"));
  EXPECT_EQ(*real_files().list(at("out")), (std::vector<std::string>{".metadata", "__0_0.distcp"}));
  EXPECT_EQ(*real_files().list(folder_.path()), std::vector<std::string>{"out"});

  ASSERT_TRUE(make_directories(at("mine")));
  ASSERT_TRUE(write_file_atomically(at("mine/thesis"), "years"));
  const Result<OutputPlan> plan = plan_dcp(view, {});
  const Result<PartialOutput> refused = PartialOutput::begin(at("mine"), partial_options(*plan, true));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("holds no .metadata"), std::string::npos) << refused.error().what;
  EXPECT_EQ(fixtures::content(at("mine/thesis")), "years");
}

}  // namespace
}  // namespace pawl::checkpoint
