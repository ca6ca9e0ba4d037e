// libpawl through pawl.h, against a pawld of the test's own (test_daemon.h) that really dies and really comes back.
#include "pawl/pawl.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/crc32c.h"
#include "env/files.h"
#include "env/process.h"
#include "env/temporary_directory.h"
#include "job/trainer/test_daemon.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Directory : public TemporaryDirectory {
 public:
  Directory() : TemporaryDirectory("/tmp") {}
  [[nodiscard]] std::string socket() const { return path("pawld.sock"); }
};

bool readable(int fd, int timeout_ms = 0) {
  pollfd entry{fd, POLLIN, 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

// The state of a little training, and its handle.
struct Training {
  std::vector<float> weights = std::vector<float>(150'000);
  std::vector<double> moments = std::vector<double>(33'333);
  std::uint64_t rng[4] = {};
  std::vector<float> derived = std::vector<float>(10);
  std::string sampler = "fresh";
  std::size_t sampler_capacity = 64;
  std::size_t sampler_room = 0;  // as the last save was told
  bool sampler_fails = false;
  pawl_trainer* t = nullptr;
  pawl_seat seat = PAWL_SEAT_INIT;

  ~Training() { pawl_detach(t); }

  pawl_status attach(const std::string& socket) {
    pawl_attach_options options = PAWL_ATTACH_OPTIONS_INIT;
    options.socket_path = socket.c_str();
    return pawl_attach(&options, &t);
  }
  static int save(void* context, void* buffer, size_t capacity, size_t* size) {
    auto* self = static_cast<Training*>(context);
    self->sampler_room = capacity;
    if (self->sampler_fails || self->sampler.size() > capacity) return 1;
    std::memcpy(buffer, self->sampler.data(), self->sampler.size());
    *size = self->sampler.size();
    return 0;
  }
  static int load(void* context, const void* buffer, size_t size) {
    static_cast<Training*>(context)->sampler.assign(static_cast<const char*>(buffer), size);
    return 0;
  }
  template <class T>
  pawl_status add(const char* name, const char* role, pawl_dtype dtype, T* data, std::uint64_t count,
                  pawl_placement placement, pawl_lifetime lifetime) {
    pawl_tensor tensor = PAWL_TENSOR_INIT;
    tensor.name = name;
    tensor.role = role;
    tensor.dtype = dtype;
    tensor.dimension_count = 1;
    tensor.shape = &count;
    tensor.placement = placement;
    tensor.lifetime = lifetime;
    tensor.data = data;
    return pawl_tensor_add(t, &tensor, nullptr);
  }
  void declare() {
    const char* axis = "dp";
    const std::uint64_t world = seat.world;
    std::uint32_t mesh = 9;
    ASSERT_EQ(pawl_mesh_add(t, "data", &axis, &world, 1, &mesh), PAWL_OK) << pawl_error(t);
    ASSERT_EQ(mesh, 0u);
    ASSERT_EQ(add("w", "weight", PAWL_FLOAT32, weights.data(), weights.size(), PAWL_REPLICATE, PAWL_STABLE), PAWL_OK);
    ASSERT_EQ(add("rng", "rng", PAWL_UINT64, rng, 4, PAWL_UNIQUE, PAWL_VOLATILE), PAWL_OK);
    ASSERT_EQ(add("flat", "exp_avg", PAWL_FLOAT64, moments.data(), moments.size(), PAWL_UNIQUE, PAWL_STABLE), PAWL_OK);
    ASSERT_EQ(add("wt", "transposed", PAWL_FLOAT32, derived.data(), derived.size(), PAWL_REPLICATE, PAWL_DERIVED),
              PAWL_OK);
    ASSERT_EQ(pawl_blob_add(t, "sampler", sampler_capacity, &save, &load, this), PAWL_OK);
    ASSERT_EQ(pawl_layout_seal(t), PAWL_OK) << pawl_error(t);
  }
  // To a running generation.
  void start(const std::string& socket) {
    ASSERT_EQ(attach(socket), PAWL_OK) << pawl_error(nullptr);
    ASSERT_EQ(pawl_recover_join(t, &seat), PAWL_OK) << pawl_error(t);
    declare();
    if (seat.resume_step > 0) {
      ASSERT_EQ(pawl_restore(t), PAWL_OK) << pawl_error(t);
    }
    ASSERT_EQ(pawl_recover_done(t), PAWL_OK) << pawl_error(t);
  }

  // What the state is after the update of `step`, and what volatile state is when the next step begins.
  void update(std::uint64_t step) {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<float>(step * 1000 + i % 997);
    for (std::size_t i = 0; i < moments.size(); ++i)
      moments[i] = static_cast<double>(step) + 1.0 / static_cast<double>(i + 1);
  }
  void evaluate(std::uint64_t step) {
    for (std::uint64_t i = 0; i < 4; ++i) rng[i] = step * 77 + i;
    sampler = "sampler at " + std::to_string(step);
  }
  void clobber() {
    std::fill(weights.begin(), weights.end(), -1.0f);
    std::fill(moments.begin(), moments.end(), -1.0);
    std::fill(rng, rng + 4, 1);
    sampler = "clobbered";
  }
  void expect_state_of(std::uint64_t step) {
    Training expected;
    expected.update(step);
    expected.evaluate(step);
    EXPECT_EQ(weights, expected.weights);
    EXPECT_EQ(moments, expected.moments);
    EXPECT_EQ(std::memcmp(rng, expected.rng, sizeof rng), 0);
    EXPECT_EQ(sampler, expected.sampler);
  }
  // Begins `step`; fences; updates; opens the window. Returns the fence's report, of step-1.
  pawl_fence_report step(std::uint64_t step) {
    pawl_fence_report report = PAWL_FENCE_REPORT_INIT;
    EXPECT_EQ(pawl_step_begin(t, step), PAWL_OK) << pawl_error(t);
    clobber_volatile();
    EXPECT_EQ(pawl_progress(t, PAWL_PHASE_ALLREDUCE), PAWL_OK);
    EXPECT_EQ(pawl_fence(t, &report), PAWL_OK) << pawl_error(t);
    EXPECT_EQ(pawl_progress(t, PAWL_PHASE_UPDATE), PAWL_OK);
    update(step);
    EXPECT_EQ(pawl_window_open(t, step, step * 32), PAWL_OK) << pawl_error(t);
    evaluate(step);
    return report;
  }
  void clobber_volatile() {
    std::fill(rng, rng + 4, 99);
    sampler = "in the middle of a step";
  }
};

class Pawl : public ::testing::Test {
 protected:
  Directory directory;
  Kept kept;
  TestDaemon daemon{directory.socket(), kept};
  Training training;

  std::vector<std::uint64_t> sealed_steps() {
    std::vector<std::uint64_t> steps;
    for (std::uint32_t i = 0; i < kept.arena->slot_count(); ++i) {
      if (kept.arena->slot(i).word().state != SlotState::sealed) continue;
      EXPECT_TRUE(kept.arena->slot(i).verify());
      steps.push_back(kept.arena->slot(i).word().step.value);
    }
    std::sort(steps.begin(), steps.end());
    return steps;
  }
};
using Steps = std::vector<std::uint64_t>;

TEST_F(Pawl, StepsAreSealedAndARecoveryRestoresThemBitForBit) {
  training.start(directory.socket());
  EXPECT_EQ(training.seat.world, 1u);
  EXPECT_STREQ(training.seat.rendezvous_prefix, "g1");
  pawl_seat known = PAWL_SEAT_INIT;
  EXPECT_EQ(pawl_identity(training.t, &known), PAWL_OK);
  EXPECT_EQ(known.generation, 1u);

  for (std::uint64_t step = 1; step <= 5; ++step) {
    const pawl_fence_report report = training.step(step);
    EXPECT_EQ(report.step, step - 1);
    EXPECT_EQ(report.captured, step > 1 ? 1 : 0) << report.why_void;
    daemon.commit(step - 1);
  }
  ASSERT_EQ(pawl_step_begin(training.t, 6), PAWL_OK);
  training.clobber_volatile();
  ASSERT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
  EXPECT_EQ(sealed_steps(), (Steps{4, 5}));
  EXPECT_EQ(pawl_committed_step(training.t), 4u);
  EXPECT_EQ(kept.page->reached.load(), 5u);
  EXPECT_EQ(kept.page->updates.load(), 5u);
  EXPECT_EQ(kept.page->samples.load(), 160u);
  EXPECT_EQ(kept.page->step.load(), 6u);
  EXPECT_EQ(kept.page->phase.load(), static_cast<std::uint64_t>(PAWL_PHASE_FENCE));
  EXPECT_EQ(kept.page->windows_captured.load(), 5u);
  EXPECT_EQ(kept.page->fence_count.load(), 5u);
  EXPECT_EQ(kept.page->pid.load(), static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(kept.page->start_time.load(), *process_start_time(getpid()));
  EXPECT_NE(kept.page->nonce.load(), 0u);

  daemon.recover(2, 5);
  training.clobber();
  EXPECT_EQ(pawl_window_open(training.t, 6, 0), PAWL_RECOVER);
  EXPECT_EQ(kept.page->updates.load(), 6u);  // it has happened
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(training.seat.resume_step, 5u);
  EXPECT_EQ(pawl_interrupted(training.t), 0);
  ASSERT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  training.expect_state_of(5);
  EXPECT_EQ(pawl_window_open(training.t, 6, 0), PAWL_INVALID);  // before recover_done
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK);
  EXPECT_EQ(kept.page->reached.load(), 5u);

  training.step(6);
  ASSERT_EQ(pawl_finish(training.t), PAWL_OK) << pawl_error(training.t);  // stages what is volatile by itself
  EXPECT_EQ(sealed_steps(), (Steps{5, 6}));
  const std::string json = pawl_status_json(training.t);
  EXPECT_NE(json.find("\"generation\":2"), std::string::npos) << json;
  EXPECT_NE(json.find("\"captured\":6,\"voided\":0"), std::string::npos) << json;
}

TEST_F(Pawl, ANewProcessInTheSeatRestoresFromTheSameArena) {
  training.start(directory.socket());
  training.step(1);
  ASSERT_EQ(pawl_finish(training.t), PAWL_OK);
  pawl_detach(std::exchange(training.t, nullptr));
  daemon.wait_for(MessageKind::detach);

  kept.new_page();
  daemon.set_seating({2, 0, 1, 1});
  Training successor;
  successor.start(directory.socket());
  successor.expect_state_of(1);
}

// What of this process outlives a handle that is forgotten: descriptors, threads, mapped segments.
std::array<std::size_t, 3> held_by_this_process() {
  const auto entries = [](const char* directory) {
    return static_cast<std::size_t>(std::ranges::distance(std::filesystem::directory_iterator(directory)));
  };
  std::ifstream maps("/proc/self/maps");
  std::size_t segments = 0;
  for (std::string line; std::getline(maps, line);) segments += line.find("/memfd:") != std::string::npos ? 1 : 0;
  return {entries("/proc/self/fd"), entries("/proc/self/task"), segments};
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t kLives = 60;  // a minute of sanitizers for each thousand
#else
constexpr std::uint64_t kLives = 1000;
#endif

TEST_F(Pawl, AThousandTrainersInOneSeatLeaveNothingBehind) {
  constexpr std::uint64_t kWarm = 10;
  std::array<std::size_t, 3> warm{};
  for (std::uint64_t life = 1; life <= kLives; ++life) {
    Training one;
    one.start(directory.socket());
    one.step(life);
    ASSERT_EQ(pawl_finish(one.t), PAWL_OK) << pawl_error(one.t);
    pawl_detach(std::exchange(one.t, nullptr));
    daemon.wait_for(MessageKind::detach);
    if (life == kWarm) warm = held_by_this_process();
    kept.new_page();
    daemon.set_seating({life + 1, 0, 1, life});
  }
  // The test's pawld lets go a little later: now, and when it was counted first.
  const auto leaves_nothing = [&] { return std::ranges::equal(held_by_this_process(), warm, std::less_equal()); };
  for (const Deadline deadline = Deadline::in(seconds(30)); !leaves_nothing() && !deadline.passed();)
    std::this_thread::sleep_for(milliseconds(20));
  EXPECT_TRUE(leaves_nothing()) << "descriptors, threads, mapped segments: " << testing::PrintToString(warm)
                                << " and now " << testing::PrintToString(held_by_this_process());
}

TEST_F(Pawl, ABlobHasTheCapacityOfTheSnapshotThatIsRestored) {
  training.start(directory.socket());
  training.step(1);
  ASSERT_EQ(pawl_finish(training.t), PAWL_OK);
  pawl_detach(std::exchange(training.t, nullptr));
  daemon.wait_for(MessageKind::detach);

  std::uint64_t generation = 2;
  for (const std::size_t capacity : {16u, 5000u}) {
    kept.new_page();
    daemon.set_seating({generation, 0, 1, generation - 1});
    Training successor;
    successor.sampler_capacity = capacity;
    successor.start(directory.socket());
    successor.expect_state_of(generation - 1);
    successor.step(generation);
    ASSERT_EQ(pawl_finish(successor.t), PAWL_OK) << pawl_error(successor.t);
    EXPECT_EQ(successor.sampler_room, 64u);
    pawl_detach(std::exchange(successor.t, nullptr));
    daemon.wait_for(MessageKind::detach);
    ++generation;
  }
}

TEST_F(Pawl, ClosedGateVoidsTheWindowAndTheReportSaysWhy) {
  training.start(directory.socket());
  for (std::uint64_t step = 1; step <= 4; ++step) {
    const pawl_fence_report report = training.step(step);
    if (step < 4) continue;
    EXPECT_EQ(report.step, 3u);
    EXPECT_EQ(report.captured, 0);
    EXPECT_NE(std::string(report.why_void).find("no slot was free"), std::string::npos) << report.why_void;
  }
  EXPECT_EQ(sealed_steps(), (Steps{1, 2}));
  EXPECT_EQ(kept.page->windows_voided.load(), 1u);
}

TEST_F(Pawl, TrainingGoesOnSealingWhilePawldIsDead) {
  training.start(directory.socket());
  training.step(1);
  const int event_fd = pawl_event_fd(training.t);
  daemon.kill();
  EXPECT_EQ(training.step(2).captured, 1);
  ASSERT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
  EXPECT_EQ(sealed_steps(), (Steps{1, 2}));

  daemon.start();
  ASSERT_EQ(pawl_rendezvous_set(training.t, "key", "value", 5), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(kept.value("g1/key"), "value");
  EXPECT_EQ(daemon.count(MessageKind::attach), 2);
  EXPECT_EQ(pawl_event_fd(training.t), event_fd);
  EXPECT_EQ(kept.page->windows_captured.load(), 2u);
  daemon.commit(2);  // through the new descriptors
  EXPECT_TRUE(readable(event_fd, 5000));
}

TEST_F(Pawl, AWaitingRequestIsRepeatedToTheNextPawld) {
  training.start(directory.socket());
  std::thread other([&] {
    daemon.wait_for(MessageKind::rendezvous);
    daemon.kill();
    kept.set("g1/late", "here");
    daemon.start();
  });
  char value[16];
  size_t size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_get(training.t, "late", value, &size, 60'000), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(std::string(value, size), "here");
  other.join();
}

TEST_F(Pawl, AParkedSpareOutlivesItsPawldAndItsPage) {
  daemon.withhold(MessageKind::join);
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  std::thread other([&] {
    daemon.wait_for(MessageKind::join);
    daemon.kill();
    kept.new_page();  // pawld makes a new page for a process that has no generation yet
    daemon.start();
    daemon.wait_for(MessageKind::join, 2);
    timespec now{};
    clock_gettime(CLOCK_REALTIME, &now);
    EXPECT_EQ(pthread_mutex_timedlock(&kept.page->alive, &now), ETIMEDOUT);  // it is locked by now
    daemon.allow(MessageKind::join);
  });
  EXPECT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK) << pawl_error(training.t);
  other.join();
  EXPECT_EQ(kept.page->pid.load(), static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(kept.page->progress_count.load(), 2u);  // what was counted in the old page, too
}

// Each wait ends with PAWL_RECOVER by the page alone, though pawld never answers.
TEST_F(Pawl, EveryWaitEndsWhenARecoveryIsPending) {
  training.start(directory.socket());
  for (const MessageKind kind : {MessageKind::done, MessageKind::finish, MessageKind::restore, MessageKind::rendezvous,
                                 MessageKind::fault, MessageKind::stop_after}) {
    daemon.withhold(kind);
  }
  std::uint64_t generation = 1;
  const auto ends = [&](MessageKind kind, auto call) {
    const int before = daemon.count(kind);
    std::thread other([&] {
      daemon.wait_for(kind, before + 1);
      EXPECT_FALSE(readable(pawl_event_fd(training.t)));
      daemon.recover(++generation, 0);
    });
    EXPECT_EQ(call(), PAWL_RECOVER) << pawl_error(training.t);
    other.join();
    EXPECT_EQ(pawl_interrupted(training.t), 1);
    EXPECT_TRUE(readable(pawl_event_fd(training.t), 5000));
    pawl_event event = PAWL_EVENT_INIT;
    EXPECT_EQ(pawl_event_next(training.t, &event), PAWL_OK);
    EXPECT_EQ(event.kind, PAWL_EVENT_RECOVERY);
    EXPECT_EQ(event.value, generation);
    EXPECT_EQ(pawl_event_next(training.t, &event), PAWL_TIMEOUT);
    EXPECT_FALSE(readable(pawl_event_fd(training.t)));
    EXPECT_EQ(pawl_step_begin(training.t, 1), PAWL_RECOVER);
    EXPECT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
    EXPECT_EQ(training.seat.generation, generation);
  };
  char value[8];
  size_t size = sizeof value;
  ends(MessageKind::rendezvous, [&] { return pawl_rendezvous_get(training.t, "never", value, &size, 600'000); });
  ends(MessageKind::rendezvous, [&] { return pawl_rendezvous_set(training.t, "key", "", 0); });
  ends(MessageKind::stop_after, [&] { return pawl_stop_after(training.t, 5, nullptr); });
  ends(MessageKind::done, [&] { return pawl_recover_done(training.t); });
  ends(MessageKind::fault, [&] { return pawl_fault_report(training.t, "a socket broke"); });
  daemon.allow(MessageKind::done);
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK);
  ends(MessageKind::finish, [&] { return pawl_finish(training.t); });
}

TEST_F(Pawl, FinishThatWaitsForASlotEndsWhenARecoveryIsPending) {
  training.start(directory.socket());
  training.step(1);
  training.step(2);
  ASSERT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
  training.update(3);
  ASSERT_EQ(pawl_window_open(training.t, 3, 0), PAWL_OK);  // no slot is free: finish would wait
  std::thread other([&] {
    real_clock().sleep(milliseconds(20));
    daemon.recover(2, 2);
  });
  EXPECT_EQ(pawl_finish(training.t), PAWL_RECOVER);
  other.join();
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  training.clobber();
  ASSERT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  training.expect_state_of(2);
}

TEST_F(Pawl, StopEndsTheWaitForASeat) {
  daemon.withhold(MessageKind::join);
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  std::thread other([&] {
    daemon.wait_for(MessageKind::join);
    daemon.stop_job();
  });
  EXPECT_EQ(pawl_recover_join(training.t, nullptr), PAWL_STOP);
  other.join();
  pawl_event event = PAWL_EVENT_INIT;
  EXPECT_EQ(pawl_event_next(training.t, &event), PAWL_OK);
  EXPECT_EQ(event.kind, PAWL_EVENT_STOP);
}

TEST_F(Pawl, CommitsAreEvents) {
  training.start(directory.socket());
  EXPECT_FALSE(readable(pawl_event_fd(training.t)));
  daemon.commit(1);
  EXPECT_TRUE(readable(pawl_event_fd(training.t), 5000));
  daemon.commit(3);
  pawl_event event = PAWL_EVENT_INIT;
  while (pawl_event_next(training.t, &event) == PAWL_OK && event.value != 3) {
  }
  EXPECT_EQ(event.kind, PAWL_EVENT_COMMITTED);
  EXPECT_EQ(event.value, 3u);
  EXPECT_FALSE(readable(pawl_event_fd(training.t)));
}

TEST_F(Pawl, FinishWaitsForASlotRatherThanLoseTheLastStep) {
  training.start(directory.socket());
  training.step(1);
  training.step(2);
  training.step(3);  // its window has no slot until 2 is committed
  std::thread other([&] {
    real_clock().sleep(milliseconds(30));
    daemon.commit(2);
  });
  EXPECT_EQ(pawl_finish(training.t), PAWL_OK) << pawl_error(training.t);
  other.join();
  EXPECT_EQ(sealed_steps(), (Steps{2, 3}));
}

// For each bucket: one flipped bit anywhere in the source is found, and the next source restores all of the state.
TEST_F(Pawl, ACorruptSourceIsRefusedAndNamed) {
  training.start(directory.socket());
  training.step(1);
  ASSERT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
  ASSERT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
  ASSERT_EQ(sealed_steps(), Steps{1});
  const std::uint32_t slot = kept.arena->slot(0).word().state == SlotState::sealed ? 0 : 1;
  const std::uint32_t buckets = Arena::bucket_count(kept.arena->spec());
  ASSERT_GT(buckets, 3u);
  std::uint64_t generation = 1;
  for (std::uint32_t bucket = 0; bucket < buckets; ++bucket) {
    daemon.recover(++generation, 1);
    ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
    std::span<std::byte> bytes = kept.arena->slot(slot).bucket(bucket);
    bytes[bytes.size() / 2] ^= std::byte{4};
    training.clobber();
    std::thread other([&] {
      daemon.wait_for(MessageKind::restore_bad, static_cast<int>(bucket) + 1);
      daemon.recover(++generation, 1);
    });
    EXPECT_EQ(pawl_restore(training.t), PAWL_RECOVER);
    other.join();
    EXPECT_NE(std::string(pawl_error(training.t)).find("bucket " + std::to_string(bucket)), std::string::npos)
        << pawl_error(training.t);
    EXPECT_NE(daemon.last_text().find("checksum"), std::string::npos) << daemon.last_text();
    bytes[bytes.size() / 2] ^= std::byte{4};
  }
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  ASSERT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  training.expect_state_of(1);
}

// A slot that a fetch fills, as pawld's threads do it: `fill` copies a bucket in, verified.
class FillingSlot : public Pawl {
 protected:
  // The state of step 1 lies sealed; the trainer has come to join for generation 2, where it has to be fetched anew.
  void begin() {
    training.start(directory.socket());
    training.step(1);
    ASSERT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
    ASSERT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
    ASSERT_EQ(sealed_steps(), Steps{1});
    slot = kept.arena->slot(kept.arena->slot(0).word().state == SlotState::sealed ? 0 : 1);
    daemon.recover(2, 1);
    whole.assign(slot.payload().begin(), slot.payload().end());
    open();
    ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
    training.clobber();
  }
  void open() {
    ASSERT_TRUE(slot.open_frozen(Generation(1), Step(1), 32));
    std::fill(slot.payload().begin(), slot.payload().end(), std::byte{0xee});
  }
  void fill(std::uint32_t index) {
    const std::span<std::byte> bucket = slot.bucket(index);
    const std::size_t begin = static_cast<std::size_t>(bucket.data() - slot.payload().data());
    std::copy_n(whole.begin() + static_cast<std::ptrdiff_t>(begin), bucket.size(), bucket.begin());
    slot.bucket_done(index, crc32c(bucket), Generation(1), Step(1));
  }
  std::uint32_t bucket_count() const { return static_cast<std::uint32_t>(slot.buckets().size()); }
  // Of the weights, which lie first in the payload, those of this bucket are there.
  bool has_come(std::uint32_t index) const {
    const std::size_t first = std::size_t{index} * slot.bucket(0).size();
    return std::memcmp(reinterpret_cast<const char*>(training.weights.data()) + first, whole.data() + first, 64) == 0;
  }
  // False: it will not come before the slot is whole. Where a slow machine fills nothing for a second, the trainer asks for
  // the whole slot, which this pawld names only then: who waits for a bucket first waits for ever.
  bool wait_for_bucket(std::uint32_t index) {
    while (!has_come(index)) {
      if (daemon.count(MessageKind::restore) >= 2) return has_come(index);
      real_clock().sleep(milliseconds(1));
    }
    return true;
  }

  Slot slot;
  std::vector<std::byte> whole;
};

TEST_F(FillingSlot, BucketsAreCopiedAsTheyComeAndTheRestoreEndsOnceTheSlotIsWhole) {
  begin();
  std::atomic<bool> restored{false};
  fill(0);
  std::thread fetch([&] {
    (void)wait_for_bucket(0);
    EXPECT_FALSE(has_come(1));
    fill(1);
    (void)wait_for_bucket(1);
    for (std::uint32_t i = 2; i < bucket_count(); ++i) fill(i);
    daemon.wait_for(MessageKind::restore, 2);  // all is copied, and it asks for the whole one
    real_clock().sleep(milliseconds(20));
    EXPECT_FALSE(restored);
    ASSERT_TRUE(slot.seal_frozen(Generation(1), Step(1)));
  });
  EXPECT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  restored = true;
  fetch.join();
  training.expect_state_of(1);
}

// The wire broke, and the fetch begins anew: what was there before is not taken for what comes.
TEST_F(FillingSlot, AFetchThatBeginsAnewIsFollowed) {
  begin();
  fill(0);
  std::thread fetch([&] {
    (void)wait_for_bucket(0);
    open();
    const std::span<std::byte> torn = slot.bucket(1);  // written, and not done
    std::fill(torn.begin(), torn.end(), std::byte{1});
    real_clock().sleep(milliseconds(20));
    for (std::uint32_t i = 0; i < bucket_count(); ++i) fill(i);
    ASSERT_TRUE(slot.seal_frozen(Generation(1), Step(1)));
  });
  EXPECT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  fetch.join();
  training.expect_state_of(1);
  EXPECT_EQ(daemon.count(MessageKind::restore_bad), 0);
}

// Only a whole slot is judged: until then a bucket that isn't what its line says may be one that is just being written.
TEST_F(FillingSlot, ABucketThatIsWrongIsReportedOnceTheSlotIsWhole) {
  begin();
  std::thread fetch([&] {
    for (std::uint32_t i = 0; i < bucket_count(); ++i) fill(i);
  });
  fetch.join();
  slot.bucket(2)[5] ^= std::byte{8};
  std::thread other([&] {
    daemon.wait_for(MessageKind::restore, 2);
    EXPECT_EQ(daemon.count(MessageKind::restore_bad), 0);
    ASSERT_TRUE(slot.seal_frozen(Generation(1), Step(1)));
    daemon.wait_for(MessageKind::restore_bad);
    daemon.recover(3, 1);
  });
  EXPECT_EQ(pawl_restore(training.t), PAWL_RECOVER);
  other.join();
  EXPECT_NE(daemon.last_text().find("bucket 2"), std::string::npos) << daemon.last_text();
}

// No more comes: pawld is asked again, since another one may be there.
TEST_F(FillingSlot, ARecoveryEndsTheWaitForBuckets) {
  begin();
  fill(0);
  const Duration began = real_clock().now();
  Duration told{};
  std::thread other([&] {
    (void)wait_for_bucket(0);
    daemon.recover(3, 1);
    told = real_clock().now();
  });
  EXPECT_EQ(pawl_restore(training.t), PAWL_RECOVER);
  other.join();
  if (told - began < seconds(1)) {  // else it has asked before the recovery, for want of news
    EXPECT_EQ(daemon.count(MessageKind::restore), 1);
  }
}

TEST_F(FillingSlot, WhereNothingComesPawldIsAskedAgain) {
  begin();
  std::thread fetch([&] {
    fill(0);
    daemon.wait_for(MessageKind::restore, 2);
    for (std::uint32_t i = 0; i < bucket_count(); ++i) fill(i);
    ASSERT_TRUE(slot.seal_frozen(Generation(1), Step(1)));
  });
  EXPECT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  fetch.join();
  training.expect_state_of(1);
}

TEST_F(Pawl, ABlobThatCannotBeSavedVoidsTheWindow) {
  training.start(directory.socket());
  training.step(1);
  training.sampler_fails = true;
  ASSERT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
  pawl_fence_report report = PAWL_FENCE_REPORT_INIT;
  ASSERT_EQ(pawl_fence(training.t, &report), PAWL_OK);
  EXPECT_EQ(report.captured, 0);
  EXPECT_STREQ(report.why_void, "blob sampler: save answered 1");
  EXPECT_EQ(sealed_steps(), Steps{});

  // The last step must not be lost: its fault brings a recovery about.
  training.update(2);
  ASSERT_EQ(pawl_window_open(training.t, 2, 0), PAWL_OK);
  EXPECT_EQ(pawl_finish(training.t), PAWL_RECOVER);
  EXPECT_NE(daemon.last_text().find("save answered 1"), std::string::npos) << daemon.last_text();
}

TEST_F(Pawl, AHoldParksThePhaseUntilItIsReleased) {
  training.start(directory.socket());
  kept.page->hold_step = 2;
  kept.page->hold_phase = PAWL_PHASE_UPDATE;
  training.step(1);  // too early
  EXPECT_EQ(kept.page->held.load(), 0u);
  std::atomic<bool> passed{false};
  std::thread other([&] {
    while (kept.page->held.load() == 0) real_clock().sleep(milliseconds(1));
    EXPECT_EQ(kept.page->phase.load(), static_cast<std::uint64_t>(PAWL_PHASE_UPDATE));
    EXPECT_FALSE(passed);
    kept.page->hold_phase = 0;
  });
  training.step(2);
  passed = true;
  other.join();
  EXPECT_EQ(kept.page->held.load(), 0u);
}

TEST_F(Pawl, AHoldInAStepEndsWhereARecoveryIsPendingAndHoldsAgainAfterIt) {
  training.start(directory.socket());
  training.step(1);
  training.step(2);  // step 1 is sealed
  const auto await_held = [&](std::uint64_t held) {
    const Deadline deadline = Deadline::in(seconds(5));
    while (kept.page->held.load() != held && !deadline.passed()) real_clock().sleep(milliseconds(1));
    return kept.page->held.load() == held;
  };
  kept.page->hold_phase = PAWL_PHASE_COMPUTE;
  std::thread recovery([&] {
    EXPECT_TRUE(await_held(1));
    daemon.recover(2, 1);
    EXPECT_TRUE(await_held(0));
    kept.page->hold_phase = 0;
  });
  EXPECT_EQ(pawl_step_begin(training.t, 3), PAWL_RECOVER);
  recovery.join();
  const auto release = [&] {
    EXPECT_TRUE(await_held(1));
    kept.page->hold_phase = 0;
  };
  kept.page->hold_phase = PAWL_PHASE_JOIN;  // in the recovery itself it lasts
  std::thread in_recovery(release);
  EXPECT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK) << pawl_error(training.t);
  in_recovery.join();
  ASSERT_EQ(pawl_restore(training.t), PAWL_OK) << pawl_error(training.t);
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK) << pawl_error(training.t);
  kept.page->hold_phase = PAWL_PHASE_COMPUTE;
  std::thread in_step(release);
  EXPECT_EQ(pawl_step_begin(training.t, 2), PAWL_OK) << pawl_error(training.t);
  in_step.join();
}

TEST_F(Pawl, CallsInTheWrongOrderAreRefusedWithASentence) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  pawl_seat seat = PAWL_SEAT_INIT;
  EXPECT_EQ(pawl_identity(training.t, &seat), PAWL_INVALID);
  EXPECT_EQ(pawl_window_open(training.t, 1, 0), PAWL_INVALID);
  EXPECT_STRNE(pawl_error(training.t), "");
  EXPECT_EQ(pawl_layout_seal(training.t), PAWL_INVALID);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  EXPECT_STREQ(pawl_error(training.t), "");
  training.declare();
  float late = 0;
  EXPECT_EQ(training.add("late", "weight", PAWL_FLOAT32, &late, 1, PAWL_UNIQUE, PAWL_STABLE), PAWL_INVALID);
  EXPECT_EQ(pawl_window_open(training.t, 1, 0), PAWL_INVALID);
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK);
  training.step(5);
  EXPECT_EQ(pawl_tensor_rebind(training.t, 0, &late), PAWL_INVALID);
  EXPECT_EQ(pawl_window_open(training.t, 6, 0), PAWL_INVALID);  // without a fence: 5 is void now
  EXPECT_EQ(kept.page->windows_voided.load() + kept.page->windows_captured.load(), 1u);
  EXPECT_EQ(pawl_window_open(training.t, 5, 0), PAWL_INVALID);
  EXPECT_EQ(pawl_window_open(training.t, 6, 0), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(pawl_progress(training.t, static_cast<pawl_phase>(77)), PAWL_INVALID);
  EXPECT_EQ(pawl_tensor_add(training.t, nullptr, nullptr), PAWL_INVALID);
  EXPECT_EQ(pawl_rendezvous_get(training.t, nullptr, nullptr, nullptr, 0), PAWL_INVALID);
}

// As programs do that were built with another pawl.h.
TEST_F(Pawl, StructsOfOtherVersionsAreReadByTheirSize) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  pawl_seat seat{};
  EXPECT_EQ(pawl_recover_join(training.t, &seat), PAWL_INVALID);  // at once, before any wait
  EXPECT_NE(std::string(pawl_error(training.t)).find("PAWL_SEAT_INIT"), std::string::npos) << pawl_error(training.t);
  EXPECT_EQ(pawl_fence(training.t, std::array<pawl_fence_report, 1>{}.data()), PAWL_INVALID);
  EXPECT_EQ(pawl_event_next(training.t, std::array<pawl_event, 1>{}.data()), PAWL_INVALID);
  struct {
    pawl_seat seat = PAWL_SEAT_INIT;
    std::uint64_t added = 77;
  } newer_seat;
  newer_seat.seat.struct_size = sizeof newer_seat;
  ASSERT_EQ(pawl_recover_join(training.t, &newer_seat.seat), PAWL_OK);
  EXPECT_EQ(newer_seat.added, 0u);
  EXPECT_EQ(newer_seat.seat.struct_size, sizeof newer_seat);
  EXPECT_EQ(newer_seat.seat.generation, 1u);

  struct {
    pawl_tensor tensor = PAWL_TENSOR_INIT;
    std::uint64_t added = 0;
  } newer;
  float value = 0;
  const auto add = [&](const char* name) {
    newer.tensor.name = name;
    newer.tensor.role = "weight";
    newer.tensor.placement = PAWL_UNIQUE;
    newer.tensor.data = &value;
    return pawl_tensor_add(training.t, &newer.tensor, nullptr);
  };
  const auto refused = [&](const char* why) {
    EXPECT_EQ(add("refused"), PAWL_INVALID);
    EXPECT_NE(std::string(pawl_error(training.t)).find(why), std::string::npos) << pawl_error(training.t);
  };
  const char* axis = "dp";
  const std::uint64_t world = newer_seat.seat.world;
  ASSERT_EQ(pawl_mesh_add(training.t, "data", &axis, &world, 1, nullptr), PAWL_OK);
  newer.tensor.struct_size = 0;
  refused("PAWL_TENSOR_INIT");
  newer.tensor.struct_size = sizeof newer;
  EXPECT_EQ(add("newer"), PAWL_OK) << pawl_error(training.t);
  newer.added = 1;
  refused("newer pawl");
  newer.tensor.struct_size = sizeof(pawl_tensor);
  EXPECT_EQ(add("of this version"), PAWL_OK) << pawl_error(training.t);
  newer.tensor.equal_axes = 2;
  refused("which its mesh has not got");
  newer.tensor.struct_size = offsetof(pawl_tensor, equal_axes);  // so that it doesn't count
  EXPECT_EQ(add("older"), PAWL_OK) << pawl_error(training.t);
  --newer.tensor.struct_size;
  refused("PAWL_TENSOR_INIT");
  newer.tensor = PAWL_TENSOR_INIT;
  newer.tensor.unit = "layers.3";
  refused("unit is not supported yet");
  newer.tensor = PAWL_TENSOR_INIT;
  newer.tensor.logical_dimension_count = 1;
  refused("logical_dimension_count is not supported yet");
  newer.tensor = PAWL_TENSOR_INIT;
  newer.tensor.logical_shape = &world;
  refused("logical_shape is not supported yet");
}

TEST_F(Pawl, ATensorMayLieInAnotherOrder) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  const char* axis = "dp";
  const std::uint64_t world = training.seat.world;
  ASSERT_EQ(pawl_mesh_add(training.t, "data", &axis, &world, 1, nullptr), PAWL_OK);
  const std::uint64_t shape[] = {2, 3};
  float values[6] = {};
  const std::uint32_t transposed[] = {1, 0}, twice[] = {1, 1}, beyond[] = {2, 0};
  pawl_tensor tensor = PAWL_TENSOR_INIT;
  tensor.name = "w";
  tensor.role = "weight";
  tensor.dimension_count = 2;
  tensor.shape = shape;
  tensor.data = values;
  for (const std::uint32_t* const wrong : {twice, beyond}) {
    tensor.order = wrong;
    EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_INVALID);
    EXPECT_NE(std::string(pawl_error(training.t)).find("is no permutation of 2 dimensions"), std::string::npos)
        << pawl_error(training.t);
  }
  tensor.order = transposed;
  EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_OK) << pawl_error(training.t);
  tensor.name = "older";  // whose pawl.h ends before it
  tensor.struct_size = offsetof(pawl_tensor, order);
  tensor.order = twice;
  EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_OK) << pawl_error(training.t);
  ASSERT_EQ(pawl_layout_seal(training.t), PAWL_OK) << pawl_error(training.t);
}

// NULL begins at 0; NULL ends with the tensor.
TEST_F(Pawl, ABoxNeedsNoSize) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  const char* axis = "dp";
  const std::uint64_t world = training.seat.world, shape = 10, begin = 4, beyond = 11, size = 7;
  ASSERT_EQ(pawl_mesh_add(training.t, "data", &axis, &world, 1, nullptr), PAWL_OK);
  float values[10] = {};
  pawl_tensor tensor = PAWL_TENSOR_INIT;
  tensor.name = "w";
  tensor.role = "weight";
  tensor.dimension_count = 1;
  tensor.shape = &shape;
  tensor.placement = PAWL_UNIQUE;
  tensor.data = values;
  tensor.begin = &beyond;
  EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_INVALID);
  tensor.begin = &begin;
  tensor.size = &size;
  EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_INVALID);
  tensor.size = nullptr;
  EXPECT_EQ(pawl_tensor_add(training.t, &tensor, nullptr), PAWL_OK) << pawl_error(training.t);
}

