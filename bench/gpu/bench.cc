// What capture and restore make of the link to a GPU: the shipped classes with a model's state in GPU memory, against one
// copy of as many bytes between it and pinned memory, in the same round. gpu_bench [MIB] [ROUNDS]; needs a GPU.
//
// Lines: what, threads, median GB/s (least .. most), its ratio to the pinned copy of its round, cores used meanwhile.
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "../memory/scene.h"
#include "base/text.h"
#include "env/cuda_driver.h"
#include "job/redundancy/progress.h"
#include "job/trainer/gpu.h"
#include "job/trainer/slot_restore.h"

namespace pawl::job::bench {
namespace {

constexpr Generation kGeneration{1};

struct Row {
  std::vector<double> rates, ratios, cores;
};

void must(const CudaDriver& driver, CudaAnswer answer, const char* what) {
  if (answer != 0) give_up(text(what, ": ", cuda_sentence(driver, answer)));
}

class GpuScene {
 public:
  explicit GpuScene(std::uint64_t bytes) : scene_(bytes) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == nullptr) give_up("no libcuda.so.1: this needs a GPU");
    driver_ = loaded_cuda_driver();
    if (driver_ == nullptr) give_up("this CUDA driver lacks functions that pawl needs");
    using Allocate = CudaAnswer (*)(CudaAddress*, std::size_t);
    const auto allocate = reinterpret_cast<Allocate>(dlsym(library, "cuMemAlloc_v2"));
    must(*driver_, driver_->init(0), "start");
    int device = 0;
    CudaContext context = nullptr;
    must(*driver_, driver_->device_get(&device, 0), "find GPU 0");
    must(*driver_, driver_->primary_context_retain(&context, device), "its context");
    must(*driver_, driver_->context_push(context), "its context");
    must(*driver_, allocate(&state_, bytes_()), "its memory");
    must(*driver_, driver_->host_alloc(&pinned_, bytes_(), kCudaHostPortable), "pinned memory");
    must(*driver_, driver_->stream_create(&stream_, kCudaStreamNonBlocking), "a stream");
    std::copy_n(scene_.state(), bytes_(), static_cast<std::byte*>(pinned_));
    must(*driver_, driver_->copy_to_device(state_, pinned_, bytes_(), stream_), "copy");
    must(*driver_, driver_->stream_synchronize(stream_), "copy");
    Result<std::unique_ptr<Gpu>> gpu = Gpu::open(0);
    if (!gpu) give_up(gpu.error().what);
    gpu_ = std::move(*gpu);
    gpu_->use_stream(stream_);
    for (std::uint32_t i = 0; i < scene_.layout().entries.size(); ++i) {
      bases_.push_back(reinterpret_cast<std::byte*>(state_) + scene_.layout().entries[i].payload_offset);
      gpu_->set_holds(i, true);
    }
  }

  [[nodiscard]] double pinned_copy(bool out) {
    const double begin = seconds_now();
    must(*driver_,
         out ? driver_->copy_to_host(pinned_, state_, bytes_(), stream_)
             : driver_->copy_to_device(state_, pinned_, bytes_(), stream_),
         "copy");
    must(*driver_, driver_->stream_synchronize(stream_), "copy");
    return seconds_now() - begin;
  }

  void make_capture(unsigned threads) {
    capture_.reset();
    CaptureSource source;
    source.plan = &scene_.plan();
    source.bases = bases_;
    source.gpu = gpu_.get();
    source.page = [this]() -> TrainerPage& { return scene_.page(); };
    source.notify = [] {};
    source.interrupted = [] { return false; };
    CaptureOptions options;
    options.thread_count = threads;
    capture_ = std::make_unique<Capture>(scene_.arena(), std::move(source), options);
  }

  [[nodiscard]] double capture() {
    ++step_;
    const double begin = seconds_now();
    if (Status opened = capture_->open(kGeneration, Step(step_), step_); !opened) give_up(opened.error().what);
    capture_->stage_done();
    const WindowResult window = capture_->fence({});
    const double seconds = seconds_now() - begin;
    if (!window.captured) give_up("a window is void: " + window.why_void);
    scene_.page().progress.store(Progress{Step(step_), 0}.pack());
    return seconds;
  }

  [[nodiscard]] double restore(unsigned threads) {
    for (std::uint32_t i = 0; i < scene_.arena().slot_count(); ++i) {
      if (scene_.arena().slot(i).word().step != Step(step_)) continue;
      const double begin = seconds_now();
      SlotRestore restore(
          scene_.plan(), bases_, [] {}, threads, gpu_.get());
      if (Status restored = restore.copy_rest(scene_.arena().slot(i)); !restored) give_up(restored.error().what);
      return seconds_now() - begin;
    }
    give_up("nothing was captured");
  }

  // What lies on the GPU is what was put there.
  void check() {
    (void)pinned_copy(true);
    if (!std::equal(scene_.state(), scene_.state() + bytes_(), static_cast<std::byte*>(pinned_)))
      give_up("the GPU's memory isn't what was restored");
  }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_(); }

 private:
  [[nodiscard]] std::uint64_t bytes_() const { return scene_.bytes(); }
  Scene scene_;
  const CudaDriver* driver_ = nullptr;
  CudaAddress state_ = 0;
  void* pinned_ = nullptr;
  CudaStream stream_ = nullptr;
  std::vector<std::byte*> bases_;
  std::unique_ptr<Gpu> gpu_;
  std::unique_ptr<Capture> capture_;
  std::uint64_t step_ = 0;
};

double middle(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int run(std::uint64_t mib, int rounds) {
  GpuScene scene(mib << 20);
  const auto gigabytes = static_cast<double>(scene.bytes()) * 1e-9;
  std::map<std::string, Row> rows;
  const auto note = [&](const std::string& name, double seconds, double cores, double limit) {
    Row& row = rows[name];
    row.rates.push_back(gigabytes / seconds);
    row.ratios.push_back(limit / seconds);
    row.cores.push_back(cores / seconds);
  };
  for (int round = -1; round < rounds; ++round) {
    for (const unsigned threads : {1u, 2u, 3u, 4u, 8u}) {
      scene.make_capture(threads);
      (void)scene.capture();  // threads and lanes are made
      const double out = scene.pinned_copy(true), in = scene.pinned_copy(false);
      double cores = core_seconds_now();
      const double captured = scene.capture();
      cores = core_seconds_now() - cores;
      double restore_cores = core_seconds_now();
      const double restored = scene.restore(threads);
      restore_cores = core_seconds_now() - restore_cores;
      if (round < 0) continue;
      note("0 pinned copy from the GPU", out, 0, out);
      note("0 pinned copy to the GPU", in, 0, in);
      note(text("capture, ", threads, " threads"), captured, cores, out);
      note(text("restore, ", threads, " threads"), restored, restore_cores, in);
    }
  }
  scene.check();
  for (const auto& [name, row] : rows) {
    std::printf("%-28s %6.1f GB/s (%.1f .. %.1f)  %.2f of the pinned copy  %.1f cores\n", name.c_str(),
                middle(row.rates), *std::min_element(row.rates.begin(), row.rates.end()),
                *std::max_element(row.rates.begin(), row.rates.end()), middle(row.ratios), middle(row.cores));
  }
  return 0;
}

}  // namespace
}  // namespace pawl::job::bench

int main(int count, char** arguments) {
  const std::uint64_t mib = count > 1 ? std::strtoull(arguments[1], nullptr, 10) : 2048;
  const int rounds = count > 2 ? std::atoi(arguments[2]) : 5;
  return pawl::job::bench::run(mib, rounds);
}
