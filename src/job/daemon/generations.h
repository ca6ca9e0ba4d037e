// Generations: carries out on this node what the job's state asks of it: freeze, report, restore, run, end.
//
// What is due is decided in job/recovery/duties.h from the state and from how far this node has followed it. Rules:
// docs/protocol.md.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/holds.h"
#include "job/daemon/imports.h"
#include "job/daemon/node_context.h"
#include "job/daemon/progress_tree.h"
#include "job/daemon/protection_watch.h"
#include "job/daemon/rendezvous_server.h"
#include "job/daemon/report_sender.h"
#include "job/daemon/seats.h"
#include "job/daemon/streams.h"
#include "job/daemon/trainer_pages.h"
#include "job/daemon/trainer_watch.h"

namespace pawl::job {

// Of keys `<prefix><generation>/...`: the folders `<prefix><generation>/` of generations up to `last`, each once. Pure.
[[nodiscard]] std::vector<std::string> folders_up_to(const Listing& listing, const std::string& prefix,
                                                     Generation last);

class Generations {
 public:
  struct Parts {
    NodeContext& context;
    Trainers& trainers;
    Memory& memory;
    TrainerPages& pages;
    TrainerWatch& watch;
    Seats& seats;
    Imports& imports;
    Streams& streams;
    ProgressTree& progress;
    ProtectionWatch& protection;
    RendezvousServer& rendezvous;
    Events& events;
    Holds& holds;
    ReportSender& reports;
  };
  struct Hooks {
    std::function<void(int code)> end_job;
    std::function<void(const std::string& reason)> reset;  // the keeper ends this life of the node
  };
  Generations(Parts parts, Hooks hooks) : parts_(parts), hooks_(std::move(hooks)) {}

  void follow();  // the next duty, if any; idempotent
  void on_committed();

 private:
  void end_with_job();
  void linger();
  [[nodiscard]] bool are_others_late();
  void freeze();
  void put_inventory();
  void begin_restore();
  void end_copies();
  void begin_running();
  [[nodiscard]] CopyTasks copies() const { return {!parts_.streams.idle(), !parts_.imports.idle()}; }
  void drop_other_arenas();
  [[nodiscard]] bool is_still_needed(const Arena& arena) const;  // though neither its seat nor its ward is here
  void tidy_keys();  // of all recoveries that are over, also of those that another one superseded
  void erase_later(std::vector<std::string> keys);

  Parts parts_;
  Hooks hooks_;
  bool keeps_others_ = false;  // arenas that are still needed
};

}  // namespace pawl::job
