// NodeFollower: who is registered, followed with a watch of its own for as long as this node needs it, or read one by one.
//
// Whether it is needed is judged in job/recovery/node_followers.h, at each step and at least at each heartbeat. A listing comes
// first; what changes after it is told. What is no longer needed is followed for a while yet, since to list is dear. The watch has no order
// with that of the job's other keys: what is concluded from both is confirmed of both (NodeContext::knows_all_since).
// On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "job/daemon/control_session.h"
#include "job/daemon/key_watch.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class NodeFollower {
 public:
  struct Handlers {
    std::function<void(const JobMirror::Change&)> on_change;  // of all who are registered, or one that was read
    std::function<void(const WatchEvent&)> on_event;          // of one
    std::function<void()> drive;                              // the next step, after all that has come by now
    std::function<std::vector<Contact>()> contacts;
  };
  NodeFollower(NodeContext& context, Loop& loop, ControlSession& session, std::uint32_t all_follow_max,
               Handlers handlers);
  ~NodeFollower();

  void take_step();  // follows, or stops; reads what is wanted; asks anew. Not in a handler of its own

 private:
  [[nodiscard]] bool is_needed();
  [[nodiscard]] std::vector<NodeLife> failed() const;
  void begin();
  void begun(const Listing& listing, Duration asked);
  void end();
  void read_wanted();
  void read(NodeLife life);

  NodeContext& context_;
  Loop& loop_;
  ControlSession& session_;
  const std::uint32_t all_follow_max_;
  const Handlers handlers_;
  const Duration joined_at_;
  struct Need {
    Revision judged_of = -1;  // the state's
    Duration judged_at{};
    bool now = false;
    Duration last{};  // it was
  };
  Need need_;
  bool listing_ = false;     // the first one is under way
  Duration relisting_at_{};  // the last one of the watch began
  std::unique_ptr<KeyWatch> watch_;
  std::map<NodeLife, Duration> read_at_;  // when these were last asked for
};

}  // namespace pawl::job
