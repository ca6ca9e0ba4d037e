// TrainerPages: what this node's trainers are told through their pages, and what the pages say of the job.
//
// A page outlives pawld (job/snapshot/trainer_page.h), so a returning pawld learns from it what the last one knew.
#pragma once

#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/daemon/trainers.h"
#include "job/redundancy/progress.h"

namespace pawl::job {

class TrainerPages {
 public:
  TrainerPages(NodeContext& context, Trainers& trainers, Memory& memory)
      : context_(context), trainers_(trainers), memory_(memory) {}

  void write(TrainerProcess& trainer);  // what a trainer may know of the job from its page alone
  void write_all();
  void show(Progress progress, bool committed);  // `committed`: wakes them, they may wait for it
  void show_stored(Step newest);                 // in storage
  [[nodiscard]] Step persist_wanted() const;     // the greatest that a trainer here has asked for
  void open_windows(bool gate_off);              // the state's generation runs

  // The greatest step that is known to be committed, here or to the pawld before this one. Of the last generation that
  // ran: it may have gone on from a step before those that were committed once.
  [[nodiscard]] Step known_committed(Progress progress) const;
  // Trainers that are in the state's generation already (this pawld returned into it), and what they know.
  [[nodiscard]] Progress rejoin(Progress progress);
  // What this node's seats hold, of the state's generation.
  [[nodiscard]] SeatReport report(Progress known) const;
  // What a trainer that waits for the end has captured last lies in no slot any more.
  [[nodiscard]] bool has_given_up_last(const TrainerProcess& trainer) const;

 private:
  NodeContext& context_;
  Trainers& trainers_;
  Memory& memory_;
  Step stored_;
};

}  // namespace pawl::job
