// A seat's state from storage, into a real arena. What the storage says is the test's.
#include "job/daemon/stored_import.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "job/daemon/test_layout.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

constexpr Generation kGeneration{1};
constexpr Step kStep{41};

class StorageOfOne : public CheckpointStore {
 public:
  class Stored : public StoredCheckpoint {
   public:
    explicit Stored(StorageOfOne& store) : store_(store) {}
    Result<StoredSeat> seat(Seat seat) override {
      if (seat != Seat(0)) return Error{Code::not_found, "no such seat"};
      return StoredSeat{seat, store_.layout, {777, 4096}};
    }
    Status read(Seat, const SeatLayout& layout, std::span<std::byte> payload, PartProgress& progress) override {
      EXPECT_EQ(text_of(layout), store_.read_in) << "into another layout than it has";
      if (store_.while_read) store_.while_read(progress);
      if (progress.cancel) return Error{Code::cancelled, "cancelled"};
      std::ranges::fill(payload, std::byte{7});
      progress.bytes = payload.size();
      return store_.damage.empty() ? Status() : Status(Error{Code::corrupt, store_.damage});
    }

   private:
    StorageOfOne& store_;
  };
  Result<std::unique_ptr<OpenCheckpoint>> begin(const CheckpointOrder&) override {
    return Error{Code::broken, "nothing is to be written"};
  }
  Status write(const std::string&, const SeatPart&, PartProgress&) override {
    return Error{Code::broken, "nothing is to be written"};
  }
  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string&) override {
    return std::vector<checkpoint::ListedCheckpoint>();
  }
  Status remove(const checkpoint::ListedCheckpoint&, const std::string&) override { return {}; }
  Status finish_removals(const std::string&, const std::string&) override { return {}; }
  Result<std::unique_ptr<StoredCheckpoint>> open(const std::string& path) override {
    if (path != "/c/step-41") return Error{Code::not_found, path};
    return std::unique_ptr<StoredCheckpoint>(std::make_unique<Stored>(*this));
  }

  std::string layout = text_of(test_layout(700, 100));
  std::string read_in = layout;  // by whom it is read
  std::string damage;            // which it has
  std::function<void(PartProgress&)> while_read;
};

class FromStorage : public testing::Test {
 protected:
  FromStorage() { declare(test_layout(700, 100)); }
  ~FromStorage() override {
    EXPECT_TRUE(eventually([this] { return world.tasks.all_ended(); }));
  }

  void declare(const SeatLayout& layout) {
    options.declared = test_arena(ArenaKind::own, Seat(0));
    options.declared.layout = text_of(layout);
    options.declared.layout_digest = digest_of(options.declared.layout);
    options.declared.payload_bytes = layout.payload_bytes;
    options.declared.stable_bytes = layout.stable_bytes;
  }
  void start() {
    options.store = &store;
    options.path = "/c/step-41";
    options.slot_generation = kGeneration;
    options.step = kStep;
    options.tasks = &world.tasks;
    options.workers = &workers;
    if (!options.arena_for)
      options.arena_for = [this](const ArenaSpec& spec) {
        Result<ArenaHandle> made = memory.arena_for(spec);
        if (made) arena = *made;
        if (made && before_it_is_filled) before_it_is_filled();
        return made;
      };
    options.on_done = [this](Status status) {
      std::lock_guard lock(mutex);
      done = std::move(status);
    };
    import = StoredImport::start(options);
    started = true;
  }
  Status result() {
    EXPECT_TRUE(eventually([this] {
      std::lock_guard lock(mutex);
      return done.has_value();
    }));
    std::lock_guard lock(mutex);
    return done ? *done : Status(Error{Code::timeout, "it has not ended"});
  }
  Status run() {
    memory.freeze_all();
    start();
    return result();
  }
  std::optional<Slot> sealed() {
    for (std::uint32_t i = 0; arena && i < arena->arena.slot_count(); ++i)
      if (const SlotWord word = arena->arena.slot(i).word();
          word.state == SlotState::sealed && word.generation == kGeneration && word.step == kStep)
        return arena->arena.slot(i);
    return std::nullopt;
  }

  TestWorld world;
  StorageOfOne store;
  Memory memory{real_shared_memory(), nobody_keeps()};
  Workers workers{[] {}};
  StoredImport::Options options;
  std::function<void()> before_it_is_filled;
  ArenaHandle arena;
  std::mutex mutex;
  std::optional<Status> done;
  std::shared_ptr<StoredImport> import;
  std::atomic<bool> started{false};  // `import` may be used
};

TEST_F(FromStorage, TheSlotIsSealedWithSumsThatHold) {
  const Status status = run();
  ASSERT_TRUE(status) << status.error().what;
  const auto slot = sealed();
  ASSERT_TRUE(slot);
  EXPECT_TRUE(std::ranges::all_of(slot->payload(), [](std::byte byte) { return byte == std::byte{7}; }));
  EXPECT_TRUE(slot->verify());
  EXPECT_EQ(slot->samples(), 777u);
  EXPECT_TRUE(slot->word().frozen) << "until the job runs";
  EXPECT_TRUE(workers.idle());
  EXPECT_EQ(import->state().received, options.declared.payload_bytes);
}

