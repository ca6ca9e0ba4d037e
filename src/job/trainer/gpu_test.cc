// State on a GPU, by the fake driver (test/fake_cuda): its memory is a fault to touch, its streams run when they are let,
// and copies move their bytes at their end.
#include "job/trainer/gpu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <thread>

#include "fake_cuda/cuda_abi.h"
#include "fake_cuda/fake_cuda.h"
#include "job/trainer/capture.h"
#include "job/trainer/declared.h"
#include "job/trainer/slot_restore.h"
#include "job/trainer/test_state.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

constexpr Generation kGeneration{3};
constexpr std::uint64_t kWords = 700'001;  // more than a lane's pieces hold together, and no whole number of buckets
constexpr std::uint64_t kFewWords = 130;
constexpr std::uint64_t kHostWords = 20'000;

struct Kernel {
  std::byte* memory;
  std::uint64_t count;
  std::uint64_t value;
};
std::deque<Kernel> kernels;  // of this test: a broken device never runs what it was given

// The driver of a process that has made its context current, as torch does.
class Cuda {
 public:
  explicit Cuda(int devices = 1) {
    fake_cuda_reset(devices);
    EXPECT_EQ(cuInit(0), 0);
    for (int i = 0; i < devices; ++i) {
      CUcontext context = nullptr;
      EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, i), 0);
      contexts_.push_back(context);
    }
    use(0);
  }
  ~Cuda() {
    fake_cuda_reset(1);
    kernels.clear();
  }
  void use(int device) { EXPECT_EQ(cuCtxSetCurrent(contexts_[static_cast<std::size_t>(device)]), 0); }
  std::byte* allocate(std::uint64_t bytes) {
    CUdeviceptr address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), 0);
    return reinterpret_cast<std::byte*>(address);
  }

 private:
  std::vector<CUcontext> contexts_;
};

std::uint64_t* words_at(const std::byte* device) {
  return fake_cuda::memory<std::uint64_t>(reinterpret_cast<std::uintptr_t>(device));
}

// What a trainer must not do: it races with the copies. The thread sanitizer is not to see it.
__attribute__((no_sanitize("thread"), noinline)) void write_in_the_window(void* given) {
  const auto* kernel = static_cast<const Kernel*>(given);
  volatile std::uint64_t* words = words_at(kernel->memory);
  for (std::uint64_t i = 0; i < kernel->count; ++i) words[i] = kernel->value;
}

// Writes in the order of the stream, as an optimizer's kernel does.
void launch(CUstream stream, Kernel kernel) {
  ASSERT_EQ(cuLaunchHostFunc(
                stream,
                [](void* given) {
                  const auto* kernel = static_cast<const Kernel*>(given);
                  std::uint64_t* words = words_at(kernel->memory);
                  std::fill_n(words, kernel->count, kernel->value);
                },
                &kernels.emplace_back(kernel)),
            0);
}

// A trainer with most of its state on a GPU, and some in host memory, in one process with nobody else.
class GpuTest : public ::testing::Test {
 protected:
  GpuTest() : host_(kHostWords), staged_(100) {
    EXPECT_EQ(cuStreamCreate(&stream_, 0), 0);
    bases_ = {cuda_.allocate(kWords * 8), reinterpret_cast<std::byte*>(host_.data()), cuda_.allocate(kFewWords * 8),
              reinterpret_cast<std::byte*>(staged_.data())};
    gpu_ = std::move(*Gpu::open(0));
    gpu_->use_stream(reinterpret_cast<CudaStream>(stream_));
    gpu_->set_holds(0, true);
    gpu_->set_holds(2, true);
  }
  ~GpuTest() override {
    capture_.reset();
    gpu_.reset();
    EXPECT_EQ(fake_cuda_pageable_copies(), 0u);
  }

