// What users have besides today's torch.save of state dicts (test/fixtures/torch/L_wild), and what only looks alike.
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "checkpoint/formats/fixtures.h"
#include "checkpoint/formats/given_names.h"
#include "checkpoint/formats/golden_check.h"
#include "checkpoint/formats/open_checkpoint.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using namespace std::string_literals;

std::string wild(const std::string& name) {
  return fixtures::small_set() + "/torch/L_wild/" + name;
}

std::size_t tensors_in(const std::string& golden) {
  const std::string bytes = fixtures::content(wild(golden));
  MemoryBytes source(bytes);
  return read_safetensors(source)->tensors.size();
}

// All of the training state, by its names, with hyperparameters.
void expect_training(const std::string& name, bool allow_more = false) {
  SCOPED_TRACE(name);
  Result<CheckpointView> view = open_checkpoint(wild(name));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->unnamed.empty()) << view->unnamed[0];
  EXPECT_EQ(fixtures::expect_golden(*view, wild("golden.safetensors"), {}, allow_more),
            tensors_in("golden.safetensors"));
}

TEST(WildFiles, TheOldestProtocolsAreRead) {
  for (const std::string name : {"protocol0.pt", "protocol0_stream.pt", "protocol1.pt", "protocol1_stream.pt"})
    expect_training(name);
}

TEST(WildFiles, WhatPython2WroteIsRead) {
  for (const std::string protocol : {"0", "1", "2"})
    for (const std::string kind : {".pt", "_stream.pt"}) expect_training("python2_protocol" + protocol + kind);
}

// Names of equal shapes, groups in an order of their own: only what the objects are tells which state is whose.
TEST(WildFiles, ModulesAndOptimizersThatAreObjectsAreRead) {
  for (const std::string name : {"objects.pt", "objects_protocol0.pt", "objects_stream.pt"})
    expect_training(name, true);  // a module's other tensors: what is not persistent, and plain attributes
  expect_training("object_beside_states.pt");
}

TEST(WildFiles, GroupsThatHoldTheParametersThemselvesAreRead) {
  expect_training("held.pt");
  expect_training("held_numbers.pt");
}

