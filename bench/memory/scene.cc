#include "scene.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "base/digest.h"
#include "base/text.h"
#include "env/clock.h"
#include "job/redundancy/progress.h"

namespace pawl::job::bench {
namespace {

constexpr std::uint32_t kBucketBytes = 256 << 10;
constexpr Generation kGeneration{1};

template <class Value>
Value must(Result<Value> result) {
  if (!result) give_up(result.error().what);
  return std::move(*result);
}

}  // namespace

void give_up(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::exit(1);
}

double seconds_now() {
  return static_cast<double>(real_clock().now().count()) * 1e-9;
}

double core_seconds_now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

SeatLayout model_layout(std::uint64_t bytes) {
  const std::uint64_t width = bytes >= (1ull << 30) ? 1024 : 256;
  LayoutBuilder builder(1);
  if (!builder.add_mesh({"data", {{"dp", 1}}})) give_up("a mesh is refused");
  std::uint64_t so_far = 0;
  const auto add = [&](const std::string& name, std::vector<std::uint64_t> shape) {
    for (const char* role : {"weight", "exp_avg", "exp_avg_sq"}) {
      LayoutEntry entry;
      entry.name = name;
      entry.role = role;
      entry.dtype = ElementType::float32;
      entry.shape.assign(shape.begin(), shape.end());
      entry.box = whole_box(entry.shape);
      entry.mesh = 0;
      if (!builder.add(entry)) give_up(text("an entry is refused: ", name));
      std::uint64_t count = 4;
      for (const std::uint64_t size : shape) count *= size;
      so_far += count;
    }
  };
  add("embedding", {bytes >= (1ull << 30) ? 50304u : 4096u, width});
  for (int layer = 0; so_far < bytes; ++layer) {
    const std::string at = text("layers.", layer, ".");
    for (const char* norm : {"norm1", "norm2"}) {
      add(text(at, norm, ".weight"), {width});
      add(text(at, norm, ".bias"), {width});
    }
    add(at + "attention.qkv.weight", {3 * width, width});
    add(at + "attention.qkv.bias", {3 * width});
    add(at + "attention.out.weight", {width, width});
    add(at + "attention.out.bias", {width});
    add(at + "mlp.up.weight", {4 * width, width});
    add(at + "mlp.up.bias", {4 * width});
    add(at + "mlp.down.weight", {width, 4 * width});
    add(at + "mlp.down.bias", {width});
  }
  return must(builder.build());
}

void in_pieces(unsigned threads, std::uint64_t bytes, std::size_t piece_bytes, const CopyPiece& copy) {
  std::atomic<std::uint64_t> next{0};
  const auto work = [&] {
    for (std::uint64_t at = 0; (at = next.fetch_add(piece_bytes)) < bytes;)
      copy(at, std::min<std::uint64_t>(piece_bytes, bytes - at));
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

Scene::Scene(std::uint64_t bytes) : layout_(model_layout(bytes)), plan_(layout_, kBucketBytes) {
  state_segment_ = must(create_segment("state", layout_.payload_bytes));
  state_ = must(map_segment(state_segment_.get(), layout_.payload_bytes, {.populate = true}));
  auto* words = reinterpret_cast<std::uint64_t*>(state());
  std::uint64_t number = static_cast<std::uint64_t>(real_clock().now().count()) | 1;
  for (std::uint64_t i = 0; i < layout_.payload_bytes / 8; ++i) words[i] = number += 0x9e3779b97f4a7c15u;
  for (const LayoutEntry& entry : layout_.entries) bases_.push_back(state() + entry.payload_offset);
  page_segment_ = must(create_segment("page", kTrainerPageBytes));
  page_memory_ = must(map_segment(page_segment_.get(), kTrainerPageBytes));
  page_ = must(initialise_page(page_memory_.bytes()));
  make_arena();
}

void Scene::make_arena() {
  ArenaSpec spec;
  spec.job = "bench";
  spec.payload_bytes = layout_.payload_bytes;
  spec.stable_bytes = layout_.stable_bytes;
  spec.bucket_bytes = kBucketBytes;
  const std::uint64_t size = Arena::size_bytes(spec);
  arena_memory_.reset();
  segment_ = Fd();
  segment_ = must(create_segment("arena", size));
  arena_memory_ = must(map_segment(segment_.get(), size, {.populate = true}));
  arena_ = must(Arena::format(arena_memory_.bytes(), spec));
}

void Scene::change_state() {
  for (std::uint64_t at = 0; at < bytes(); at += 4096) *reinterpret_cast<std::uint64_t*>(state() + at) += step_ + 1;
}

std::unique_ptr<Capture> Scene::make_capture(unsigned threads) {
  CaptureSource source;
  source.plan = &plan_;
  source.bases = bases_;
  source.page = [this]() -> TrainerPage& { return *page_; };
  source.notify = [] {};
  source.interrupted = [] { return false; };
  CaptureOptions options;
  options.thread_count = threads;
  return std::make_unique<Capture>(arena_, std::move(source), options);
}

void Scene::capture(Capture& capture) {
  ++step_;
  if (Status opened = capture.open(kGeneration, Step(step_), step_); !opened) give_up(opened.error().what);
  capture.stage_done();
  const WindowResult window = capture.fence({});
  if (!window.captured) give_up("a window is void: " + window.why_void);
  page_->progress.store(Progress{Step(step_), 0}.pack());
  for (std::uint32_t i = 0; i < arena_.slot_count(); ++i)
    if (arena_.slot(i).word().step == Step(step_)) last_captured_ = arena_.slot(i);
}

}  // namespace pawl::job::bench
