#include "formats/dcp.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstring>
#include <map>

#include "formats/fixtures.h"
#include "formats/golden_check.h"
#include "formats/safetensors.h"
#include "formats/torch_file.h"

namespace pawl {
namespace {

// Names in goldens are <name>/<role>; in trees of training jobs they lie under model. and optimizer's state.
std::vector<std::string> golden_keys(const std::string& key) {
  std::vector<std::string> out = {key + "/weight"};
  for (const std::string prefix : {"model.", "state.model.", "app.model."})
    if (key.starts_with(prefix)) out.push_back(key.substr(prefix.size()) + "/weight");
  for (const std::string prefix : {"optim.state.", "optimizer.state.", "optim.", "state."})
    for (const std::string role : {"exp_avg", "exp_avg_sq", "step"})
      if (key.starts_with(prefix) && key.ends_with("." + role))
        out.push_back(key.substr(prefix.size(), key.size() - prefix.size() - role.size() - 1) + "/" + role);
  return out;
}

// Returns how many golden tensors the tree has, bit for bit.
std::size_t compare(const std::string& folder, const std::string& below) {
  SCOPED_TRACE(folder);
  Result<CheckpointView> view = view_dcp(folder + "/" + below);
  EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
  const std::string golden_bytes = fixtures::content(folder + "/golden.safetensors");
  MemoryBytes source(golden_bytes);
  Result<SafetensorsFile> golden = read_safetensors(source);
  EXPECT_TRUE(golden.has_value());
  if (!view || !golden) return 0;
  std::map<std::string, const SafetensorsEntry*> expected;
  for (const SafetensorsEntry& entry : golden->tensors) expected[entry.name] = &entry;
  fixtures::Contents contents(*view);
  std::size_t equal = 0;
  for (const StoredTensor& tensor : view->tensors) {
    for (const std::string& key : golden_keys(tensor.name)) {
      if (!expected.contains(key)) continue;
      const SafetensorsEntry& entry = *expected[key];
      if (entry.type == tensor.type) {  // goldens hold what safetensors can't name as bytes
        EXPECT_EQ(entry.shape, tensor.shape) << key;
      }
      EXPECT_TRUE(fixtures::whole_of(tensor, contents) == golden_bytes.substr(entry.offset_bytes, entry.size_bytes)) << key;
      ++equal;
      break;
    }
  }
  EXPECT_EQ(equal, expected.size());
  return equal;
}

TEST(Dcp, SmallTreesEqualTheirGoldens) {
  for (const std::string& set : fixtures::sets())
    for (const std::string name : {"G8c_no_dist", "G8e_objects", "G8g_boxes_2x2", "G8k_no_collectives"})
      EXPECT_GT(compare(set + "/torch/" + name, "ckpt"), 1u);
}

TEST(Dcp, TreesOfEveryWriterEqualTheirGoldens) {
  PAWL_NEEDS_WHOLE_SET();
  for (const std::string name :
       {"G1_fsdp2_w4", "G1b_fsdp2_tied_w3", "G2_hsdp_2x2", "G3_fsdp2_tp_2x2", "G4_tp2_sp", "G7_pp2_dp2",
        "G8a_async_threads", "G8b_file_per_item", "G8i_fs_safetensors", "G8l_overwritten", "G8m_w11"})
    EXPECT_GT(compare(fixtures::whole_set() + "/torch/" + name, "ckpt"), 1u);
  EXPECT_GT(compare(fixtures::whole_set() + "/torch/G8d_dedup", "balanced"), 3u);
  EXPECT_GT(compare(fixtures::whole_set() + "/torch/G8d_dedup", "lowest_rank"), 3u);
  EXPECT_GT(compare(fixtures::whole_set() + "/torch/G5_fsdp1_w4", "sharded"), 3u);
}

void collect_trees(const std::string& folder, std::vector<std::string>& out) {
  if (path_exists(folder + "/.metadata") || path_exists(folder + "/__0.metadata")) out.push_back(folder);
  Result<std::vector<std::string>> names = real_files().list(folder);
  for (const std::string& name : names ? *names : std::vector<std::string>())
    if (fixtures::is_folder(folder + "/" + name)) collect_trees(folder + "/" + name, out);
}

// Megatron's and FSDP1's too: every box of every tensor has its bytes where the metadata says.
TEST(Dcp, EveryTreeOpensAndEveryChunkIsFound) {
  PAWL_NEEDS_WHOLE_SET();
  std::vector<std::string> trees;
  collect_trees(fixtures::whole_set() + "/torch", trees);
  EXPECT_GT(trees.size(), 20u);
  for (const std::string& tree : trees) {
    if (tree.find("G8h_zstd") != std::string::npos) continue;
    Result<CheckpointView> view = view_dcp(tree);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    for (const std::string& note : view->notes)
      EXPECT_EQ(note.find("boxes hold"), std::string::npos) << tree << ": " << note;
  }
}

// Metadata that is cut or damaged anywhere, beside the files it is about: refused, or read as places inside the files.
TEST(Dcp, DamagedMetadataNeverLeavesTheFolder) {
  const std::string from = fixtures::small_set() + "/torch/G8c_no_dist/ckpt";
  const std::string folder = join_path(testing::TempDir(), "pawl_dcp_" + std::to_string(getpid()));
  ASSERT_TRUE(make_directories(folder).has_value());
  for (const std::string name : {"__0_0.distcp", ".metadata"}) {
    Result<std::unique_ptr<File>> file = open_file(join_path(folder, name), {.write = true, .create = true});
    ASSERT_TRUE(file.has_value());
    const std::string bytes = fixtures::content(join_path(from, name));
    ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span(bytes))).has_value());
  }
  ASSERT_TRUE(open_dcp(folder).has_value()) << open_dcp(folder).error().what;
  Result<std::unique_ptr<File>> file = open_file(join_path(folder, ".metadata"), {.write = true});
  ASSERT_TRUE(file.has_value());
  std::string bytes = fixtures::content(join_path(from, ".metadata"));
  int read = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char was = bytes[i];
    bytes[i] = static_cast<char>(was ^ 1 << (i * 7 + i / 8) % 8);
    ASSERT_TRUE((*file)->write_at(i, std::as_bytes(std::span(bytes).subspan(i, 1))).has_value());
    if (Result<DcpCheckpoint> checkpoint = open_dcp(folder)) {
      ++read;
      for (const DcpTensor& tensor : checkpoint->tensors)
        for (const DcpChunk& chunk : tensor.chunks) {
          Result<std::unique_ptr<ByteSource>> source = open_bytes(checkpoint->files[chunk.place.file]);
          ASSERT_TRUE(source.has_value());
          Result<StoredPiece> piece = locate(**source, tensor, chunk);
          ASSERT_TRUE(!piece || piece->offset_bytes + span_bytes(*piece, tensor.type) <= (*source)->size_bytes()) << "byte " << i;
        }
    }
    bytes[i] = was;
    ASSERT_TRUE((*file)->write_at(i, std::as_bytes(std::span(bytes).subspan(i, 1))).has_value());
  }
  EXPECT_GT(read, 0);  // a name with another letter is a name
  for (std::size_t length = bytes.size(); length-- > 0;) {
    ASSERT_TRUE((*file)->truncate(length).has_value());
    ASSERT_FALSE(open_dcp(folder).has_value()) << length;
  }
  EXPECT_TRUE(remove_tree(testing::TempDir(), folder).has_value());
}

