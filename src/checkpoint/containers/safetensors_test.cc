#include "checkpoint/containers/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>
#include <set>

#include "base/text.h"
#include "checkpoint/containers/json_scan.h"
#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

using fixtures::json;

Result<SafetensorsFile> parse(std::string_view bytes) {
  MemoryBytes source(bytes);
  return read_safetensors(source);
}

std::string file_of(std::string header, std::string_view data) {
  std::uint64_t length = header.size();
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + header + std::string(data);
}

std::string view_of(const std::string& bytes, const SafetensorsEntry& entry) {
  return bytes.substr(entry.offset_bytes, entry.size_bytes);
}

TEST(Safetensors, EveryValidFormIsRead) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/I6_formats";
    const json golden = fixtures::golden(folder);
    ASSERT_GE(golden["files"].size(), 9u);
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      const std::string bytes = fixtures::content(folder + "/" + name);
      Result<SafetensorsFile> file = parse(bytes);
      ASSERT_TRUE(file.has_value()) << file.error().what;
      ASSERT_EQ(file->tensors.size(), expected["tensors"].size());
      for (const SafetensorsEntry& entry : file->tensors) {
        SCOPED_TRACE(entry.name);
        const json& tensor = expected["tensors"][entry.name];
        ASSERT_TRUE(tensor.is_object());
        const std::string type = tensor["dtype"];
        if (std::islower(static_cast<unsigned char>(type[0])) && type != "float4_e2m1fn_x2") {
          EXPECT_EQ(name_of(entry.type), type);
          EXPECT_EQ(json(entry.shape), tensor["shape"]);
        }
        EXPECT_EQ(fixtures::sha256(view_of(bytes, entry)), tensor["sha256"]);
      }
    }
  }
}

TEST(Safetensors, HostileFilesAreRefused) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/I7_hostile";
    const json golden = fixtures::golden(folder);
    for (const auto& [name, expected] : golden["files"].items()) {
      SCOPED_TRACE(folder + "/" + name);
      const std::string rule = expected["expected"];
      const bool is_index = fixtures::is_folder(folder + "/" + name);
      Result<CheckpointView> view = is_index ? view_huggingface(folder + "/" + name + "/model.safetensors.index.json")
                                             : view_safetensors(folder + "/" + name);
      if (rule.starts_with("error") && rule.find(" or ") == std::string::npos &&
          rule.find(", or") == std::string::npos) {
        EXPECT_FALSE(view.has_value());
      }
      if (rule.starts_with("reads")) {
        EXPECT_TRUE(view.has_value()) << view.error().what;
      }
      if (!view) {
        EXPECT_NE(view.error().what.find(name), std::string::npos) << "no path in: " << view.error().what;
      }
    }
  }
}

TEST(Safetensors, AnIndexJoinsItsFiles) {
  for (const std::string& set : fixtures::sets()) {
    const std::string folder = set + "/torch/I2_llama_sharded_bf16";
    Result<CheckpointView> view = view_huggingface(folder + "/model/model.safetensors.index.json");
    ASSERT_TRUE(view.has_value()) << view.error().what;
    EXPECT_EQ(view->files.size(), 7u);
    EXPECT_TRUE(view->notes.empty());
    const std::string golden_bytes = fixtures::content(folder + "/golden.safetensors");
    Result<SafetensorsFile> golden = parse(golden_bytes);
    ASSERT_TRUE(golden.has_value()) << golden.error().what;
    std::map<std::string, std::string> expected;
    for (const SafetensorsEntry& entry : golden->tensors) expected[entry.name] = view_of(golden_bytes, entry);
    ASSERT_EQ(view->tensors.size(), expected.size());
    for (const StoredTensor& tensor : view->tensors) {
      const StoredPiece& piece = tensor.pieces[0];
      const std::string bytes =
          fixtures::content(view->files[piece.file].path).substr(piece.offset_bytes, span_bytes(piece, tensor.type));
      EXPECT_EQ(bytes, expected[tensor.name + "/weight"]) << tensor.name;
    }
  }
}

TEST(Safetensors, ErrorsSayWhatIsWrong) {
  const auto why = [](const std::string& bytes) {
    Result<SafetensorsFile> file = parse(bytes);
    return file ? std::string("read") : file.error().what;
  };
  EXPECT_EQ(why("\1\2\3"), "safetensors: 3 bytes are not a file");
  EXPECT_EQ(why(file_of(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "12345678")),
            "safetensors: tensor a begins at 4 of the data, after a hole from 0");
  EXPECT_EQ(why(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "1234")),
            "safetensors: header: JSON: offset 53: tensor a: 4 bytes, and its shape needs 8");
  EXPECT_EQ(
      why(file_of(
          R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          "1")),
      "safetensors: tensor a is there twice");
  EXPECT_EQ(why(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "12")),
            "safetensors: 1 bytes after the last tensor");
  EXPECT_EQ(why(file_of("{}", "")), "read");
}

TEST(Safetensors, EveryTruncationAndFlippedBitIsRefusedOrStaysInside) {
  std::string bytes = fixtures::content(fixtures::small_set() + "/torch/I6_formats/all_dtypes.safetensors");
  for (std::size_t length = 0; length < bytes.size(); ++length)
    ASSERT_FALSE(parse(std::string_view(bytes).substr(0, length)).has_value()) << length;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    if (Result<SafetensorsFile> file = parse(bytes)) {
      for (const SafetensorsEntry& entry : file->tensors)
        ASSERT_LE(entry.offset_bytes + entry.size_bytes, bytes.size()) << "bit " << bit;
    }
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
  }
}

TEST(Safetensors, AHundredThousandTensorsOpen) {
  std::string header = "{";
  for (int i = 0; i < 100'000; ++i)
    header += text(i == 0 ? "" : ",", "\"model.layers.", i / 10, ".mlp.", i % 10,
                   ".weight\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[", i * 4, ",", i * 4 + 4, "]}");
  const std::string bytes = file_of(header + "}", std::string(400'000, 'x'));
  Result<SafetensorsFile> file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  EXPECT_EQ(file->tensors.size(), 100'000u);
}

// Random text that JSON's own parser takes or refuses: ours agrees, where what it takes has no lone surrogates.
TEST(JsonScan, AgreesWithAnotherParser) {
  const std::uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<std::string> parts = {"{",
                                          "}",
                                          "[",
                                          "]",
                                          ",",
                                          ":",
                                          "\"a\"",
                                          "\"\\u00e9\"",
                                          "\"\\n\"",
                                          "1",
                                          "-0",
                                          "0.5",
                                          "1e-3",
                                          "01",
                                          "true",
                                          "false",
                                          "null",
                                          " ",
                                          "\n",
                                          "\"\xc3\xa9\"",
                                          "\"\x01\"",
                                          "\"\\ud83d\\ude00\"",
                                          "\"\\ud83d\"",
                                          "nul",
                                          "/"};
  int valid = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::string text;
    for (std::size_t n = 1 + random() % 7; n > 0; --n) text += parts[random() % parts.size()];
    JsonScan scan(text);
    const bool ours = scan.skip() && scan.finish();
    ASSERT_EQ(ours, json::accept(text)) << text;
    valid += ours ? 1 : 0;
  }
  EXPECT_GT(valid, 1000);
}

TEST(Safetensors, TheWholeSetIsThere) {
  PAWL_NEEDS_WHOLE_SET();
}

}  // namespace
}  // namespace pawl::checkpoint
