// SpareMemory: segments that a spare makes while it waits, so that a seat which it is given does not wait for them; and
// whether a spare has memory enough to be one.
//
// Members say in their registrations how large their arenas are. A spare makes as many segments as a member of the job
// needs, for the greatest size, one after the other, slowly, in tasks of their own. Its arenas are then made in them (a
// segment may be larger than its arena); what is left over is let go, also when the sizes change or the job ends; not when
// all members die, for then spares get their seats. Nobody keeps them over this daemon's death: the next one makes new ones. A spare without room for them says so once, and is
// not healthy until it has. How many: redundancy/memory_plan.h.
// On the loop's thread, except where it says otherwise. Outlives the tasks.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "env/shared_memory.h"
#include "job/daemon/node_context.h"
#include "job/redundancy/memory_plan.h"

namespace pawl::job {

struct ReadySegment {  // zeroed, and in the page table
  Fd fd;
  Mapping mapping;
};

class SpareMemory {
 public:
  struct Hooks {
    std::function<void(const std::string& why)> on_refused;  // this node can't be a spare
    std::function<void()> on_record_changed;                 // its registration: whether it can, or its arenas' size
  };
  SpareMemory(NodeContext& context, Hooks hooks);

  // Looks what is wanted now: makes some, lets some go. Cheap if it is called often.
  struct Held {
    std::uint32_t arenas = 0;
    std::uint64_t own_bytes_max = 0;  // of the largest own one, which stands in this node's registration
  };
  void consider(const Held& held);
  // Any task: the smallest of at least `size_bytes`, or none. One that is being made is given up, and its end waited for: a piece
  // of it, so that its memory is free.
  [[nodiscard]] std::optional<ReadySegment> take(std::uint64_t size_bytes);
  [[nodiscard]] bool fits() const { return fits_; }                              // any thread
  [[nodiscard]] bool is_making() const;                                          // any thread
  [[nodiscard]] std::uint32_t ready_count() const;                               // any thread
  [[nodiscard]] std::uint64_t ready_bytes() const;                               // any thread
  [[nodiscard]] const std::string& why_refused() const { return why_refused_; }  // empty: it is not

 private:
  struct Making {
    std::atomic<bool> given_up = false;
    bool ended = false;  // under the mutex
  };
  [[nodiscard]] MemoryPlan plan();
  [[nodiscard]] bool is_spare() const;
  void ask_for_room(const MemoryPlan& plan);
  void judge(const std::string& why);  // empty: there is room
  [[nodiscard]] std::vector<std::uint64_t> let_go(
      const std::vector<std::uint64_t>& wanted);  // the sizes that are missing
  void make_one(std::uint64_t size_bytes);
  void made(const Status& how);

  NodeContext& context_;
  const Hooks hooks_;
  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::vector<ReadySegment> ready_;  // under the mutex
  std::shared_ptr<Making> making_;   // under the mutex; nullptr: none
  std::atomic<bool> fits_ = true;
  bool has_room_ = true;      // for all that it needs, as far as the machine says
  std::string why_not_made_;  // the last one; empty: it was
  std::string why_refused_;
  std::uint64_t told_bytes_ = 0;
  std::uint64_t arena_bytes_ = 0;  // that were needed last; nobody says it when all members are gone
  Duration next_look_{};
};

}  // namespace pawl::job
