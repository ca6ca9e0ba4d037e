// Trainer: what include/pawl/pawl.h promises, as one object per process. pawl.cc translates to C and back.
//
// Who does what: Session talks to pawld, Declared knows the state, Capture copies it, Trainer says what is allowed when
// and keeps the page up to date. Every call belongs to the training thread. Any thread may call progress,
// committed_step, next_event, interrupted, role, world, stop_step, page and rendezvous. Another thread may call join while the
// training thread keeps to role, world, progress and interrupted.
// Codes: `stale` is PAWL_RECOVER, `cancelled` PAWL_STOP (base/c_status.h); after `broken` only destruction is left.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/ids.h"
#include "base/result.h"
#include "env/shared_memory.h"
#include "job/rendezvous/rendezvous_store.h"
#include "job/snapshot/arena.h"
#include "job/trainer/capture.h"
#include "job/trainer/declared.h"
#include "job/trainer/fence_budget.h"
#include "job/trainer/session.h"
#include "pawl/pawl.h"

namespace pawl::job {

struct TrainerOptions {
  SessionOptions session;
  // PAWL_FENCE_DEADLINE_MS. A window that takes longer is void. nullopt: none is (PAWL_FENCE_SHARE=strict).
  std::optional<Duration> fence_deadline = std::chrono::seconds(10);
  std::optional<std::uint32_t> fence_share_percent;  // PAWL_FENCE_SHARE: of the steps' time; nullopt: not limited
  std::uint32_t copy_thread_count = 1;               // PAWL_COPY_THREADS, 1..64
  std::uint32_t copy_thread_count_min = 0;           // as many as windows need; 0: always that many
  std::uint32_t bucket_bytes = 256 << 10;            // PAWL_BUCKET_BYTES; job/snapshot/arena.h has the range
  std::uint32_t compared_window_count = 8;           // PAWL_COMPARED_WINDOWS (job/trainer/window_check.h)
  bool paranoid = false;                             // PAWL_PARANOID=1 (job/trainer/window_check.h)
};
// From PAWL_SOCKET, PAWL_LOCAL_INDEX and those above. `socket_path` nullptr: from the environment.
// Fails: `unreachable` without a socket; `invalid` names the variable that is no number or out of range.
[[nodiscard]] Result<TrainerOptions> options_from_environment(const char* socket_path);

class Trainer {
 public:
  [[nodiscard]] static Result<std::unique_ptr<Trainer>> attach(TrainerOptions options);
  ~Trainer() { end(); }
  // Ends all threads of ours; the page and the arena stay mapped, so that calls of other threads find them.
  void end();
  // As far as any thread may: the training thread's next call fails `broken`.
  void give_up(std::string why) { session_->give_up(std::move(why)); }

  [[nodiscard]] Result<pawl_seat> identity() const;

  [[nodiscard]] Result<std::uint32_t> add_mesh(Mesh mesh);
  [[nodiscard]] Result<std::uint32_t> add_tensor(LayoutEntry entry, void* data);
  [[nodiscard]] Result<std::uint32_t> add_blob(std::string name, std::uint64_t capacity, BlobCallbacks callbacks);
  [[nodiscard]] Status rebind(std::uint32_t index, void* data);
  [[nodiscard]] Status use_stream(void* stream);
  [[nodiscard]] Status seal_layout();

  [[nodiscard]] Status step_begin(Step step);
  [[nodiscard]] Result<pawl_fence_report> fence();
  [[nodiscard]] Status open_window(Step step, std::uint64_t samples);
  [[nodiscard]] Status void_window(std::string why);
  void progress(std::uint32_t phase);
  [[nodiscard]] Step committed_step() const;

  [[nodiscard]] int event_fd() const { return session_->event_fd(); }
  [[nodiscard]] bool next_event(pawl_event& event) { return session_->next_event(event); }
  [[nodiscard]] bool interrupted() const { return session_->interrupted(); }
  [[nodiscard]] Status report_fault(std::string what, std::string lost = {});

  [[nodiscard]] Result<pawl_seat> join();
  [[nodiscard]] Status restore();
  [[nodiscard]] Status finish_recovery();
  [[nodiscard]] Status finish();

  // Carries out `request`, of which client and number are ours to fill in, at the job's root. A get waits `deadline`.
  // Fails: `invalid` if the rendezvous refuses it.
  [[nodiscard]] Result<RendezvousAnswer> rendezvous(RendezvousRequest request, Deadline deadline = Deadline::never());

  [[nodiscard]] pawl_role role() const { return static_cast<pawl_role>(page().role.load()); }
  [[nodiscard]] std::uint32_t world() const { return static_cast<std::uint32_t>(page().world.load()); }
  [[nodiscard]] TrainerPage& page() const { return session_->page(); }
  [[nodiscard]] Step stop_step() const { return Step(page().stop_step.load(std::memory_order_acquire)); }
  // The job's last step, agreed by all members.
  [[nodiscard]] Result<Step> stop_after(Step step);

  [[nodiscard]] std::string status_json() const;

 private:
  explicit Trainer(TrainerOptions options)
      : options_(std::move(options)),
        fence_budget_({.wait_max = options_.fence_deadline.value_or(Duration::zero()),
                       .share_percent = options_.fence_share_percent.value_or(0)}) {}

  [[nodiscard]] Status require_joined() const;
  [[nodiscard]] Status require_running() const;
  void stage_volatile();
  [[nodiscard]] Status map_arena();
  [[nodiscard]] Status check_arena(const ArenaSpec& found) const;
  [[nodiscard]] Result<Slot> restore_source(bool as_it_fills);
  [[nodiscard]] Error report_bad_source(std::uint32_t slot, Error found);

  const TrainerOptions options_;
  std::unique_ptr<Session> session_;
  mutable std::mutex seat_mutex_;  // between join and the calls of other threads
  std::optional<pawl_seat> seat_;  // of the last join
  std::mutex change_mutex_;        // one change of the rendezvous at a time
  Generation running_;             // windows may be opened in this one
  Step last_window_;               // of this generation; at first its resume step
  std::uint32_t restore_slot_ = 0;

  std::optional<Declared> declared_;  // since the first join
  Mapping arena_memory_;
  Arena arena_;
  std::optional<Capture> capture_;
  FenceBudget fence_budget_;
};

}  // namespace pawl::job
