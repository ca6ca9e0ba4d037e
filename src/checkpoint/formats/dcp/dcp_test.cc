#include "checkpoint/formats/dcp/dcp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "checkpoint/containers/safetensors.h"
#include "checkpoint/containers/torch_file.h"
#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/golden_check.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

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
    Result<CheckpointView> view = view_dcp_keys(tree);
    ASSERT_TRUE(view.has_value()) << view.error().what;
    for (const std::string& problem : view->problems) ADD_FAILURE() << tree << ": " << problem;
  }
}

// A copy of a small tree in which tests break things; gone with the object.
class Copy {
 public:
  explicit Copy(const std::string& from) {
    for (const std::string& name : fixtures::names_in(from)) write(name, fixtures::content(join_path(from, name)));
  }
  void write(const std::string& name, const std::string& bytes) {
    Result<std::unique_ptr<File>> file =
        open_file(folder_.path(name), {.write = true, .create = true, .truncate = true});
    ASSERT_TRUE(file.has_value());
    ASSERT_TRUE((*file)->write_at(0, std::as_bytes(std::span(bytes))).has_value());
  }
  void remove(const std::string& name) { ASSERT_TRUE(real_files().remove(folder_.path(name)).has_value()); }
  [[nodiscard]] const std::string& folder() const { return folder_.path(); }

 private:
  const TemporaryDirectory folder_;
};

// What a view promises of its places (checkpoint_view.h), looked at from outside.
void expect_places_inside(const CheckpointView& view, std::map<std::string, std::uint64_t> sizes, std::size_t trial) {
  for (const StoredTensor& tensor : view.tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      ASSERT_LT(piece.file, view.files.size());
      const StoredFile& file = view.files[piece.file];
      const std::uint64_t size =
          file.codec == StoredFile::Codec::none ? sizes[last_name(file.path)] : file.decoded_bytes;
      ASSERT_LE(piece.offset_bytes + span_bytes(piece, tensor.type), size) << "trial " << trial;
      for (std::uint32_t d = 0; d < piece.box.dimensions; ++d)
        ASSERT_LE(piece.box.begin[d] + piece.box.size[d], tensor.shape[d]) << "trial " << trial;
    }
}

// Metadata that is cut or damaged anywhere, beside the files it is about: refused, or read as places inside the files.
TEST(Dcp, DamagedMetadataNeverLeavesTheFolder) {
  for (const std::string name : {"G8c_no_dist", "G8h_zstd"}) {
    const std::string from = fixtures::small_set() + "/torch/" + name + "/ckpt";
    if (!path_exists(from)) continue;
    Copy copy(from);
    std::map<std::string, std::uint64_t> sizes;
    for (const std::string& file : fixtures::names_in(from))
      sizes[file] = fixtures::content(join_path(from, file)).size();
    ASSERT_TRUE(view_dcp(copy.folder()).has_value()) << view_dcp(copy.folder()).error().what;
    const std::string bytes = fixtures::content(join_path(from, ".metadata"));
    const std::size_t step = 1 + bytes.size() / 1000;
    int read = 0;
    for (std::size_t i = 0; i < bytes.size(); i += step) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ 1 << (i * 7 + i / 8) % 8);
      copy.write(".metadata", damaged);
      if (Result<CheckpointView> view = view_dcp(copy.folder())) {
        ++read;
        expect_places_inside(*view, sizes, i);
      }
    }
    EXPECT_GT(read, 0);  // a name with another letter is a name
    for (std::size_t length = bytes.size(); length > step; length -= step) {
      copy.write(".metadata", bytes.substr(0, length - 1));
      ASSERT_FALSE(view_dcp(copy.folder()).has_value()) << length - 1;
    }
  }
}

// The same for the data: what can't be the item that the metadata speak of is a problem that names tensor and offset.
TEST(Dcp, DamagedItemsAreProblemsThatNameTheTensor) {
  const std::string from = fixtures::small_set() + "/torch/G8c_no_dist/ckpt";
  Copy copy(from);
  const std::string bytes = fixtures::content(join_path(from, "__0_0.distcp"));
  const std::map<std::string, std::uint64_t> sizes = {{"__0_0.distcp", bytes.size()}};
  std::size_t problems = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 37) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
    copy.write("__0_0.distcp", damaged);
    Result<CheckpointView> view = view_dcp(copy.folder());
    if (!view) continue;
    expect_places_inside(*view, sizes, bit);
    for (const std::string& problem : view->problems)
      if (problem.find("__0_0.distcp: offset ") != std::string::npos) ++problems;
  }
  EXPECT_GT(problems, 20u);
}

