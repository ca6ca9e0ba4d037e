#include "checkpoint/formats/native/store_manifest.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/text.h"

namespace pawl::checkpoint {
namespace {

Box box_of(const Shape& begin, const Shape& size) {
  Box box{static_cast<std::uint32_t>(size.size()), {}, {}};
  std::ranges::copy(begin, box.begin.begin());
  std::ranges::copy(size, box.size.begin());
  return box;
}

StoreManifest some_manifest() {
  StoreManifest manifest;
  manifest.files = {{"data-00000.safetensors", 1000, 200, 0xFFFF'FFFF}, {"data-123456.safetensors", 208, 208, 7}};
  manifest.tensors = {
      {"a\"b\\c\n\u00e9",
       "weight",
       ElementType::bfloat16,
       {4, 6},
       {{0, 200, 17, box_of({0, 0}, {4, 2})}, {0, 300, 0, box_of({0, 2}, {4, 4})}}},
      {"step", "step", ElementType::int64, {}, {{0, 992, 5, box_of({}, {})}}},
      {"nothing", "buffer", ElementType::boolean, {0, 3}, {}},
  };
  manifest.aliases = {{"tied", "step"}};
  manifest.values = R"({"a": [1, 2.5, null, "}"]})";
  return manifest;
}

TEST(StoreManifest, IsReadAsItWasWritten) {
  const StoreManifest manifest = some_manifest();
  const Result<StoreManifest> again = parse_store_manifest(text_of(manifest));
  ASSERT_TRUE(again.has_value()) << again.error().what;
  EXPECT_EQ(again->files, manifest.files);
  EXPECT_EQ(again->tensors, manifest.tensors);
  EXPECT_EQ(again->aliases, manifest.aliases);
  EXPECT_EQ(again->values, manifest.values);
}

TEST(StoreManifest, IsRefusedWhereItCannotBe) {
  const auto expect_refused = [](void (*change)(StoreManifest&), std::string_view why) {
    StoreManifest manifest = some_manifest();
    change(manifest);
    const Result<StoreManifest> read = parse_store_manifest(text_of(manifest));
    ASSERT_FALSE(read.has_value()) << why;
    EXPECT_EQ(read.error().code, Code::corrupt);
    EXPECT_NE(read.error().what.find(why), std::string::npos) << read.error().what;
  };
  expect_refused([](StoreManifest& m) { m.files[0].name = "../secret"; }, "another name");
  expect_refused([](StoreManifest& m) { m.files[0].name = "data-00000.safetensors/../x"; }, "another name");
  expect_refused([](StoreManifest& m) { m.files[0].header_bytes = 1001; }, "sizes that cannot be");
  expect_refused([](StoreManifest& m) { m.tensors[1].pieces[0].file = 2; }, "not listed");
  expect_refused([](StoreManifest& m) { m.tensors[1].pieces[0].offset_bytes = 993; }, "leaves data-00000");
  expect_refused([](StoreManifest& m) { m.tensors[1].pieces[0].offset_bytes = 199; }, "leaves data-00000");
  expect_refused([](StoreManifest& m) { m.tensors[1].pieces[0].offset_bytes = ~0ull; }, "leaves data-00000");
  expect_refused([](StoreManifest& m) { m.tensors[0].pieces[0].box.begin[1] = 5; }, "leaves it");
  expect_refused([](StoreManifest& m) { m.tensors[0].pieces[0].box.begin[1] = ~0ull; }, "leaves it");
  expect_refused([](StoreManifest& m) { m.tensors[0].pieces[0].box.size[1] = 0; }, "empty piece");
  expect_refused([](StoreManifest& m) { m.tensors[0].shape = {1ull << 40, 1ull << 40}; }, "too large");
  expect_refused([](StoreManifest& m) { m.tensors[0].name = "\xc3"; }, "manifest");
  std::string later = text_of(some_manifest());
  later.replace(later.find("\"version\":1"), 11, "\"version\":2");
  EXPECT_EQ(parse_store_manifest(later).error().code, Code::invalid);
  EXPECT_EQ(parse_store_manifest("{}").error().code, Code::corrupt);
}

TEST(StoreManifest, ThatIsDamagedIsRefusedOrWellFormed) {
  const std::string whole = text_of(some_manifest());
  for (std::size_t i = 0; i < whole.size() - 2; ++i) EXPECT_FALSE(parse_store_manifest(whole.substr(0, i))) << i;
  std::mt19937_64 random(5);
  for (int i = 0; i < 20'000; ++i) {
    std::string damaged = whole;
    for (int n = 0; n < 3; ++n) damaged[random() % damaged.size()] = static_cast<char>(random());
    const Result<StoreManifest> read = parse_store_manifest(damaged);
    if (!read) continue;
    for (const StoreManifestTensor& tensor : read->tensors)
      for (const StoreManifestPiece& piece : tensor.pieces)
        ASSERT_LE(piece.offset_bytes + piece_bytes(tensor, piece), read->files.at(piece.file).size_bytes);
  }
}

TEST(StoreManifest, MarksOneManifestOnly) {
  const std::string manifest = text_of(some_manifest());
  EXPECT_TRUE(check_marker(marker_of(manifest), manifest));
  EXPECT_EQ(check_marker(marker_of(manifest), manifest + " ").error().code, Code::corrupt);
  std::string other = manifest;
  other.back() ^= 1;
  EXPECT_EQ(check_marker(marker_of(manifest), other).error().code, Code::corrupt);
  EXPECT_EQ(check_marker("", manifest).error().code, Code::corrupt);
  EXPECT_EQ(check_marker("{}", manifest).error().code, Code::corrupt);
}

TEST(StoreManifest, ItsMarkerSaysWhichCheckpointItIsAndWhichWereBefore) {
  const std::string manifest = text_of(some_manifest());
  const StoreIdentity identity{"a-7", {{20, "a-6"}, {10, "b1"}}, 1764000000123};
  const std::string marker = marker_of(manifest, identity);
  EXPECT_TRUE(check_marker(marker, manifest));
  EXPECT_EQ(*identity_in(marker), identity);
  EXPECT_EQ(*identity_in(marker_of(manifest)), StoreIdentity());
  StoreIdentity old = identity;
  for (std::uint64_t step = 1; step < 2 * kHistoryMax; ++step) old.before.push_back({step, "x"});
  EXPECT_EQ(identity_in(marker_of(manifest, old))->before.size(), kHistoryMax);
  const std::string begin = R"({"manifest_bytes":1,"manifest_crc32c":2,)";
  for (const char* bad : {R"("id":"../x"})", R"("id":7})", R"("before":[[1]]})", R"("before":[[1,"a",2]]})",
                          R"("before":[["a",1]]})", R"("before":1})", R"("written_ms":"now"})"})
    EXPECT_EQ(identity_in(begin + bad).error().code, Code::corrupt) << bad;
  EXPECT_FALSE(identity_in(begin + R"("id":")" + std::string(65, 'a') + "\"}"));
}

TEST(StoreManifest, MayBeOfOneAttemptAmongSeveral) {
  EXPECT_EQ(store_file_name(3, "1-a9"), "data-00003.1-a9.safetensors");
  EXPECT_EQ(store_manifest_name("1-a9"), "manifest.1-a9.json");
  EXPECT_EQ(store_manifest_name(""), kStoreManifestName);
  StoreManifest manifest = some_manifest();
  manifest.files[0].name = store_file_name(0, "1-a9");
  const std::string text = text_of(manifest);
  ASSERT_TRUE(parse_store_manifest(text)) << parse_store_manifest(text).error().what;
  const std::string marker = marker_of(text, {}, "manifest.1-a9.json");
  EXPECT_TRUE(check_marker(marker, text));
  EXPECT_EQ(manifest_name_in(marker).value(), "manifest.1-a9.json");
  EXPECT_EQ(manifest_name_in(marker_of(text)).value(), kStoreManifestName);
  EXPECT_EQ(marker_of(text).find("\"manifest\":"), std::string::npos) << "as it was before";
  for (const char* bad : {"manifest..json", "manifest.A.json", "../manifest.json", "manifest.a/b.json", "a.json"}) {
    EXPECT_FALSE(is_manifest_name(bad)) << bad;
    EXPECT_EQ(manifest_name_in(marker_of(text, {}, bad)).error().code, Code::corrupt) << bad;
  }
  for (const char* bad : {"data-00000..safetensors", "data-00000.a.b.safetensors", "data-00000.A.safetensors"}) {
    manifest.files[0].name = bad;
    EXPECT_EQ(parse_store_manifest(text_of(manifest)).error().code, Code::corrupt) << bad;
  }
}

TEST(StoreManifest, JoinsShares) {
  std::vector<StoreManifest> shares(2);
  shares[0].files = {{"data-00000.safetensors", 100, 20, 1}};
  shares[1].files = {{"data-00001.safetensors", 100, 20, 2}};
  shares[0].tensors = {{"a", "weight", ElementType::uint8, {8}, {{0, 20, 3, box_of({0}, {5})}}}};
  shares[1].tensors = {{"a", "weight", ElementType::uint8, {8}, {{0, 20, 4, box_of({5}, {3})}}}};
  Result<StoreManifest> joined = join_manifests(shares);
  ASSERT_TRUE(joined.has_value()) << joined.error().what;
  EXPECT_EQ(joined->files.size(), 2u);
  ASSERT_EQ(joined->tensors.size(), 1u);
  EXPECT_EQ(joined->tensors[0].pieces[1], (StoreManifestPiece{1, 20, 4, box_of({5}, {3})}));
  EXPECT_TRUE(check_manifest_tiles(*joined));
  joined->tensors[0].pieces[1].box.size[0] = 2;
  EXPECT_NE(check_manifest_tiles(*joined).error().what.find("[7:8]"), std::string::npos);
  joined->tensors[0].pieces[1].box = box_of({4}, {4});
  EXPECT_NE(check_manifest_tiles(*joined).error().what.find("[0:5] and [4:8]"), std::string::npos);
  shares[1].files[0].name = shares[0].files[0].name;
  EXPECT_EQ(join_manifests(shares).error().code, Code::invalid);
}

}  // namespace
}  // namespace pawl::checkpoint
