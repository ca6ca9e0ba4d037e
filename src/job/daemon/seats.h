// Seats: what this node's trainers ask in their seats, and when they are answered.
//
// A trainer joins, is given its seat, declares its layout, restores the resume step, and says done; when all of the node
// have, the node is ready. Requests that must wait stay in TrainerLine::waiting; answer_waiting() comes back to them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "job/daemon/holds.h"
#include "job/daemon/imports.h"
#include "job/daemon/job_end.h"
#include "job/daemon/node_context.h"
#include "job/daemon/rendezvous_server.h"
#include "job/daemon/report_sender.h"
#include "job/daemon/seat_arenas.h"
#include "job/daemon/trainer_watch.h"
#include "job/daemon/trainers.h"
#include "job/redundancy/protection.h"

namespace pawl::job {

class Seats {
 public:
  struct Parts {
    NodeContext& context;
    Trainers& trainers;
    Memory& memory;
    SeatArenas& arenas;
    Imports& imports;
    Streams& streams;
    TrainerWatch& watch;
    RendezvousServer& rendezvous;
    JobEnd& job_end;
    StateMover& mover;
    Holds& holds;
    ReportSender& reports;
  };
  explicit Seats(Parts parts) : parts_(parts) {}

  void take();  // the state has another phase: which trainer sits where
  void on_request(TrainerProcess& trainer, const Frame& frame);
  void answer_waiting();  // while the state is restoring: joins, layouts and restores that can be answered now

 private:
  void on_layout(TrainerProcess& trainer, const Frame& frame);
  // `id` of the request.
  void give_arena(TrainerProcess& trainer, ArenaSpec declared, std::uint64_t id);
  [[nodiscard]] bool awaits_snapshot(Seat seat, const ArenaSpec& spec) const;
  [[nodiscard]] ArenaSpec in_layout_of_snapshot(ArenaSpec spec) const;
  [[nodiscard]] bool is_from_paths_alone(Seat seat) const;
  void strike_paths(Seat seat, const std::string& why);
  void answer_layouts();
  [[nodiscard]] Status check_room(const ArenaSpec& spec);
  void on_arena(std::uint32_t index, const ArenaSpec& spec, const Result<ArenaHandle>& arena);
  void on_restore_bad(TrainerProcess& trainer, const RestoreBadMessage& bad);
  void on_rendezvous(TrainerProcess& trainer, const Frame& frame);
  void on_done(TrainerProcess& trainer, Generation generation);
  void consider_ready();
  void compare_layouts(std::uint32_t index, const std::string& first, const std::string& mine,
                       const ArenaHandle& arena);
  // Then with each group's first seat, one group after another.
  void compare_shares(std::uint32_t index, std::vector<GroupShare> mine, std::size_t next, const ArenaHandle& arena);
  void refuse_layout(TrainerProcess& trainer, Seat seat, const std::string& why);
  void grant(TrainerProcess& trainer, const ArenaHandle& arena);
  void answer_joins();
  void answer_restores();

  struct LateLayout {
    ArenaSpec spec;
    std::uint64_t id = 0;
  };

  Parts parts_;
  std::map<std::uint32_t, LateLayout> late_layouts_;  // by place, until the snapshot is there
  Generation ready_put_;
  bool has_room_ = false;  // this node's memory for what the policy asks of it
};

}  // namespace pawl::job