TEST_F(Pawl, ARefusedLayoutSaysWhatPawldSays) {
  daemon.refuse(MessageKind::layout, PAWL_INVALID, "tensor w (weight): [4] float32 here, [5] float32 there");
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  const char* axis = "dp";
  const std::uint64_t one = 1;
  ASSERT_EQ(pawl_mesh_add(training.t, "data", &axis, &one, 1, nullptr), PAWL_OK);
  ASSERT_EQ(training.add("w", "weight", PAWL_FLOAT32, training.weights.data(), 4, PAWL_REPLICATE, PAWL_STABLE),
            PAWL_OK);
  EXPECT_EQ(pawl_layout_seal(training.t), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(training.t)).find("[5] float32 there"), std::string::npos) << pawl_error(training.t);
}

TEST_F(Pawl, RendezvousTellsTheSizeOfWhatDoesNotFitAndTimesOut) {
  training.start(directory.socket());
  ASSERT_EQ(pawl_rendezvous_set(training.t, "key", "12345", 5), PAWL_OK);
  char value[4];
  size_t size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_get(training.t, "key", value, &size, 5000), PAWL_INVALID);
  EXPECT_EQ(size, 5u);
  EXPECT_EQ(pawl_rendezvous_get(training.t, "none", value, &size, 10), PAWL_TIMEOUT);
  size = 0;
  ASSERT_EQ(pawl_rendezvous_set(training.t, "empty", nullptr, 0), PAWL_OK);
  EXPECT_EQ(pawl_rendezvous_get(training.t, "empty", nullptr, &size, 5000), PAWL_OK);
}

