#include "job/persist/s3_checkpoint_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <mutex>
#include <optional>

#include "base/crc32c.h"
#include "checkpoint/formats/native/store_view.h"
#include "job/persist/objects_kit.h"
#include "job/persist/persist_test_job.h"

namespace pawl::job {
namespace {

using s3::HttpRequest;
using s3::MemoryObjects;
using Fault = MemoryObjects::Fault;

class S3CheckpointStoreTest : public testing::Test {
 protected:
  static std::string path(int step) { return text(ObjectsKit::root(), "/step-", step); }

  Status write(const std::string& folder, const TestJob& job, std::uint32_t seat) {
    const TestSeat& one = job.seats[seat];
    const std::string info = to_json(SeatInfo{seat + 100, 4096});
    const auto pieces = share_of(one.layout, Seat(seat), one.payload, one.text, info);
    const std::string beside = text_of(beside_of(one.layout, Seat(seat), one.payload));
    PartProgress progress;
    return store->write(folder, {Seat(seat), pieces, beside, values_in(one.layout, one.payload)}, progress);
  }
  Status persist(const TestJob& job, std::uint64_t attempt, int step = 7) {
    PAWL_ASSIGN(const std::unique_ptr<OpenCheckpoint> open, store->begin({path(step), attempt, "", ""}));
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) PAWL_TRY(write(open->folder(), job, seat));
    return open->publish(TestJob::world);
  }
  // Whether all that any reader gets is that job's.
  bool holds(const TestJob& job, int step = 7) {
    const auto copy = kit.copied();
    const auto stored = open_stored_checkpoint(copy->path(text("step-", step)));
    if (!stored) return false;
    for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) {
      std::vector<std::byte> payload(job.seats[seat].payload.size());
      PartProgress progress;
      if (!(*stored)->read(Seat(seat), job.seats[seat].layout, payload, progress)) return false;
      if (payload != job.seats[seat].payload) return false;
    }
    return true;
  }
  static std::function<Fault(std::uint64_t, const HttpRequest&)> at(std::uint64_t number, Fault fault) {
    return [=](std::uint64_t one, const HttpRequest&) { return one == number ? fault : Fault::none; };
  }
  static std::function<Fault(std::uint64_t, const HttpRequest&)> from(std::uint64_t number) {
    return [=](std::uint64_t one, const HttpRequest&) { return one >= number ? Fault::refused : Fault::none; };
  }

  ObjectsKit kit{5 << 20};
  std::unique_ptr<CheckpointStore> store = kit.store();
  const TestJob before{11};
  const TestJob after{12};
};

// One request fails for good, or has its effect without an answer, or is the last one before all of the job dies.
TEST_F(S3CheckpointStoreTest, OldOrNewIsThereWhateverRequestFails) {
  ASSERT_TRUE(persist(before, 1));
  const std::uint64_t first = kit.objects->count();
  ASSERT_TRUE(persist(after, 2));
  const std::uint64_t requests = kit.objects->count() - first;
  EXPECT_GT(requests, 40u);
  for (const bool replaces : {true, false})
    for (const int how : {0, 1, 2})
      for (std::uint64_t n = 0; n < requests; ++n) {
        kit = ObjectsKit(5 << 20);
        store = kit.store();
        if (replaces) {
          ASSERT_TRUE(persist(before, 1));
        }
        const std::uint64_t now = kit.objects->count() + n;
        kit.objects->fault = how == 0 ? at(now, Fault::refused) : how == 1 ? at(now, Fault::lost) : from(now);
        const Status done = persist(after, 2);
        kit.objects->fault = {};
        const std::string where = text("request ", n, how == 0 ? " refused" : how == 1 ? " lost" : " the last");
        const bool is_new = holds(after);
        EXPECT_TRUE(!done || is_new) << where << ": it was said to be published";
        EXPECT_TRUE(is_new || holds(before) == replaces) << where;
        if (how == 1) {
          EXPECT_TRUE(done) << where << ": " << done.error().what;
        }
        const auto listed = store->list(ObjectsKit::root());
        ASSERT_TRUE(listed);
        for (const auto& one : *listed) EXPECT_EQ(one.damage, "") << where;
        ASSERT_TRUE(persist(before, 3)) << where;  // the next one
        EXPECT_TRUE(holds(before)) << where;
        EXPECT_EQ(kit.leftovers(), std::vector<std::string>()) << where;
      }
}

