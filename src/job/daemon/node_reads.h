// NodeReads: single registrations, read by their keys by who does not follow all (job/daemon/node_follower.h).
//
// Many nodes want to know of one at the same moments, so what can wait is read some time later, by each at another moment; and what
// was not there is read again after pauses that double. On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "job/daemon/control_session.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class NodeReads {
 public:
  // `on_read`: something is known that was not before.
  NodeReads(NodeContext& context, ControlSession& session, std::function<void()> on_read)
      : context_(context), session_(session), on_read_(std::move(on_read)) {}

  void read_wanted();                             // of which nothing is known yet (WatchedKeys)
  void look_up(std::span<const NodeLife> lives);  // whether these are registered, again and again

 private:
  struct Question {
    Duration due{};
    Duration pause{};
  };
  using Questions = std::map<NodeLife, Question>;
  [[nodiscard]] bool is_due(Questions& questions, NodeLife life, Duration spread_over);
  void read(NodeLife life);
  void look_up(NodeLife life);

  NodeContext& context_;
  ControlSession& session_;
  const std::function<void()> on_read_;
  Questions wanted_, looked_up_;
};

}  // namespace pawl::job