  void make_capture(std::uint32_t threads, std::uint32_t compared = 0) {
    CaptureSource source;
    source.plan = &plan_;
    source.bases = bases_;
    source.gpu = gpu_.get();
    source.page = [this]() -> TrainerPage& { return *segments_.page; };
    source.notify = [] {};
    source.interrupted = [this] { return segments_.page->stop.load() != 0; };
    CaptureOptions options;
    options.thread_count = threads;
    options.compared_window_count = compared;
    options.seed = 7;
    capture_.emplace(segments_.arena, source, options);
  }
  // As an optimizer does: the GPU's part is launched, the host's done.
  void update(std::uint64_t step) {
    launch(stream_, {bases_[0], kWords, step});
    launch(stream_, {bases_[2], kFewWords, step});
    std::fill(host_.begin(), host_.end(), step);
  }
  void open(std::uint64_t step) { ASSERT_TRUE(capture_->open(kGeneration, Step(step), step)); }
  void stage(std::uint64_t step) {
    std::fill(staged_.begin(), staged_.end(), ~step);
    capture_->stage_done();
  }
  void commit(std::uint64_t step) { segments_.page->progress.store(Progress{Step(step), 0}.pack()); }
  std::optional<Slot> slot_of(std::uint64_t step) {
    for (std::uint32_t i = 0; i < segments_.arena.slot_count(); ++i) {
      const Slot slot = segments_.arena.slot(i);
      if (slot.word().state == SlotState::sealed && slot.word().step == Step(step)) return slot;
    }
    return std::nullopt;
  }
  void capture_step(std::uint64_t step) {
    update(step);
    open(step);
    stage(step);
    ASSERT_TRUE(capture_->fence({}).captured);
  }
  void expect_on_gpu(std::uint64_t step) {
    for (const auto& [entry, count] : {std::pair(0, kWords), std::pair(2, kFewWords)}) {
      const std::uint64_t* words = words_at(bases_[static_cast<std::size_t>(entry)]);
      EXPECT_TRUE(std::all_of(words, words + count, [&](auto word) { return word == step; })) << "entry " << entry;
    }
  }
  // The step is sealed, and all of it is that step's.
  void expect_sealed(std::uint64_t step) {
    const std::optional<Slot> slot = slot_of(step);
    ASSERT_TRUE(slot);
    EXPECT_TRUE(slot->verify());
    const std::byte* payload = slot->payload().data();
    for (std::size_t i = 0; i < layout_.entries.size(); ++i) {
      const LayoutEntry& entry = layout_.entries[i];
      const std::uint64_t expected = entry.lifetime == Lifetime::stable ? step : ~step;
      for (std::uint64_t at = 0; at < entry.bytes; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, payload + entry.payload_offset + at, 8);
        ASSERT_EQ(word, expected) << entry.name << " at " << at;
      }
    }
  }

  Cuda cuda_;
  CUstream stream_ = nullptr;
  std::vector<std::uint64_t> host_, staged_;
  const SeatLayout layout_ = test_layout(
      {{"large", kWords}, {"host", kHostWords}, {"small", kFewWords}, {"volatile", 100, Lifetime::volatile_}});
  const CopyPlan plan_{layout_, kTestBucketBytes};
  TestSegments segments_{layout_};
  std::vector<std::byte*> bases_;
  std::unique_ptr<Gpu> gpu_;
  std::optional<Capture> capture_;
};

TEST_F(GpuTest, KnowsWhereMemoryLies) {
  EXPECT_EQ(Gpu::number_at(bases_[0]), 0);
  EXPECT_EQ(Gpu::number_at(bases_[0] + kWords * 8 - 1), 0);
  EXPECT_EQ(Gpu::number_at(host_.data()), std::nullopt);
  EXPECT_EQ(Gpu::number_at(nullptr), std::nullopt);
  void* pinned = nullptr;
  ASSERT_EQ(cuMemHostAlloc(&pinned, 4096, 0), 0);
  EXPECT_EQ(Gpu::number_at(pinned), std::nullopt);
  EXPECT_EQ(cuMemFreeHost(pinned), 0);
}

TEST_F(GpuTest, CapturesWhatTheStreamHasWhenTheWindowOpens) {
  for (const std::uint32_t threads : {1u, 3u}) {
    make_capture(threads);
    for (std::uint64_t step = 10 * threads; step < 10 * threads + 6; ++step) {
      fake_cuda_hold_stream(stream_);  // the optimizer's kernels are launched and don't run yet
      update(step);
      open(step);
      stage(step);
      real_clock().sleep(milliseconds(2));
      fake_cuda_release_stream(stream_);
      const WindowResult window = capture_->fence({});
      ASSERT_TRUE(window.captured) << window.why_void;
      update(1'000'000 + step);  // launched after the fence: the slot must not see it
      ASSERT_EQ(cuStreamSynchronize(stream_), 0);
      expect_sealed(step);
      commit(step);
    }
  }
}

