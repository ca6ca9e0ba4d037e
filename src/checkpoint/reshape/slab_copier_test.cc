// Encoded files whose boxes go into memory of peers. Plain long runs are written from where they lie, so the decoded
// bytes must not be dropped before. The peer is this process itself, which the system tells no apart.
#include "checkpoint/reshape/slab_copier.h"

#include <gtest/gtest.h>
#include <zstd.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "checkpoint/reshape/execute.h"
#include "checkpoint/reshape/slabs.h"
#include "env/peer_memory.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

constexpr std::uint32_t kFiles = 8;
constexpr std::uint64_t kElements = 25'600;   // of each file
constexpr std::uint64_t kFirst = 20'480;      // of those that are wanted
constexpr std::uint64_t kWanted = 1024;       // of each file: all together are one slab
constexpr std::uint64_t kMemory = 256 << 10;  // half of it is for decoded files

static_assert(2 * kElements * sizeof(float) > kMemory / 2, "each file is dropped for the next");

float element(std::uint32_t file, std::uint64_t index) {
  return static_cast<float>(1000 * (file + 1) + index % 13);
}

// One tensor: a part of each file, one after another.
class EncodedToPeers : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::vector<std::string> tickets{peers_.ticket()};
    if (!peers_.join(tickets, 0)) GTEST_SKIP() << "privilege: process_vm_writev is refused here";
    for (std::uint32_t i = 0; i < kFiles; ++i) {
      std::vector<float> values(kElements);
      for (std::uint64_t k = 0; k < kElements; ++k) values[k] = element(i, k);
      std::string encoded(ZSTD_compressBound(kElements * sizeof(float)), '\0');
      encoded.resize(ZSTD_compress(encoded.data(), encoded.size(), values.data(), kElements * sizeof(float), 1));
      StoredFile file;
      file.path = folder_.path(text("file", i));
      file.codec = StoredFile::Codec::zstd;
      file.length_bytes = encoded.size();
      file.decoded_bytes = kElements * sizeof(float);
      std::ofstream(file.path, std::ios::binary).write(encoded.data(), static_cast<std::streamsize>(encoded.size()));
      files_.push_back(file);
    }
    for (std::uint32_t i = 0; i < kFiles; ++i) {
      PlannedCopy copy;
      copy.box.dimensions = 1;
      copy.box.begin = {i * kWanted};
      copy.box.size = {kWanted};
      copy.sources = {{0, i, kFirst, {1}}};
      copy.target = {0, 0, i * kWanted, {1}};
      copies_.push_back(copy);
      for (std::uint64_t k = 0; k < kWanted; ++k) expected_.push_back(element(i, kFirst + k));
    }
    source_.files = &files_;
    source_.place = [](std::uint32_t, std::uint32_t buffer) -> BufferPlace {
      return {.file = buffer, .size_bytes = kElements * sizeof(float)};
    };
    target_.peers = &peers_;
    target_.place = [this](std::uint32_t, std::uint32_t) -> BufferPlace {
      return {.memory = reinterpret_cast<std::byte*>(memory_.data()),
              .size_bytes = memory_.size() * sizeof(float),
              .peer = 0};
    };
  }

  const TemporaryDirectory folder_;
  PeerMemory peers_;
  std::vector<StoredFile> files_;
  std::vector<PlannedCopy> copies_;
  CopySource source_;
  CopyTarget target_;
  std::vector<float> memory_ = std::vector<float>(kFiles * kWanted);  // the peer's
  std::vector<float> expected_;
};

// Whatever becomes of the decoded bytes afterwards: nothing is left to be written from them.
TEST_F(EncodedToPeers, all_is_written_when_copy_encoded_returns) {
  const ExecuteOptions options;
  Execution execution(source_, target_, options, kMemory / 2, 1);
  const auto batch = std::make_shared<Batch>();
  StagedSlab slab;
  for (std::uint32_t i = 0; i < kFiles; ++i) {
    ASSERT_TRUE(append_placed_copy(copies_[i], source_, target_, *batch));
    slab.slab.parts.push_back({i, copies_[i].box});
    slab.encoded.push_back({i, i, 0});
  }
  slab.slab.batch = batch;
  SlabCopier copier(execution);
  const Status copied = copier.copy_encoded(slab);
  ASSERT_TRUE(copied) << copied.error().what;
  EXPECT_EQ(memory_, expected_);
  EXPECT_TRUE(copier.flush());
  EXPECT_EQ(memory_, expected_);
}

TEST_F(EncodedToPeers, a_file_that_is_dropped_for_the_next_has_been_written) {
  ExecuteOptions options;
  options.memory_bytes = kMemory;
  options.threads = 1;
  const Result<ExecuteReport> done = execute(stream_of(copies_), source_, target_, options);
  ASSERT_TRUE(done.has_value()) << done.error().what;
  EXPECT_EQ(memory_, expected_);
}

}  // namespace
}  // namespace pawl::checkpoint
