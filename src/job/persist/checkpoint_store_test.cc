#include "job/persist/checkpoint_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "env/temporary_directory.h"
#include "job/persist/persist_test_job.h"

namespace pawl::job {
namespace {

class CheckpointStoreTest : public testing::Test {
 protected:
  std::string path() const { return directory.path("step-7"); }

  Status write(const std::string& folder, std::uint32_t seat) {
    const TestSeat& one = job.seats[seat];
    const std::string info = to_json(SeatInfo{seat + 100, 4096});
    const auto pieces = share_of(one.layout, Seat(seat), one.payload, one.text, info);
    PartProgress progress;
    const std::string beside = text_of(beside_of(one.layout, Seat(seat), one.payload));
    return store->write(folder, {Seat(seat), pieces, beside, values_in(one.layout, one.payload)}, progress);
  }
  std::unique_ptr<OpenCheckpoint> begin(std::uint64_t attempt = 1) {
    auto begun = store->begin({path(), attempt, owner, before});
    EXPECT_TRUE(begun) << begun.error().what;
    return begun ? std::move(*begun) : nullptr;
  }
  void publish() {
    const auto open = begin();
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
      const Status written = write(open->folder(), seat);
      ASSERT_TRUE(written) << written.error().what;
    }
    const Status published = open->publish(TestJob::world);
    ASSERT_TRUE(published) << published.error().what;
  }
  // What a seat of such a job would get.
  Result<std::vector<std::byte>> read(std::uint32_t seat) {
    PAWL_ASSIGN(const std::unique_ptr<StoredCheckpoint> stored, store->open(path()));
    std::vector<std::byte> payload(job.seats[seat].payload.size());
    PartProgress progress;
    PAWL_TRY(stored->read(Seat(seat), job.seats[seat].layout, payload, progress));
    return payload;
  }
  void flip(const std::string& file, std::uint64_t at) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
  }

  TemporaryDirectory directory;
  TestJob job{11};
  std::string owner, before;
  std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
};

TEST_F(CheckpointStoreTest, EverySeatGetsBackWhatItHad) {
  publish();
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
    const auto payload = read(seat);
    ASSERT_TRUE(payload) << payload.error().what;
    EXPECT_EQ(*payload, job.seats[seat].payload) << seat;
    const auto known = (*store->open(path()))->seat(Seat(seat));
    ASSERT_TRUE(known) << known.error().what;
    EXPECT_EQ(known->layout, job.seats[seat].text);
    EXPECT_EQ(known->info, (SeatInfo{seat + 100, 4096}));
  }
  EXPECT_TRUE(checkpoint::prove_store(path())->wrong.empty());
  const auto left = real_files().list(directory.path());
  EXPECT_EQ(*left, (std::vector<std::string>{"step-7"})) << "shares, values or a partial folder were left";
}

TEST_F(CheckpointStoreTest, HasTheValuesAndAliasesOfTheLowestSeat) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(path());
  ASSERT_TRUE(manifest) << manifest.error().what;
  EXPECT_EQ(manifest->values, R"({"step":7})");
  ASSERT_EQ(manifest->aliases.size(), 1u);
  EXPECT_EQ(manifest->aliases[0].second, "equal everywhere");
}

