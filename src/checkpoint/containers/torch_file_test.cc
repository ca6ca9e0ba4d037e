#include "checkpoint/containers/torch_file.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

using fixtures::json;

std::vector<std::string> folders(const std::string& name) {
  std::vector<std::string> out;
  for (const std::string& set : fixtures::sets()) out.push_back(set + "/torch/" + name);
  return out;
}

Result<TorchFile> parse(std::string_view bytes) {
  MemoryBytes source(bytes);
  return TorchFile::read(source);
}

std::string accessor_or_root(const TorchTensor& tensor) {
  return tensor.path.empty() ? "<root>" : accessor_of(tensor.path);
}

const TorchTensor* find(const TorchFile& file, const std::string& accessor) {
  for (const TorchTensor& tensor : file.tensors())
    if (accessor_or_root(tensor) == accessor) return &tensor;
  return nullptr;
}

std::vector<std::uint64_t> numbers(const json& array) {
  std::vector<std::uint64_t> out;
  for (const json& item : array) out.push_back(item.get<std::uint64_t>());
  return out;
}

void compare(const std::string& where, const TorchFile& file, std::string_view bytes, const std::string& path,
             const json& expected) {
  SCOPED_TRACE(where + " " + path);
  // A class with a __setstate__ of its own: only it knows that its state's first part becomes .t.
  const TorchTensor* tensor = find(file, path == "['gs'].t" ? "['gs'].state_0" : path);
  ASSERT_NE(tensor, nullptr);
  const std::string type = expected["dtype"];
  EXPECT_TRUE(tensor->layout == "jagged" || name_of(tensor->type) == type) << name_of(tensor->type);
  if (!expected["shape"].is_null()) {
    EXPECT_EQ(tensor->shape, numbers(expected["shape"]));
  }
  EXPECT_EQ(tensor->requires_grad, expected["requires_grad"].get<bool>());
  if (expected.contains("local")) {  // a DTensor: what this rank has of it
    for (const auto& [below, local] : expected["local"].items())
      compare(where, file, bytes, path + "._local_tensor" + (below == "<root>" ? "" : below), local);
    return;
  }
  if (!expected.contains("stride")) return;
  EXPECT_EQ(tensor->strides, numbers(expected["stride"]));
  EXPECT_EQ(tensor->storage_offset, expected["storage_offset"].get<std::uint64_t>());
  MemoryBytes source(bytes);
  Result<std::string> elements = read_elements(source, file, *tensor, 1 << 20);
  if (expected.value("meta", false)) {
    EXPECT_FALSE(elements.has_value());
    return;
  }
  ASSERT_NE(tensor->storage, kNoStorage);
  EXPECT_EQ(file.storages()[tensor->storage].size_bytes, expected["storage_bytes"].get<std::uint64_t>());
  if (type == "quint4x2") return;  // its golden is of unpacked numbers
  ASSERT_TRUE(elements.has_value()) << elements.error().what;
  EXPECT_EQ(fixtures::sha256(*elements), expected.value("sha256", expected.value("sha256_int_repr", std::string())));
}

TEST(TorchFile, Sha256IsThatOfTheStandard) {
  EXPECT_EQ(fixtures::sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(TorchFile, EveryFileOfTheZooHasItsGoldenTensors) {
  for (const std::string& folder : folders("H_torch_save")) {
    const json golden = fixtures::golden(folder);
    ASSERT_GT(golden["files"].size(), 80u);
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      const std::string bytes = fixtures::content(folder + "/" + name);
      Result<TorchFile> file = parse(bytes);
      ASSERT_TRUE(file.has_value()) << file.error().what;
      const json& tensors =
          expected.contains("tensors_as_loaded") ? expected["tensors_as_loaded"] : expected["tensors"];
      for (const auto& [path, tensor] : tensors.items()) compare(name, *file, bytes, path, tensor);
      if (tensors.size() > file->tensors().size()) ADD_FAILURE() << "tensors are missing";
    }
  }
}

TEST(TorchFile, HostileFilesAreRefusedOrOpaque) {
  const std::set<std::string> readable = {"reduce_os_system.pt",
                                          "reduce_os_system_p4.pt",
                                          "legacy_reduce_os_system.pt",
                                          "builtins_eval.pt",
                                          "builtins_getattr_chain.pt",
                                          "newobj_ex.pt",
                                          "dotted_global.pt",
                                          "doubling_lists.pt",
                                          "cycle.pt",
                                          "good.pt",
                                          "torchscript.pt",  // the good one, with constants that TorchScript has
                                          "tensor_expand_bomb.pt",
                                          "zip_wrong_crc.pt",
                                          "build_dict_attack.pt",
                                          "inst_opcode.pt",
                                          "obj_opcode.pt",
                                          "deep_lists.pt",
                                          "deep_tuples.pt",
                                          "deep_dicts.pt"};
  for (const std::string& folder : folders("H_hostile")) {
    const json golden = fixtures::golden(folder);
    ASSERT_GT(golden["files"].size(), 80u);
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      const std::string bytes = fixtures::content(folder + "/" + name);
      Result<TorchFile> file = parse(bytes);
      if (!file) {
        EXPECT_FALSE(file.error().what.empty());
        EXPECT_NE(file.error().code, Code::broken);
        EXPECT_NE(name, "good.pt");
      } else {
        EXPECT_TRUE(readable.contains(name)) << expected["expected"];
      }
    }
  }
  EXPECT_FALSE(path_exists("pawl_pickle_executed"));
  EXPECT_FALSE(path_exists("pawl_zip_slip"));
}

