// StoredImport: reads the state of one seat from a checkpoint in storage into its own arena, in a recovery.
//
// The seat's layout must be known: of the arena that is there, or as its trainer has declared it. Where the checkpoint's own
// differs from that in the room of blobs alone, the checkpoint's is taken, as of any snapshot; of a job of more or fewer
// seats, the seat's own with the larger room of both. One task; every byte is proven before the slot is sealed.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "job/daemon/memory.h"
#include "job/daemon/replication.h"
#include "job/persist/checkpoint_store.h"
#include "job/recovery/recovery_waits.h"

namespace pawl::job {

class StoredImport : public std::enable_shared_from_this<StoredImport> {
 public:
  struct Options {
    CheckpointStore* store = nullptr;
    std::string path;
    Seat seat;    // in the job
    Seat before;  // by which its arena goes
    Generation slot_generation;
    Step step;
    ArenaSpec declared;
    Tasks* tasks = nullptr;
    Workers* workers = nullptr;
    std::function<Result<ArenaHandle>(const ArenaSpec&)> arena_for;  // in the task; may wait for the loop
    // In the task, once. Fails: `cancelled` after end(); `full`: no room for the arena; else the checkpoint is of no use.
    std::function<void(Status)> on_done;
  };
  static std::shared_ptr<StoredImport> start(Options options);
  explicit StoredImport(Options options) : options_(std::move(options)) {}

  void end();  // never waits; Workers::idle tells when it touches memory no more
  [[nodiscard]] Seat before() const { return options_.before; }
  [[nodiscard]] FetchState state() const;

 private:
  [[nodiscard]] Status run();
  [[nodiscard]] Status fill(StoredCheckpoint& checkpoint, const HeldArena& arena, const SeatInfo& info);
  [[nodiscard]] bool may_touch();

  const Options options_;
  PartProgress progress_;
  std::atomic<std::uint64_t> total_{0};
  std::mutex mutex_;
  bool ended_ = false;
};

}  // namespace pawl::job
