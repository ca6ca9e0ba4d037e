// Imports: how the state of this node's seats comes into its memory in a recovery, and which slots here proved wrong.
//
// A seat whose own arena has the step needs nothing; another one is fetched from its source, once no copy thread of its
// trainer can touch the arena (it has joined, or is gone). A source that fails is reported and never tried again.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/fetch.h"
#include "job/daemon/node_context.h"
#include "job/daemon/seat_arenas.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/streams.h"
#include "job/daemon/trainers.h"

namespace pawl::job {

class Imports {
 public:
  Imports(NodeContext& context, Trainers& trainers, SeatArenas& arenas, Streams& streams, StateMover& mover,
          Events& events, std::function<Hello(Purpose)> hello)
      : context_(context),
        trainers_(trainers),
        arenas_(arenas),
        streams_(streams),
        mover_(mover),
        events_(events),
        hello_(std::move(hello)) {}

  void begin();          // of the state's generation
  void start_waiting();  // those whose trainers are out of the way
  void end();            // of the generation; never waits
  [[nodiscard]] bool has(Seat seat) const { return imported_.count(seat) > 0; }  // the resume step lies here

  void note_struck(std::span<const Struck> struck);  // keeps those that are here
  [[nodiscard]] std::vector<Struck> take_struck() { return std::exchange(struck_here_, {}); }

 private:
  void start(const Source& source);
  void finished(Generation generation, const Source& source, const Status& status, std::uint64_t bytes, Duration took);

  NodeContext& context_;
  Trainers& trainers_;
  SeatArenas& arenas_;
  Streams& streams_;
  StateMover& mover_;
  Events& events_;
  std::function<Hello(Purpose)> hello_;
  std::set<Seat> imported_;
  std::vector<Source> waiting_;  // for their trainers to join
  std::vector<std::shared_ptr<Fetch>> fetches_;
  std::vector<Struck> struck_here_;  // slots of ours that proved wrong and were not filled anew: emptied at running
};

}  // namespace pawl::job
