#include "job/daemon/seat_arenas.h"

#include <future>

#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

// On the loop, while the calling thread waits.
template <class T, class Work>
T on_loop(NodeContext& context, Work work) {
  auto promise = std::make_shared<std::promise<T>>();
  auto future = promise->get_future();
  context.post([promise, work = std::move(work)] { promise->set_value(work()); });
  return future.get();
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
