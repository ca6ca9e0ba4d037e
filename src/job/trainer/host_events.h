// HostEvents: what pawld raised in the page, as events for the host: a recovery, a stop, commits.
//
// Each is told once. A recovery is pending while the page names a greater generation than the one that this process is
// seated in, so that generation is kept here, too. Commits that the host has not fetched become one: the latest. The
// descriptor stays the same for this object's life, whatever becomes of pawld, and is readable while an event waits.
// Threads: any, for all calls.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/ids.h"
#include "env/poller.h"
#include "job/trainer/attached_page.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::job {

class HostEvents {
 public:
  // `page` must outlive this object. Until it is there only fd, joined and seat may be called.
  HostEvents(const AttachedPage& page, Event event) : page_(page), event_(std::move(event)) {}

  [[nodiscard]] int fd() const { return event_.fd(); }

  // Looks at the page. True: a recovery or a stop is new, of which every waiting call must hear.
  [[nodiscard]] bool collect();
  // The most urgent one. False: none waits.
  [[nodiscard]] bool next(pawl_event& event);
  // Forgets what waits, but for a stop.
  void clear();

  // Where this process is seated; recoveries up to this generation are no longer pending.
  void set_joined(Generation generation, Seat seat);
  [[nodiscard]] Generation joined(std::memory_order order = std::memory_order_seq_cst) const {
    return Generation(joined_.load(order));
  }
  [[nodiscard]] std::uint32_t seat() const { return seat_; }
  [[nodiscard]] bool recovery_pending() const;

 private:
  const AttachedPage& page_;
  const Event event_;
  std::atomic<std::uint64_t> joined_{0};
  std::atomic<std::uint32_t> seat_{kNoSeat};

  std::mutex mutex_;  // guards what follows
  std::uint64_t recovery_ = 0, recovery_told_ = 0;
  bool stop_ = false, stop_told_ = false;
  std::uint64_t committed_ = 0, committed_told_ = 0;
};

}  // namespace pawl::job