TEST_F(Pawl, NonsenseFromPawldDetachesAndTrainingGoesOn) {
  training.start(directory.socket());
  training.step(1);
  daemon.answer_nonsense();
  EXPECT_EQ(pawl_fault_report(training.t, "?"), PAWL_BROKEN);
  const std::string why = pawl_error(training.t);
  EXPECT_NE(why.find("unprotected"), std::string::npos) << why;
  daemon.wait_for(MessageKind::detach);
  EXPECT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
  EXPECT_EQ(pawl_fence(training.t, nullptr), PAWL_OK);
  EXPECT_EQ(pawl_window_open(training.t, 2, 0), PAWL_OK);
  EXPECT_EQ(pawl_finish(training.t), PAWL_OK);
  EXPECT_EQ(pawl_interrupted(training.t), 0);
  EXPECT_EQ(pawl_recover_join(training.t, nullptr), PAWL_BROKEN);
  EXPECT_EQ(pawl_error(training.t), why);
}

TEST_F(Pawl, NonsenseToTheStoreIsWhyTheTrainingThreadGivesUp) {
  training.start(directory.socket());
  daemon.answer_nonsense();
  std::thread([&] { EXPECT_EQ(pawl_rendezvous_set(training.t, "key", "", 0), PAWL_BROKEN); }).join();
  daemon.wait_for(MessageKind::detach);
  EXPECT_EQ(pawl_step_begin(training.t, 1), PAWL_BROKEN);
  EXPECT_NE(std::string(pawl_error(training.t)).find("unprotected"), std::string::npos) << pawl_error(training.t);
  EXPECT_EQ(pawl_step_begin(training.t, 1), PAWL_OK);
  EXPECT_EQ(pawl_rendezvous_set(training.t, "key", "", 0), PAWL_UNREACHABLE);
}

