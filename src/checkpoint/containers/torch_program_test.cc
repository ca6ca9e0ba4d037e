#include "checkpoint/containers/torch_program.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/formats/fixtures.h"

namespace pawl::checkpoint {
namespace {

std::string little(std::uint64_t number, std::size_t bytes) {
  std::string out;
  for (std::size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(number >> (8 * i) & 0xff));
  return out;
}

// An archive of these records, stored, without checksums.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string out, directory;
  for (const auto& [name, content] : records) {
    const std::string sizes = little(content.size(), 4) + little(content.size(), 4) + little(name.size(), 2);
    directory +=
        "PK\1\2" + little(20, 2) + little(20, 2) + little(0, 12) + sizes + little(0, 12) + little(out.size(), 4) + name;
    out += "PK\3\4" + little(20, 2) + little(0, 12) + sizes + little(0, 2) + name + content;
  }
  return out + directory + "PK\5\6" + little(0, 4) + little(records.size(), 2) + little(records.size(), 2) +
         little(directory.size(), 4) + little(out.size(), 4) + little(0, 2);
}

Result<TorchFile> parse(std::string_view bytes) {
  MemoryBytes source(bytes);
  return TorchFile::read(source);
}

std::string program(const std::string& table, const std::string& weight = "12345678") {
  return zip_of({{"p/archive_format", "pt2"},
                 {"p/data/weights/m_weights_config.json", table},
                 {"p/data/weights/w", weight},
                 {"p/byteorder", "little"}});
}

std::string meta(const std::string& sizes, const std::string& strides, const std::string& more = "") {
  return R"({"dtype":7,"sizes":[)" + sizes + R"(],"strides":[)" + strides +
         R"(],"storage_offset":{"as_int":0},"layout":7,"requires_grad":true,"device":{"type":"cpu","index":null})" +
         more + "}";
}

std::string entry(const std::string& name, const std::string& tensor_meta, const std::string& more = "") {
  return '"' + name + R"(":{"path_name":"w","is_param":true,"use_pickle":false,"tensor_meta":)" + tensor_meta + more +
         "}";
}

std::string table(const std::string& entries) {
  return R"({"config":{)" + entries + "}}";
}

const std::string kTwo = R"({"as_int":2})";
const std::string kOne = R"({"as_int":1})";

std::string why(const std::string& bytes) {
  const Result<TorchFile> file = parse(bytes);
  return file ? "read" : file.error().what;
}

TEST(TorchProgram, ATableSaysWhichTensorsLieInARecord) {
  const std::string bytes = program(table(entry("a.w", meta(kTwo, kOne)) + "," + entry("tied", meta(kTwo, kOne))));
  const Result<TorchFile> file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().what;
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(file->format(), "torch.export");
  EXPECT_EQ(name_of(file->tensors()[0].path), "a.w");
  EXPECT_TRUE(file->tensors()[0].is_parameter);
  EXPECT_TRUE(file->tensors()[0].requires_grad);
  EXPECT_EQ(file->storages().size(), 1u);
  MemoryBytes source(bytes);
  EXPECT_EQ(read_elements(source, *file, file->tensors()[1], 100).value_or(""), "12345678");
}

TEST(TorchProgram, OfSeveralProgramsEachHasItsName) {
  const std::string one = table(entry("w", meta(kTwo, kOne)));
  const Result<TorchFile> file = parse(zip_of({{"p/archive_format", "pt2"},
                                               {"p/data/weights/first_weights_config.json", one},
                                               {"p/data/weights/second_weights_config.json", one},
                                               {"p/data/weights/w", "12345678"}}));
  ASSERT_TRUE(file.has_value()) << file.error().what;
  ASSERT_EQ(file->tensors().size(), 2u);
  EXPECT_EQ(name_of(file->tensors()[1].path), "second.w");
}

TEST(TorchProgram, TablesThatLieAreRefused) {
  EXPECT_NE(
      why(program(table(entry("a", meta(kTwo + "," + kTwo, kTwo + "," + kOne))))).find("last element is number 3"),
      std::string::npos);
  EXPECT_NE(why(program(table(entry("a", meta(kTwo, ""))))).find("1 sizes and 0 strides"), std::string::npos);
  EXPECT_NE(why(program(table(entry("a", meta(R"({"as_int":-2})", kOne))))).find("JSON"), std::string::npos);
  EXPECT_NE(why(program(table(entry("a", meta(R"({"as_expr":"s0"})", kOne))))).find("given as as_expr"),
            std::string::npos);
  EXPECT_NE(why(program(table(R"("a":{"path_name":"x","tensor_meta":null})"))).find("no record p/data/weights/x"),
            std::string::npos);
  std::string unknown = meta(kTwo, kOne);
  unknown.replace(unknown.find("7"), 1, "99");
  EXPECT_NE(why(program(table(entry("a", unknown)))).find("the number 99"), std::string::npos);
  EXPECT_NE(why(program("[]")).find("JSON"), std::string::npos);
  EXPECT_NE(why(zip_of({{"p/archive_format", "pt2"}})).find("without a table of weights"), std::string::npos);
  std::string huge = R"({"as_int":18446744073709551615})";
  EXPECT_NE(why(program(table(entry("a", meta(huge + "," + huge, kOne + "," + kOne))))), "read");
}

// A weight without bytes is a problem; an object is no tensor, and a note.
TEST(TorchProgram, WhatHasNoBytesIsSaid) {
  const Result<TorchFile> empty = parse(program(table(entry("a", meta(kTwo, kOne))), ""));
  ASSERT_TRUE(empty.has_value()) << empty.error().what;
  EXPECT_TRUE(empty->tensors().empty());
  ASSERT_EQ(empty->problems().size(), 1u);
  EXPECT_NE(empty->problems()[0].find("tensor a: its record p/data/weights/w has no bytes, and its shape says 2"),
            std::string::npos)
      << empty->problems()[0];
  const Result<TorchFile> none = parse(program(table(entry("a", meta(R"({"as_int":0})", kOne))), ""));
  ASSERT_TRUE(none.has_value()) << none.error().what;
  EXPECT_EQ(none->tensors().size(), 1u);
  EXPECT_TRUE(none->problems().empty());
  const Result<TorchFile> object = parse(program(table(R"("a":{"path_name":"w","tensor_meta":null})")));
  ASSERT_TRUE(object.has_value()) << object.error().what;
  EXPECT_TRUE(object->tensors().empty());
  EXPECT_EQ(object->notes().size(), 2u);
}

// A file in an archive is read once, and is none that holds others.
TEST(TorchProgram, ArchivesDoNotNest) {
  const std::string inner = program(table(entry("a", meta(kTwo, kOne))));
  const std::string pickled = R"("a":{"path_name":"w","use_pickle":true,"tensor_meta":)" + meta(kTwo, kOne) + "}";
  EXPECT_NE(why(program(table(pickled), inner)).find("inside another"), std::string::npos);
  const std::string saved = fixtures::content(fixtures::small_set() + "/torch/H_torch_save/bare_tensor.pt");
  EXPECT_EQ(why(program(table(pickled), saved)), "read");
  const std::string again = R"("b":{"path_name":"w","use_pickle":true,"tensor_meta":)" + meta(kTwo, kOne) + "}";
  EXPECT_NE(why(program(table(pickled + "," + again), saved)).find("named twice"), std::string::npos);
  EXPECT_NE(why(program(table(R"(")" + std::string(5000, 'n') + R"(":{})"))).find("a name of 5000 bytes"),
            std::string::npos);
}

const std::vector<std::string> kFixtures = {"program.pt2",     "program_pickled.pt2", "program_2_6.pt2",
                                            "program_2_8.pt2", "script.pt",           "frozen.pt"};

TEST(TorchProgram, EveryTruncationIsRefused) {
  for (const std::string& name : kFixtures) {
    const std::string bytes = fixtures::content(fixtures::small_set() + "/torch/L_wild/" + name);
    ASSERT_TRUE(parse(bytes).has_value()) << name << ": " << parse(bytes).error().what;
    for (std::size_t length = 0; length < bytes.size(); length += 7)
      ASSERT_FALSE(parse(std::string_view(bytes).substr(0, length)).has_value()) << name << " cut at " << length;
  }
}

// A flipped bit is refused, or is read as something that still lies inside the file. Sanitizers see the rest.
TEST(TorchProgram, FlippedBitsNeverLeaveTheFile) {
  for (const std::string& name : kFixtures) {
    std::string bytes = fixtures::content(fixtures::small_set() + "/torch/L_wild/" + name);
    for (std::size_t bit = 0; bit < bytes.size() * 8; bit += 29) {
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
      if (Result<TorchFile> file = parse(bytes)) {
        MemoryBytes source(bytes);
        for (const TorchTensor& tensor : file->tensors())
          if (Result<std::string> elements = read_elements(source, *file, tensor, 1 << 20);
              !elements && !file->storages()[tensor.storage].deflated) {
            EXPECT_NE(elements.error().code, Code::corrupt) << name << " bit " << bit << ": " << elements.error().what;
          }
      }
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    }
  }
}

}  // namespace
}  // namespace pawl::checkpoint
