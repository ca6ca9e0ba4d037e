#include "checkpoint/store/checkpoint_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "checkpoint/store/store_test_kit.h"

namespace pawl::checkpoint {
namespace {

class CheckpointFolderTest : public testing::Test {
 protected:
  std::string save(std::uint64_t step) {
    const std::string path = directory_.path(checkpoint_name(step));
    auto store = StoreFolder::begin(path);
    EXPECT_TRUE(store) << store.error().what;
    const std::vector<StorePiece> pieces{whole_of("wte", "weight", ElementType::uint8, {64}, bytes_),
                                         whole_of("seat0", "seat_volatile", ElementType::uint8, {64}, bytes_)};
    const auto share = write_store_part(store->folder(), 0, pieces, small_options());
    EXPECT_TRUE(share) << share.error().what;
    EXPECT_TRUE(store->publish(std::vector<std::string>{*share}));
    return path;
  }
  [[nodiscard]] std::vector<ListedCheckpoint> listed() const {
    const auto found = list_checkpoints(directory_.path());
    EXPECT_TRUE(found) << found.error().what;
    return found ? *found : std::vector<ListedCheckpoint>();
  }

  TemporaryDirectory directory_;
  Bytes bytes_ = pattern(64, 1);
};

TEST_F(CheckpointFolderTest, NamesAreWhatTheyAreWritten) {
  EXPECT_EQ(checkpoint_name(500), "step-500");
  EXPECT_EQ(parse_checkpoint_name("step-500"), 500u);
  for (const char* other : {"step-", "step-0500", "step-5x", "steps-5", "5", "step--5", ""})
    EXPECT_FALSE(parse_checkpoint_name(other)) << other;
}

TEST_F(CheckpointFolderTest, AreListedByStepAndOthersAreNotMentioned) {
  for (const std::uint64_t step : {900u, 1000u, 30u}) save(step);
  std::filesystem::create_directories(directory_.path("logs"));
  std::filesystem::create_directories(directory_.path("step-40.pawl-partial/attempt-1"));
  std::filesystem::create_directories(directory_.path("step-50"));
  const auto found = listed();
  std::vector<std::uint64_t> steps;
  for (const ListedCheckpoint& one : found) steps.push_back(one.step);
  EXPECT_EQ(steps, (std::vector<std::uint64_t>{30, 40, 50, 900, 1000}));
  EXPECT_TRUE(found[0].finished);
  EXPECT_FALSE(found[1].finished);
  EXPECT_FALSE(found[2].finished);
  EXPECT_EQ(found[0].damage, "");
  EXPECT_EQ(found[0].tensors, 1u) << "what only the job reads is not counted";
  EXPECT_GT(found[0].bytes, 128u);
  EXPECT_GT(found[0].written_s, 1'700'000'000);
  EXPECT_EQ(list_checkpoints(directory_.path("nothing")).error().code, Code::not_found);
}

TEST_F(CheckpointFolderTest, ADamagedOneIsListedWithTheReasonAndHidesNoOther) {
  save(10);
  const std::string cut = save(20);
  const std::string other = save(30);
  std::filesystem::resize_file(join_path(cut, store_file_name(0)), 10);
  std::filesystem::resize_file(join_path(other, kStoreManifestName), 10);
  const auto found = listed();
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].damage, "");
  EXPECT_NE(found[1].damage.find("10 bytes instead of"), std::string::npos) << found[1].damage;
  EXPECT_NE(found[2].damage, "");
}

TEST_F(CheckpointFolderTest, OneByItsOwnPathIsListedAlone) {
  save(10);
  const auto found = list_checkpoints(save(20));
  ASSERT_TRUE(found);
  ASSERT_EQ(found->size(), 1u);
  EXPECT_EQ(found->front().step, 20u);
}

}  // namespace
}  // namespace pawl::checkpoint