TEST_F(Pawl, ALayoutMayBeSealedWhileTheJobRunsFromTheInitialState) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  EXPECT_EQ(pawl_restore(training.t), PAWL_OK);
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK) << pawl_error(training.t);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    pawl_fence_report report = PAWL_FENCE_REPORT_INIT;
    EXPECT_EQ(pawl_step_begin(training.t, step), PAWL_OK) << pawl_error(training.t);
    EXPECT_EQ(pawl_fence(training.t, &report), PAWL_OK);
    EXPECT_EQ(report.step, 0u);
    EXPECT_EQ(pawl_window_open(training.t, step, 0), PAWL_INVALID);
    EXPECT_EQ(kept.page->step.load(), step);
  }
  EXPECT_EQ(kept.page->reached.load(), 0u);
  training.declare();
  EXPECT_EQ(training.step(3).step, 0u);
  EXPECT_EQ(training.step(4).captured, 1) << "of step 3, the first that was protected";
  EXPECT_GE(kept.page->reached.load(), 3u);
}

TEST_F(Pawl, AJobThatNeverSealsCanFinish) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  ASSERT_EQ(pawl_recover_done(training.t), PAWL_OK);
  EXPECT_EQ(pawl_step_begin(training.t, 1), PAWL_OK);
  EXPECT_EQ(pawl_finish(training.t), PAWL_OK);
}

