#include "job/persist/checkpoint_store.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/text.h"
#include "checkpoint/formats/native/store_manifest.h"
#include "checkpoint/formats/native/store_view.h"
#include "env/temporary_directory.h"
#include "job/persist/objects_kit.h"
#include "job/persist/persist_test_job.h"

namespace pawl::job {
namespace {

// Where a store's checkpoints lie, as the tests look at them.
class Place {
 public:
  virtual ~Place() = default;
  [[nodiscard]] virtual std::string root() const = 0;
  [[nodiscard]] virtual CheckpointStore& store() = 0;
  [[nodiscard]] virtual Status claim(const std::string& job, bool resumes) = 0;
  // A folder of files with what is at root(), as it is now: where it can be read.
  [[nodiscard]] virtual std::string files() = 0;
  virtual void flip(const std::string& file, std::uint64_t at) = 0;  // a path beneath root()
  [[nodiscard]] virtual std::vector<std::string> leftovers() = 0;    // of no checkpoint that is published
};

class Folder : public Place {
 public:
  std::string root() const override { return directory_.path(); }
  CheckpointStore& store() override { return *store_; }
  Status claim(const std::string& job, bool resumes) override {
    return claim_checkpoint_folder(root(), job, "1", resumes);
  }
  std::string files() override { return root(); }
  void flip(const std::string& file, std::uint64_t at) override {
    std::fstream stream(directory_.path(file), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(byte);
  }
  std::vector<std::string> leftovers() override {
    std::vector<std::string> names = *real_files().list(root());
    std::erase_if(names, [](const auto& name) { return checkpoint::parse_checkpoint_name(name).has_value(); });
    return names;
  }

 private:
  TemporaryDirectory directory_;
  std::unique_ptr<CheckpointStore> store_ = file_checkpoint_store();
};

class Bucket : public Place {
 public:
  Bucket() : kit_(5 << 20) {}
  std::string root() const override { return ObjectsKit::root(); }
  CheckpointStore& store() override { return *store_; }
  Status claim(const std::string& job, bool resumes) override {
    return claim_s3_folder(kit_.bucket, root(), job, "1", resumes);
  }
  std::string files() override {
    copy_ = kit_.copied();
    return copy_->path();
  }
  void flip(const std::string& file, std::uint64_t at) override {
    std::string content = kit_.objects->objects().at("run/" + file);
    content[at] ^= 1;
    kit_.objects->replace("run/" + file, content);
  }
  std::vector<std::string> leftovers() override { return kit_.leftovers(); }

 private:
  ObjectsKit kit_;
  std::unique_ptr<CheckpointStore> store_ = kit_.store();
  std::unique_ptr<TemporaryDirectory> copy_;
};

std::unique_ptr<Place> place_named(const std::string& name) {
  if (name == "folder") return std::make_unique<Folder>();
  return std::make_unique<Bucket>();
}

class CheckpointStoreTest : public testing::TestWithParam<const char*> {
 protected:
  std::string path() const { return join_path(place->root(), "step-7"); }

