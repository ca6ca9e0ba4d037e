#include "job/trainer/gpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/text.h"
#include "env/clock.h"

namespace pawl::job {
namespace {

constexpr Duration kLook = std::chrono::microseconds(50);  // less than a piece takes on the link

// The calling thread's context while this lives; whatever was current before is so again.
class Current {
 public:
  Current(const CudaDriver& driver, CudaContext context) : driver_(driver), answer_(driver.context_push(context)) {}
  ~Current() {
    CudaContext popped = nullptr;
    if (answer_ == 0) (void)driver_.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  [[nodiscard]] CudaAnswer answer() const { return answer_; }

 private:
  const CudaDriver& driver_;
  const CudaAnswer answer_;
};

CudaAddress address_of(const std::byte* device) {
  return reinterpret_cast<CudaAddress>(device);
}

}  // namespace

void append(std::vector<GpuRange>& ranges, GpuRange range) {
  if (!ranges.empty()) {
    GpuRange& last = ranges.back();
    if (last.entry == range.entry && last.device + last.bytes == range.device &&
        last.offset + last.bytes == range.offset) {
      last.bytes += range.bytes;
      return;
    }
  }
  ranges.push_back(range);
}

// --- A lane.

Result<std::unique_ptr<GpuLane>> GpuLane::make(const Gpu& gpu, std::uint64_t piece_bytes) {
  std::unique_ptr<GpuLane> lane(new GpuLane(gpu, piece_bytes));
  PAWL_TRY(lane->allocate());
  return lane;
}

Status GpuLane::allocate() {
  const CudaDriver& driver = gpu_.driver();
  const Current current(driver, gpu_.context());
  PAWL_TRY(gpu_.checked(current.answer(), "use its context"));
  PAWL_TRY(gpu_.checked(driver.stream_create(&stream_, kCudaStreamNonBlocking), "make a stream"));
  for (CudaEvent& end : ends_) {
    PAWL_TRY(
        gpu_.checked(driver.event_create(&end, kCudaEventBlockingSync | kCudaEventWithoutTiming), "make an event"));
  }
  void* memory = nullptr;
  PAWL_TRY(gpu_.checked(driver.host_alloc(&memory, kPieces * piece_bytes_, kCudaHostPortable), "pin memory"));
  memory_ = static_cast<std::byte*>(memory);
  return {};
}

GpuLane::~GpuLane() {
  const CudaDriver& driver = gpu_.driver();
  const Current current(driver, gpu_.context());
  if (stream_ != nullptr) {
    (void)driver.stream_synchronize(stream_);
    (void)driver.stream_destroy(stream_);
  }
  for (CudaEvent end : ends_) {
    if (end != nullptr) (void)driver.event_destroy(end);
  }
  if (memory_ != nullptr) (void)driver.host_free(memory_);
}

Status GpuLane::follow(CudaEvent event) {
  const Current current(gpu_.driver(), gpu_.context());
  return gpu_.checked(gpu_.driver().stream_wait_event(stream_, event, 0), "wait for an event");
}

Status GpuLane::read(std::uint32_t piece, std::span<const GpuRange> ranges) {
  const CudaDriver& driver = gpu_.driver();
  const Current current(driver, gpu_.context());
  for (const GpuRange& range : ranges) {
    PAWL_TRY(gpu_.checked(
        driver.copy_to_host(this->piece(piece) + range.offset, address_of(range.device), range.bytes, stream_),
        "copy from it"));
  }
  return note_end(piece);
}

Status GpuLane::write(std::uint32_t piece, std::span<const GpuRange> ranges) {
  const CudaDriver& driver = gpu_.driver();
  const Current current(driver, gpu_.context());
  for (const GpuRange& range : ranges) {
    PAWL_TRY(gpu_.checked(
        driver.copy_to_device(address_of(range.device), this->piece(piece) + range.offset, range.bytes, stream_),
        "copy to it"));
  }
  return note_end(piece);
}

Status GpuLane::note_end(std::uint32_t piece) {
  return gpu_.checked(gpu_.driver().event_record(ends_[piece], stream_), "record an event");
}

Status GpuLane::wait(std::uint32_t piece) {
  const Current current(gpu_.driver(), gpu_.context());
  return gpu_.checked(gpu_.driver().event_synchronize(ends_[piece]), "copy");
}

Status GpuLane::wait_for_all() {
  const Current current(gpu_.driver(), gpu_.context());
  return gpu_.checked(gpu_.driver().stream_synchronize(stream_), "copy");
}

GpuLaneLoan::~GpuLaneLoan() {
  if (lane_ != nullptr) gpu_->give_back(std::move(lane_));
}

// --- The GPU.

std::optional<int> Gpu::number_at(const void* memory) {
  const CudaDriver* driver = memory == nullptr ? nullptr : loaded_cuda_driver();
  if (driver == nullptr) return std::nullopt;
  const auto address = address_of(static_cast<const std::byte*>(memory));
  unsigned kind = 0, managed = 0;
  if (driver->pointer_attribute(&kind, kCudaMemoryType, address) != 0) return std::nullopt;
  if (driver->pointer_attribute(&managed, kCudaIsManaged, address) != 0) managed = 0;
  if (kind != kCudaMemoryOfDevice && managed == 0) return std::nullopt;
  int number = 0;
  if (driver->pointer_attribute(&number, kCudaDeviceOrdinal, address) != 0) return std::nullopt;
  return number;
}

Result<std::unique_ptr<Gpu>> Gpu::open(int number) {
  const CudaDriver* driver = loaded_cuda_driver();
  if (driver == nullptr) return Error{Code::io, text("GPU ", number, ": this process has no CUDA driver loaded")};
  std::unique_ptr<Gpu> gpu(new Gpu(*driver, number));
  PAWL_TRY(gpu->begin());
  return gpu;
}

Status Gpu::begin() {
  PAWL_TRY(checked(driver_->device_get(&device_, number_), "find it"));
  PAWL_TRY(checked(driver_->primary_context_retain(&context_, device_), "use its context"));
  const Current current(*driver_, context_);
  for (CudaEvent* event : {&window_, &check_, &now_}) {
    PAWL_TRY(checked(driver_->event_create(event, kCudaEventWithoutTiming), "make an event"));
  }
  return {};
}

Gpu::~Gpu() {
  lanes_.clear();
  if (context_ == nullptr) return;
  {
    const Current current(*driver_, context_);
    for (CudaEvent event : {window_, check_, now_}) {
      if (event != nullptr) (void)driver_->event_destroy(event);
    }
  }
  (void)driver_->primary_context_release(device_);
}

bool Gpu::is_of_its_context(const void* memory) const {
  CudaContext owner = nullptr;
  const auto address = address_of(static_cast<const std::byte*>(memory));
  return driver_->pointer_attribute(&owner, kCudaPointerContext, address) != 0 || owner == nullptr || owner == context_;
}

void Gpu::set_holds(std::uint32_t entry, bool here) {
  if (holds(entry) == here) return;
  if (entry >= entries_.size()) entries_.resize(entry + 1, false);
  entries_[entry] = here;
  count_ = here ? count_ + 1 : count_ - 1;
}

Status Gpu::checked(CudaAnswer answer, const char* what) const {
  if (answer == 0) return {};
  return Error{Code::io, text("GPU ", number_, ": ", what, ": ", cuda_sentence(*driver_, answer))};
}

Status Gpu::mark(CudaEvent event) {
  if (!stream_)
    return Error{Code::invalid, text("GPU ", number_,
                                     ": in which stream the state is written isn't known: "
                                     "pawl_stream_use comes first")};
  const Current current(*driver_, context_);
  int capturing = 0;
  PAWL_TRY(checked(driver_->stream_is_capturing(*stream_, &capturing), "look at the stream"));
  if (capturing != 0) {
    return Error{Code::invalid, text("GPU ", number_,
                                     ": the trainer's stream is being captured into a CUDA graph: pawl's "
                                     "calls belong between replays")};
  }
  return checked(driver_->event_record(event, *stream_), "record an event");
}

Result<bool> Gpu::reach(CudaEvent event, const std::function<bool()>& stops) const {
  const Current current(*driver_, context_);
  for (;;) {
    const CudaAnswer answer = driver_->event_query(event);
    if (answer != kCudaNotReady) {
      PAWL_TRY(checked(answer, "wait for the stream"));
      return true;
    }
    if (stops()) return false;
    real_clock().sleep(kLook);
  }
}

Status Gpu::wait_until_idle() {
  const Current current(*driver_, context_);
  return checked(driver_->context_synchronize(), "wait for it");
}

Result<GpuLaneLoan> Gpu::lane() {
  {
    std::lock_guard lock(mutex_);
    while (!lanes_.empty()) {
      std::unique_ptr<GpuLane> lane = std::move(lanes_.back());
      lanes_.pop_back();
      if (lane->piece_bytes() >= piece_bytes_) return GpuLaneLoan(*this, std::move(lane));
    }
  }
  PAWL_ASSIGN(std::unique_ptr<GpuLane> lane, GpuLane::make(*this, piece_bytes_));
  return GpuLaneLoan(*this, std::move(lane));
}

void Gpu::give_back(std::unique_ptr<GpuLane> lane) {
  if (!lane->wait_for_all()) return;  // freed: what it was told has failed
  std::lock_guard lock(mutex_);
  lanes_.push_back(std::move(lane));
}

// Many small ones in one wait: as much as a piece holds.
Status Gpu::copy(std::span<const Copy> copies, bool out) {
  if (copies.empty()) return {};
  PAWL_TRY(mark(now_));
  PAWL_ASSIGN(GpuLaneLoan lane, this->lane());
  PAWL_TRY(lane->follow(now_));
  std::vector<GpuRange> ranges;
  std::vector<std::byte*> hosts;  // of each range
  std::uint64_t filled = 0;
  const auto move = [&]() -> Status {
    PAWL_TRY(out ? lane->read(0, ranges) : lane->write(0, ranges));
    PAWL_TRY(lane->wait(0));
    for (std::size_t i = 0; out && i < ranges.size(); ++i)
      std::memcpy(hosts[i], lane->piece(0) + ranges[i].offset, ranges[i].bytes);
    ranges.clear();
    hosts.clear();
    filled = 0;
    return {};
  };
  for (const Copy& copy : copies) {
    for (std::uint64_t done = 0; done < copy.bytes;) {
      const std::uint64_t part = std::min(copy.bytes - done, lane->piece_bytes() - filled);
      if (!out) std::memcpy(lane->piece(0) + filled, copy.host + done, part);
      ranges.push_back({0, copy.device + done, filled, part});
      hosts.push_back(copy.host + done);
      done += part;
      filled += part;
      if (filled == lane->piece_bytes()) PAWL_TRY(move());
    }
  }
  return ranges.empty() ? Status() : move();
}

Status Gpu::read_checked(const std::byte* device, std::uint64_t bytes, std::vector<std::byte>& scratch) {
  if (scratch.size() < bytes) scratch.resize(bytes);
  PAWL_ASSIGN(GpuLaneLoan lane, this->lane());
  for (std::uint64_t done = 0; done < bytes;) {
    const std::uint64_t part = std::min(bytes - done, lane->piece_bytes());
    const GpuRange range{0, const_cast<std::byte*>(device) + done, 0, part};
    PAWL_TRY(lane->read(0, {&range, 1}));
    PAWL_TRY(lane->wait(0));
    std::memcpy(scratch.data() + done, lane->piece(0), part);
    done += part;
  }
  return {};
}

}  // namespace pawl::job