// Axes, tensors, types and what is declared equal are drawn; some tensors are large enough to be cut among their writers.
TEST(CheckpointOfAnyJob, GivesEachSeatBackWhatItHad) {
  const std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
  for (std::uint64_t seed = 1; seed <= 14; ++seed) {
    const RandomJob job(seed, seed % 2 == 0);
    const TemporaryDirectory directory;
    const auto open = store->begin({directory.path("step-7"), 1, "", ""});
    ASSERT_TRUE(open) << open.error().what;
    PartProgress progress;
    for (std::uint32_t seat = 0; seat < job.world; ++seat) {
      const TestSeat& one = job.seats[seat];
      const std::string info = to_json(SeatInfo{seed, 4096});
      const auto pieces = share_of(one.layout, Seat(seat), one.payload, one.text, info);
      const std::string beside = text_of(beside_of(one.layout, Seat(seat), one.payload));
      const Status written = store->write((*open)->folder(), {Seat(seat), pieces, beside, ""}, progress);
      ASSERT_TRUE(written) << seed << ": " << written.error().what;
    }
    const Status published = (*open)->publish(job.world);
    ASSERT_TRUE(published) << seed << ": " << published.error().what;
    const auto stored = store->open(directory.path("step-7"));
    ASSERT_TRUE(stored) << seed << ": " << stored.error().what;
    for (std::uint32_t seat = 0; seat < job.world; ++seat) {
      const TestSeat& one = job.seats[seat];
      std::vector<std::byte> payload(one.payload.size());
      const Status read = (*stored)->read(Seat(seat), one.layout, payload, progress);
      ASSERT_TRUE(read) << seed << ": " << read.error().what;
      EXPECT_EQ(payload, one.payload) << "seed " << seed << " seat " << seat;
    }
  }
}

// Each seat has its own; the checkpoint has the lowest's under the plain name.
TEST_F(CheckpointStoreTest, OfABufferThatAllHaveTheLowestsCounts) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(path());
  for (const auto& tensor : manifest->tensors) {
    if (tensor.role != "buffer") continue;
    ASSERT_EQ(tensor.pieces.size(), 1u);
    EXPECT_EQ(manifest->files[tensor.pieces[0].file].name, checkpoint::store_file_name(0));
  }
}

TEST_F(CheckpointStoreTest, APartThatIsMissingIsNamedAndNothingIsPublished) {
  {
    const auto open = begin();
    for (const std::uint32_t seat : {0u, 1u, 3u}) ASSERT_TRUE(write(open->folder(), seat));
    const Status published = open->publish(TestJob::world);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, Code::not_found);
    EXPECT_NE(published.error().what.find("the part of seat 2 is not in"), std::string::npos) << published.error().what;
  }
  EXPECT_TRUE(real_files().list(directory.path())->empty());
}

TEST_F(CheckpointStoreTest, WhoIsLateWithAnEarlierAttemptWritesNothing) {
  std::string earlier;
  {
    const auto open = begin(1);
    earlier = open->folder();
    ASSERT_TRUE(write(earlier, 0));
  }
  const auto open = begin(2);
  EXPECT_NE(open->folder(), earlier);
  EXPECT_FALSE(write(earlier, 1));
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) ASSERT_TRUE(write(open->folder(), seat));
  ASSERT_TRUE(open->publish(TestJob::world));
  EXPECT_EQ(*read(1), job.seats[1].payload);
}

TEST_F(CheckpointStoreTest, WhatAKilledRootHasLeftIsRemovedAndWhatALivingOneHasIsNot) {
  const std::string left = directory.path("step-3.pawl-partial");
  std::filesystem::create_directories(join_path(left, "attempt-1"));
  std::ofstream(join_path(left, "attempt-1/data-00000.safetensors")) << "half";
  const auto living = store->begin({directory.path("step-5"), 1, "", ""});
  ASSERT_TRUE(living);
  publish();
  EXPECT_FALSE(path_exists(left));
  EXPECT_TRUE(path_exists((*living)->folder()));
}