  Status write(const std::string& folder, std::uint32_t seat) {
    const TestSeat& one = job.seats[seat];
    const std::string info = to_json(SeatInfo{seat + 100, 4096});
    const auto pieces = share_of(one.layout, Seat(seat), one.payload, one.text, info);
    PartProgress progress;
    const std::string beside = text_of(beside_of(one.layout, Seat(seat), one.payload));
    return store->write(folder, {Seat(seat), pieces, beside, values_in(one.layout, one.payload)}, progress);
  }
  std::unique_ptr<OpenCheckpoint> begin(std::uint64_t attempt = 1) {
    auto begun = store->begin({path(), attempt, owner, ""});
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
  std::string files() { return join_path(place->files(), "step-7"); }
  // What a seat of such a job would get.
  Result<std::vector<std::byte>> read(std::uint32_t seat) {
    PAWL_ASSIGN(const std::unique_ptr<StoredCheckpoint> stored, open_stored_checkpoint(files()));
    std::vector<std::byte> payload(job.seats[seat].payload.size());
    PartProgress progress;
    PAWL_TRY(stored->read(Seat(seat), job.seats[seat].layout, payload, progress));
    return payload;
  }

  std::unique_ptr<Place> place = place_named(GetParam());
  TestJob job{11};
  std::string owner;
  CheckpointStore* store = &place->store();
};

INSTANTIATE_TEST_SUITE_P(Every, CheckpointStoreTest, testing::Values("folder", "bucket"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CheckpointStoreTest, EverySeatGetsBackWhatItHad) {
  publish();
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
    const auto payload = read(seat);
    ASSERT_TRUE(payload) << payload.error().what;
    EXPECT_EQ(*payload, job.seats[seat].payload) << seat;
    const auto known = (*open_stored_checkpoint(files()))->seat(Seat(seat));
    ASSERT_TRUE(known) << known.error().what;
    EXPECT_EQ(known->layout, job.seats[seat].text);
    EXPECT_EQ(known->info, (SeatInfo{seat + 100, 4096}));
  }
  EXPECT_TRUE(checkpoint::prove_store(files())->wrong.empty());
  EXPECT_EQ(place->leftovers(), std::vector<std::string>()) << "shares, values or a partial folder were left";
}

TEST_P(CheckpointStoreTest, HasTheValuesAndAliasesOfTheLowestSeat) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(files());
  ASSERT_TRUE(manifest) << manifest.error().what;
  EXPECT_EQ(manifest->values, R"({"step":7})");
  ASSERT_EQ(manifest->aliases.size(), 1u);
  EXPECT_EQ(manifest->aliases[0].second, "equal everywhere");
}

// Axes, tensors, types and what is declared equal are drawn; some tensors are large enough to be cut among their writers.
class CheckpointOfAnyJob : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Every, CheckpointOfAnyJob, testing::Values("folder", "bucket"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(CheckpointOfAnyJob, GivesEachSeatBackWhatItHad) {
  for (std::uint64_t seed = 1; seed <= 14; ++seed) {
    const RandomJob job(seed, seed % 2 == 0);
    const std::unique_ptr<Place> place = place_named(GetParam());
    CheckpointStore* const store = &place->store();
    const auto open = store->begin({join_path(place->root(), "step-7"), 1, "", ""});
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
    const auto stored = open_stored_checkpoint(join_path(place->files(), "step-7"));
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
TEST_P(CheckpointStoreTest, OfABufferThatAllHaveTheLowestsCounts) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(files());
  for (const auto& tensor : manifest->tensors) {
    if (tensor.role != "buffer") continue;
    ASSERT_EQ(tensor.pieces.size(), 1u);
    EXPECT_TRUE(manifest->files[tensor.pieces[0].file].name.starts_with("data-00000."));
  }
}

TEST_P(CheckpointStoreTest, APartThatIsMissingIsNamedAndNothingIsPublished) {
  {
    const auto open = begin();
    for (const std::uint32_t seat : {0u, 1u, 3u}) ASSERT_TRUE(write(open->folder(), seat));
    const Status published = open->publish(TestJob::world);
    ASSERT_FALSE(published);
    EXPECT_EQ(published.error().code, Code::not_found);
    EXPECT_NE(published.error().what.find("the part of seat 2 is not in"), std::string::npos) << published.error().what;
  }
  EXPECT_EQ(place->leftovers(), std::vector<std::string>());
  EXPECT_FALSE(open_stored_checkpoint(files()));
}

TEST_P(CheckpointStoreTest, WhoIsLateWithAnEarlierAttemptWritesNothing) {
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

TEST(CheckpointsInAFolder, WhatAKilledRootHasLeftIsRemovedAndWhatALivingOneHasIsNot) {
  const TemporaryDirectory directory;
  const std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
  const std::string left = directory.path("step-3.pawl-partial");
  std::filesystem::create_directories(join_path(left, "attempt-1"));
  std::ofstream(join_path(left, "attempt-1/data-00000.safetensors")) << "half";
  const auto living = store->begin({directory.path("step-5"), 1, "", ""});
  ASSERT_TRUE(living);
  ASSERT_TRUE(store->begin({directory.path("step-7"), 1, "", ""}));
  EXPECT_FALSE(path_exists(left));
  EXPECT_TRUE(path_exists((*living)->folder()));
}

TEST_P(CheckpointStoreTest, AsksBeforeItWrites) {
  const auto open = begin();
  const TestSeat& one = job.seats[0];
  const std::string info = to_json(SeatInfo{100, 4096});
  const auto pieces = share_of(one.layout, Seat(0), one.payload, one.text, info);
  PartProgress progress;
  std::atomic<std::uint64_t> asked{0};
  progress.pace = [&asked](std::uint64_t bytes) { asked += bytes; };
  ASSERT_TRUE(store->write(open->folder(), {Seat(0), pieces, text_of(SeatBeside{}), ""}, progress));
  EXPECT_GT(progress.bytes, 0u);
  EXPECT_GE(asked, progress.bytes);
}

// Each names those of its history that are there: by ids, since a number may be written again.
TEST_P(CheckpointStoreTest, EachSaysWhichWereBeforeIt) {
  owner = claim_text("a", "1");
  ASSERT_TRUE(place->claim("a", false));
  const auto at = [&](std::uint64_t step) { return join_path(place->root(), text("step-", step)); };
  const auto listed_as = [&](std::uint64_t step) {
    const auto all = store->list(place->root());
    EXPECT_TRUE(all) << all.error().what;
    for (const checkpoint::ListedCheckpoint& one : *all)
      if (one.step == step) return one;
    return checkpoint::ListedCheckpoint();
  };
  const auto save = [&](std::uint64_t step, const std::string& after) {
    const auto open = store->begin({at(step), step, owner, after});
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) EXPECT_TRUE(write((*open)->folder(), seat));
    EXPECT_TRUE((*open)->publish(TestJob::world));
    return listed_as(step).identity;
  };
  using Names = std::vector<checkpoint::StoreName>;
  const auto first = save(1, at(0));
  EXPECT_EQ(first.before, Names()) << "nothing is there of what is said to be before it";
  EXPECT_EQ(first.id.size(), 24u);
  const auto second = save(2, at(1));
  EXPECT_EQ(second.before, (Names{{1, first.id}}));
  const auto third = save(3, at(2));
  EXPECT_EQ(third.before, (Names{{2, second.id}, {1, first.id}}));
  EXPECT_GE(third.written_ms, second.written_ms);
  ASSERT_TRUE(store->remove(listed_as(1), owner));
  const auto other = save(4, at(2));
  EXPECT_EQ(other.before, (Names{{2, second.id}})) << "what is gone is not named, and 3 was left behind";
  EXPECT_NE(save(3, at(2)).id, third.id) << "a step that is written again is another one";
}

TEST_P(CheckpointStoreTest, TakesThePlaceOfTheOneThatStandsThere) {
  publish();
  job = TestJob(12);
  publish();
  EXPECT_EQ(*read(3), job.seats[3].payload);
}

// What memory would give back to each seat as it was, a checkpoint would give back as the lowest one had it.
TEST_P(CheckpointStoreTest, SeatsThatDifferInWhatIsOneTensorAreRefusedByName) {
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

TEST_P(CheckpointStoreTest, AFolderThatAnotherJobHasClaimedGetsNothingMore) {
  ASSERT_TRUE(place->claim("a", false));
  owner = claim_text("a", "1");
  const auto open = begin();
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) ASSERT_TRUE(write(open->folder(), seat));
  ASSERT_TRUE(place->claim("b", true));
  const Status late = open->publish(TestJob::world);
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().what.find("belongs to job b now"), std::string::npos) << late.error().what;
  EXPECT_FALSE(store->begin({join_path(place->root(), "step-9"), 1, owner, ""}));
}

TEST_P(CheckpointStoreTest, OnlyTheJobWhoseFolderItIsRemovesCheckpoints) {
  owner = claim_text("a", "1");
  const std::string folder = place->root();
  publish();
  const checkpoint::ListedCheckpoint listed = store->list(folder)->at(0);
  EXPECT_EQ(store->remove(listed, owner).error().code, Code::invalid) << "nobody has claimed it";
  ASSERT_TRUE(place->claim("b", true));
  EXPECT_EQ(store->remove(listed, owner).error().code, Code::invalid);
  EXPECT_EQ(store->finish_removals(folder, owner).error().code, Code::invalid);
  EXPECT_TRUE(read(1));
  ASSERT_TRUE(place->claim("a", true));
  EXPECT_TRUE(store->finish_removals(folder, owner));
  ASSERT_EQ(store->list(folder)->size(), 1u);
  EXPECT_TRUE(store->list(folder)->at(0).finished);
  EXPECT_EQ(store->list(folder)->at(0).damage, "");
  EXPECT_EQ(store->list(folder)->at(0).path, path());
  checkpoint::ListedCheckpoint replaced = listed;
  replaced.identity.id = "another";
  EXPECT_EQ(store->remove(replaced, owner).error().code, Code::stale);
  EXPECT_TRUE(store->remove(listed, owner));
  EXPECT_EQ(store->list(folder)->size(), 0u);
}

TEST_P(CheckpointStoreTest, AFolderBelongsToOneJobAsLongAsItHasCheckpoints) {
  ASSERT_TRUE(place->claim("a", false));
  ASSERT_TRUE(place->claim("a", false)) << "its other nodes do so, too";
  ASSERT_TRUE(place->claim("b", false)) << "nothing would be replaced";
  publish();
  ASSERT_TRUE(place->claim("b", false));
  const Status refused = place->claim("c", false);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().what.find("holds checkpoints of job b already (step-7)"), std::string::npos)
      << refused.error().what;
  EXPECT_TRUE(place->claim("c", true));
}

TEST(CheckpointsInAFolder, OnlyTheJobWhoseFolderItIsFinishesRemovals) {
  const TemporaryDirectory directory;
  const std::unique_ptr<CheckpointStore> store = file_checkpoint_store();
  const std::string owner = claim_text("a", "1");
  const std::string left = directory.path("step-7.pawl-removed");
  std::filesystem::create_directory(left);
  ASSERT_TRUE(claim_checkpoint_folder(directory.path(), "b", "1"));
  EXPECT_EQ(store->finish_removals(directory.path(), owner).error().code, Code::invalid);
  EXPECT_TRUE(path_exists(left));
  ASSERT_TRUE(claim_checkpoint_folder(directory.path(), "a", "1", true));
  EXPECT_TRUE(store->finish_removals(directory.path(), owner));
  EXPECT_FALSE(path_exists(left));
}

TEST_P(CheckpointStoreTest, ADamagedByteIsNeverReturned) {
  publish();
  const auto manifest = checkpoint::read_store_manifest(files());
  std::size_t tried = 0;
  for (const auto& tensor : manifest->tensors)
    for (const auto& piece : tensor.pieces) {
      const std::string file = join_path("step-7", manifest->files[piece.file].name);
      place->flip(file, piece.offset_bytes);
      bool noticed = false;
      for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
        const auto payload = read(seat);
        noticed = noticed || !payload;
        const bool right = payload ? *payload == job.seats[seat].payload : payload.error().code == Code::corrupt;
        EXPECT_TRUE(right) << tensor.name << " " << tensor.role;
        if (tensor.role == kSeatLayoutRole || tensor.role == kSeatInfoRole)
          noticed = noticed || !(*open_stored_checkpoint(files()))->seat(Seat(seat));
      }
      const bool is_unread = tensor.role == "buffer";  // seats have theirs in what is their own
      EXPECT_EQ(noticed, !is_unread) << tensor.name << " " << tensor.role;
      place->flip(file, piece.offset_bytes);
      ++tried;
    }
  EXPECT_GT(tried, 15u);
  EXPECT_EQ(*read(0), job.seats[0].payload);
}

TEST_P(CheckpointStoreTest, WhatIsOfAnotherJobIsRefusedWithTheTensor) {
  publish();
  const auto stored = open_stored_checkpoint(files());
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
  EXPECT_FALSE(open_stored_checkpoint(join_path(place->files(), "nothing")));
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
