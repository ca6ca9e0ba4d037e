#include "job/daemon/seat_arenas.h"

#include <mutex>
#include <optional>

#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

// On the loop, while the calling task waits.
template <class T, class Work>
T on_loop(NodeContext& context, Work work) {
  struct Call {
    std::mutex mutex;
    std::unique_ptr<Condition> changed;
    std::optional<T> result;
  };
  auto call = std::make_shared<Call>();
  call->changed = context.environment->tasks.make_condition();
  context.post([call, work = std::move(work)] {
    T result = work();
    std::lock_guard lock(call->mutex);
    call->result.emplace(std::move(result));
    call->changed->notify_all();
  });
  std::unique_lock lock(call->mutex);
  while (!call->result) call->changed->wait(lock);
  return std::move(*call->result);
}

}  // namespace

Result<ArenaHandle> SeatArenas::own(const ArenaSpec& spec) {
  const ArenaHandle held = memory_.find(ArenaKind::own, spec.seat);
  if (held && held->arena.spec().layout_digest != spec.layout_digest) {
    bool sealed = false;
    for (std::uint32_t i = 0; i < held->arena.slot_count(); ++i)
      sealed |= held->arena.slot(i).word().state == SlotState::sealed;
    if (sealed && !(context_.mirror.has_state() && context_.mirror.state().cold)) {
      std::string differences = "the layout of its snapshot differs from what the trainer declares";
      for (const std::string& difference : first_differences(held->arena.spec().layout, spec.layout, 5))
        differences += "; " + difference;
      return Error{Code::invalid, differences};
    }
  }
  return memory_.arena_for(spec);
}

Result<ArenaHandle> SeatArenas::own_from_thread(const ArenaSpec& spec) {
  return on_loop<Result<ArenaHandle>>(context_, [this, spec] { return own(spec); });
}

Result<ArenaHandle> SeatArenas::replica_from_thread(const ArenaSpec& spec) {
  return on_loop<Result<ArenaHandle>>(context_, [this, spec] { return memory_.arena_for(spec); });
}

ArenaHandle SeatArenas::find_from_thread(ArenaKind kind, Seat seat) {
  return on_loop<ArenaHandle>(context_, [this, kind, seat] { return memory_.find(kind, seat); });
}

}  // namespace pawl::job