TEST_F(S3CheckpointStoreTest, ReadersSeeOldOrNewAfterEachRequest) {
  ASSERT_TRUE(persist(before, 1));
  std::uint64_t was_new = 0;
  std::mutex mutex;
  kit.objects->fault = [&](std::uint64_t, const HttpRequest&) {
    const std::lock_guard lock(mutex);
    const bool is_new = holds(after);
    EXPECT_TRUE(is_new || (was_new == 0 && holds(before)));
    was_new += is_new ? 1 : 0;
    return Fault::none;
  };
  ASSERT_TRUE(persist(after, 2));
  EXPECT_GT(was_new, 0u);
}

TEST_F(S3CheckpointStoreTest, ARemovalThatDiesLeavesAllOrNoCheckpointAndIsFinished) {
  const std::string owner = claim_text("a", "1");
  for (std::uint64_t n = 0;; ++n) {
    kit = ObjectsKit(5 << 20);
    store = kit.store();
    ASSERT_TRUE(persist(before, 1));
    ASSERT_TRUE(claim_s3_folder(kit.bucket, ObjectsKit::root(), "a", "1", true));
    const checkpoint::ListedCheckpoint listed_before = store->list(ObjectsKit::root())->at(0);
    kit.objects->fault = from(kit.objects->count() + n);
    const Status removed = store->remove(listed_before, owner);
    kit.objects->fault = {};
    const auto listed = store->list(ObjectsKit::root());
    ASSERT_TRUE(listed);
    const bool is_there = !listed->empty() && listed->at(0).finished;
    EXPECT_EQ(is_there, holds(before)) << n;
    ASSERT_TRUE(store->finish_removals(ObjectsKit::root(), owner));
    if (!is_there) {
      EXPECT_EQ(kit.objects->objects().size(), 1u) << n << ": only the claim";
    }
    if (removed) {
      EXPECT_GT(n, 10u);
      break;
    }
  }
}

TEST_F(S3CheckpointStoreTest, WhatIsLeftOfAttemptsIsRemovedAndALivingOneIsNot) {
  kit.objects->replace("run/step-3/data-00000.1-aaaaaaaa.safetensors", "half");
  kit.objects->replace("run/step-3/attempt.1-aaaaaaaa", "");
  kit.objects->replace("run/step-4/data-00000.900-aaaaaaaa.safetensors", "of another job");
  kit.objects->replace("run/step-4/attempt.900-aaaaaaaa", "another");
  kit.objects->replace("run/step-4/by hand", "no business of ours");
  const auto living = store->begin({path(5), 1u + (std::uint64_t{1} << 40), "", ""});
  ASSERT_TRUE(living);
  ASSERT_TRUE(write((*living)->folder(), before, 0));
  ASSERT_TRUE(persist(after, 2));
  std::size_t of_living = 0;
  for (const auto& [key, content] : kit.objects->objects()) {
    EXPECT_FALSE(key.find("aaaaaaaa") != key.npos) << key;
    of_living += key.starts_with("run/step-5/") ? 1 : 0;
  }
  EXPECT_GT(of_living, 2u);
  EXPECT_TRUE(kit.objects->objects().contains("run/step-4/by hand"));
}

TEST_F(S3CheckpointStoreTest, OneThatHasEndedPublishesNothing) {
  const auto early = store->begin({path(7), 1, "", ""});
  for (std::uint32_t seat = 0; seat < TestJob::world; ++seat) ASSERT_TRUE(write((*early)->folder(), before, seat));
  ASSERT_TRUE(persist(after, 2));
  EXPECT_FALSE((*early)->publish(TestJob::world));
  EXPECT_TRUE(holds(after));
}

TEST_F(S3CheckpointStoreTest, StandsInItsOwnBucketOnly) {
  EXPECT_EQ(store->begin({"s3://elsewhere/run/step-1", 1, "", ""}).error().code, Code::invalid);
  EXPECT_EQ(store->list("/run").error().code, Code::invalid);
  PartProgress progress;
  EXPECT_EQ(store->write("s3://bucket/run/step-1", {}, progress).error().code, Code::invalid) << "no attempt is named";
}

