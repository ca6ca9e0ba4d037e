#include "job/trainer/bucket_copier.h"

#include <algorithm>
#include <span>
#include <utility>

#include "job/trainer/gpu_copies.h"

namespace pawl::job {

bool BucketCopier::is_time_to_notify() {
  const std::int64_t now = clock_.now().count();
  std::int64_t at = notify_at_ns_.load(std::memory_order_relaxed);
  // Of threads that come at the same time one notifies.
  return now >= at && notify_at_ns_.compare_exchange_strong(at, now + Duration(kNoticeInterval).count());
}

void BucketCopier::copy_until(std::uint32_t end, bool alone) {
  const Duration begin = clock_.now();
  if (source_.gpu == nullptr || !source_.gpu->holds_some()) {
    copy_from_host(end);
  } else if (Status copied = copy_from_gpu(end, alone); !copied) {
    std::lock_guard lock(failure_mutex_);
    if (!failure_) failure_ = std::move(copied).error().what;
    cancel();
  }
  const auto copied_ns = static_cast<std::uint64_t>((clock_.now() - begin).count());
  source_.page().copy_ns_total.fetch_add(copied_ns, std::memory_order_relaxed);
}

void BucketCopier::copy_from_host(std::uint32_t end) {
  bool unannounced = false;
  while (!cancelled_.load(std::memory_order_relaxed)) {
    const std::uint32_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= end) break;
    const std::span<std::byte> bucket = slot_.bucket(index);
    bucket_done(index, gather(source_.plan->bucket(index), kernel_, source_.bases, bucket.data()), unannounced);
  }
  if (unannounced) source_.notify();
}

// As many buckets as a piece holds at a time; while one piece is taken, the GPU fills the others. Whatever it was told to
// copy has ended when the lane goes back, also after a failure.
Status BucketCopier::copy_from_gpu(std::uint32_t end, bool alone) {
  if (cancelled() || next_.load(std::memory_order_relaxed) >= end) return {};  // the others have taken all
  Gpu& gpu = *source_.gpu;
  Result<GpuLaneLoan> loan = gpu.lane();
  if (!loan) return alone ? Status(std::move(loan).error()) : Status();
  GpuLaneLoan lane = std::move(*loan);
  const auto bucket_bytes = static_cast<std::uint32_t>(slot_.bucket(0).size());
  GpuBucketReader reader(*source_.plan, source_.bases, gpu, *lane, bucket_bytes);
  bool unannounced = false;
  while (!cancelled_.load(std::memory_order_relaxed)) {
    while (reader.may_ask()) {
      const std::uint32_t first = next_.fetch_add(reader.buckets_per_piece(), std::memory_order_relaxed);
      if (first >= end) break;
      PAWL_TRY(reader.ask(first, std::min(end - first, reader.buckets_per_piece())));
    }
    if (!reader.has_asked()) break;
    PAWL_ASSIGN(const GpuBucketReader::Batch batch, reader.next());
    for (std::uint32_t index = batch.first; index < batch.first + batch.count; ++index) {
      bucket_done(index, reader.gather(index, kernel_, slot_.bucket(index).data()), unannounced);
    }
    reader.done();
  }
  if (unannounced) source_.notify();
  return {};
}

void BucketCopier::bucket_done(std::uint32_t index, std::uint32_t sum, bool& unannounced) {
  slot_.bucket_done(index, sum, generation_, step_);
  copied_.fetch_add(1, std::memory_order_relaxed);
  unannounced = !is_time_to_notify();
  if (!unannounced) source_.notify();
}

}  // namespace pawl::job
