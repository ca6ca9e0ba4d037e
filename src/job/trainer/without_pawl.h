// WithoutPawl: what pawl.h answers with PAWL=off, where there is nobody to ask.
//
// The identity is read from RANK, WORLD_SIZE and LOCAL_RANK. The rendezvous works within this process, for its threads.
// The job's end is what this process asked for. Any thread.
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
  // A get waits until `deadline`. Fails: `timeout`; `invalid` if the rendezvous refuses it.
  [[nodiscard]] Result<RendezvousAnswer> rendezvous(RendezvousRequest request, Deadline deadline);

  void step_begin(Step step) { begun_ = step.value; }
  // The first proposal counts; at the earliest it is the step after the one that has begun.
  [[nodiscard]] Step stop_after(Step step);
  [[nodiscard]] Step stop_step() const { return Step(stop_.load()); }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RendezvousStore rendezvous_;
  std::uint64_t number_ = 0;
  std::atomic<std::uint64_t> begun_{0}, stop_{0};
};

}  // namespace pawl::job