TEST_F(Pawl, ANewProcessCannotSkipTheRestore) {
  daemon.set_seating({1, 0, 1, 7});
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  ASSERT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  EXPECT_EQ(pawl_restore(training.t), PAWL_INVALID);
  EXPECT_EQ(pawl_recover_done(training.t), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(training.t)).find("pawl_layout_seal"), std::string::npos);
}

TEST_F(Pawl, TheStoreAddsComparesAndErases) {
  training.start(directory.socket());
  std::int64_t sum = 0;
  EXPECT_EQ(pawl_rendezvous_add(training.t, "n", 3, &sum), PAWL_OK);
  EXPECT_EQ(pawl_rendezvous_add(training.t, "n", -5, &sum), PAWL_OK);
  EXPECT_EQ(sum, -2);
  char value[8];
  size_t size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_try_get(training.t, "n", value, &size), PAWL_OK);
  EXPECT_EQ(std::string(value, size), "-2");
  size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_try_get(training.t, "none", value, &size), PAWL_TIMEOUT);
  EXPECT_EQ(pawl_rendezvous_compare_set(training.t, "c", "", 0, "one", 3, value, &size), PAWL_OK);
  EXPECT_EQ(std::string(value, size), "one");
  size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_compare_set(training.t, "c", "two", 3, "three", 5, value, &size), PAWL_OK);
  EXPECT_EQ(std::string(value, size), "one");
  EXPECT_EQ(pawl_rendezvous_add(training.t, "c", 1, &sum), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(training.t)).find("no number"), std::string::npos) << pawl_error(training.t);
  int deleted = 0;
  EXPECT_EQ(pawl_rendezvous_delete(training.t, "c", &deleted), PAWL_OK);
  EXPECT_EQ(deleted, 1);
  EXPECT_EQ(pawl_rendezvous_delete(training.t, "c", &deleted), PAWL_OK);
  EXPECT_EQ(deleted, 0);
}