TEST(TorchFile, AnExpandedGiantIsRefusedOnlyWhenRead) {
  const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_hostile/tensor_expand_bomb.pt");
  Result<TorchFile> file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  ASSERT_EQ(file->tensors().size(), 1u);
  MemoryBytes source(bytes);
  Result<std::string> elements = read_elements(source, *file, file->tensors()[0], 1 << 20);
  ASSERT_FALSE(elements.has_value());
  EXPECT_EQ(elements.error().code, Code::full);
}

TEST(TorchFile, AWrongChecksumIsSeenWhenItIsLookedAt) {
  const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_hostile/zip_wrong_crc.pt");
  Result<TorchFile> file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  MemoryBytes source(bytes);
  int wrong = 0;
  for (const ZipRecord& record : file->records()) {
    Result<bool> agrees = checksum_agrees(source, record);
    ASSERT_TRUE(agrees.has_value());
    wrong += *agrees ? 0 : 1;
  }
  EXPECT_EQ(wrong, 1);
}

TEST(TorchFile, SharedStoragesAreOne) {
  const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_torch_save/views_one_storage.pt");
  Result<TorchFile> file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  EXPECT_EQ(file->storages().size(), 1u);
  EXPECT_EQ(file->tensors().size(), 7u);
  const CheckpointView view = view_of(*file, "views.pt");
  EXPECT_EQ(view.tensors.size(), 7u);
  EXPECT_EQ(span_bytes(view.tensors[0].pieces[0], view.tensors[0].type), 480u);
  EXPECT_EQ(view.tensors[0].pieces[0].stride, dense_stride(view.tensors[0].pieces[0].box));
}

// Sparse, nested and wrapped tensors have a shape and no strides: a view names them and leaves them out.
TEST(TorchFile, WhatHasNoPlainBytesIsUnsupported) {
  for (const std::string name :
       {"sparse_coo.pt", "sparse_csr.pt", "nested_tensor.pt", "dtensor_world1.pt", "meta_tensor.pt"}) {
    const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_torch_save/" + name);
    Result<TorchFile> file = parse(bytes);
    ASSERT_TRUE(file.has_value()) << file.error().what;
    const CheckpointView view = view_of(*file, name);
    EXPECT_FALSE(view.unsupported.empty()) << name;
    EXPECT_FALSE(view.tensors.empty()) << name;
    EXPECT_EQ(view.tensors.size() + view.unsupported.size(), file->tensors().size()) << name;
  }
}

// A file that is cut anywhere is refused: its end record closes it, and a stream's last storage does.
TEST(TorchFile, EveryTruncationIsRefused) {
  for (const std::string name : {"memo_reuse.pt", "legacy_views.pt", "saved_to_stream.pt", "no_byteorder.pt"}) {
    const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_torch_save/" + name);
    ASSERT_TRUE(parse(bytes).has_value()) << name;
    for (std::size_t length = 0; length < bytes.size(); ++length)
      ASSERT_FALSE(parse(std::string_view(bytes).substr(0, length)).has_value()) << name << " cut at " << length;
  }
}

// A flipped bit is refused, or is read as something that still lies inside the file. Sanitizers see the rest.
TEST(TorchFile, FlippedBitsNeverLeaveTheFile) {
  for (const std::string name : {"python_objects.pt", "legacy.pt", "quant_per_channel_qint8.pt", "dtensor_world1.pt"}) {
    std::string bytes = fixtures::content(fixtures::small_set() + "/torch/H_torch_save/" + name);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      if (Result<TorchFile> file = parse(bytes)) {
        MemoryBytes source(bytes);
        for (const TorchTensor& tensor : file->tensors())
          if (Result<std::string> elements = read_elements(source, *file, tensor, 1 << 20);
              !elements && (tensor.storage == kNoStorage || !file->storages()[tensor.storage].deflated)) {
            EXPECT_NE(elements.error().code, Code::corrupt) << name << " bit " << bit << ": " << elements.error().what;
          }
      }
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
  }
}

TEST(TorchFile, TheWholeSetIsThere) {
  PAWL_NEEDS_WHOLE_SET();
}

std::vector<std::string> torch_files_below(const std::string& folder) {
  std::vector<std::string> out;
  Result<std::vector<std::string>> names = real_files().list(folder);
  for (const std::string& name : names ? *names : std::vector<std::string>()) {
    const std::string path = folder + "/" + name;
    if (fixtures::is_folder(path)) {
      if (name.find("hostile") != std::string::npos) continue;
      for (std::string& below : torch_files_below(path)) out.push_back(std::move(below));
    } else if (name.ends_with(".pt") || name.ends_with(".bin")) {
      out.push_back(path);
    }
  }
  return out;
}

// Model and optimizer files of every writer in the set: each opens, and all of its tensors' bytes are inside.
TEST(TorchFile, EveryTorchFileOfEveryTreeOpens) {
  PAWL_NEEDS_WHOLE_SET();
  std::size_t tensors = 0;
  for (const std::string& path : torch_files_below(fixtures::whole_set())) {
    Result<TorchFile> file = TorchFile::open(path);
    ASSERT_TRUE(file.has_value()) << file.error().what;
    tensors += file->tensors().size();
  }
  EXPECT_GT(tensors, 1000u);
}

}  // namespace
}  // namespace pawl::checkpoint