// As with any snapshot: whoever declares more room can restore it.
TEST_F(FromStorage, OfBlobsThatHaveMoreRoomNowTheCheckpointsLayoutIsTaken) {
  declare(test_layout(700, 5000));
  const Status status = run();
  ASSERT_TRUE(status) << status.error().what;
  EXPECT_EQ(arena->arena.spec().layout, store.layout);
  EXPECT_EQ(arena->arena.spec().layout_digest, digest_of(store.layout));
  EXPECT_TRUE(sealed());
}

TEST_F(FromStorage, AnotherStateIsRefusedWithWhatDiffers) {
  declare(test_layout(701, 100));
  const Status other = run();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::invalid);
  EXPECT_NE(other.error().what.find("wte (weight): float32 [700,3]"), std::string::npos) << other.error().what;
  EXPECT_NE(other.error().what.find("float32 [701,3]"), std::string::npos) << other.error().what;
  EXPECT_FALSE(arena) << "no room is taken for it";
}

TEST_F(FromStorage, OfAnotherWorldTheSeatsOwnLayoutIsTakenWithTheLargerRoom) {
  for (const std::uint64_t capacity : {40u, 900u}) {
    declare(test_layout(700, capacity, 4));
    store.read_in = text_of(test_layout(700, std::max<std::uint64_t>(capacity, 100), 4));
    options.arena_for = nullptr;
    done.reset();
    const Status status = run();
    ASSERT_TRUE(status) << status.error().what;
    EXPECT_EQ(arena->arena.spec().layout, store.read_in);
    EXPECT_EQ(arena->arena.spec().layout_digest, digest_of(store.read_in));
    ASSERT_TRUE(sealed());
    EXPECT_TRUE(sealed()->verify());
    EXPECT_EQ(sealed()->samples(), 777u);
  }
}

TEST_F(FromStorage, AnotherWorldOfAnotherStateIsRefusedInWords) {
  declare(test_layout(700, 0, 4));
  const Status other = run();
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::invalid);
  EXPECT_NE(other.error().what.find("sampler (blob): is not declared here"), std::string::npos) << other.error().what;
  EXPECT_FALSE(arena) << "no room is taken for it";
}

TEST_F(FromStorage, ALayoutThatIsNoneIsCorrupt) {
  store.layout += "x";
  const Status damaged = run();
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().code, Code::corrupt);
}

TEST_F(FromStorage, WhatProvedDamagedIsNotSealed) {
  store.damage = "data-00000.safetensors: its checksum differs";
  const Status damaged = run();
  ASSERT_FALSE(damaged);
  EXPECT_EQ(damaged.error().what, store.damage);
  EXPECT_FALSE(sealed());
  EXPECT_TRUE(workers.idle()) << "another one may be tried";
  store.damage.clear();
  done.reset();
  start();
  EXPECT_TRUE(result());
  EXPECT_TRUE(sealed());
}

TEST_F(FromStorage, ASeatThatIsNotThereAndAPathThatIsNoneAreNamed) {
  options.seat = Seat(1);
  EXPECT_EQ(run().error().code, Code::not_found);
  store.layout.clear();
  done.reset();
  options.seat = Seat(0);
  EXPECT_FALSE(run());
}

// It ends while the loop makes room: then a later generation may already use it.
TEST_F(FromStorage, AfterTheEndItTouchesNothing) {
  before_it_is_filled = [this] {
    ASSERT_TRUE(eventually([this] { return started.load(); }));
    import->end();
  };
  const Status ended = run();
  ASSERT_FALSE(ended);
  EXPECT_EQ(ended.error().code, Code::cancelled);
  for (std::uint32_t i = 0; i < arena->arena.slot_count(); ++i)
    EXPECT_EQ(arena->arena.slot(i).word().state, SlotState::empty);
  EXPECT_TRUE(workers.idle());
}

TEST_F(FromStorage, TheEndIsHeardWhileItReads) {
  store.while_read = [this](PartProgress& progress) {
    EXPECT_FALSE(workers.idle());
    ASSERT_TRUE(eventually([this] { return started.load(); }));
    import->end();
    EXPECT_TRUE(progress.cancel);
  };
  EXPECT_EQ(run().error().code, Code::cancelled);
  EXPECT_FALSE(sealed());
  EXPECT_TRUE(workers.idle());
}

// Slots that nobody froze are the trainer's.
TEST_F(FromStorage, IntoALiveSlotNothingIsRestored) {
  start();
  const Status live = result();
  ASSERT_FALSE(live);
  EXPECT_EQ(live.error().code, Code::broken);
  EXPECT_FALSE(sealed());
}

}  // namespace
}  // namespace pawl::job
