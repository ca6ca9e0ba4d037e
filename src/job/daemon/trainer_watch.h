// TrainerWatch: starts this node's trainer processes, watches how they fare, and acts on their deaths.
//
// What follows from what it sees is decided in job/recovery/local_trainer.h and job/recovery/deadlines.h.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"
#include "job/recovery/classes.h"

namespace pawl::job {

class TrainerWatch {
 public:
  struct Hooks {
    std::function<void(std::uint32_t local_index, std::span<const std::string> environment)> spawn;
    std::function<void(std::uint32_t local_index)> kill;
    std::function<void()> on_parked_changed;                  // of a node that is no member
    std::function<Result<char>(std::uint64_t pid)> state_of;  // 'R', 'T', ... as in /proc/PID/stat
    std::function<void(const std::string& kind, const std::string& fields_json)> tell = {};  // an event
    std::function<void(std::uint32_t local_index, bool shown)> show = {};                    // its output, to people
  };
  TrainerWatch(NodeContext& context, Trainers& trainers, StateMover& mover, Hooks hooks)
      : context_(context), trainers_(trainers), mover_(mover), hooks_(std::move(hooks)) {}

  void start_missing();
  void kill(TrainerProcess& trainer, const std::string& why);
  void on_death(TrainerProcess& trainer, const std::string& told);  // how; empty: only the robust mutex tells of it
  // The trainer says so. `lost`: as in FaultReport.
  void on_fault(TrainerProcess& trainer, Generation generation, const std::string& what, const std::string& lost = {});
  void check();  // at every tick: does anybody hang, or not die?

  void count_parked();
  [[nodiscard]] std::uint32_t parked() const { return parked_; }  // any thread
  void on_seated(TrainerProcess& trainer);
  void on_running() { restore_exits_.clear(); }
  // A trainer of this node has ended by a failure after the job's last step.
  [[nodiscard]] bool failed_after_all() const { return failed_after_all_; }
  void note_layout_refusal(const std::string& why) { layout_refusal_ = why; }

 private:
  [[nodiscard]] bool is_held(const TrainerProcess& trainer) const;
  void check_running(TrainerProcess& trainer);
  void check_returning(TrainerProcess& trainer);
  [[nodiscard]] std::span<const FailureSign> users_signs();
  void show_first_seat();
  void check_dying(TrainerProcess& trainer);
  void on_unseen_death(TrainerProcess& trainer);
  void look_again();
  [[nodiscard]] bool outlives_its_command(TrainerProcess& trainer) const;
  // `else_how`: a literal, told if nobody has said how it ended by then.
  void report_death_later(Seat seat, std::uint32_t index, std::string_view else_how = {});
  void put_fault(const FaultReport& report);
  void judge_fault(Generation generation, Seat seat, const std::string& what);
  void judge_for_all();
  void note_end(TrainerProcess& trainer, const std::string& how, const std::string& failure);
  void put_exit(const TrainerProcess& trainer, const std::string& how, const FailureSign* sign);
  [[nodiscard]] Duration since_progress(const TrainerProcess& trainer) const;
  [[nodiscard]] bool is_stopped(const TrainerProcess& trainer, Duration since_progress) const;
  [[nodiscard]] std::vector<std::string> environment(const TrainerProcess& trainer) const;

  NodeContext& context_;
  Trainers& trainers_;
  StateMover& mover_;
  Hooks hooks_;
  bool looks_again_ = false;                    // soon, whether processes that outlive their commands have ended
  std::map<std::uint32_t, int> early_exits_;    // local index -> exits soon, and without a seat
  std::map<std::uint32_t, int> restore_exits_;  // local index -> exits in its seat, since the job last ran
  bool failed_after_all_ = false;
  struct Faults {  // that trainers anywhere have reported
    Generation of;
    Duration since{};
    std::string what;  // of a trainer of this node
    bool judged = false;
  };
  [[nodiscard]] Faults& faults();  // of the state's generation
  Faults faults_;
  std::string layout_refusal_;                     // why the last layout was refused for want of memory
  std::optional<std::vector<FailureSign>> signs_;  // users', once they have been read
  std::map<std::uint32_t, bool> shown_;            // local index -> as the keeper was told last
  std::atomic<std::uint32_t> parked_{0};
};

}  // namespace pawl::job
