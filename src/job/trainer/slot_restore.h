// SlotRestore: the bytes of one slot to where they live in the trainer, each bucket copied and summed in one pass.
//
// While a fetch still fills the slot, buckets are copied as they become ready: a restore then ends soon after the last
// byte came, and not a copy of the whole state later. Of a whole slot all threads copy at once.
// What always holds: a bucket counts as copied only if the sum over the very bytes that were copied is the one that its
// line in the table has for the slot's step. So buckets copied from a slot that is fetched anew, or by another pawld,
// are still right: a generation has a step once.
// After a failure the live state has parts of the slot: whoever restores again overwrites all of it.
// The training thread's alone; it is the only one that calls `progress`.
#pragma once

#include <cstdint>
#include <functional>

#include "base/result.h"
#include "job/snapshot/arena.h"
#include "job/trainer/copy_plan.h"
#include "job/trainer/gpu.h"

namespace pawl::job {

class SlotRestore {
 public:
  // `plan` and what `to` points at must outlive this object. `progress`: called with each bucket of this thread.
  // `thread_count`: with this one; fewer will do.
  // `gpu`: where some entries lie; may be nullptr.
  SlotRestore(const CopyPlan& plan, EntryBases to, std::function<void()> progress, std::uint32_t thread_count = 1,
              Gpu* gpu = nullptr)
      : plan_(plan), to_(to), progress_(std::move(progress)), thread_count_(thread_count), gpu_(gpu) {}

  // From a slot that is being filled with the step of `filling`. Returns when all is copied; when nothing has come for a
  // second; when a bucket isn't what its line says (a fetch may begin anew: only a whole slot is judged); when
  // `interrupted`. What is left, copy_rest takes.
  void copy_what_comes(const Slot& slot, SlotWord filling, const std::function<bool()>& interrupted);
  // What is left, from a whole slot. Fails: `corrupt` names the first bucket that isn't what its line says; `io`: the GPU
  // took no bytes.
  [[nodiscard]] Status copy_rest(const Slot& slot);
  [[nodiscard]] std::uint32_t copied() const { return next_; }  // buckets, from the first on

 private:
  class Way;  // one thread's, into host memory and to the GPU
  const CopyPlan& plan_;
  const EntryBases to_;
  const std::function<void()> progress_;
  const std::uint32_t thread_count_;
  Gpu* const gpu_;
  std::uint32_t next_ = 0;
};

}  // namespace pawl::job
