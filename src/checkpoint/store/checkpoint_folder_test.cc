#include "checkpoint/store/checkpoint_folder.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>

#include "checkpoint/store/store_test_kit.h"
#include "env/fd.h"
#include "env/files.h"

namespace pawl::checkpoint {
namespace {

class CheckpointFolderTest : public testing::Test {
 protected:
  std::string save(std::uint64_t step, const StoreIdentity& identity = {}) {
    const std::string path = directory_.path(checkpoint_name(step));
    StoreOptions options;
    options.overwrite = true;
    auto store = StoreFolder::begin(path, options);
    EXPECT_TRUE(store) << store.error().what;
    const std::vector<StorePiece> pieces{whole_of("wte", "weight", ElementType::uint8, {64}, bytes_),
                                         whole_of("seat0", "seat_volatile", ElementType::uint8, {64}, bytes_)};
    const auto share = write_store_part(store->folder(), 0, pieces, small_options());
    EXPECT_TRUE(share) << share.error().what;
    StorePublishOptions publish;
    publish.identity = identity;
    EXPECT_TRUE(store->publish(std::vector<std::string>{*share}, publish));
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
  EXPECT_GT(found[0].written_ms, 1'700'000'000'000u);
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

TEST_F(CheckpointFolderTest, EachSaysWhichWereBeforeIt) {
  save(10, {"a10", {}, 1000});
  save(20, {"a20", {{10, "a10"}}, 2000});
  save(30, {"a30", {{20, "a20"}, {10, "a10"}}, 3000});
  save(25, {"b25", {{20, "a20"}, {10, "gone"}}, 4000});
  save(40);
  const auto found = listed();
  ASSERT_EQ(found.size(), 5u);
  EXPECT_EQ(found[2].identity, (StoreIdentity{"b25", {{20, "a20"}, {10, "gone"}}, 4000}));
  EXPECT_EQ(found[2].written_ms, 4000u);
  const auto steps = [&](const ListedCheckpoint& last) {
    std::vector<std::uint64_t> out;
    for (const ListedCheckpoint& one : history_of(found, last)) out.push_back(one.step);
    return out;
  };
  EXPECT_EQ(steps(found[3]), (std::vector<std::uint64_t>{10, 20, 30}));
  EXPECT_EQ(steps(found[2]), (std::vector<std::uint64_t>{20, 25})) << "its 10 was another one";
  EXPECT_EQ(steps(found[4]), (std::vector<std::uint64_t>{40})) << "it says nothing";
  EXPECT_EQ(last_written(found)->step, 40u);
  EXPECT_EQ(last_written(std::span(found).first(4))->step, 25u);
  EXPECT_EQ(last_written({}), nullptr);
}

std::vector<std::uint64_t> steps_of(const std::vector<ListedCheckpoint>& listed) {
  std::vector<std::uint64_t> steps;
  for (const ListedCheckpoint& one : listed) steps.push_back(one.step);
  return steps;
}

// It went back to 20, and what it has written since is damaged.
TEST_F(CheckpointFolderTest, ADamagedOneIsStillOfItsHistory) {
  save(10, {"a10", {}, 1000});
  save(20, {"a20", {{10, "a10"}}, 2000});
  save(30, {"a30", {{20, "a20"}, {10, "a10"}}, 3000});
  std::filesystem::resize_file(join_path(save(25, {"b25", {{20, "a20"}, {10, "a10"}}, 4000}), store_file_name(0)), 10);
  const auto found = listed();
  EXPECT_NE(found[2].damage, "");
  ASSERT_EQ(last_written(found), &found[2]);
  EXPECT_EQ(sound_steps(history_of(found, found[2])), (std::vector<std::uint64_t>{10, 20}));
  EXPECT_EQ(steps_of(left_behind(found)), (std::vector<std::uint64_t>{30}));
}

TEST_F(CheckpointFolderTest, WhatAnotherNamesAsBeforeItIsNeverTheLast) {
  save(10, {"a10", {}, 60000});  // its root's clock was fast
  save(20, {"a20", {{10, "a10"}}, 2000});
  const auto found = listed();
  EXPECT_EQ(last_written(found)->step, 20u);
  EXPECT_TRUE(left_behind(found).empty());
}

TEST_F(CheckpointFolderTest, WhatSaysNothingLeavesNobodyBehind) {
  save(10, {"a10", {}, 1000});
  save(20, {"a20", {{10, "a10"}}, 2000});
  save(15);  // by a script, just now
  const auto found = listed();
  EXPECT_EQ(last_written(found)->step, 15u);
  EXPECT_TRUE(left_behind(found).empty());
}

TEST_F(CheckpointFolderTest, OneThatHasBeenReplacedSinceItWasListedStays) {
  const std::string path = save(10, {"old", {}, 1});
  save(10, {"new", {}, 2});
  EXPECT_EQ(remove_checkpoint(path, "old").error().code, Code::stale);
  EXPECT_EQ(listed().front().identity.id, "new");
  EXPECT_TRUE(remove_checkpoint(path, "new"));
  EXPECT_TRUE(listed().empty());
}

// --- Retention

using Steps = std::vector<std::uint64_t>;

TEST(Retention, KeepsAllUnlessToldHowMany) {
  EXPECT_EQ(to_remove({1, 2, 3}, {}), Steps{});
  EXPECT_EQ(to_remove({1, 2, 3}, {.keep_last = 0, .keep_every = 2}), Steps{});
  EXPECT_EQ(to_remove({}, {.keep_last = 1, .keep_every = 0}), Steps{});
}

TEST(Retention, KeepsTheNewestInWhateverOrderTheyCome) {
  EXPECT_EQ(to_remove({300, 100, 400, 200}, {.keep_last = 2, .keep_every = 0}), (Steps{100, 200}));
  EXPECT_EQ(to_remove({7}, {.keep_last = 1, .keep_every = 0}), Steps{});
  EXPECT_EQ(to_remove({7, 8}, {.keep_last = 3, .keep_every = 0}), Steps{});
}

TEST(Retention, KeepsMultiplesToo) {
  EXPECT_EQ(to_remove({0, 50, 100, 150, 200, 250}, {.keep_last = 1, .keep_every = 100}), (Steps{50, 150}));
}

TEST(Retention, CountsOnlyWhatIsSound) {
  std::vector<ListedCheckpoint> listed(4);
  for (std::uint64_t i = 0; i < listed.size(); ++i) listed[i].step = 4 - i, listed[i].finished = true;
  listed[0].damage = "cut short";
  listed[2].finished = false;
  EXPECT_EQ(sound_steps(listed), (Steps{1, 3}));
  EXPECT_EQ(to_remove(sound_steps(listed), {.keep_last = 1, .keep_every = 0}), Steps{1});
}

// --- Removal

TEST_F(CheckpointFolderTest, OneIsRemovedAndNothingElse) {
  const std::string gone = save(10);
  save(20);
  EXPECT_TRUE(remove_checkpoint(gone + "/", ""));
  const auto names = real_files().list(directory_.path());
  ASSERT_TRUE(names);
  EXPECT_EQ(*names, std::vector<std::string>{"step-20"});
  EXPECT_EQ(remove_checkpoint(gone, "").error().code, Code::not_found);
}

TEST_F(CheckpointFolderTest, ADamagedOneCanBeRemoved) {
  const std::string path = save(10);
  std::filesystem::resize_file(join_path(path, kStoreManifestName), 10);
  EXPECT_TRUE(remove_checkpoint(path, ""));
  EXPECT_FALSE(path_exists(path));
}

TEST_F(CheckpointFolderTest, WhatIsNoCheckpointOfOursIsNotRemoved) {
  const std::string kept = save(10);
  const std::string named = directory_.path("best");
  std::filesystem::copy(kept, named);
  const std::string link = directory_.path("step-20");
  std::filesystem::create_directory_symlink(kept, link);
  const std::string other = directory_.path("step-30");
  std::filesystem::create_directories(join_path(other, "notes"));
  for (const std::string& path : {named, link, other}) {
    EXPECT_EQ(remove_checkpoint(path, "").error().code, Code::invalid) << path;
    EXPECT_TRUE(path_exists(path)) << path;
  }
  EXPECT_TRUE(path_exists(join_path(kept, kStoreMarkerName)));
}

// As a removal leaves it that is killed while it deletes.
TEST_F(CheckpointFolderTest, TheNextRemovalDeletesWhatAKilledOneLeft) {
  const std::string left = save(10) + ".pawl-removed";
  const std::string other = save(20) + ".pawl-removed";
  const std::string foreign = directory_.path("mine.pawl-removed");
  for (const std::string& path : {left, other, foreign}) {
    std::filesystem::create_directories(path);
    std::filesystem::copy(directory_.path("step-10"), path, std::filesystem::copy_options::overwrite_existing);
    std::filesystem::remove(join_path(path, kStoreManifestName));
  }
  EXPECT_EQ(listed().size(), 2u) << "it is no checkpoint";
  EXPECT_TRUE(remove_checkpoint(directory_.path("step-10"), ""));
  EXPECT_FALSE(path_exists(left)) << "the step that is removed again";
  EXPECT_TRUE(path_exists(other));
  EXPECT_TRUE(finish_removals(directory_.path()));
  EXPECT_FALSE(path_exists(other));
  EXPECT_TRUE(path_exists(foreign));
  EXPECT_TRUE(path_exists(directory_.path("step-20")));
  EXPECT_EQ(finish_removals(directory_.path("nothing")).error().code, Code::not_found);
}

TEST_F(CheckpointFolderTest, WhatSomebodyElseRemovesIsLeftToThem) {
  const std::string path = save(10);
  const std::string left = directory_.path("step-20.pawl-removed");
  std::filesystem::create_directories(left);
  const Fd held(::open(path.c_str(), O_RDONLY | O_DIRECTORY)), deleted(::open(left.c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  ASSERT_EQ(::flock(deleted.get(), LOCK_EX), 0);
  EXPECT_EQ(remove_checkpoint(path, "").error().code, Code::stale);
  EXPECT_TRUE(finish_removals(directory_.path()));
  EXPECT_TRUE(path_exists(path));
  EXPECT_TRUE(path_exists(left));
}

}  // namespace
}  // namespace pawl::checkpoint
