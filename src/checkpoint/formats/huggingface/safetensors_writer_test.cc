#include "checkpoint/formats/huggingface/safetensors_writer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/containers/safetensors.h"

namespace pawl::checkpoint {
namespace {

using Tensors = std::vector<SafetensorsTensor>;

// What our reader, which is stricter than the library, makes of a file with this header and zeros behind it.
SafetensorsFile read_back(const SafetensorsLayout& layout) {
  std::string bytes = layout.header;
  bytes.resize(layout.file_bytes);
  MemoryBytes source(bytes);
  Result<SafetensorsFile> file = read_safetensors(source);
  EXPECT_TRUE(file) << (file ? "" : file.error().what) << layout.header;
  return file ? *file : SafetensorsFile();
}

TEST(SafetensorsWriter, IsReadBack) {
  const Tensors tensors = {{"small \"é\"\n", ElementType::int8, {3}},
                           {"wide", ElementType::float64, {2, 2}},
                           {"", ElementType::bfloat16, {5, 0, 2}},
                           {"scalar", ElementType::float32, {}}};
  const auto layout = lay_out_safetensors(tensors, {{"format", "pt"}, {"why", "a \\ b"}});
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->header.size() % 8, 0u);
  const SafetensorsFile file = read_back(*layout);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  for (const SafetensorsEntry& entry : file.tensors) {
    const auto found = std::ranges::find(tensors, entry.name, &SafetensorsTensor::name);
    ASSERT_NE(found, tensors.end()) << entry.name;
    const auto i = static_cast<std::size_t>(found - tensors.begin());
    EXPECT_EQ(entry.type, found->type);
    EXPECT_EQ(entry.shape, found->shape);
    EXPECT_EQ(entry.offset_bytes, layout->offset_bytes[i]);
    EXPECT_EQ(entry.size_bytes, layout->size_bytes[i]);
    EXPECT_EQ(entry.offset_bytes * 8 % size_bits(entry.type), 0u) << "not aligned: " << entry.name;
  }
  EXPECT_EQ(file.metadata, (SafetensorsMetadata{{"format", "pt"}, {"why", "a \\ b"}}));
}

TEST(SafetensorsWriter, CanLayTensorsOutInADisksUnits) {
  const Tensors tensors = {{"odd", ElementType::float64, {3}},
                           {"two", ElementType::int8, {2, 4096}},
                           {"empty", ElementType::float32, {0}},
                           {"one", ElementType::float32, {1024}},
                           {"half", ElementType::bfloat16, {1024}}};
  const auto layout = lay_out_safetensors(tensors, {}, 4096);
  ASSERT_TRUE(layout) << layout.error().what;
  EXPECT_EQ(layout->header.size(), 4096u);
  for (const std::size_t whole : {1, 2, 3}) EXPECT_EQ(layout->offset_bytes[whole] % 4096, 0u) << tensors[whole].name;
  const std::uint64_t units_end = 4096 + 2 * 4096 + 4096;
  EXPECT_EQ(layout->offset_bytes[0], units_end);
  EXPECT_EQ(layout->offset_bytes[4], units_end + 24);
  EXPECT_EQ(read_back(*layout).tensors.size(), tensors.size());
}

TEST(SafetensorsWriter, HasEveryTypeOfTheFormatAndTheOthersAsBytes) {
  Tensors tensors;
  for (std::uint32_t i = 0; i < kElementTypeCount; ++i)
    tensors.push_back({std::string(name_of(static_cast<ElementType>(i))), static_cast<ElementType>(i), {3, 8}});
  const auto layout = lay_out_safetensors(tensors);
  ASSERT_TRUE(layout) << layout.error().what;
  const SafetensorsFile file = read_back(*layout);
  ASSERT_EQ(file.tensors.size(), tensors.size());
  std::size_t as_bytes = 0;
  for (const SafetensorsEntry& entry : file.tensors) {
    const ElementType type = *element_type_named(entry.name);
    if (safetensors_name_of(type)) {
      EXPECT_EQ(entry.type, type);
      EXPECT_EQ(element_type_of_safetensors(*safetensors_name_of(type)), type);
      EXPECT_EQ(entry.shape, (Shape{3, 8}));
    } else if (type == ElementType::float4_e2m1fn_x2) {
      EXPECT_EQ(entry.type, ElementType::float4_e2m1);
      EXPECT_EQ(entry.shape, (Shape{3, 16}));
    } else {
      EXPECT_EQ(entry.type, ElementType::uint8);
      EXPECT_EQ(entry.shape, (Shape{3 * std::uint64_t{size_bits(type)}}));
      ++as_bytes;
    }
  }
  EXPECT_EQ(as_bytes, 12u);
  EXPECT_NE(
      std::ranges::find(file.metadata, std::pair<std::string, std::string>("pawl.type.complex128", "complex128 [3,8]")),
      file.metadata.end());
}

TEST(SafetensorsWriter, RefusesWhatNoReaderTakes) {
  const auto why = [](const Tensors& tensors) {
    const auto layout = lay_out_safetensors(tensors);
    EXPECT_FALSE(layout);
    return layout ? std::string() : layout.error().what;
  };
  EXPECT_NE(why({{"a", {}, {1}}, {"a", {}, {2}}}).find("tensor a would be there twice"), std::string::npos);
  EXPECT_NE(why({{"__metadata__", {}, {1}}}).find("keeps for itself"), std::string::npos);
  for (const char* name : {"\xff", "a\xc3", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80"})
    EXPECT_NE(why({{name, {}, {1}}}).find("not UTF-8"), std::string::npos) << name;
  EXPECT_NE(why({{"half", ElementType::float4_e2m1, {3}}}).find("not a whole number"), std::string::npos);
  EXPECT_NE(why({{"large", ElementType::float64, {std::uint64_t{1} << 62}}}).find("large"), std::string::npos);
  Tensors many;
  for (int i = 0; i < 7; ++i) many.push_back({"a", {}, {1}});
  EXPECT_NE(why(many).find("and 1 more"), std::string::npos) << why(many);
}

TEST(SafetensorsWriter, KeysThatSayRolesAreUnderstood) {
  CheckpointView view;
  view.format = "safetensors";
  for (const char* key : {"a/b/weight", "a/b/exp_avg", "/step"}) view.tensors.emplace_back().name = key;
  CheckpointView mixed = view;
  mixed.tensors.emplace_back().name = "model.weight";
  ASSERT_TRUE(take_roles_from_keys(view).has_value());
  EXPECT_EQ(view.tensors[0].name, "a/b");
  EXPECT_EQ(view.tensors[1].role, "exp_avg");
  EXPECT_EQ(view.tensors[2].name, "");
  ASSERT_TRUE(take_roles_from_keys(mixed).has_value());
  EXPECT_EQ(mixed.tensors[0].name, "a/b/weight");
}

TEST(SafetensorsWriter, FillsFilesInOrder) {
  const std::vector<std::uint64_t> sizes = {4, 4, 4, 20, 1, 0, 9};
  EXPECT_EQ(split_into_files(sizes, 10), (std::vector<std::uint32_t>{0, 0, 1, 2, 3, 3, 3}));
  EXPECT_EQ(split_into_files(sizes, 1000), std::vector<std::uint32_t>(7, 0));
  EXPECT_EQ(split_into_files({}, 10), std::vector<std::uint32_t>());
  EXPECT_EQ(huggingface_file_name(0, 1), "model.safetensors");
  EXPECT_EQ(huggingface_file_name(1, 7), "model-00002-of-00007.safetensors");
  EXPECT_EQ(huggingface_file_name(99999, 123456), "model-100000-of-123456.safetensors");
}

TEST(SafetensorsWriter, IndexIsReadBack) {
  const std::vector<std::string> names = {"b\"", "a", "c"};
  const std::vector<std::uint32_t> files = {0, 1, 1};
  const auto json = huggingface_index(names, files, 2, 77);
  ASSERT_TRUE(json);
  const auto index = parse_huggingface_index(*json);
  ASSERT_TRUE(index) << index.error().what << *json;
  using Pairs = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(index->file_of, (Pairs{{"a", "model-00002-of-00002.safetensors"},
                                   {"b\"", "model-00001-of-00002.safetensors"},
                                   {"c", "model-00002-of-00002.safetensors"}}));
  EXPECT_NE(json->find("\"total_size\": 77"), std::string::npos);
}

}  // namespace
}  // namespace pawl::checkpoint