TEST(Dcp, KeysWithDotsAreToldApartByThePlannersPaths) {
  Result<DcpCheckpoint> checkpoint = open_dcp(fixtures::small_set() + "/torch/G8e_objects/ckpt");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().what;
  std::map<std::string, std::vector<std::string>> paths;
  for (const DcpTensor& tensor : checkpoint->tensors) paths[tensor.key] = tensor.path;
  EXPECT_EQ(paths["model.a.b.c"], (std::vector<std::string>{"model", "a.b.c"}));
  EXPECT_EQ(paths["model.a.b.d"], (std::vector<std::string>{"model", "a", "b.d"}));
  EXPECT_GT(checkpoint->objects.size(), 3u);
  for (const DcpObject& object : checkpoint->objects) {  // each is a file of torch.save in itself
    Result<std::unique_ptr<ByteSource>> file = open_bytes(checkpoint->files[object.place.file]);
    ASSERT_TRUE(file.has_value());
    Result<WindowBytes> item = WindowBytes::open(**file, object.place.offset_bytes, object.place.length_bytes);
    ASSERT_TRUE(item.has_value());
    Result<TorchFile> content = TorchFile::read(*item);
    EXPECT_TRUE(content.has_value()) << object.key << ": " << (content ? "" : content.error().what);
  }
}

TEST(Dcp, ReplicasOfSeveralRanksAreCopies) {
  Result<DcpCheckpoint> checkpoint = open_dcp(fixtures::small_set() + "/torch/G8k_no_collectives/ckpt");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().what;
  EXPECT_TRUE(checkpoint->notes.empty());
  for (const DcpTensor& tensor : checkpoint->tensors) {
    if (tensor.key != "layers.0.bias") continue;
    ASSERT_EQ(tensor.chunks.size(), 2u);
    EXPECT_EQ(tensor.chunks[0].region, tensor.chunks[1].region);
    EXPECT_NE(tensor.chunks[0].place.file, tensor.chunks[1].place.file);
  }
}

TEST(Dcp, WhatIsMissingIsNamed) {
  const std::string folder = fixtures::small_set() + "/torch/H_torch_save";
  Result<DcpCheckpoint> none = open_dcp(folder);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::not_found);
}

TEST(Dcp, PackedItemsAreRefusedByName) {
  PAWL_NEEDS_WHOLE_SET();
  Result<DcpCheckpoint> checkpoint = open_dcp(fixtures::whole_set() + "/torch/G8h_zstd/ckpt");
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().what;
  Result<CheckpointView> view = view_dcp(fixtures::whole_set() + "/torch/G8h_zstd/ckpt");
  ASSERT_FALSE(view.has_value());
  EXPECT_NE(view.error().what.find("stream.zstd/1"), std::string::npos) << view.error().what;
}

}  // namespace
}  // namespace pawl