// Two networks of the same names: each optimizer's own parameters tell which is whose.
TEST(WildFiles, TwoNetworksKeepTheirOwnStates) {
  Result<CheckpointView> view = open_checkpoint(wild("two_networks.pt"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->unnamed.empty()) << view->unnamed[0];
  EXPECT_EQ(fixtures::expect_golden(*view, wild("golden_two_networks.safetensors"), {}, false), 16u);
}

TEST(WildFiles, AnOptimizerAloneKeepsItsNumbersAndSaysSo) {
  Result<CheckpointView> view = open_checkpoint(wild("optimizer_alone.pt"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->problems.empty()) << view->problems[0];
  ASSERT_EQ(view->unnamed.size(), 1u);
  std::set<std::string> names;
  for (const StoredTensor& tensor : view->tensors) names.insert(tensor.name + "/" + tensor.role);
  EXPECT_EQ(names.size(), view->tensors.size());
  for (const std::string number : {"0", "1", "2", "3", "4", "5"})
    for (const std::string word : {"step", "exp_avg", "exp_avg_sq"})
      EXPECT_TRUE(names.contains("state." + number + "/" + word)) << number << word;
  EXPECT_TRUE(names.contains("parameters.5/weight"));
  const fixtures::GivenNames given("b.weight\na.weight\n\nnorm.bias\nb.bias\nnorm.weight\na.bias\n");
  view = open_checkpoint(wild("optimizer_alone.pt"), given.options());
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_TRUE(view->unnamed.empty()) << view->unnamed[0];
  std::set<std::string> weights;
  for (const std::string name : {"a.weight", "a.bias", "norm.weight", "norm.bias", "b.weight", "b.bias"})
    weights.insert(name + "/weight"s);
  for (const std::string name : {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"})
    weights.insert(name + "/weight"s);
  EXPECT_EQ(fixtures::expect_golden(*view, wild("golden.safetensors"), weights), 18u);
}

std::set<std::string> optimizer_states() {
  std::set<std::string> out;
  for (const std::string name : {"a.weight", "a.bias", "norm.weight", "norm.bias", "b.weight", "b.bias"})
    for (const std::string word : {"/step", "/exp_avg", "/exp_avg_sq"}) out.insert(name + word);
  return out;
}

void expect_program(const std::string& name, const std::string& format) {
  SCOPED_TRACE(name);
  Result<CheckpointView> view = open_checkpoint(wild(name));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, format);
  EXPECT_EQ(fixtures::expect_golden(*view, wild("golden.safetensors"), optimizer_states()),
            tensors_in("golden.safetensors") - optimizer_states().size());
  if (name == "trace.pt") return;  // there a plain attribute is a constant without a name
  EXPECT_EQ(fixtures::expect_golden(*view, wild("golden_programs.safetensors")), 2u);
}

TEST(WildFiles, WeightsOfProgramsAreRead) {
  expect_program("script.pt", "TorchScript");
  expect_program("trace.pt", "TorchScript");
  for (const std::string name : {"program.pt2", "program_pickled.pt2", "program_2_8.pt2", "program_2_6.pt2"})
    expect_program(name, "torch.export");
}

// Freezing leaves values without names.
TEST(WildFiles, ConstantsOfTorchScriptAreRead) {
  for (const auto& [name, count] : {std::pair("frozen.pt"s, 6u), std::pair("trace.pt"s, 1u)}) {
    Result<CheckpointView> view = open_checkpoint(wild(name));
    ASSERT_TRUE(view.has_value()) << view.error().what;
    std::size_t constants = 0;
    for (const StoredTensor& tensor : view->tensors) constants += tensor.name.starts_with("CONSTANTS.c") ? 1 : 0;
    EXPECT_EQ(constants, count) << name;
  }
}

// --- Names and bytes that disagree.

TEST(WildFiles, BytesDecideNotNames) {
  const TemporaryDirectory folder;
  const auto copied = [&](const std::string& from, const std::string& name) {
    EXPECT_TRUE(write_file_atomically(folder.path(name), fixtures::content(from)));
    return folder.path(name);
  };
  Result<CheckpointView> view = open_checkpoint(copied(wild("golden.safetensors"), "state.pt"));
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, "safetensors");
  const std::string other = folder.path() + "/in";
  ASSERT_TRUE(make_directories(other));
  const std::string model = copied(wild("protocol1.pt"), "in/model.safetensors");
  view = open_checkpoint(model);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_EQ(view->format, "torch.save");
  view = open_checkpoint(other);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  EXPECT_FALSE(view->tensors.empty());
  const std::string third = folder.path() + "/bin";
  ASSERT_TRUE(make_directories(third));
  copied(wild("golden_programs.safetensors"), "bin/pytorch_model.bin");
  view = open_checkpoint(third);
  ASSERT_TRUE(view.has_value()) << view.error().what;
  ASSERT_EQ(view->tensors.size(), 2u);
  EXPECT_EQ(view->tensors[0].shape, Shape{2});
}

// --- What only looks alike.

// Notes lie in any folder, and are not why it has no checkpoint.
TEST(WildFiles, TextInAFolderIsNotBlamed) {
  const TemporaryDirectory folder;
  ASSERT_TRUE(write_file_atomically(folder.path("NOTES"), "the run of Tuesday"));
  const Result<CheckpointView> view = open_checkpoint(folder.path());
  ASSERT_FALSE(view.has_value());
  EXPECT_EQ(view.error().what.find("NOTES"), std::string::npos) << view.error().what;
  const Result<CheckpointView> notes = open_checkpoint(folder.path("NOTES"));
  ASSERT_FALSE(notes.has_value());
  EXPECT_NE(notes.error().what.find("the run of Tuesday"), std::string::npos) << notes.error().what;
}

class LookAlike : public testing::Test {
 protected:
  // Why a file of these bytes is refused: under each of the names that checkpoints have, as it is and in a folder.
  std::string why(const std::string& bytes) {
    std::string out;
    for (const std::string name : {"model.safetensors", "pytorch_model.bin", "checkpoint.pt"}) {
      const TemporaryDirectory folder;
      EXPECT_TRUE(write_file_atomically(folder.path(name), bytes));
      for (const std::string& path : {folder.path(name), folder.path()}) {
        const Result<CheckpointView> view = open_checkpoint(path);
        EXPECT_FALSE(view.has_value()) << path;
        if (view) continue;
        EXPECT_NE(view.error().what.find(name), std::string::npos) << view.error().what;
        EXPECT_EQ(view.error().what.find("a header of"), std::string::npos) << view.error().what;
        out += view.error().what + "\n";
        said_.push_back(view.error().what);
      }
    }
    return out;
  }
  // Every one of the errors says it.
  void expect(const std::string& bytes, const std::string& what, const std::string& remedy) {
    said_.clear();
    (void)why(bytes);
    for (const std::string& error : said_) {
      EXPECT_NE(error.find(what), std::string::npos) << error;
      EXPECT_NE(error.find(remedy), std::string::npos) << error;
    }
  }
  std::vector<std::string> said_;
};

TEST_F(LookAlike, PointersAndWhatWasNeverFilled) {
  expect("version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 2468013579\n",
         "a git-lfs pointer to a file of 2468013579 bytes", "git lfs pull");
  expect("", "an empty file", "get it again");
  expect(std::string(100'000, '\0'), "zeros", "get it again");
  expect(std::string(20, '\0'), "zeros", "get it again");
}

TEST_F(LookAlike, PackedFiles) {
  const std::string rest(600, '\x7f');
  expect("\x1f\x8b\x08" + rest, "compressed with gzip", "gunzip");
  expect(
      "\xfd"
      "7zXZ\0"s +
          rest,
      "compressed with xz", "unxz");
  expect("BZh9" + rest, "compressed with bzip2", "bunzip2");
  expect("\x28\xb5\x2f\xfd" + rest, "compressed with zstd", "unzstd");
  expect("model.pt" + std::string(249, '\0') + "ustar" + rest, "a tar archive", "tar -xf");
}

TEST_F(LookAlike, OtherFormats) {
  const std::string rest(600, '\x01');
  expect("\x93NUMPY\x01" + rest, "numpy.save", "numpy.load");
  expect("\x89HDF\r\n\x1a\n" + rest, "HDF5", "Keras");
  expect("GGUF\3" + rest, "GGUF", "made from");
  expect("\x80\4\x95\5\0\0\0\0\0\0\0}."s + rest, "a plain pickle", "torch.save");
  expect("(dp0\nVa\np1\nI1\ns." + rest, "a plain pickle", "torch.save");
  expect(rest + "\x57\xfb\x80\x8b\x24\x75\x47\xdb", "TensorFlow", "TensorFlow");
}

TEST_F(LookAlike, TextThatWasSavedInsteadOfAFile) {
  expect("\n<!DOCTYPE html>\n<html><head><title>Sign in</title></head></html>", "a web page", "download it again");
  expect("<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "XML", "download it again");
  expect("{\"error\": \"Invalid credentials\"}", "JSON", "the checkpoint's folder");
  expect("Entry not found", "text that begins with \"Entry not found\"", "download it again");
}

TEST(WildFiles, ArchivesThatAreNotTorchsAreNamed) {
  const TemporaryDirectory folder;
  const auto why = [&](const std::vector<std::string>& names) {
    const std::string program =
        "import sys, zipfile\nwith zipfile.ZipFile(sys.argv[1], \"w\") as z:\n  [z.writestr(n, \"x\") for n in "
        "sys.argv[2:]]";
    std::string command = std::string(PAWL_PYTHON3) + " -c '" + program + "' " + folder.path("a.pt");
    for (const std::string& name : names) command += " '" + name + "'";
    EXPECT_EQ(std::system(command.c_str()), 0);
    const Result<CheckpointView> view = open_checkpoint(folder.path("a.pt"));
    return view ? "read" : view.error().what;
  };
  EXPECT_NE(why({"arr_0.npy", "w.npy"}).find("numpy.savez"), std::string::npos) << why({"w.npy"});
  EXPECT_NE(why({"config.json", "model.weights.h5"}).find("Keras"), std::string::npos);
  EXPECT_NE(why({"p/.data/extern_modules", "p/model/model.pkl"}).find("torch.package"), std::string::npos);
  EXPECT_NE(why({"m/model.json", "m/tensors/0"}).find("torch.jit.load"), std::string::npos);
  EXPECT_NE(why({"run/model.safetensors"}).find("unzip"), std::string::npos);
}

TEST(WildFiles, FoldersOfOtherFrameworksAreNamed) {
  const auto why = [](const std::vector<std::string>& names) {
    const TemporaryDirectory folder;
    for (const std::string& name : names) EXPECT_TRUE(write_file_atomically(folder.path(name), "\x08\x01\x12\x02"));
    const Result<CheckpointView> view = open_checkpoint(folder.path());
    const Result<CheckpointView> file = open_checkpoint(folder.path(names.back()));  // of its files likewise
    EXPECT_FALSE(file.has_value());
    const std::string reason = view ? "read" : view.error().what.substr(folder.path().size());
    EXPECT_NE(file.error().what.find(reason), std::string::npos) << file.error().what << "\n" << reason;
    return reason;
  };
  EXPECT_NE(why({"fingerprint.pb", "saved_model.pb"}).find("SavedModel"), std::string::npos);
  EXPECT_NE(why({"ckpt-1.index", "ckpt-1.data-00000-of-00001"}).find("TensorFlow"), std::string::npos);
  EXPECT_NE(why({"_CHECKPOINT_METADATA", "manifest.ocdbt"}).find("Orbax"), std::string::npos);
}

// A download that ended early is damaged, whatever it was, and the error says so.
TEST(WildFiles, CutFilesAreCutOff) {
  const TemporaryDirectory folder;
  for (const std::string& from : {wild("protocol1.pt"), wild("protocol1_stream.pt"), wild("program.pt2"),
                                  wild("script.pt"), wild("golden.safetensors")}) {
    const std::string bytes = fixtures::content(from);
    ASSERT_TRUE(write_file_atomically(folder.path("cut"), bytes.substr(0, bytes.size() - 100)));
    const Result<CheckpointView> view = open_checkpoint(folder.path("cut"));
    ASSERT_FALSE(view.has_value()) << from;
    EXPECT_EQ(view.error().code, Code::corrupt) << view.error().what;
    EXPECT_NE(view.error().what.find("cut off"), std::string::npos) << view.error().what;
  }
}

}  // namespace
}  // namespace pawl::checkpoint