TEST_F(Pawl, AWaitThatPawldEndsFirstHasTimedOutAndIsNotRefused) {
  training.start(directory.socket());
  daemon.end_waits();
  char value[8];
  size_t size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_get(training.t, "never", value, &size, 60'000), PAWL_TIMEOUT) << pawl_error(training.t);
}

// Threads of their own wait in the rendezvous and change it, while the training thread steps and pawld comes and goes.
TEST_F(Pawl, TheStoreIsForAllThreadsAndCountsOnceThoughPawldIsRestarted) {
  training.start(directory.socket());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) EXPECT_EQ(pawl_rendezvous_add(training.t, "n", 1, nullptr), PAWL_OK);
    });
  }
  threads.emplace_back([&] {
    char value[8];
    size_t size = sizeof value;
    EXPECT_EQ(pawl_rendezvous_get(training.t, "late", value, &size, 60'000), PAWL_OK) << pawl_error(training.t);
    size = sizeof value;
    EXPECT_EQ(pawl_rendezvous_get(training.t, "never", value, &size, 1), PAWL_TIMEOUT);
    EXPECT_NE(std::strlen(pawl_error(training.t)), 0u) << "each thread has its own sentence";
  });
  for (std::uint64_t step = 1; step <= 5; ++step) {
    training.step(step);
    daemon.kill();
    daemon.start();
  }
  EXPECT_EQ(pawl_rendezvous_set(training.t, "late", "1", 1), PAWL_OK);
  EXPECT_STREQ(pawl_error(training.t), "");
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(kept.value("g1/n"), "400");
}

TEST_F(Pawl, RoleWorldAndStopAreReadFromThePage) {
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  EXPECT_EQ(pawl_role_of(training.t), PAWL_ROLE_UNKNOWN);
  EXPECT_EQ(pawl_world(training.t), 0u);
  EXPECT_EQ(pawl_stop_step(training.t), 0u);
  kept.page->world = 4;
  kept.page->role = PAWL_ROLE_SPARE;
  EXPECT_EQ(pawl_role_of(training.t), PAWL_ROLE_SPARE);
  EXPECT_EQ(pawl_world(training.t), 4u);
}

TEST_F(Pawl, AStopIsForTheNextStepAtTheEarliest) {
  training.start(directory.socket());
  training.step(1);
  EXPECT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
  std::uint64_t agreed = 0;
  EXPECT_EQ(pawl_stop_after(training.t, 2, &agreed), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(agreed, 3u);
  EXPECT_EQ(pawl_stop_step(training.t), 3u);
  EXPECT_EQ(pawl_stop_after(training.t, 9, &agreed), PAWL_OK);
  EXPECT_EQ(agreed, 3u) << "the first proposal counts";
}

TEST_F(Pawl, AStepIsAskedForByThePage) {
  training.start(directory.socket());
  training.step(1);
  EXPECT_EQ(pawl_persist(training.t), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(training.t)).find("--checkpoint"), std::string::npos) << pawl_error(training.t);
  EXPECT_EQ(kept.page->persist_wanted.load(), 0u);
  EXPECT_EQ(pawl_stored_step(training.t), 0u);
  kept.page->stored = 1;
  EXPECT_EQ(pawl_stored_step(training.t), 0u) << "none is there yet";
  EXPECT_EQ(pawl_step_begin(training.t, 2), PAWL_OK);
  EXPECT_EQ(pawl_persist(training.t), PAWL_OK) << pawl_error(training.t);
  EXPECT_EQ(kept.page->persist_wanted.load(), 2u);
  kept.page->stored = 3;
  EXPECT_EQ(pawl_stored_step(training.t), 2u);
}

// While a node is drained.
TEST_F(Pawl, APausedTrainerWaitsBetweenTwoStepsWhileTheLastOneIsSealed) {
  training.start(directory.socket());
  training.step(1);
  kept.page->pause_step = 1;
  const auto wait_paused_before = [&](std::uint64_t step) {
    while (kept.page->paused_before != step) real_clock().sleep(milliseconds(1));
  };
  std::thread operator_([&] {
    wait_paused_before(2);
    while (sealed_steps() != Steps{1}) real_clock().sleep(milliseconds(1));
    EXPECT_EQ(kept.page->step, 1u);
    EXPECT_EQ(kept.page->phase, PAWL_PHASE_ASIDE);
    kept.page->pause_step = 2;
  });
  training.step(2);
  operator_.join();
  EXPECT_EQ(kept.page->paused_before, 0u);
  std::thread leader([&] {
    wait_paused_before(3);
    daemon.recover(2, 0);
  });
  EXPECT_EQ(pawl_step_begin(training.t, 3), PAWL_RECOVER);
  leader.join();
  EXPECT_EQ(kept.page->step, 2u);  // it has not begun
  EXPECT_EQ(kept.page->paused_before, 0u);
}

// A spare waits in one thread for its seat while another rehearses.
TEST_F(Pawl, ASpareMayJoinInASecondThread) {
  daemon.withhold(MessageKind::join);
  ASSERT_EQ(training.attach(directory.socket()), PAWL_OK);
  std::thread joining([&] { EXPECT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK); });
  daemon.wait_for(MessageKind::join);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(pawl_progress(training.t, PAWL_PHASE_COMPUTE), PAWL_OK);
    EXPECT_EQ(pawl_interrupted(training.t), 0);
    EXPECT_EQ(pawl_role_of(training.t), PAWL_ROLE_UNKNOWN);
  }
  kept.page->recover_generation = 2;
  EXPECT_EQ(pawl_interrupted(training.t), 1) << "it is about to be given a seat";
  daemon.set_seating({2, 0, 1, 0});
  daemon.allow(MessageKind::join);
  joining.join();
  EXPECT_EQ(pawl_interrupted(training.t), 0);
}