// Each names those of its history that are there: by ids, since a number may be written again.
TEST_F(CheckpointStoreTest, EachSaysWhichWereBeforeIt) {
  const auto save = [&](std::uint64_t step, const std::string& after) {
    const auto open = store->begin({directory.path(text("step-", step)), step, "", after});
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) EXPECT_TRUE(write((*open)->folder(), seat));
    EXPECT_TRUE((*open)->publish(TestJob::world));
    return *checkpoint::read_store_identity(directory.path(text("step-", step)));
  };
  using Names = std::vector<checkpoint::StoreName>;
  const auto first = save(1, directory.path("step-0"));
  EXPECT_EQ(first.before, Names()) << "nothing is there of what is said to be before it";
  EXPECT_EQ(first.id.size(), 24u);
  const auto second = save(2, directory.path("step-1"));
  EXPECT_EQ(second.before, (Names{{1, first.id}}));
  const auto third = save(3, directory.path("step-2"));
  EXPECT_EQ(third.before, (Names{{2, second.id}, {1, first.id}}));
  EXPECT_GE(third.written_ms, second.written_ms);
  const auto listed = *store->list(directory.path());
  ASSERT_TRUE(store->remove(listed[0], "").error().what.find("pawl-job.json") != std::string::npos);
  std::filesystem::remove_all(directory.path("step-1"));
  const auto other = save(4, directory.path("step-2"));
  EXPECT_EQ(other.before, (Names{{2, second.id}})) << "what is gone is not named, and 3 was left behind";
  EXPECT_NE(save(3, directory.path("step-2")).id, third.id) << "a step that is written again is another one";
}

TEST_F(CheckpointStoreTest, TakesThePlaceOfTheOneThatStandsThere) {
  publish();
  job = TestJob(12);
  publish();
  EXPECT_EQ(*read(3), job.seats[3].payload);
}

// What memory would give back to each seat as it was, a checkpoint would give back as the lowest one had it.
TEST_F(CheckpointStoreTest, SeatsThatDifferInWhatIsOneTensorAreRefusedByName) {
  for (const char* name : {"not declared equal", "cut by tp"}) {  // one seat writes it; both do
    job = TestJob(11);
    for (LayoutEntry& entry : job.seats[2].layout.entries) {
      if (entry.name == "cut by tp") entry.equal_axes = 0;
      if (entry.name == name) job.seats[2].payload[entry.payload_offset] ^= std::byte{1};
    }
    for (LayoutEntry& entry : job.seats[0].layout.entries)
      if (entry.name == "cut by tp") entry.equal_axes = 0;
    const auto open = begin();
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) ASSERT_TRUE(write(open->folder(), seat));
    const Status published = open->publish(TestJob::world);
    ASSERT_FALSE(published) << name;
    EXPECT_EQ(published.error().code, Code::invalid);
    EXPECT_NE(published.error().what.find(name), std::string::npos) << published.error().what;
    EXPECT_NE(published.error().what.find("different values"), std::string::npos) << published.error().what;
  }
}

TEST_F(CheckpointStoreTest, AFolderThatAnotherJobHasClaimedGetsNothingMore) {
  ASSERT_TRUE(claim_checkpoint_folder(directory.path(), "a", "1"));
  owner = claim_text("a", "1");
  const auto open = begin();
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) ASSERT_TRUE(write(open->folder(), seat));
  ASSERT_TRUE(claim_checkpoint_folder(directory.path(), "b", "1", true));
  const Status late = open->publish(TestJob::world);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().what.find("belongs to job b now"), std::string::npos) << late.error().what;
  EXPECT_FALSE(store->begin({directory.path("step-9"), 1, owner, ""}));
}

TEST_F(CheckpointStoreTest, OnlyTheJobWhoseFolderItIsRemovesCheckpoints) {
  owner = claim_text("a", "1");
  const std::string folder = directory.path();
  const std::string left = path() + ".pawl-removed";
  publish();
  std::filesystem::create_directory(left);
  const checkpoint::ListedCheckpoint listed = store->list(folder)->front();
  EXPECT_EQ(store->remove(listed, owner).error().code, Code::invalid) << "nobody has claimed it";
  ASSERT_TRUE(claim_checkpoint_folder(folder, "b", "1", true));
  EXPECT_EQ(store->remove(listed, owner).error().code, Code::invalid);
  EXPECT_EQ(store->finish_removals(folder, owner).error().code, Code::invalid);
  EXPECT_TRUE(path_exists(path()));
  EXPECT_TRUE(path_exists(left));
  ASSERT_TRUE(claim_checkpoint_folder(folder, "a", "1", true));
  EXPECT_TRUE(store->finish_removals(folder, owner));
  EXPECT_FALSE(path_exists(left));
  ASSERT_EQ(store->list(folder)->size(), 1u);
  EXPECT_TRUE(store->remove(listed, owner));
  EXPECT_EQ(store->list(folder)->size(), 0u);
}