TEST(Dcp, MissingAndCutFilesAreProblems) {
  const std::string from = fixtures::small_set() + "/torch/G8g_boxes_2x2/ckpt";
  const auto problems = [](const std::string& folder) {
    Result<CheckpointView> view = view_dcp(folder);
    EXPECT_TRUE(view.has_value()) << (view ? "" : view.error().what);
    return view ? view->problems : std::vector<std::string>();
  };
  {
    Copy copy(from);
    EXPECT_TRUE(problems(copy.folder()).empty());
    copy.remove("__2_0.distcp");
    const std::vector<std::string> missing = problems(copy.folder());
    ASSERT_GE(missing.size(), 2u);  // and the tensors that have holes now
    EXPECT_NE(missing[0].find("__2_0.distcp is missing"), std::string::npos) << missing[0];
    EXPECT_NE(missing[0].find("dtensor."), std::string::npos) << missing[0];
  }
  {
    Copy copy(from);
    const std::string bytes = fixtures::content(join_path(from, "__1_0.distcp"));
    copy.write("__1_0.distcp", bytes.substr(0, bytes.size() - 1));
    const std::vector<std::string> cut = problems(copy.folder());
    ASSERT_FALSE(cut.empty());
    EXPECT_NE(cut[0].find("__1_0.distcp is cut"), std::string::npos) << cut[0];
  }
  {
    Copy copy(from);  // ranks' files of two saves
    copy.write("__1_0.distcp", fixtures::content(join_path(from, "__0_0.distcp")) + std::string(1 << 16, '\0'));
    EXPECT_FALSE(problems(copy.folder()).empty());
  }
}

TEST(Dcp, ARankWithoutItsMetadataIsNamed) {
  Copy copy(fixtures::small_set() + "/torch/G8k_no_collectives/ckpt");
  copy.remove("__0.metadata");
  Result<CheckpointView> view = view_dcp(copy.folder());
  ASSERT_FALSE(view.has_value());
  EXPECT_NE(view.error().what.find("__0.metadata is missing"), std::string::npos) << view.error().what;
}

TEST(Dcp, FilesOfOlderSavesAreNoted) {
  PAWL_NEEDS_WHOLE_SET();
  Result<CheckpointView> view = view_dcp(fixtures::whole_set() + "/torch/G8l_overwritten/ckpt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->problems.empty());
  ASSERT_EQ(view->notes.size(), 1u);
  EXPECT_NE(view->notes[0].find("__0_1.distcp"), std::string::npos) << view->notes[0];
}

TEST(Dcp, ObjectsAreListedAndHyperparametersAreNoTensors) {
  Result<CheckpointView> view = view_dcp(fixtures::small_set() + "/torch/G8e_objects/ckpt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  for (const std::string key : {"rng.python", "optimizer.param_groups.0.lr", "misc.tuple_of_tensors"})
    EXPECT_NE(std::ranges::find(view->objects, key), view->objects.end()) << key;
  for (const StoredTensor& tensor : view->tensors) EXPECT_EQ(tensor.name.find("param_groups"), std::string::npos);
}

TEST(Dcp, HyperparametersOfTheGroupsAreTold) {
  Result<CheckpointView> view = view_dcp(fixtures::small_set() + "/torch/G1b_fsdp2_tied_w3/ckpt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  const fixtures::json values = fixtures::json::parse(view->values, nullptr, false);
  ASSERT_TRUE(values.is_object()) << view->values;
  ASSERT_EQ(values["param_groups"].size(), 2u) << view->values;
  std::set<std::string> told, with_state;
  for (const fixtures::json& group : values["param_groups"]) {
    EXPECT_EQ(group["betas"], (fixtures::json{0.9, 0.95}));
    EXPECT_TRUE(group["amsgrad"].is_boolean());
    for (const fixtures::json& name : group["params"]) EXPECT_TRUE(told.insert(name.get<std::string>()).second);
  }
  EXPECT_EQ(values["param_groups"][0]["lr"], 0.01);
  EXPECT_EQ(values["param_groups"][1]["lr"], 0.007);
  EXPECT_EQ(values["param_groups"][0]["weight_decay"], 0.1);
  EXPECT_EQ(values["param_groups"][1]["weight_decay"], 0.0);
  for (const StoredTensor& tensor : view->tensors)
    if (tensor.role == "exp_avg") with_state.insert(tensor.name);
  EXPECT_EQ(told, with_state);
}

TEST(Dcp, ADictOfFlatKeysIsNoPartOfTheNames) {
  Result<CheckpointView> view = view_dcp(fixtures::small_set() + "/torch/G8e_objects/ckpt");
  ASSERT_TRUE(view.has_value());
  for (const StoredTensor& tensor : view->tensors) {
    if (tensor.name.find("a.b.") == std::string::npos) continue;
    EXPECT_TRUE(tensor.name.starts_with("model.")) << tensor.name;  // there are dicts below: what is whose is not known
  }
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
    Result<RangeBytes> item = RangeBytes::open(**file, object.place.offset_bytes, object.place.length_bytes);
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
    EXPECT_EQ(tensor.chunks[0].box, tensor.chunks[1].box);
    EXPECT_NE(tensor.chunks[0].place.file, tensor.chunks[1].place.file);
  }
}

TEST(Dcp, WhatIsMissingIsNamed) {
  const std::string folder = fixtures::small_set() + "/torch/H_torch_save";
  Result<DcpCheckpoint> none = open_dcp(folder);
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code, Code::not_found);
}

TEST(Dcp, PackedItemsKnowWhatTheyDecodeTo) {
  PAWL_NEEDS_WHOLE_SET();
  Result<CheckpointView> view = view_dcp(fixtures::whole_set() + "/torch/G8h_zstd/ckpt");
  ASSERT_TRUE(view.has_value()) << view.error().what;
  for (const StoredTensor& tensor : view->tensors)
    for (const StoredPiece& piece : tensor.pieces) {
      const StoredFile& file = view->files[piece.file];
      EXPECT_EQ(file.codec, StoredFile::Codec::zstd);
      EXPECT_GT(file.decoded_bytes, file.length_bytes);
    }
}

}  // namespace
}  // namespace pawl::checkpoint