TEST_F(Pawl, AttachFailsWithASentence) {
  EXPECT_EQ(pawl_attach(nullptr, nullptr), PAWL_INVALID);
  EXPECT_EQ(training.attach(directory.socket() + ".none"), PAWL_UNREACHABLE);
  EXPECT_EQ(training.t, nullptr);
  EXPECT_STRNE(pawl_error(nullptr), "");
  unsetenv("PAWL_SOCKET");
  EXPECT_EQ(pawl_attach(nullptr, &training.t), PAWL_UNREACHABLE);
  EXPECT_NE(std::string(pawl_error(nullptr)).find("PAWL_SOCKET"), std::string::npos);
  setenv("PAWL_COPY_THREADS", "many", 1);
  EXPECT_EQ(training.attach(directory.socket()), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(nullptr)).find("PAWL_COPY_THREADS=many"), std::string::npos) << pawl_error(nullptr);
  unsetenv("PAWL_COPY_THREADS");
  setenv("PAWL_KERNEL", "abacus", 1);
  EXPECT_EQ(training.attach(directory.socket()), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(nullptr)).find("PAWL_KERNEL=abacus"), std::string::npos) << pawl_error(nullptr);
  unsetenv("PAWL_KERNEL");
  daemon.refuse(MessageKind::attach, PAWL_INVALID, "another release");
  EXPECT_EQ(training.attach(directory.socket()), PAWL_INVALID);
  EXPECT_NE(std::string(pawl_error(nullptr)).find("another release"), std::string::npos) << pawl_error(nullptr);
}

