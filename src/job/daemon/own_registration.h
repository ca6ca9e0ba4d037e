// OwnRegistration: this node's key among those of who is registered, and whether it says what it should.
//
// What stands there may have been put long ago and carried out late, or be gone with an older lease. Nobody else can tell that it is wrong. Who
// follows all registrations is told; who does not reads its own: soon after each put, then ever more seldom. On the loop's thread.
#pragma once

#include <functional>
#include <optional>

#include "job/daemon/control_session.h"
#include "job/daemon/node_context.h"

namespace pawl::job {

class OwnRegistration {
 public:
  struct Hooks {
    std::function<NodeRecord()> record;        // as it should be; any thread
    std::function<void(Duration)> on_renewed;  // the lease, asked for at this boot time; any thread
  };
  OwnRegistration(NodeContext& context, Loop& loop, ControlSession& session, Hooks hooks);

  void put();        // or again, since it has changed
  void put_again();  // if it was put
  void check();      // something has come of it

 private:
  void look();  // where it stands
  void look_after(Duration pause);
  void check(const NodeRecord* found);

  NodeContext& context_;
  Loop& loop_;
  ControlSession& session_;
  const Hooks hooks_;
  std::optional<Duration> written_at_;  // last
  bool check_planned_ = false;
  std::uint64_t looks_ = 0;  // the last that was planned
  Duration pause_{};         // before the next
};

}  // namespace pawl::job