TEST_F(GpuTest, CopiesNothingBeforeTheOptimizerHasRun) {
  make_capture(2);
  fake_cuda_hold_stream(stream_);
  update(1);
  open(1);
  stage(1);
  real_clock().sleep(milliseconds(30));
  EXPECT_EQ(capture_->is_open(), true);
  for (const fake_cuda_operation& each : fake_cuda::operations()) EXPECT_STRNE(each.what, "copy_to_host");
  fake_cuda_release_stream(stream_);
  ASSERT_TRUE(capture_->fence({}).captured);
  expect_sealed(1);
}

TEST_F(GpuTest, NothingIsReadAfterAVoidWindowIsFenced) {
  make_capture(3);
  fake_cuda_set_copy_rate(1 << 30);
  for (std::uint64_t step = 1; step <= 5; ++step) {
    update(step);
    ASSERT_EQ(cuStreamSynchronize(stream_), 0);
    open(step);
    real_clock().sleep(milliseconds(step));  // some copies are on their way
    capture_->fail("the test wants it");
    const WindowResult window = capture_->fence({});
    ASSERT_FALSE(window.captured);
    EXPECT_EQ(window.why_void, "the test wants it");
    const std::size_t done = fake_cuda::operations().size();
    real_clock().sleep(milliseconds(15));
    EXPECT_EQ(fake_cuda::operations().size(), done);
  }
  fake_cuda_set_copy_rate(0);
  capture_step(9);
  expect_sealed(9);
}

TEST_F(GpuTest, AnInterruptionEndsTheWindow) {
  make_capture(2);
  fake_cuda_set_copy_rate(1 << 30);
  update(1);
  open(1);
  segments_.page->stop.store(1);
  const WindowResult window = capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_EQ(window.why_void, "a recovery or a stop is pending");
}

// What precedes the window never ends: a kernel that hangs, a collective whose peer is gone.
TEST_F(GpuTest, AGpuThatStandsStillHoldsNobody) {
  std::uint64_t step = 0;
  for (const std::uint32_t compared : {0u, 1u}) {
    for (const std::string way : {"deadline", "interruption", "end"}) {
      make_capture(2, compared);
      if (compared == 0) fake_cuda_hold_stream(stream_);
      update(++step);
      open(step);                                        // a compared one waits for the update
      if (compared > 0) fake_cuda_hold_stream(stream_);  // so that the look at the fence can't end
      launch(stream_, {bases_[2], kFewWords, step});
      stage(step);
      if (way == "deadline") {
        std::uint64_t silent_ns = 0;
        std::thread watch([&] {
          real_clock().sleep(milliseconds(200));
          silent_ns = static_cast<std::uint64_t>(real_clock().now().count()) - segments_.page->progress_at_ns;
        });
        const WindowResult window = capture_->fence({.deadline = Deadline::in(milliseconds(300))});
        watch.join();
        EXPECT_FALSE(window.captured);
        EXPECT_NE(window.why_void.find("deadline"), std::string::npos) << window.why_void;
        EXPECT_GT(silent_ns, 100'000'000u) << "the hang watch is told that all is well";
      } else if (way == "interruption") {
        segments_.page->stop.store(1);
        EXPECT_FALSE(capture_->fence({}).captured);
        segments_.page->stop.store(0);
      }
      capture_.reset();  // joins the threads
      fake_cuda_release_stream(stream_);
      ASSERT_EQ(cuStreamSynchronize(stream_), 0);
    }
  }
  make_capture(2);
  capture_step(++step);
  expect_sealed(step);
}

TEST_F(GpuTest, NoWindowOpensBeforeTheStreamIsKnown) {
  gpu_ = std::move(*Gpu::open(0));
  gpu_->set_holds(0, true);
  make_capture(1);
  const Status opened = capture_->open(kGeneration, Step(1), 1);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::invalid);
  EXPECT_NE(opened.error().what.find("pawl_stream_use"), std::string::npos) << opened.error().what;
  capture_.reset();
}

TEST_F(GpuTest, ThreadsWithoutPinnedMemoryLeaveTheWorkToOthers) {
  make_capture(4);
  fake_cuda_fail_call("cuMemHostAlloc", 2, CUDA_ERROR_OUT_OF_MEMORY);
  update(1);
  open(1);
  stage(1);
  const WindowResult window = capture_->fence({});
  if (!window.captured) {  // it was the leading thread's
    EXPECT_NE(window.why_void.find("pin memory"), std::string::npos) << window.why_void;
    capture_step(2);
  }
}

