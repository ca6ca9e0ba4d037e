#include "job/trainer/bucket_copier.h"

#include <span>

namespace pawl::job {

bool BucketCopier::is_time_to_notify() {
  const std::int64_t now = clock_.now().count();
  std::int64_t at = notify_at_ns_.load(std::memory_order_relaxed);
  // Of threads that come at the same time one notifies.
  return now >= at && notify_at_ns_.compare_exchange_strong(at, now + Duration(kNoticeInterval).count());
}

void BucketCopier::copy_until(std::uint32_t end) {
  const Duration begin = clock_.now();
  bool unannounced = false;
  while (!cancelled_.load(std::memory_order_relaxed)) {
    const std::uint32_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= end) break;
    const std::span<std::byte> bucket = slot_.bucket(index);
    const std::uint32_t sum = gather(source_.plan->bucket(index), kernel_, source_.bases, bucket.data());
    slot_.bucket_done(index, sum, generation_, step_);
    unannounced = !is_time_to_notify();
    if (!unannounced) source_.notify();
  }
  if (unannounced) source_.notify();
  const auto copied_ns = static_cast<std::uint64_t>((clock_.now() - begin).count());
  source_.page().copy_ns_total.fetch_add(copied_ns, std::memory_order_relaxed);
}

}  // namespace pawl::job
