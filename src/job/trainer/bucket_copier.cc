#include "job/trainer/bucket_copier.h"

#include <span>

#include "env/clock.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kNotifyBytes = 1 << 20;

}  // namespace

void BucketCopier::copy_until(std::uint32_t end) {
  const Duration begin = real_clock().now();
  std::uint64_t unannounced = 0;
  while (!cancelled_.load(std::memory_order_relaxed)) {
    const std::uint32_t index = next_.fetch_add(1, std::memory_order_relaxed);
    if (index >= end) break;
    const std::span<std::byte> bucket = slot_.bucket(index);
    const std::uint32_t sum = gather(source_.plan->bucket(index), kernel_, source_.bases, bucket.data());
    slot_.bucket_done(index, sum, generation_, step_);
    unannounced += bucket.size();
    if (unannounced >= kNotifyBytes) {
      source_.notify();
      unannounced = 0;
    }
  }
  if (unannounced > 0) source_.notify();
  const auto copied_ns = static_cast<std::uint64_t>((real_clock().now() - begin).count());
  source_.page().copy_ns_total.fetch_add(copied_ns, std::memory_order_relaxed);
}

}  // namespace pawl::job
