#include "job/trainer/slot_restore.h"

#include <chrono>

#include "base/text.h"
#include "env/clock.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kLook = 200us;    // less than a few buckets take on the wire
constexpr Duration kNoNewsMax = 1s;  // pawld is then asked again: another one may be there

}  // namespace

bool SlotRestore::copy_next(const Slot& slot) {
  const std::uint32_t sum = scatter(plan_.bucket(next_), default_copy_kernel(), slot.bucket(next_).data(), to_);
  if (sum != slot.buckets()[next_].crc32c.load(std::memory_order_relaxed)) return false;
  ++next_;
  progress_();  // each time: the next bucket may be long in coming
  return true;
}

void SlotRestore::copy_what_comes(const Slot& slot, SlotWord filling, const std::function<bool()>& interrupted) {
  Duration news_at = real_clock().now();
  while (next_ < plan_.bucket_count()) {
    if (interrupted()) return;
    if (slot.bucket_ready(next_, filling.generation, filling.step)) {
      if (!copy_next(slot)) return;
      news_at = real_clock().now();
    } else if (real_clock().now() - news_at >= kNoNewsMax) {
      return;
    } else {
      real_clock().sleep(kLook);
    }
  }
}

Status SlotRestore::copy_rest(const Slot& slot) {
  while (next_ < plan_.bucket_count())
    if (!copy_next(slot)) return Error{Code::corrupt, text("bucket ", next_, " changed while it was restored")};
  return {};
}

}  // namespace pawl::job
