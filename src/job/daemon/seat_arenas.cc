#include "job/daemon/seat_arenas.h"

#include <mutex>
#include <optional>

#include "base/text.h"
#include "job/layout/seat_layout.h"

namespace pawl::job {
namespace {

// `ask(then)` runs on the loop; the calling task waits until `then` is called there with the answer.
template <class T, class Ask>
T on_loop(NodeContext& context, Ask ask) {
  struct Call {
    std::mutex mutex;
    std::unique_ptr<Condition> changed;
    std::optional<T> result;
  };
  auto call = std::make_shared<Call>();
  call->changed = context.environment->tasks.make_condition();
  context.post([call, ask = std::move(ask)] {
    ask([call](T result) {
      std::lock_guard lock(call->mutex);
      call->result.emplace(std::move(result));
      call->changed->notify_all();
    });
  });
  std::unique_lock lock(call->mutex);
  while (!call->result) call->changed->wait(lock);
  return std::move(*call->result);
}

std::string differences(const ArenaSpec& held, const ArenaSpec& declared) {
  std::string what = "the layout of its snapshot differs from what the trainer declares";
  for (const std::string& difference : first_differences(held.layout, declared.layout, 5)) what += "; " + difference;
  if (held.bucket_bytes != declared.bucket_bytes)
    what += text("; its buckets have ", held.bucket_bytes, " bytes, the trainer's ", declared.bucket_bytes,
                 ": start the trainers with PAWL_BUCKET_BYTES=", held.bucket_bytes, ", as before");
  return what;
}

}  // namespace

bool SeatArenas::holds_snapshot(const Arena& arena) const {
  const bool cold = context_.mirror.has_state() && context_.mirror.state().cold;
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const SlotWord word = arena.slot(i).word();
    // After a cold restart nothing counts that was captured before it.
    if (word.state == SlotState::sealed && !(cold && word.generation < context_.mirror.generation())) return true;
  }
  return false;
}

Status SeatArenas::check_layout(const ArenaSpec& spec) const {
  const ArenaHandle held = memory_.find(ArenaKind::own, spec.seat);
  if (!held || memory_.find_equal(spec) || !holds_snapshot(held->arena)) return {};
  return Error{Code::invalid, differences(held->arena.spec(), spec)};
}

void SeatArenas::own(const ArenaSpec& spec, Then then) {
  if (Status allowed = check_layout(spec); !allowed) return then(std::move(allowed).error());
  find_or_make(spec, std::move(then));
}

void SeatArenas::find_or_make(const ArenaSpec& spec, Then then) {
  const Key key{spec.kind, spec.seat};
  // One that is there may be replaced by the one that is being made: nobody gets it meanwhile.
  const ArenaHandle found = making_.count(key) == 0 ? memory_.find_equal(spec) : nullptr;
  if (found) return then(found);
  std::vector<Asked>& waiting = making_[key];
  waiting.push_back({spec, std::move(then)});
  if (waiting.size() > 1) return;
  (void)context_.environment->tasks.start("pawl-arena", [this, key, spec] {
    auto made = std::make_shared<Result<ArenaHandle>>(memory_.make(spec));
    context_.post([this, key, made] {
      std::vector<Asked> asked;
      asked.swap(making_[key]);
      making_.erase(key);
      const Status allowed = key.first == ArenaKind::own ? check_layout(asked[0].spec) : Status();
      if (!allowed)
        *made = allowed.error();
      else if (*made)
        memory_.put(**made);
      asked[0].then(*made);
      for (std::size_t i = 1; i < asked.size(); ++i) {
        if (key.first == ArenaKind::own)
          own(asked[i].spec, std::move(asked[i].then));
        else
          find_or_make(asked[i].spec, std::move(asked[i].then));
      }
    });
  });
}

Result<ArenaHandle> SeatArenas::from_thread(const ArenaSpec& spec, Make make, const std::function<bool()>& is_over,
                                            const Error& over) {
  return on_loop<Result<ArenaHandle>>(context_, [this, spec, make, is_over, over](Then then) {
    if (is_over()) return then(over);
    (this->*make)(spec, [is_over, over, then = std::move(then)](Result<ArenaHandle> arena) {
      then(is_over() ? Result<ArenaHandle>(over) : std::move(arena));
    });
  });
}

Result<ArenaHandle> SeatArenas::own_from_thread(const ArenaSpec& spec, Generation generation) {
  const auto is_over = [this, generation] {
    return !context_.is_restoring() || context_.mirror.generation() != generation;
  };
  return from_thread(spec, &SeatArenas::own, is_over, {Code::cancelled, "that recovery is over"});
}

Result<ArenaHandle> SeatArenas::replica_from_thread(const ArenaSpec& spec, Generation generation) {
  const auto is_over = [this, generation] {
    return !context_.is_running() || context_.mirror.generation() != generation;
  };
  return from_thread(spec, &SeatArenas::find_or_make, is_over, {Code::stale, "that generation is over"});
}

ArenaHandle SeatArenas::find_from_thread(ArenaKind kind, Seat seat) {
  return on_loop<ArenaHandle>(
      context_, [this, kind, seat](const std::function<void(ArenaHandle)>& then) { then(memory_.find(kind, seat)); });
}

std::vector<EqualArena> SeatArenas::equal_from_thread() {
  using Found = std::vector<EqualArena>;
  return on_loop<Found>(context_, [this](const std::function<void(Found)>& then) {
    Found found;
    for (const EqualOffer& offer : memory_.equal_offers())
      found.push_back({offer.state, memory_.find(ArenaKind::own, offer.seat)});
    then(std::move(found));
  });
}

std::optional<ArenaSpec> SeatArenas::spec_of(Seat seat) const {
  const ArenaHandle held = memory_.find(ArenaKind::own, seat);
  return held ? std::optional(held->arena.spec()) : std::nullopt;
}

bool SeatArenas::has(const Source& source) const {
  const ArenaHandle held = memory_.find(ArenaKind::own, source.seat);
  for (std::uint32_t i = 0; held && i < held->arena.slot_count(); ++i) {
    const Slot slot = held->arena.slot(i);
    const SlotWord there{source.slot_generation, source.step, SlotState::sealed, true};
    if (slot.word() == there && slot.verify_header()) return true;
  }
  return false;
}

}  // namespace pawl::job
