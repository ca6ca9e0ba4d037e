// Gpu: the GPU in whose memory some of the declared state lies, which entries these are, and the way there.
//
// State is copied piece by piece through a small ring of pinned host memory: the GPU writes into a piece, and a copy
// thread takes it from there to the slot, with the sum in that pass; back likewise. So the GPU never writes into shared
// memory, which others freeze, fill and outlive us with, and arenas need not be pinned. It is as fast as a copy into
// pinned memory, with enough threads; docs/decisions/0015 has the measurement.
// What always holds: what is read follows what the trainer's stream had in it at mark(); when a call has returned, or a
// lane is given back, the GPU neither reads the state nor writes a piece on its account. The trainer's own streams are
// never waited for by the GPU on our account: only our streams wait.
// Nothing is freed before the driver's end of the process: after that its calls answer errors, which are ignored here.
// Threads: lane() any thread; a lane is one thread's. All else is the training thread's.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "env/cuda_driver.h"

namespace pawl::job {

class Gpu;

// Bytes of an entry in GPU memory, and where in a piece they go or come from.
struct GpuRange {
  std::uint32_t entry = 0;
  std::byte* device = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

// Appends a range; one range for two of an entry that follow one another on both sides: a copy costs the driver some
// microseconds. Two entries may follow one another, too, but in two allocations, and no copy may span these.
void append(std::vector<GpuRange>& ranges, GpuRange range);

// One thread's stream, and its pieces of pinned memory. Pieces are used in turn, so that the GPU copies one while the
// thread works on another.
class GpuLane {
 public:
  static constexpr std::uint32_t kPieces = 3;
  // Where copies of 256 KiB reach two thirds of a link's rate, those of 4 MiB reach all of it.
  static constexpr std::uint64_t kPieceBytesMin = 4 << 20;

  // Fails: `io` with the driver's words.
  [[nodiscard]] static Result<std::unique_ptr<GpuLane>> make(const Gpu& gpu, std::uint64_t piece_bytes);
  ~GpuLane();
  GpuLane(const GpuLane&) = delete;
  GpuLane& operator=(const GpuLane&) = delete;

  [[nodiscard]] std::byte* piece(std::uint32_t index) const { return memory_ + index * piece_bytes_; }
  [[nodiscard]] std::uint64_t piece_bytes() const { return piece_bytes_; }
  // What is read from now on follows what precedes `event`.
  [[nodiscard]] Status follow(CudaEvent event);
  // Begins to fill a piece, or to put its bytes into GPU memory. The piece is the GPU's until wait() for it has returned.
  [[nodiscard]] Status read(std::uint32_t piece, std::span<const GpuRange> ranges);
  [[nodiscard]] Status write(std::uint32_t piece, std::span<const GpuRange> ranges);
  [[nodiscard]] Status wait(std::uint32_t piece);
  [[nodiscard]] Status wait_for_all();

 private:
  GpuLane(const Gpu& gpu, std::uint64_t piece_bytes) : gpu_(gpu), piece_bytes_(piece_bytes) {}
  [[nodiscard]] Status allocate();
  [[nodiscard]] Status note_end(std::uint32_t piece);

  const Gpu& gpu_;
  const std::uint64_t piece_bytes_;
  CudaStream stream_ = nullptr;
  std::array<CudaEvent, kPieces> ends_{};
  std::byte* memory_ = nullptr;
};

// A lane for a while; back at its GPU when this goes, after the GPU has done all that it was told by it.
class GpuLaneLoan {
 public:
  GpuLaneLoan(Gpu& gpu, std::unique_ptr<GpuLane> lane) : gpu_(&gpu), lane_(std::move(lane)) {}
  ~GpuLaneLoan();
  GpuLaneLoan(GpuLaneLoan&&) = default;
  GpuLane* operator->() const { return lane_.get(); }
  GpuLane& operator*() const { return *lane_; }

