// WithoutPawl: what pawl.h answers with PAWL=off, where there is nobody to ask.
//
// Who we are is read from RANK, WORLD_SIZE and LOCAL_RANK; the store is this process's own, for its threads; the job's
// end is what this process asked for. Any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include "base/ids.h"
#include "base/result.h"
#include "env/clock.h"
#include "job/rendezvous/rendezvous_store.h"
#include "pawl/pawl.h"

namespace pawl::job {

[[nodiscard]] pawl_seat seat_without_pawl();

class WithoutPawl {
 public:
  // A get waits until `deadline`. Fails: `timeout`; `invalid` where the store refuses.
  [[nodiscard]] Result<RendezvousAnswer> store(RendezvousRequest request, Deadline deadline);

  void step_begin(Step step) { begun_ = step.value; }
  // The first proposal counts; at the earliest it is the step after the one that has begun.
  [[nodiscard]] Step stop_after(Step step);
  [[nodiscard]] Step stop_step() const { return Step(stop_.load()); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RendezvousStore store_;
  std::uint64_t number_ = 0;
  std::atomic<std::uint64_t> begun_{0}, stop_{0};
};

}  // namespace pawl::job
