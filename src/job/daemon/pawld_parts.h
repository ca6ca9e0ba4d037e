// Pawld::Parts: what a daemon is made of. Who calls whom is in pawld_parts.cc.
#pragma once

#include "job/daemon/drains.h"
#include "job/daemon/events.h"
#include "job/daemon/generations.h"
#include "job/daemon/health_gate.h"
#include "job/daemon/holds.h"
#include "job/daemon/imports.h"
#include "job/daemon/job_end.h"
#include "job/daemon/last_checkpoint.h"
#include "job/daemon/pace_watch.h"
#include "job/daemon/paths_watch.h"
#include "job/daemon/pawld.h"
#include "job/daemon/peer_listener.h"
#include "job/daemon/persist.h"
#include "job/daemon/progress_tree.h"
#include "job/daemon/protection_watch.h"
#include "job/daemon/questions.h"
#include "job/daemon/recovery_watch.h"
#include "job/daemon/rendezvous_server.h"
#include "job/daemon/report_collector.h"
#include "job/daemon/report_sender.h"
#include "job/daemon/retention.h"
#include "job/daemon/seat_arenas.h"
#include "job/daemon/seats.h"
#include "job/daemon/spare_memory.h"
#include "job/daemon/spare_probes.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/streams.h"
#include "job/daemon/trainer_pages.h"
#include "job/daemon/trainer_watch.h"
#include "job/daemon/trainers.h"

namespace pawl::job {

// In the order of use: each part is made of those above it.
struct Pawld::Parts {
  explicit Parts(Pawld& pawld);

  Holds holds;
  Events events;
  SpareProbes spare_probes;
  SpareProbes drain_probes;
  StateMover mover;
  SpareMemory spare_memory;
  Memory memory;
  HealthGate health;
  Trainers trainers;
  SeatArenas arenas;
  TrainerPages pages;
  TrainerWatch watch;
  Persist persist;
  LastCheckpoint last_checkpoint;
  CheckpointRetention retention;
  ProgressTree progress;
  PaceWatch paces;
  PathsWatch paths;
  RendezvousLog rendezvous_log;
  RendezvousServer rendezvous;
  Streams streams;
  ReportCollector collector;
  ReportSender reports;
  ProtectionWatch protection;
  Imports imports;
  JobEnd job_end;
  Drains drains;
  RecoveryWatch recovery;
  Seats seats;
  Generations generations;
  Questions questions;
  PeerListener peers;

 private:
  [[nodiscard]] static Trainers::Handlers trainer_handlers(Pawld& pawld);
  [[nodiscard]] static PeerListener::Handlers peer_handlers(Pawld& pawld);
};

}  // namespace pawl::job
