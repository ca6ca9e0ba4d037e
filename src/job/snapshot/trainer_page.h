// TrainerPage: one page of shared memory between pawld and one trainer process.
//
// A memfd of 4096 bytes per trainer process, made by pawld, kept by the keeper, mapped by libpawl. It outlives pawld: a
// returning one reads on where the last left. Every field has one writer (named below) and is a plain atomic, so that
// neither side ever waits for the other. It carries no state that a recovery needs (that is the arena's) and it is
// believed by pawld only about this trainer: a trainer that writes nonsense here harms its own seat.
// Offsets are stable, asserted in trainer_page.cc, and written down in docs/format.md.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

using PageWord = std::atomic<std::uint64_t>;

struct TrainerPage {
  PageWord magic;  // written last by initialise_page
  PageWord version;

  // pawld writes.
  alignas(64) PageWord progress;  // Progress::pack (job/redundancy/progress.h)
  PageWord recover_generation;    // > generation: a recovery to this generation is pending
  PageWord stop;                  // 1: the job ends
  PageWord generation;            // windows may be opened in this generation; set at `running`
  PageWord resume_step;           // R of that generation
  PageWord role;                  // pawl_role of the process, also while it is parked
  PageWord world;                 // seats of the job; 0: not known yet
  PageWord stop_step;             // the job ends after this step; 0: nobody has asked for an end

  // The trainer writes.
  // Greatest step whose window is resolved in `generation`: its slot dirty or sealed, or void. Set to resume_step by
  // the trainer before it says that it is restored: a `reached` of an older generation would void steps that will be
  // made.
  alignas(64) PageWord reached;
  PageWord step;     // of the current pawl_step_begin
  PageWord updates;  // optimizer steps, counted at pawl_window_open
  PageWord progress_count;
  PageWord progress_at_ns;  // CLOCK_MONOTONIC
  PageWord phase;           // pawl_phase
  PageWord nonce;           // drawn once by the process that owns the model: proves that it is the same one
  PageWord pid;
  PageWord start_time;  // of the process, clock ticks since boot, as /proc/PID/stat has it
  PageWord samples;

  // The trainer writes: statistics since attach.
  alignas(64) PageWord fence_count;
  PageWord fence_wait_ns_last;
  PageWord fence_wait_ns_total;
  PageWord fence_wait_ns_max;
  PageWord windows_captured;
  PageWord windows_voided;
  PageWord captured_bytes_total;
  PageWord copy_ns_total;  // over all copy threads

  // Drills and tests. A trainer that enters phase hold_phase at a step >= hold_step sets held = 1 and sleeps in slices
  // of 1 ms until hold_phase is 0, or, but in a phase of a recovery, until one is pending.
  alignas(64) PageWord hold_phase;  // pawld writes; 0: none
  PageWord hold_step;               // pawld writes
  PageWord held;                    // the trainer writes
  PageWord gate_off;                // pawld writes; 1: the reuse gate is off, to prove that it is needed

  // A node is being drained (job/recovery/draining.h).
  PageWord pause_step;     // pawld writes; don't begin a later step, wait; 0: go on
  PageWord paused_before;  // the trainer writes: it waits before it begins this step; 0: it doesn't

  // Storage (job/daemon/persist.h).
  PageWord stored;          // pawld writes; the newest step in storage that it knows of, and 1; 0: the job writes none
  PageWord persist_wanted;  // the trainer writes: that step, or a later one, is to be written; 0: it has not asked

  // Robust and shared between processes: locked by the trainer's thread while it is attached, so that pawld, blocked in
  // lock, learns of its end (EOWNERDEAD) at once.
  alignas(64) pthread_mutex_t alive;
};

inline constexpr std::size_t kTrainerPageBytes = 4096;

// Whether a trainer is in this pawl_phase on its way back into the job, and not in a step or beside one.
[[nodiscard]] bool is_of_recovery(std::uint64_t phase);

// Asks for the step that has begun to be written to storage. False: the job writes none.
[[nodiscard]] bool ask_to_persist(TrainerPage& page);
[[nodiscard]] Step stored_step(const TrainerPage& page);  // the newest in storage; 0: none

// Makes `memory` (page-aligned, at least kTrainerPageBytes, nobody else's yet) a page with every field 0. The page
// lives in `memory`. Fails: `invalid` if it is too small or unaligned; `io` if the system refuses the mutex.
[[nodiscard]] Result<TrainerPage*> initialise_page(std::span<std::byte> memory);
// The page that somebody else initialised. Fails: `corrupt` if it is none, or of another version.
[[nodiscard]] Result<TrainerPage*> open_page(std::span<std::byte> memory);

}  // namespace pawl::job
