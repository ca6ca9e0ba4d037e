// Persist: this node's part in writing steps of the job to storage; and, at the root of the tree, which step that is.
//
// The order is a key that all nodes watch (job/persist/persist_record.h). A node pins the step's slots of its seats before
// its trainers learn of a greater committed step, writes them when all seats are pinned, and lets go of them when the
// attempt has ended or another generation runs. What its seats and those below it have done goes up the progress tree, and
// again over each new link. Nothing waits for it but the end of the job. It decides nothing: job/daemon/persist_root.h.
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
#include "job/daemon/persist_root.h"
#include "job/persist/checkpoint_store.h"
#include "job/persist/persist_round.h"
#include "job/transport/frame.h"
#include "job/transport/messages.h"

namespace pawl::job {

class Persist {
 public:
  struct Hooks {
    std::function<bool(NodeId, const Frame&)> send;  // false: no link stands
    std::function<Step()> wanted;                    // what trainers here have asked for
    std::function<void(Step)> show_stored;           // to them: the newest that is published
  };
  // `store`: none in a job that is to write nothing; it outlives this.
  Persist(NodeContext& context, Memory& memory, Events& events, CheckpointStore* store, Hooks hooks)
      : context_(context),
        memory_(memory),
        store_(store),
        hooks_(std::move(hooks)),
        root_(context, events, store, known_,
              {.tally = [this] { return tally(); },
               .on_swap = [this](PersistRecord record, Revision revision) { learn(std::move(record), revision); },
               .on_other = [this](const KeyValue& kv) { on_key(kv.key, kv.value, kv.mod_revision); }}) {}

  void on_key(const std::string& key, const std::string& value, Revision revision);  // any key of the job
  void before_show(Progress progress);  // before the trainers of this node can know of it
  void on_tally(NodeId child, const PersistMessage& told);
  void on_link_up(NodeId node);
  void drive();
  void tick();
  // At the root: a job of which every seat has ended may end now.
  [[nodiscard]] bool may_end() const;
  [[nodiscard]] const PersistRecord& record() const { return known_.record; }
  [[nodiscard]] const PersistRoot& root() const { return root_; }  // what is in storage
  [[nodiscard]] PersistTally tally() const;                        // of this node and those below it

 private:
  enum class Done : std::uint8_t { nothing, pinned, written, failed };
  struct OwnSeat {
    ArenaHandle arena;  // of pinned ones
    std::uint32_t slot = 0;
    SlotWord word;
    Done done = Done::nothing;
  };
  struct Attempt {  // what this node knows of the record's
    std::uint64_t number = 0;
    std::map<Seat, OwnSeat> seats;
    std::string failed;
    bool unpinned = false;
    std::shared_ptr<PartProgress> writes;  // set once the task has begun
  };
  [[nodiscard]] bool is_on() const;
  [[nodiscard]] bool is_here() const;     // in the generation that runs
  [[nodiscard]] bool is_current() const;  // and the record's attempt is of it
  void learn(PersistRecord record, Revision revision);
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

  NodeContext& context_;
  Memory& memory_;
  CheckpointStore* const store_;
  Hooks hooks_;
  PersistKnown known_;
  Attempt attempt_;
  std::weak_ptr<PartProgress> writes_;  // of the last attempt that wrote; its task has it as long as it runs
  std::map<NodeId, PersistMessage> children_;
  std::optional<PersistMessage> passed_on_;
  PersistRoot root_;
};

}  // namespace pawl::job