TEST_F(GpuTest, AFailedLookMakesTheWindowVoid) {
  make_capture(2, /*compared=*/1);
  update(1);
  open(1);
  stage(1);
  real_clock().sleep(milliseconds(100));  // all is copied
  fake_cuda_fail_call("cuEventRecord", 1, 1);
  const WindowResult window = capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_NE(window.why_void.find("(CUDA error 1)"), std::string::npos) << window.why_void;
}

TEST_F(GpuTest, AFailedCopyMakesTheWindowVoidAndSaysWhy) {
  for (const char* call : {"cuMemcpyDtoHAsync_v2", "cuEventSynchronize", "cuEventQuery"}) {
    make_capture(2);
    fake_cuda_fail_call(call, 1, 1);
    update(1);
    open(1);
    stage(1);
    const WindowResult window = capture_->fence({});
    EXPECT_FALSE(window.captured) << call;
    EXPECT_NE(window.why_void.find("GPU 0: "), std::string::npos) << window.why_void;
    EXPECT_NE(window.why_void.find("(CUDA error 1)"), std::string::npos) << window.why_void;
    capture_.reset();
  }
  make_capture(2);
  update(2);
  open(2);
  stage(2);
  EXPECT_TRUE(capture_->fence({}).captured);
  expect_sealed(2);
}

TEST_F(GpuTest, ABrokenDeviceNeverHangsAWindow) {
  make_capture(3);
  update(1);
  open(1);
  stage(1);
  fake_cuda_break(700);
  const WindowResult window = capture_->fence({});
  if (!window.captured) {
    EXPECT_NE(window.why_void.find("(CUDA error 700)"), std::string::npos) << window.why_void;
  }
  const Status opened = capture_->open(kGeneration, Step(2), 2);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::io);
  EXPECT_NE(opened.error().what.find("(CUDA error 700)"), std::string::npos) << opened.error().what;
}

TEST_F(GpuTest, AWriteIntoAComparedWindowIsFound) {
  make_capture(2, /*compared=*/4);
  update(1);
  open(1);
  stage(1);
  ASSERT_EQ(cuStreamSynchronize(stream_), 0);
  ASSERT_EQ(cuLaunchHostFunc(stream_, &write_in_the_window, &kernels.emplace_back(Kernel{bases_[0], kWords, 77})),
            0);  // before the fence
  const WindowResult window = capture_->fence({});
  EXPECT_FALSE(window.captured);
  EXPECT_EQ(window.written, std::optional<std::uint32_t>(0));
  for (std::uint64_t step = 2; step <= 8; ++step) {  // all of those that are compared, and some more
    capture_step(step);
    expect_sealed(step);
    commit(step);
  }
}

TEST_F(GpuTest, AStreamThatIsCapturedIsRefused) {
  make_capture(1);
  fake_cuda_set_capturing(stream_, 1);
  const Status opened = capture_->open(kGeneration, Step(1), 1);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, Code::invalid);
  EXPECT_NE(opened.error().what.find("CUDA graph"), std::string::npos);
  EXPECT_FALSE(capture_->is_open());
  fake_cuda_set_capturing(stream_, 0);
  EXPECT_TRUE(capture_->open(kGeneration, Step(1), 1));
}

TEST_F(GpuTest, RestoresWhatWasCaptured) {
  make_capture(2);
  capture_step(5);
  const Slot slot = *slot_of(5);
  for (const std::uint32_t threads : {1u, 2u, 7u}) {
    update(9);
    ASSERT_TRUE(gpu_->wait_until_idle());
    SlotRestore restore(
        plan_, bases_, [] {}, threads, gpu_.get());
    ASSERT_TRUE(restore.copy_rest(slot));
    expect_on_gpu(5);
    EXPECT_TRUE(std::all_of(host_.begin(), host_.end(), [](auto word) { return word == 5; }));
  }
}