TEST_F(CheckpointStoreTest, ADamagedByteIsNeverReturned) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(path());
  std::size_t tried = 0;
  for (const auto& tensor : manifest->tensors)
    for (const auto& piece : tensor.pieces) {
      const std::string file = join_path(path(), manifest->files[piece.file].name);
      flip(file, piece.offset_bytes);
      bool noticed = false;
      for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
        const auto payload = read(seat);
        noticed = noticed || !payload;
        const bool right = payload ? *payload == job.seats[seat].payload : payload.error().code == Code::corrupt;
        EXPECT_TRUE(right) << tensor.name << " " << tensor.role;
        if (tensor.role == kSeatLayoutRole || tensor.role == kSeatInfoRole)
          noticed = noticed || !(*store->open(path()))->seat(Seat(seat));
      }
      const bool is_unread = tensor.role == "buffer";  // seats have theirs in what is their own
      EXPECT_EQ(noticed, !is_unread) << tensor.name << " " << tensor.role;
      flip(file, piece.offset_bytes);
      ++tried;
    }
  EXPECT_GT(tried, 15u);
  EXPECT_EQ(*read(0), job.seats[0].payload);
}

TEST_F(CheckpointStoreTest, WhatIsOfAnotherJobIsRefusedWithTheTensor) {
  publish();
  const auto stored = store->open(path());
  SeatLayout other = job.seats[1].layout;
  other.entries[0].shape = {7, 1};
  other.entries[1].name = "renamed";
  std::vector<std::byte> payload(other.payload_bytes);
  PartProgress progress;
  const Status refused = (*stored)->read(Seat(1), other, payload, progress);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::invalid);
  EXPECT_NE(refused.error().what.find("equal everywhere (weight) is float32 [6,1] there, float32 [7,1] here"),
            std::string::npos)
      << refused.error().what;
  EXPECT_NE(refused.error().what.find("renamed (weight) is not there"), std::string::npos) << refused.error().what;
  EXPECT_FALSE(store->open(directory.path("nothing")));
}

TEST(Claim, AFolderBelongsToOneJobAsLongAsItHasCheckpoints) {
  const TemporaryDirectory directory;
  const std::string path = directory.path("run/checkpoints");
  ASSERT_TRUE(claim_checkpoint_folder(path, "a", "12"));
  ASSERT_TRUE(claim_checkpoint_folder(path, "a", "12")) << "its other nodes do so, too";
  ASSERT_TRUE(claim_checkpoint_folder(path, "b", "12")) << "nothing would be replaced";
  std::filesystem::create_directory(join_path(path, "step-20"));
  ASSERT_TRUE(claim_checkpoint_folder(path, "b", "12"));
  const Status refused = claim_checkpoint_folder(path, "c", "12");
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("holds checkpoints of job b already (step-20)"), std::string::npos)
      << refused.error().what;
  EXPECT_FALSE(claim_checkpoint_folder(path, "b", "13")) << "another job of that name";
  EXPECT_TRUE(claim_checkpoint_folder(path, "c", "12", true));
}

TEST(Values, AreAnObjectOfTwo) {
  EXPECT_EQ(publish_options_of("")->values, "{}");
  const auto options = publish_options_of(R"({"values":[1,"x"],"aliases":{"b":"a"}})");
  ASSERT_TRUE(options);
  EXPECT_EQ(options->values, R"([1,"x"])");
  EXPECT_EQ(options->aliases, (std::vector<std::pair<std::string, std::string>>{{"b", "a"}}));
  for (const char* bad :
       {"{", "{}", R"({"values":1})", R"({"values":1,"aliases":[]})", R"({"values":1,"aliases":{"a":2}})"})
    EXPECT_FALSE(publish_options_of(bad)) << bad;
}

}  // namespace
}  // namespace pawl::job
