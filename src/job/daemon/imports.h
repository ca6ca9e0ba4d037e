// Imports: how the state of this node's seats comes into its memory in a recovery.
//
// A seat whose own arena has the step needs nothing; another one is fetched from all its sources, once no copy thread of
// its trainer can touch the arena (it has joined, or is gone). In another world the sources, and the arena here, go by the number of
// the seat before (Member::before): a seat that goes on from another one reads that one's slots, and keeps them as its own. Sources are reported, and never tried again, only if they
// say themselves that they haven't got what they should, and no other has it; if this node can't fetch, it gives up its
// seats. Of a checkpoint in storage the seat's layout must be known first: of the arena here, or as its trainer declares it.
// One that is damaged, gone, or of another state is struck out for all; where it can't be read here it is tried again, and
// then the node gives up its seats.
//
// A pawld may die anywhere in `restoring` and the next one finds (docs/protocol.md: slots outlive it, its tasks do not):
//   slot here           trainer          `ready`   the next pawld
//   none, or half       not done         not put   fetches, into the half one; the trainer waits in restore, or copies
//   none, or half       done             not put   only if the segment was lost: fetches, not ready before that
//   none, or half       done             put       likewise; at `running` the fetch is ended and the half slot emptied
//   none, or half       not done         put       does not occur: ready needs done
//   sealed              not done         not put   fetches nothing; answers the restore, or the trainer reads on
//   sealed              done             not put   fetches nothing; the trainer repeats done: ready
//   sealed              done             put       fetches nothing; puts ready again, which says the same
//   sealed              not done         put       does not occur
// "Sealed" is a slot of the step, frozen, with a sound header: in `restoring` only a finished fetch of this recovery, or
// the own arena that the plan relies on, can be that. For what proved wrong was emptied before this node's inventory was
// put (Memory::empty_struck), and no `restoring` begins without that. Half slots are never taken for whole ones, since a
// fetch seals last: a trainer may copy the buckets that have come of a half one (fills()), and is done only once it is
// whole. A trainer that nobody has heard since the restart may be one that copies: it is waited for.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/fetch.h"
#include "job/daemon/node_context.h"
#include "job/daemon/seat_arenas.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/stored_import.h"
#include "job/daemon/streams.h"
#include "job/daemon/trainers.h"

namespace pawl::job {

// From where checkpoints are read.
struct ImportStorage {
  CheckpointStore* store = nullptr;  // none: nothing is
  std::function<std::string(Step)> path_of = {};
};

class Imports {
 public:
  Imports(NodeContext& context, Trainers& trainers, SeatArenas& arenas, Streams& streams, StateMover& mover,
          Events& events, std::function<Hello(Purpose)> hello, ImportStorage storage = {})
      : context_(context),
        trainers_(trainers),
        arenas_(arenas),
        streams_(streams),
        mover_(mover),
        events_(events),
        hello_(std::move(hello)),
        storage_(std::move(storage)),
        workers_([&context] { context.post([&context] { context.drive(); }); }) {}

  void begin();          // of the state's generation
  void start_waiting();  // those whose trainers are out of the way
  // As the trainer of the seat has it now: by that its state is read from storage, where no arena is here.
  void declare(Seat seat, const ArenaSpec& spec);
  void end();  // of the generation; never waits: idle() tells when no fetch touches memory any more
  [[nodiscard]] bool idle() const { return workers_.idle(); }
  [[nodiscard]] bool has(Seat seat) const { return imported_.count(seat) > 0; }  // the resume step lies here
  // A fetch of this recovery has opened the seat's slot: what is ready in it is right.
  [[nodiscard]] bool fills(Seat seat) const { return filling_.count(seat) > 0; }
  [[nodiscard]] std::optional<FetchState> fetch_of(Seat seat) const;  // nullopt: none was begun
  // Whether a copy thread of an older generation may still write into the seat's arena.
  [[nodiscard]] bool may_copy(Seat seat);

 private:
  [[nodiscard]] std::optional<std::string> address_of(NodeLife life) const;  // nullopt: it is not known just now
  [[nodiscard]] bool is_in_own_arena(const Source& source) const;            // of a seat that sits here
  [[nodiscard]] bool is_fetchable(const Source& source) const;
  [[nodiscard]] bool can_be_fetched(Seat seat) const;                    // all of its state
  [[nodiscard]] std::vector<FetchFromPlace> places_of(Seat seat) const;  // all whose address is known
  [[nodiscard]] Source in_arenas(Source source) const;                   // as what lies there goes by the seat before
  void start(Seat seat, std::vector<FetchFromPlace> places);
  void start_stored();
  void start_stored(Seat seat, ArenaSpec spec);
  void finished_stored(Generation generation, Seat seat, const Status& status, Duration took);
  [[nodiscard]] std::string stored_path(Step step) const;
  void strike(const Source& source, const std::string& why, std::vector<Struck> struck);
  void began_filling(Generation generation, Seat seat);
  void finished(Generation generation, Seat seat, const std::vector<FetchFromPlace>& places, const Fetched& fetched,
                Duration took);
  void tell_restored(Seat seat, const std::vector<FetchFromPlace>& places, const Fetched& fetched, Duration took);
  void tell_differing(const Fetched& fetched);

  NodeContext& context_;
  Trainers& trainers_;
  SeatArenas& arenas_;
  Streams& streams_;
  StateMover& mover_;
  Events& events_;
  std::function<Hello(Purpose)> hello_;
  const ImportStorage storage_;
  Workers workers_;
  std::set<Seat> imported_;
  std::set<Seat> filling_;
  std::vector<Seat> waiting_;  // for their trainers to join, or for addresses
  std::vector<std::shared_ptr<Fetch>> fetches_;
  struct FromStorage {
    std::map<Seat, ArenaSpec> declared;
    std::vector<Seat> waiting;  // for their layouts, or their trainers to join
    std::map<Seat, std::uint32_t> tries;
    std::vector<std::shared_ptr<StoredImport>> imports;
  };
  FromStorage stored_;
};

}  // namespace pawl::job
