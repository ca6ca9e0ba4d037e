#include "job/daemon/imports.h"

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

void Imports::begin() {
  imported_.clear();
  filling_.clear();
  waiting_.clear();
  fetches_.clear();
  for (const Member& member : context_.mirror.state().seats) {
    if (!(member.life == context_.self)) continue;
    const Source* source = context_.mirror.source_of(member.seat);
    if (source == nullptr || source->kind == SourceKind::nothing || arenas_.has(*source)) {
      imported_.insert(member.seat);
    } else if (source->kind == SourceKind::own_arena && source->from == context_.self) {
      strike(*source, "the step is not in the own arena any more");
    } else if (!is_in_memory(source->kind)) {
      mover_.give_up_node(text("the state of seat ", member.seat, " is in ", name_of(source->kind),
                               ", from which this release can't restore"));
    } else {
      waiting_.push_back(*source);
    }
  }
}

std::optional<FetchState> Imports::fetch_of(Seat seat) const {
  for (const auto& fetch : fetches_)
    if (fetch->seat() == seat) return fetch->state();
  return std::nullopt;
}

bool Imports::may_copy(Seat seat) {
  const TrainerProcess* trainer = trainers_.at_seat(seat);
  if (trainer == nullptr) return false;
  if (trainer->pid == 0) return lives(context_.environment->processes, trainer->attached);
  if (trainer->inherited) return true;  // it may be anywhere
  const bool has_joined = trainer->line.waits_for(MessageKind::join) || trainer->seated == context_.mirror.generation();
  return trainer->seated.value > 0 && !has_joined;
}

void Imports::start_waiting() {
  std::vector<Source> waiting;
  for (const Source& source : waiting_) {
    if (may_copy(source.seat) || !address_of(source.from)) {
      waiting.push_back(source);
    } else {
      start(source);
    }
  }
  waiting_.swap(waiting);
}

// A lingering node sits nowhere. Its registration names its address; the leader strikes out what it had if that is gone.
std::optional<std::string> Imports::address_of(NodeLife life) const {
  if (life == context_.self) return context_.address;  // a replica here of a seat that moves here
  for (const Member& member : context_.mirror.state().seats)
    if (member.life == life) return member.address;
  const auto& nodes = context_.mirror.registrations().nodes;
  const auto node = nodes.find(life.node);
  return node != nodes.end() && node->second.life == life ? std::optional(node->second.address) : std::nullopt;
}

void Imports::end() {
  waiting_.clear();
  filling_.clear();
  for (auto& fetch : fetches_) fetch->end();
}

void Imports::start(const Source& source) {
  Hello hello = hello_(Purpose::fetch);
  hello.expected = source.from.incarnation;
  const Generation generation = context_.mirror.generation();
  const Duration began = context_.clock->now();
  auto on_done = [this, generation, source, began](Status status, std::uint64_t bytes) {
    const Duration took = context_.clock->now() - began;
    auto shared = std::make_shared<Status>(std::move(status));
    context_.post(
        [this, generation, source, shared, bytes, took] { finished(generation, source, *shared, bytes, took); });
  };
  StreamContext stream = streams_.stream_context();
  stream.workers = &workers_;
  auto arena_for = [this, generation, shelf_count = context_.mirror.ring().replica_count()](ArenaSpec spec) {
    spec.shelf_count = shelf_count;
    return arenas_.own_from_thread(spec, generation);
  };
  auto on_filling = [this, generation, seat = source.seat] {
    context_.post([this, generation, seat] { began_filling(generation, seat); });
  };
  fetches_.push_back(Fetch::start({.hello = hello,
                                   .address = address_of(source.from).value_or(""),
                                   .source = source,
                                   .context = stream,
                                   .patience = context_.deadlines.fetch,
                                   .arena_for = arena_for,
                                   .on_filling = on_filling,
                                   .on_done = on_done}));
}

void Imports::began_filling(Generation generation, Seat seat) {
  if (context_.mirror.generation() != generation || !context_.is_restoring()) return;
  if (filling_.insert(seat).second) context_.drive();
}

void Imports::finished(Generation generation, const Source& source, const Status& status, std::uint64_t bytes,
                       Duration took) {
  if (context_.mirror.generation() != generation || !context_.is_restoring()) return;
  if (status) {
    imported_.insert(source.seat);
    events_.tell("seat_restored", Json{{"seat", source.seat.value},
                                       {"source", name_of(source.kind)},
                                       {"from", source.from.node.value},
                                       {"bytes", bytes},
                                       {"ms", static_cast<double>(took / 1us) / 1000.0}}
                                      .dump());
    return context_.drive();
  }
  const Error& error = status.error();
  if (error.code == Code::cancelled) return;
  log_error("import_failed", "seat", source.seat, "step", source.step, "from", source.from.node, "why", error.what);
  if (error.code == Code::corrupt) return strike(source, error.what);
  mover_.give_up_node(text("seat ", source.seat, " can't be restored here: ", error.what));
}

void Imports::strike(const Source& source, const std::string& why) {
  mover_.report({FaultKind::corrupt_source, source.from, source.seat,
                 text(name_of(source.kind), " at node ", source.from.node, ": ", why), 0},
                {{source.from, source.seat, source.kind, source.slot_generation, source.step, source.extent}});
}

}  // namespace pawl::job
