// `pawl verify`'s checksums over a checkpoint of our own store: written for real, then damaged.
#include "checkpoint/formats/stored_checksums.h"

#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/store/store_test_kit.h"

namespace pawl::checkpoint {
namespace {

Result<ChecksumReport> prove(const std::string& path) {
  PAWL_ASSIGN(const CheckpointView view, view_store(path));
  return prove_all_checksums(view);
}

void flip(const std::string& path, std::streamoff at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(at);
  file.put(byte);
  ASSERT_TRUE(file.good());
}

TEST(Checksums, OfOurOwnStoreAreProvenPieceByPiece) {
  const TemporaryDirectory folder;
  const std::string path = folder.path("checkpoint");
  const Bytes bytes = pattern(4096, 1);
  Result<StoreFolder> save = StoreFolder::begin(path);
  ASSERT_TRUE(save.has_value()) << save.error().what;
  const StorePiece piece = whole_of("layer.weight", "exp_avg", ElementType::float32, {1024}, bytes);
  const Result<std::string> share = write_store_part(save->folder(), 0, {&piece, 1}, small_options());
  ASSERT_TRUE(share.has_value()) << share.error().what;
  ASSERT_TRUE(save->publish({&*share, 1}));

  Result<ChecksumReport> report = prove(path);
  ASSERT_TRUE(report.has_value()) << report.error().what;
  EXPECT_EQ(report->records, 2u);  // the header and the piece
  EXPECT_EQ(report->unproven_files, 0u);
  EXPECT_TRUE(report->wrong.empty());

  const std::string data = join_path(path, "data-00000.safetensors");
  flip(data, static_cast<std::streamoff>(report->bytes) - 100);
  report = prove(path);
  ASSERT_TRUE(report.has_value()) << report.error().what;
  EXPECT_EQ(report->records, 1u);
  ASSERT_EQ(report->wrong.size(), 1u);
  EXPECT_NE(report->wrong[0].find("layer.weight/exp_avg"), std::string::npos) << report->wrong[0];

  const std::atomic<bool> cancelled{true};
  const Result<CheckpointView> view = view_store(path);
  ASSERT_TRUE(view.has_value());
  EXPECT_EQ(prove_all_checksums(*view, {.cancel = &cancelled}).error().code, Code::cancelled);
}

}  // namespace
}  // namespace pawl::checkpoint