TEST_F(Pawl, ARegularDetachSaysSoAndUnlocksTheMutex) {
  training.start(directory.socket());
  pawl_detach(std::exchange(training.t, nullptr));
  daemon.wait_for(MessageKind::detach);
  EXPECT_EQ(pthread_mutex_lock(&kept.page->alive), 0);
  pthread_mutex_unlock(&kept.page->alive);
}

// The test's own program again, as a trainer of its own process (child_main).
Process spawn_child(const std::string& socket) {
  SpawnOptions options;
  options.argv = {"/proc/self/exe", "--trainer", socket};
  Result<Process> child = spawn(options);
  EXPECT_TRUE(child);
  return std::move(*child);
}

TEST_F(Pawl, AKilledTrainerIsKnownByItsRobustMutexAtOnce) {
  daemon.withhold(MessageKind::rendezvous);
  const Process child = spawn_child(directory.socket());
  daemon.wait_for(MessageKind::rendezvous);
  EXPECT_EQ(kept.page->pid.load(), static_cast<std::uint64_t>(child.pid));
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  EXPECT_EQ(pthread_mutex_timedlock(&kept.page->alive, &now), ETIMEDOUT);
  ASSERT_TRUE(send_signal(child.pidfd.get(), SIGKILL));
  EXPECT_EQ(pthread_mutex_lock(&kept.page->alive), EOWNERDEAD);
  ASSERT_TRUE(wait_exit(child.pidfd.get(), Deadline::in(seconds(20))));
  EXPECT_EQ(pthread_mutex_consistent(&kept.page->alive), 0);
  pthread_mutex_unlock(&kept.page->alive);
}

TEST_F(Pawl, AForkedChildIsRefused) {
  training.start(directory.socket());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = pawl_rendezvous_set(training.t, "key", "", 0) == PAWL_INVALID &&
                         pawl_progress(training.t, PAWL_PHASE_COMPUTE) == PAWL_INVALID &&
                         pawl_event_fd(training.t) == -1 &&
                         std::strstr(pawl_error(training.t), "forked child") != nullptr;
    pawl_detach(training.t);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  training.step(1);
  EXPECT_EQ(training.step(2).captured, 1);
}

TEST(PawlOff, EveryCallIsANoOp) {
  setenv("PAWL", "off", 1);
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "4", 1);
  unsetenv("LOCAL_RANK");
  Training training;
  ASSERT_EQ(training.attach("/nowhere"), PAWL_OK);
  EXPECT_EQ(pawl_recover_join(training.t, &training.seat), PAWL_OK);
  EXPECT_EQ(training.seat.rank, 3u);
  EXPECT_EQ(training.seat.world, 4u);
  EXPECT_EQ(training.seat.local_rank, 0u);
  EXPECT_EQ(training.seat.resume_step, 0u);
  training.declare();
  EXPECT_EQ(pawl_restore(training.t), PAWL_OK);
  EXPECT_EQ(pawl_recover_done(training.t), PAWL_OK);
  EXPECT_EQ(training.step(1).step, 0u);
  EXPECT_EQ(pawl_event_fd(training.t), -1);
  pawl_event event = PAWL_EVENT_INIT;
  EXPECT_EQ(pawl_event_next(training.t, &event), PAWL_TIMEOUT);
  EXPECT_EQ(pawl_interrupted(training.t), 0);
  EXPECT_EQ(pawl_role_of(training.t), PAWL_ROLE_SEATED);
  EXPECT_EQ(pawl_world(training.t), 4u);
  EXPECT_EQ(pawl_fault_report(training.t, "x"), PAWL_OK);
  EXPECT_EQ(pawl_finish(training.t), PAWL_OK);
  for (const char* name : {"PAWL", "RANK", "WORLD_SIZE"}) unsetenv(name);
}

TEST(PawlOff, TheStoreAndTheStopAreThisProcessOwn) {
  setenv("PAWL", "off", 1);
  Training training;
  ASSERT_EQ(training.attach("/nowhere"), PAWL_OK);
  char value[8];
  size_t size = sizeof value;
  EXPECT_EQ(pawl_rendezvous_get(training.t, "key", value, &size, 10), PAWL_TIMEOUT);
  std::thread setting([&] {
    real_clock().sleep(milliseconds(20));
    EXPECT_EQ(pawl_rendezvous_set(training.t, "key", "value", 5), PAWL_OK);
  });
  EXPECT_EQ(pawl_rendezvous_get(training.t, "key", value, &size, 60'000), PAWL_OK);
  EXPECT_EQ(std::string(value, size), "value");
  setting.join();
  std::int64_t sum = 0;
  EXPECT_EQ(pawl_rendezvous_add(training.t, "n", 2, &sum), PAWL_OK);
  EXPECT_EQ(sum, 2);
  EXPECT_EQ(pawl_step_begin(training.t, 4), PAWL_OK);
  std::uint64_t agreed = 0;
  EXPECT_EQ(pawl_stop_after(training.t, 4, &agreed), PAWL_OK);
  EXPECT_EQ(agreed, 5u);
  EXPECT_EQ(pawl_stop_step(training.t), 5u);
  EXPECT_EQ(pawl_stop_after(training.t, 7, &agreed), PAWL_OK);
  EXPECT_EQ(agreed, 5u);
  unsetenv("PAWL");
}

int child_main(const char* socket) {
  Training training;
  training.start(socket);
  char value[8];
  size_t size = sizeof value;
  return static_cast<int>(pawl_rendezvous_get(training.t, "never", value, &size, 600'000));
}

}  // namespace
}  // namespace pawl::job

int main(int count, char** arguments) {
  if (count == 3 && std::string(arguments[1]) == "--trainer") return pawl::job::child_main(arguments[2]);
  ::testing::InitGoogleTest(&count, arguments);
  return RUN_ALL_TESTS();
}
