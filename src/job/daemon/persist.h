// Persist: this node's part in writing steps of the job to storage; and, at the root of the tree, which step that is.
//
// The order is a key that all nodes watch (job/persist/persist_record.h). A node pins the step's slots of its seats before
// its trainers learn of a greater committed step, writes them when all seats are pinned, and lets go of them when the
// attempt has ended or another generation runs. What its seats and those below it have done goes up the progress tree, and
// again over each new link. Nothing waits for it but the end of the job. It decides nothing: job/persist/persist_round.h.
//
// A slot that is pinned is written from where it lies, by one task a node, after its sums were proven; what the task says
// counts only while the slot is still what it was, and pinned. A daemon that was restarted finds its pins in the slots.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_round.h"
#include "job/transport/frame.h"
#include "job/transport/messages.h"

namespace pawl::job {

[[nodiscard]] inline std::string persist_key(const JobKeys& keys) {
  return keys.root + "persist";
}

class Persist {
 public:
  struct Hooks {
    std::function<bool(NodeId, const Frame&)> send;  // false: no link stands
  };
  // `store`: none in a job that is to write nothing; it outlives this.
  Persist(NodeContext& context, Memory& memory, Events& events, CheckpointStore* store, Hooks hooks)
      : context_(context), memory_(memory), events_(events), store_(store), hooks_(std::move(hooks)) {}

  void on_key(const std::string& key, const std::string& value, Revision revision);  // any key of the job
  void before_show(Progress progress);  // before the trainers of this node can know of it
  void on_tally(NodeId child, const PersistMessage& told);
  void on_link_up(NodeId node);
  void drive();
  void tick();
  // At the root: a job of which every seat has ended may end now.
  [[nodiscard]] bool may_end() const;
  [[nodiscard]] const PersistRecord& record() const { return told_.record; }
  [[nodiscard]] std::string path_of(Step stored) const;
  [[nodiscard]] std::vector<Step> stored() const;  // of which there are checkpoints to go on from, the newest first
  [[nodiscard]] PersistTally tally() const;        // of this node and those below it

 private:
  enum class Done : std::uint8_t { nothing, pinned, written, failed };
  struct OwnSeat {
    ArenaHandle arena;  // of pinned ones
    std::uint32_t slot = 0;
    SlotWord word;
    Done done = Done::nothing;
  };
  struct Told {
    PersistRecord record;
    Revision revision = 0;
  };
  struct Attempt {  // what this node knows of the record's
    std::uint64_t number = 0;
    std::map<Seat, OwnSeat> seats;
    std::string failed;
    bool unpinned = false;
    std::shared_ptr<PartProgress> writes;  // set once the task has begun
  };
  struct Root {
    std::shared_ptr<OpenCheckpoint> open;
    std::uint64_t open_attempt = 0;
    bool busy = false;                     // a swap or a task is under way
    std::uint64_t task = 0;                // counts them; of an earlier one nothing counts any more
    std::optional<Duration> task_since;    // it runs
    std::optional<PersistRecord> pending;  // how the attempt has ended, until the key says so
    PersistTally last;
    Duration changed_at{};  // record or tally
    Duration ran_at{};      // the job began to run here
    Duration begun_at{};    // the folder of the last attempt
  };

  [[nodiscard]] bool is_on() const;
  [[nodiscard]] bool is_here() const;     // in the generation that runs
  [[nodiscard]] bool is_current() const;  // and the record's attempt is of it
  void enter();
  void follow();
  void let_go();
  void adopt_pins();
  [[nodiscard]] bool is_pinned_for_attempt(const HeldArena& held, std::uint32_t slot) const;
  void pin_seats();
  void pin(Seat seat, OwnSeat& own);
  void fail(std::string why, bool unpinned);
  void begin_writing();
  [[nodiscard]] bool is_window_over() const;
  void look_again();
  void wrote(std::uint64_t attempt, Seat seat, const Status& status);
  void pass_on();
  [[nodiscard]] PersistTally own_tally() const;
  [[nodiscard]] PersistView view() const;
  void act(const PersistMove& move, const PersistRecord& record);
  void swap(const PersistRecord& next);
  [[nodiscard]] std::uint64_t begin_task();
  [[nodiscard]] bool end_task(std::uint64_t task);  // false: it was given up
  void give_up_stuck_task();
  void begin_folder();
  void publish();
  void give_up(const PersistMove& move);
  void tell_published(const PersistRecord& of);
  void drop_open();

  NodeContext& context_;
  Memory& memory_;
  Events& events_;
  CheckpointStore* const store_;
  Hooks hooks_;
  Told told_;
  Generation entered_;
  Progress shown_;  // what the trainers' pages may show
  Attempt attempt_;
  std::weak_ptr<PartProgress> writes_;  // of the last attempt that wrote; its task has it as long as it runs
  std::map<NodeId, PersistMessage> children_;
  std::optional<PersistMessage> passed_on_;
  Root root_;
};

}  // namespace pawl::job
