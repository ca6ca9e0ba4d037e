#include "job/daemon/imports.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "base/log.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

void Imports::begin() {
  imported_.clear();
  waiting_.clear();
  fetches_.clear();
  for (const Member& member : context_.mirror.state().seats) {
    if (!(member.life == context_.self)) continue;
    const Source* source = context_.mirror.source_of(member.seat);
    const bool here = source == nullptr || source->kind == SourceKind::nothing ||
                      (source->kind == SourceKind::own_arena && source->from == context_.self);
    if (here) {
      imported_.insert(member.seat);
    } else {
      waiting_.push_back(*source);
    }
  }
}

void Imports::start_waiting() {
  std::vector<Source> waiting;
  for (const Source& source : waiting_) {
    const TrainerProcess* trainer = trainers_.at_seat(source.seat);
    const bool may_copy = trainer != nullptr && trainer->pid != 0 && trainer->seated.value > 0 &&
                          !trainer->line.waits_for(MessageKind::join);
    if (may_copy) {
      waiting.push_back(source);
    } else {
      start(source);
    }
  }
  waiting_.swap(waiting);
}

void Imports::end() {
  for (auto& fetch : fetches_) fetch->end();
}

void Imports::start(const Source& source) {
  std::string address;
  if (source.from == context_.self) address = context_.address;  // a replica here of a seat that moves here
  for (const Member& member : context_.mirror.state().seats)
    if (member.life == source.from) address = member.address;
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
  fetches_.push_back(Fetch::start({.hello = hello,
                                   .address = address,
                                   .source = source,
                                   .context = streams_.stream_context(),
                                   .arena_for = [this](const ArenaSpec& spec) { return arenas_.own_from_thread(spec); },
                                   .on_done = on_done}));
}

void Imports::finished(Generation generation, const Source& source, const Status& status, std::uint64_t bytes,
                       Duration took) {
  if (context_.mirror.generation() != generation || context_.followed.restoring != generation) return;
  if (status) {
    imported_.insert(source.seat);
    std::erase_if(struck_here_,
                  [&](const Struck& s) { return s.seat == source.seat && s.kind == SourceKind::own_arena; });
    events_.tell("seat_restored", Json{{"seat", source.seat.value},
                                       {"source", name_of(source.kind)},
                                       {"from", source.from.node.value},
                                       {"bytes", bytes},
                                       {"ms", static_cast<double>(took / 1us) / 1000.0}}
                                      .dump());
    return context_.drive();
  }
  if (status.error().code == Code::cancelled) return;
  if (status.error().code == Code::invalid)
    return mover_.report({FaultKind::layout_conflict, std::nullopt, source.seat, status.error().what, 0});
  log_error("import_failed", "seat", source.seat, "step", source.step, "from", source.from.node, "why",
            status.error().what);
  mover_.report({FaultKind::corrupt_source, source.from, source.seat,
                 text(name_of(source.kind), " at node ", source.from.node, ": ", status.error().what), 0},
                {{source.from, source.seat, source.kind, source.slot_generation, source.step}});
}

void Imports::note_struck(std::span<const Struck> struck) {
  for (const Struck& one : struck)
    if (one.at == context_.self && std::find(struck_here_.begin(), struck_here_.end(), one) == struck_here_.end())
      struck_here_.push_back(one);
}

}  // namespace pawl::job