TEST_F(GpuTest, RestoresASlotWhileItIsFilled) {
  make_capture(2);
  capture_step(5);
  const Slot from = *slot_of(5);
  const Slot to = segments_.arena.slot(from.word() == segments_.arena.slot(0).word() ? 1 : 0);
  (void)to.freeze();
  ASSERT_TRUE(to.open_frozen(kGeneration, Step(5), 5));
  update(9);
  ASSERT_TRUE(gpu_->wait_until_idle());
  std::thread filling([&] {
    for (std::uint32_t i = 0; i < plan_.bucket_count(); ++i) {
      std::memcpy(to.bucket(i).data(), from.bucket(i).data(), from.bucket(i).size());
      to.bucket_done(i, from.buckets()[i].crc32c, kGeneration, Step(5));
      if (i % 50 == 0) std::this_thread::sleep_for(milliseconds(1));
    }
  });
  SlotRestore restore(
      plan_, bases_, [] {}, 2, gpu_.get());
  restore.copy_what_comes(to, to.word(), [] { return false; });
  filling.join();
  EXPECT_EQ(restore.copied(), plan_.bucket_count());
  ASSERT_TRUE(restore.copy_rest(to));
  expect_on_gpu(5);
}

TEST_F(GpuTest, ADamagedBucketNeverReachesTheGpu) {
  make_capture(2);
  capture_step(5);
  const Slot slot = *slot_of(5);
  constexpr std::uint32_t kBad = 30;
  slot.bucket(kBad)[100] ^= std::byte{4};
  update(9);
  ASSERT_TRUE(gpu_->wait_until_idle());
  SlotRestore restore(
      plan_, bases_, [] {}, 1, gpu_.get());
  const Status restored = restore.copy_rest(slot);
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::corrupt);
  EXPECT_EQ(restored.error().what, "bucket 30: checksum differs");
  const std::uint64_t* words = words_at(bases_[0]);
  EXPECT_EQ(words[kBad * kTestBucketBytes / 8 - 1], 5u);
  EXPECT_EQ(words[kBad * kTestBucketBytes / 8], 9u);
  slot.bucket(kBad)[100] ^= std::byte{4};
  ASSERT_TRUE(restore.copy_rest(slot));
  expect_on_gpu(5);
}

TEST_F(GpuTest, AGpuThatTakesNoBytesIsSaidToBeTheFault) {
  make_capture(2);
  capture_step(5);
  for (const std::uint32_t threads : {1u, 4u}) {
    fake_cuda_fail_call("cuMemcpyHtoDAsync_v2", 2, 1);
    SlotRestore restore(
        plan_, bases_, [] {}, threads, gpu_.get());
    const Status restored = restore.copy_rest(*slot_of(5));
    ASSERT_FALSE(restored);
    EXPECT_EQ(restored.error().code, Code::io) << restored.error().what;
  }
}

TEST_F(GpuTest, NothingIsLeftBehind) {
  capture_.reset();
  gpu_.reset();
  const std::uint64_t before = fake_cuda_live();
  for (int i = 0; i < 3; ++i) {
    gpu_ = std::move(*Gpu::open(0));
    gpu_->use_stream(reinterpret_cast<CudaStream>(stream_));
    gpu_->set_holds(0, true);
    gpu_->set_holds(2, true);
    make_capture(3);
    open(1);
    stage(1);
    (void)capture_->fence({});
    capture_.reset();
    gpu_.reset();
    EXPECT_EQ(fake_cuda_live(), before);
  }
}

TEST(GpuRanges, NeighboursAreOneCopy) {
  std::byte* const device = reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40);
  std::vector<GpuRange> ranges;
  append(ranges, {0, device, 0, 100});
  append(ranges, {0, device + 100, 100, 50});
  append(ranges, {0, device + 200, 150, 50});  // a gap on the GPU
  append(ranges, {0, device + 250, 300, 50});  // a gap in the piece
  append(ranges, {1, device + 300, 350, 50});  // another entry: perhaps another allocation
  ASSERT_EQ(ranges.size(), 4u);
  EXPECT_EQ(ranges[0].bytes, 150u);
}

// Declared, with tensors on a GPU.
LayoutEntry entry_of(const std::string& name, std::uint64_t count, Lifetime lifetime) {
  LayoutEntry entry;
  entry.name = name;
  entry.role = "weight";
  entry.dtype = ElementType::uint64;
  entry.shape = {count};
  entry.box = whole_box(entry.shape);
  entry.mesh = 0;
  entry.lifetime = lifetime;
  return entry;
}