// Dense and permuted tensors, of many requests: byte for byte what a file of a part is.
class S3UploadTest : public testing::Test {
 protected:
  S3UploadTest() {
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 2654435761u >> 13);
    checkpoint::StorePiece dense{.name = "dense", .type = ElementType::uint8, .shape = {11 << 20}, .box = {}};
    dense.box = whole_box(dense.shape);
    dense.memory = memory.data() + 4096;
    dense.stride_bytes[0] = 1;
    checkpoint::StorePiece turned{
        .name = "turned", .type = ElementType::float32, .shape = {1 << 10, 1 << 9, 2}, .box = {}};
    turned.box = whole_box(turned.shape);
    turned.memory = memory.data() + (12 << 20);
    turned.stride_bytes[0] = 8;
    turned.stride_bytes[1] = 8 << 10;
    turned.stride_bytes[2] = 4;
    checkpoint::StorePiece none{.name = "none", .shape = {0}, .box = {}};
    none.box = whole_box(none.shape);
    pieces = {dense, turned, none};
    sums = {memory, 1 << 20, {}};
    for (std::size_t at = 0; at < memory.size(); at += 1 << 20)
      sums.crc32c.push_back(crc32c(std::span(memory).subspan(at, 1 << 20)));
    plan = *checkpoint::plan_part(pieces);
  }
  Result<checkpoint::PieceSums> upload() {
    return upload_part_file(kit.bucket, "part", plan, &sums, progress, {.chunk_bytes = 5 << 20, .threads = 3});
  }

  ObjectsKit kit{5 << 20};
  std::vector<std::byte> memory = std::vector<std::byte>(16 << 20);
  std::vector<checkpoint::StorePiece> pieces;
  checkpoint::MemorySums sums;
  checkpoint::PartPlan plan;
  PartProgress progress;
};

TEST_F(S3UploadTest, IsTheFileOfThePart) {
  const TemporaryDirectory directory;
  const auto begun = checkpoint::StoreFolder::begin(directory.path("folder"));
  ASSERT_TRUE(begun);
  const auto share = checkpoint::write_store_part(begun->folder(), 0, pieces);
  ASSERT_TRUE(share) << share.error().what;
  const auto file = read_file(join_path(begun->folder(), checkpoint::store_file_name(0)));
  const auto uploaded = upload();
  ASSERT_TRUE(uploaded) << uploaded.error().what;
  EXPECT_TRUE(kit.objects->objects().at("part") == *file);
  EXPECT_EQ(*checkpoint::share_text(pieces, plan, checkpoint::store_file_name(0), *uploaded), *share);
  EXPECT_EQ(progress.bytes, (11u << 20) + (4u << 20));
}

TEST_F(S3UploadTest, MemoryWithOtherSumsBecomesNoObject) {
  memory[5 << 20] ^= std::byte{1};
  EXPECT_EQ(upload().error().code, Code::corrupt);
  EXPECT_TRUE(kit.objects->objects().empty());
  EXPECT_EQ(kit.objects->uploads(), 0u);
}

TEST_F(S3UploadTest, IsCancelledBetweenRequests) {
  kit.objects->fault = [this](std::uint64_t number, const HttpRequest&) {
    if (number == 2) progress.cancel = true;
    return Fault::none;
  };
  EXPECT_EQ(upload().error().code, Code::cancelled);
  EXPECT_TRUE(kit.objects->objects().empty());
  EXPECT_EQ(kit.objects->uploads(), 0u);
}

// But for one that the server has begun without our learning its name.
TEST_F(S3UploadTest, LeavesNoUploadWhateverRequestFails) {
  for (std::uint64_t n = 0; n < 6; ++n)
    for (const Fault fault : {Fault::refused, Fault::lost}) {
      const std::uint64_t now = kit.objects->count() + n;
      const std::size_t without_name = kit.objects->uploads() + (n == 0 && fault == Fault::lost ? 1 : 0);
      kit.objects->fault = [=](std::uint64_t one, const HttpRequest&) { return one == now ? fault : Fault::none; };
      const auto uploaded = upload();
      if (fault == Fault::lost) {
        EXPECT_TRUE(uploaded) << n << ": " << uploaded.error().what;
      }
      EXPECT_EQ(kit.objects->uploads(), without_name) << n;
    }
}

}  // namespace
}  // namespace pawl::job
