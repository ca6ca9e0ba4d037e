// HealthGate: tries, before this node may get seats, whether it could serve them; and again while it could not.
//
// A pawld that returns to seats is let through: its trainers run. Every other one is registered when the first look
// has ended, some milliseconds after its start. The look is a task of its own: it makes, fills and reads a small segment,
// writes and syncs a file (in one more task, for which it does not wait for ever), asks members over the network, and runs the operator's command. What follows from it:
// job/recovery/health.h. `healthy` and `why_not`: any thread; the rest on the loop.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/node_context.h"
#include "job/recovery/health.h"

namespace pawl::job {

class HealthGate {
 public:
  struct Hooks {
    std::function<Status()> probe;     // the operator's command; blocks; null: none
    std::function<void()> on_changed;  // it is to be registered, the first time or anew
    Duration disk_within = kDiskWithin;
  };
  // `directory`: where a file may be written; empty: nowhere. `token`: for questions to members.
  HealthGate(NodeContext& context, Events& events, std::string directory, const std::string& token, Hooks hooks)
      : context_(context), events_(events), directory_(std::move(directory)), token_(token), hooks_(std::move(hooks)) {}
  ~HealthGate();

  void begin();  // the job's keys are known
  [[nodiscard]] bool healthy() const;
  [[nodiscard]] std::string why_not() const;  // empty: it is healthy

 private:
  struct DiskTrial;
  struct Peer {
    NodeId node;
    std::string address;
  };
  void look();
  void judge(const HealthFacts& facts);
  [[nodiscard]] std::vector<Peer> peers() const;
  [[nodiscard]] HealthPeer ask(const Peer& peer) const;
  [[nodiscard]] Status try_arena() const;
  [[nodiscard]] Status try_disk();

  NodeContext& context_;
  Events& events_;
  const std::string directory_;
  const std::string& token_;
  Hooks hooks_;
  std::unique_ptr<Task> task_;
  std::shared_ptr<DiskTrial> disk_;  // the look's: one that has not been answered yet; nullptr: none
  mutable std::mutex mutex_;
  std::string why_not_ = "it is being checked";
};

}  // namespace pawl::job
