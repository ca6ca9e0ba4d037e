// AttachedPage: the page of shared memory in which pawld and this process see each other (job/snapshot/trainer_page.h).
//
// A pawld that comes back may hand over another page: what this process has counted goes on there. Pages of before stay
// mapped, because other threads may still look at them. The mutex in each page is locked as long as its thread lives:
// that is how pawld learns of a death.
// Threads: get() and is_there() are any thread's; adopt and unlock belong to the service thread, which owns the mutexes.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "env/fd.h"
#include "env/shared_memory.h"
#include "job/snapshot/trainer_page.h"

namespace pawl::job {

class AttachedPage {
 public:
  // `nonce`: of this process.
  explicit AttachedPage(std::uint64_t nonce) : nonce_(nonce) {}
  AttachedPage(const AttachedPage&) = delete;

  // Requires one. pawld may replace it: never keep the reference over a wait.
  [[nodiscard]] TrainerPage& get() const { return *page_.load(std::memory_order_acquire); }
  [[nodiscard]] bool is_there() const { return page_.load() != nullptr; }

  // The page that pawld handed over; `segment` is read during the call only. Fails: `broken`.
  [[nodiscard]] Status adopt(const Fd& segment);
  // A regular end: pawld is not to take it for a death.
  void unlock();

 private:
  const std::uint64_t nonce_;
  std::atomic<TrainerPage*> page_{nullptr};
  std::vector<Mapping> mappings_;  // of all pages we had
  std::vector<pthread_mutex_t*> locked_;
};

}  // namespace pawl::job