TEST(DeclaredOnGpu, VolatileTensorsAreStagedInTheOrderOfTheStream) {
  Cuda cuda;
  CUstream stream = nullptr;
  ASSERT_EQ(cuStreamCreate(&stream, 0), 0);
  Declared declared(1);
  declared.use_stream(reinterpret_cast<CudaStream>(stream));
  ASSERT_TRUE(declared.add_mesh({"data", {{"dp", 1}}}));
  std::vector<std::byte*> places;
  const std::vector<std::uint64_t> counts = {3, 0, 1'000'000, 70};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    places.push_back(counts[i] == 0 ? nullptr : cuda.allocate(counts[i] * 8));
    ASSERT_TRUE(declared.add_tensor(entry_of("v" + std::to_string(i), counts[i], Lifetime::volatile_), places[i]));
  }
  std::uint64_t on_host = 4;
  ASSERT_TRUE(declared.add_tensor(entry_of("host", 1, Lifetime::volatile_), &on_host));
  ASSERT_TRUE(declared.seal(kTestBucketBytes));
  for (std::size_t i = 0; i < counts.size(); ++i)
    if (counts[i] > 0) launch(stream, {places[i], counts[i], 40 + i});
  ASSERT_TRUE(declared.stage());
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const auto* staged = reinterpret_cast<const std::uint64_t*>(declared.bases()[i]);
    EXPECT_TRUE(std::all_of(staged, staged + counts[i], [&](auto word) { return word == 40 + i; })) << i;
    if (counts[i] > 0) launch(stream, {places[i], counts[i], 90});
  }
  on_host = 5;
  ASSERT_TRUE(declared.unstage());
  EXPECT_EQ(on_host, 4u);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] == 0) continue;
    const std::uint64_t* words = words_at(places[i]);
    EXPECT_TRUE(std::all_of(words, words + counts[i], [&](auto word) { return word == 40 + i; })) << i;
  }
}

TEST(DeclaredOnGpu, NothingIsStagedBeforeTheStreamIsKnown) {
  Cuda cuda;
  Declared declared(1);
  ASSERT_TRUE(declared.add_mesh({"data", {{"dp", 1}}}));
  ASSERT_TRUE(declared.add_tensor(entry_of("v", 8, Lifetime::volatile_), cuda.allocate(64)));
  ASSERT_TRUE(declared.seal(kTestBucketBytes));
  for (const Status& status : {declared.stage(), declared.unstage()}) {
    ASSERT_FALSE(status);
    EXPECT_EQ(status.error().code, Code::invalid);
    EXPECT_NE(status.error().what.find("pawl_stream_use"), std::string::npos) << status.error().what;
  }
  declared.use_stream(nullptr);
  EXPECT_TRUE(declared.stage());
}

TEST(DeclaredOnGpu, AllTensorsLieOnOneGpu) {
  Cuda cuda(2);
  std::byte* const first = cuda.allocate(64);
  cuda.use(1);
  std::byte* const second = cuda.allocate(64);
  Declared declared(1);
  ASSERT_TRUE(declared.add_mesh({"data", {{"dp", 1}}}));
  const Result<std::uint32_t> index = declared.add_tensor(entry_of("a", 8, Lifetime::stable), first);
  ASSERT_TRUE(index);
  const Result<std::uint32_t> other = declared.add_tensor(entry_of("b", 8, Lifetime::stable), second);
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, Code::invalid);
  EXPECT_EQ(other.error().what,
            "tensor b (weight): it lies on GPU 1, and others on GPU 0: a trainer's state lies on one GPU");
  ASSERT_TRUE(declared.seal(kTestBucketBytes));
  EXPECT_TRUE(declared.gpu()->holds(*index));
  EXPECT_FALSE(declared.rebind(*index, second));
  std::vector<std::uint64_t> host(8);
  ASSERT_TRUE(declared.rebind(*index, host.data()));
  EXPECT_FALSE(declared.gpu()->holds_some());
  ASSERT_TRUE(declared.rebind(*index, first));
  EXPECT_TRUE(declared.gpu()->holds(*index));
}

TEST(DeclaredOnGpu, NoTensorMovesToAGpuThatNobodyKnewOf) {
  Cuda cuda;
  Declared declared(1);
  std::vector<std::uint64_t> host(8);
  ASSERT_TRUE(declared.add_mesh({"data", {{"dp", 1}}}));
  const Result<std::uint32_t> index = declared.add_tensor(entry_of("a", 8, Lifetime::stable), host.data());
  ASSERT_TRUE(index && declared.seal(kTestBucketBytes));
  EXPECT_EQ(declared.gpu(), nullptr);
  const Status moved = declared.rebind(*index, cuda.allocate(64));
  ASSERT_FALSE(moved);
  EXPECT_EQ(moved.error().code, Code::invalid);
}

}  // namespace
}  // namespace pawl::job
