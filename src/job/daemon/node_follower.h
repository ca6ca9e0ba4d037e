// NodeFollower: who is registered, followed with a watch of its own for as long as this node needs it, or read one by one.
//
// Whether it is needed is judged in job/recovery/node_followers.h, at each step and at least at each heartbeat. A listing comes
// first, a moment later unless this node leads; what changes after it is told. What is no longer needed is followed for a while yet,
// since to list is dear. The watch has no order with that of the job's other keys: what is concluded from both is confirmed of both
// (NodeContext::knows_all_since). On the loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "job/daemon/control_session.h"
#include "job/daemon/key_watch.h"
#include "job/daemon/node_context.h"
#include "job/daemon/node_reads.h"
#include "job/recovery/node_followers.h"

namespace pawl::job {

class NodeFollower {
 public:
  struct Handlers {
    std::function<void(const JobMirror::Change&)> on_change;  // of all who are registered, or one that was read
    std::function<void(const WatchEvent&)> on_event;          // of one
    std::function<void()> drive;                              // the next step, after all that has come by now
    std::function<std::vector<Contact>()> contacts;
  };
  NodeFollower(NodeContext& context, Loop& loop, ControlSession& session, FollowLimits limits, Handlers handlers);
  ~NodeFollower();

  void take_step();  // follows, or stops; reads what is wanted; asks anew. Not in a handler of its own

 private:
  [[nodiscard]] bool is_needed();
  [[nodiscard]] bool must_follow();
  [[nodiscard]] Duration accused_for();
  void begin();
  void after(Duration pause, std::function<void()> task);  // if this is still there
  void list();
  void list_again();
  void begun(const Listing& listing, Duration asked);
  void end();
  void look_up();
  void count();  // those that are registered, now and then

  NodeContext& context_;
  Loop& loop_;
  ControlSession& session_;
  const FollowLimits limits_;
  const Handlers handlers_;
  const Duration joined_at_;
  struct Need {
    Revision judged_of = -1;  // the state's
    Duration judged_at{};
    bool now = false;
    Duration last{};  // it was
  };
  Need need_;
  NodeReads reads_;
  struct First {
    bool under_way = false;
    Duration pause{};  // after it has failed
  };
  First first_;              // listing
  Duration relisting_at_{};  // the last one of the watch began
  std::unique_ptr<KeyWatch> watch_;
  std::optional<Duration> accused_since_;  // somebody has accused somebody
  struct Count {
    Duration due{};
    Duration pause{};
    bool few = false;
  };
  Count count_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // what comes later finds nobody
};

}  // namespace pawl::job