 private:
  Gpu* gpu_;
  std::unique_ptr<GpuLane> lane_;  // nullptr: moved away
};

class Gpu {
 public:
  // The number of the GPU in whose memory this is (managed memory counts as its); nullopt: host memory. Any thread.
  [[nodiscard]] static std::optional<int> number_at(const void* memory);
  // With the process's own (primary) context. Fails: `io` with the driver's words.
  [[nodiscard]] static Result<std::unique_ptr<Gpu>> open(int number);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  [[nodiscard]] int number() const { return number_; }
  // Whether this GPU memory belongs to the context that is used here, or to none: what other contexts do is in no order
  // with it.
  [[nodiscard]] bool is_of_its_context(const void* memory) const;

  // Which entries of the layout lie here, by index.
  [[nodiscard]] bool holds(std::uint32_t entry) const { return entry < entries_.size() && entries_[entry]; }
  void set_holds(std::uint32_t entry, bool here);
  [[nodiscard]] bool holds_some() const { return count_ > 0; }

  // The stream in which the trainer writes its state; nullptr: the legacy default stream.
  void use_stream(CudaStream stream) { stream_ = stream; }
  // What is in that stream by now comes before the copies of the next window. Fails: `invalid` if nobody has said the
  // stream, or while it is being captured into a graph; `io`.
  [[nodiscard]] Status mark_window() { return mark(window_); }
  // Likewise for what find_write and find_difference read (job/trainer/window_check.h).
  [[nodiscard]] Status mark_check() { return mark(check_); }
  // Waits until the GPU has come to a mark, or `stops` answers true: a GPU that stands still must not hold its trainer.
  // False: it stopped.
  [[nodiscard]] Result<bool> reach_window(const std::function<bool()>& stops) { return reach(window_, stops); }
  [[nodiscard]] Result<bool> reach_check(const std::function<bool()>& stops) { return reach(check_, stops); }
  // Waits until the GPU has nothing more to do for this process.
  [[nodiscard]] Status wait_until_idle();

  [[nodiscard]] Result<GpuLaneLoan> lane();
  // Of pieces of lanes: at least this many bytes.
  void set_bucket_bytes(std::uint64_t bytes) { piece_bytes_ = std::max(GpuLane::kPieceBytesMin, bytes); }

  // Copies between GPU memory and any host memory, after all that the trainer's stream has by now. When they return,
  // all is copied. Fail as mark_window.
  struct Copy {
    std::byte* device = nullptr;
    std::byte* host = nullptr;
    std::uint64_t bytes = 0;
  };
  [[nodiscard]] Status copy_out(std::span<const Copy> copies) { return copy(copies, true); }
  [[nodiscard]] Status copy_in(std::span<const Copy> copies) { return copy(copies, false); }
  // One range, after reach_check; any thread. Bytes are in `scratch`, which grows.
  [[nodiscard]] Status read_checked(const std::byte* device, std::uint64_t bytes, std::vector<std::byte>& scratch);

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] CudaContext context() const { return context_; }
  // Fails: `io`: "GPU 0: copy: an illegal memory access was encountered (CUDA error 700)".
  [[nodiscard]] Status checked(CudaAnswer answer, const char* what) const;

 private:
  friend class GpuLaneLoan;
  Gpu(const CudaDriver& driver, int number) : driver_(&driver), number_(number) {}
  [[nodiscard]] Status begin();
  [[nodiscard]] Status mark(CudaEvent event);
  [[nodiscard]] Result<bool> reach(CudaEvent event, const std::function<bool()>& stops) const;
  [[nodiscard]] Status copy(std::span<const Copy> copies, bool out);
  void give_back(std::unique_ptr<GpuLane> lane);

  const CudaDriver* driver_;
  const int number_;
  int device_ = 0;
  CudaContext context_ = nullptr;
  std::optional<CudaStream> stream_;
  CudaEvent window_ = nullptr, check_ = nullptr, now_ = nullptr;
  std::vector<bool> entries_;
  std::uint32_t count_ = 0;
  std::uint64_t piece_bytes_ = GpuLane::kPieceBytesMin;

  std::mutex mutex_;  // guards what follows
  std::vector<std::unique_ptr<GpuLane>> lanes_;
};

}  // namespace pawl::job
