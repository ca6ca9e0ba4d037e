#include "job/daemon/imports.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "base/contains.h"
#include "base/log.h"
#include "job/recovery/paths.h"

namespace pawl::job {

using namespace std::chrono_literals;
using Json = nlohmann::json;

namespace {

// Storage that does not answer well here is asked again for half a minute.
constexpr std::uint32_t kStoredTries = 20;
constexpr Duration kStoredPause = 1500ms;

bool have_all(const std::vector<FetchFromPlace>& places, std::span<const Source> all) {
  std::vector<Source> there;
  for (const FetchFromPlace& place : places) there.push_back(place.source);
  return are_enough(there, all);
}

}  // namespace

void Imports::begin() {
  imported_.clear();
  filling_.clear();
  waiting_.clear();
  fetches_.clear();
  stored_ = {};
  for (const Member& member : context_.mirror.state().seats) {
    if (!(member.life == context_.self)) continue;
    const Source* source = context_.mirror.source_of(member.seat);
    const bool is_own = source != nullptr && is_in_own_arena(*source);
    const bool is_part = is_own && !source->extent.is_whole();
    if (source == nullptr || source->kind == SourceKind::nothing || (arenas_.has(in_arenas(*source)) && !is_part)) {
      imported_.insert(member.seat);
    } else if (is_own && !is_part) {
      strike(*source, "the step is not in the own arena any more", {struck_of(in_arenas(*source), source->extent)});
    } else if (source->kind == SourceKind::storage && storage_.store != nullptr) {
      stored_.waiting.push_back(member.seat);
    } else if (!is_in_memory(source->kind)) {
      mover_.give_up_node(text("the state of seat ", member.seat, " is in ", name_of(source->kind),
                               ", from which this release can't restore"));
    } else if (!can_be_fetched(member.seat)) {
      mover_.give_up_node(text("parts of the state of seat ", member.seat,
                               " are in storage or in its own arena, with which this release can't join others"));
    } else {
      waiting_.push_back(member.seat);
    }
  }
}

Source Imports::in_arenas(Source source) const {
  source.seat = before_of(context_.mirror, source.seat);
  return source;
}

bool Imports::is_in_own_arena(const Source& source) const {
  return source.kind == SourceKind::own_arena && source.from == context_.self;
}

// A part in the own arena would be overwritten by what is fetched.
bool Imports::is_fetchable(const Source& source) const {
  return is_in_memory(source.kind) && !is_in_own_arena(source);
}

bool Imports::can_be_fetched(Seat seat) const {
  const std::span<const Source> all = sources_of(context_.mirror.state().sources, seat);
  std::vector<Source> there;
  std::ranges::copy_if(all, std::back_inserter(there), [this](const Source& source) { return is_fetchable(source); });
  return are_enough(there, all);
}

std::optional<FetchState> Imports::fetch_of(Seat seat) const {
  for (const auto& fetch : fetches_)
    if (fetch->seat() == before_of(context_.mirror, seat)) return fetch->state();
  for (auto import = stored_.imports.rbegin(); import != stored_.imports.rend(); ++import)  // the last try
    if ((*import)->before() == before_of(context_.mirror, seat)) return (*import)->state();
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
  std::vector<Seat> waiting;
  for (const Seat seat : waiting_) {
    std::vector<FetchFromPlace> places = places_of(seat);
    if (may_copy(seat) || !have_all(places, sources_of(context_.mirror.state().sources, seat))) {
      waiting.push_back(seat);
    } else {
      start(seat, std::move(places));
    }
  }
  waiting_.swap(waiting);
  start_stored();
}

std::vector<FetchFromPlace> Imports::places_of(Seat seat) const {
  std::vector<FetchFromPlace> places;
  for (const Source& source : sources_of(context_.mirror.state().sources, seat))
    if (is_fetchable(source))
      if (const std::optional<std::string> address = address_of(source.from))
        places.push_back({in_arenas(source), *address});
  return places;
}

// A lingering node sits nowhere. Its registration names its address; the leader strikes out what it had if that is gone.
std::optional<std::string> Imports::address_of(NodeLife life) const {
  if (life == context_.self) return context_.address;  // a replica here of a seat that moves here
  for (const Member& member : context_.mirror.state().seats)
    if (member.life == life) return member.address;
  const NodeRecord* const record = context_.record_of(life, Haste::now);
  return record != nullptr ? std::optional(record->address) : std::nullopt;
}

void Imports::end() {
  waiting_.clear();
  filling_.clear();
  for (auto& fetch : fetches_) fetch->end();
  stored_.waiting.clear();
  for (auto& import : stored_.imports) import->end();
}

// --- From storage

void Imports::declare(Seat seat, const ArenaSpec& spec) {
  if (!contains(stored_.waiting, seat)) return;  // it is told again at each drive, and may be long
  const auto known = stored_.declared.find(seat);
  if (known == stored_.declared.end() || known->second.layout_digest != spec.layout_digest)
    stored_.declared.insert_or_assign(seat, spec);
}

void Imports::start_stored() {
  std::vector<Seat> waiting;
  for (const Seat seat : stored_.waiting) {
    std::optional<ArenaSpec> spec = arenas_.spec_of(before_of(context_.mirror, seat));
    if (const auto declared = stored_.declared.find(seat); !spec && declared != stored_.declared.end())
      spec = declared->second;
    if (may_copy(seat) || !spec)
      waiting.push_back(seat);
    else
      start_stored(seat, std::move(*spec));
  }
  stored_.waiting.swap(waiting);
}

void Imports::start_stored(Seat seat, ArenaSpec spec) {
  const Generation generation = context_.mirror.generation();
  const Source* source = context_.mirror.source_of(seat);
  spec.shelf_count = context_.mirror.ring().replica_count();
  stored_.imports.push_back(StoredImport::start(
      {.store = storage_.store,
       .path = storage_.path_of(source->step),
       .seat = seat,
       .before = before_of(context_.mirror, seat),
       .slot_generation = source->slot_generation,
       .step = source->step,
       .declared = std::move(spec),
       .tasks = &context_.environment->tasks,
       .workers = &workers_,
       .arena_for = [this, generation](const ArenaSpec& made) { return arenas_.own_from_thread(made, generation); },
       .on_done =
           [this, generation, seat, began = context_.clock->now()](const Status& status) {
             const Duration took = context_.clock->now() - began;
             context_.post([this, generation, seat, status, took] { finished_stored(generation, seat, status, took); });
           }}));
}

void Imports::finished_stored(Generation generation, Seat seat, const Status& status, Duration took) {
  if (context_.mirror.generation() != generation || !context_.is_restoring()) return;
  const Source source = *context_.mirror.source_of(seat);
  if (status) {
    imported_.insert(seat);
    const std::optional<FetchState> fetched = fetch_of(seat);
    events_.tell("seat_restored", Json{{"seat", seat.value},
                                       {"source", name_of(source.kind)},
                                       {"path", storage_.path_of(source.step)},
                                       {"bytes", fetched ? fetched->total : 0},
                                       {"ms", static_cast<double>(took / 1us) / 1000.0}}
                                      .dump());
    return context_.drive();
  }
  if (status.error().code == Code::cancelled) return;
  log_error("import_failed", "seat", seat, "step", source.step, "from", storage_.path_of(source.step), "why",
            status.error().what);
  // Damaged, or of another state: for everybody. Anything else may be this node's own.
  const Code code = status.error().code;
  const bool is_wrong = code == Code::corrupt || code == Code::invalid || code == Code::not_found;
  if (!is_wrong && code != Code::full && ++stored_.tries[seat] < kStoredTries)
    return context_.after(kStoredPause, [this, generation, seat] {
      if (context_.mirror.generation() != generation || !context_.is_restoring()) return;
      stored_.waiting.push_back(seat);
      context_.drive();
    });
  if (!is_wrong) return mover_.give_up_node(text("seat ", seat, " can't be restored here: ", status.error().what));
  mover_.report({FaultKind::corrupt_source, std::nullopt, seat, text("checkpoint: ", status.error().what), 0},
                {{{}, before_of(context_.mirror, seat), SourceKind::storage, source.slot_generation, source.step}});
}

// --- From memory

void Imports::start(Seat seat, std::vector<FetchFromPlace> places) {
  const Generation generation = context_.mirror.generation();
  auto on_done = [this, generation, seat, places, began = context_.clock->now()](Fetched fetched) {
    const Duration took = context_.clock->now() - began;
    auto shared = std::make_shared<Fetched>(std::move(fetched));
    context_.post(
        [this, generation, seat, places, shared, took] { finished(generation, seat, places, *shared, took); });
  };
  StreamContext stream = streams_.stream_context();
  stream.workers = &workers_;
  auto arena_for = [this, generation, shelf_count = context_.mirror.ring().replica_count(),
                    slot_count = own_slot_count(context_.mirror.spec())](ArenaSpec spec) {
    spec.shelf_count = shelf_count;
    spec.slot_count = slot_count;
    return arenas_.own_from_thread(spec, generation);
  };
  auto on_filling = [this, generation, seat] {
    context_.post([this, generation, seat] { began_filling(generation, seat); });
  };
  fetches_.push_back(Fetch::start({.hello = hello_(Purpose::fetch),
                                   .sources = std::move(places),
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

void Imports::finished(Generation generation, Seat seat, const std::vector<FetchFromPlace>& places,
                       const Fetched& fetched, Duration took) {
  if (context_.mirror.generation() != generation || !context_.is_restoring()) return;
  const Source& first = places.front().source;
  if (fetched.status) {
    imported_.insert(seat);
    tell_restored(seat, places, fetched, took);
    tell_differing(fetched);
    return context_.drive();
  }
  const Error& error = fetched.status.error();
  if (error.code == Code::cancelled) return;
  log_error("import_failed", "seat", seat, "step", first.step, "from", first.from.node, "why", error.what);
  if (error.code != Code::corrupt)
    return mover_.give_up_node(text("seat ", seat, " can't be restored here: ", error.what));
  const auto struck = std::ranges::find(places, fetched.struck.front().at,
                                        [](const FetchFromPlace& place) { return place.source.from; });
  Source source = struck->source;
  source.seat = seat;
  strike(source, error.what, fetched.struck);
}

// `source` and `from` are those from where most of it came.
void Imports::tell_restored(Seat seat, const std::vector<FetchFromPlace>& places, const Fetched& fetched,
                            Duration took) {
  std::uint64_t bytes = 0;
  std::size_t most = 0;
  Json shares = Json::array();
  for (std::size_t i = 0; i < places.size(); ++i) {
    const std::uint64_t share = fetched.bytes_from[i];
    bytes += share;
    if (share > fetched.bytes_from[most]) most = i;
    if (share > 0) shares.push_back({{"from", places[i].source.from.node.value}, {"bytes", share}});
  }
  const Source& source = places[most].source;
  Json event{{"seat", seat.value},
             {"source", name_of(source.kind)},
             {"from", source.from.node.value},
             {"bytes", bytes},
             {"ms", static_cast<double>(took / 1us) / 1000.0}};
  if (shares.size() > 1) event["shares"] = shares;
  if (fetched.compared > 0) event["paths_compared"] = fetched.compared;
  events_.tell("seat_restored", event.dump());
}

// The seat has its bytes from elsewhere, but what it and these were declared to have in common they have not: either the
// declaration is wrong, or one of them has computed something else.
void Imports::tell_differing(const Fetched& fetched) {
  std::map<Seat, Struck> differing;
  for (const Struck& one : fetched.struck)
    if (one.differs) differing.emplace(one.of, one);
  for (const auto& [other, one] : differing)
    events_.tell("path_differs", Json{{"seat", one.seat.value},
                                      {"other", other.value},
                                      {"other_node", one.at.node.value},
                                      {"step", one.step.value}}
                                     .dump());
}

void Imports::strike(const Source& source, const std::string& why, std::vector<Struck> struck) {
  mover_.report({FaultKind::corrupt_source, source.from, source.seat,
                 text(name_of(source.kind), " at node ", source.from.node, ": ", why), 0},
                std::move(struck));
}

}  // namespace pawl::job
