// Neighbours: this daemon's links to the members it watches and talks to. On the loop's thread.
//
// One outgoing connection to each: beats go out, answers come back, and with them the proof of life. Refused: the node
// is dead (its keeper owns the listening socket). Accepted or swallowed but silent: its pawld restarts, or the node is
// stopped or cut off; wait out the silence deadline. Another incarnation answers: the life we knew is over. What
// follows from a lost neighbour is decided elsewhere (job/recovery/decide.h). Incoming links: peer_listener.h; they
// only answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/daemon/connection.h"
#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/transport/messages.h"

namespace pawl::job {

class Neighbours {
 public:
  struct Handlers {
    std::function<void(NodeLife, FaultKind, const std::string& detail)> on_lost;  // once for each life
    std::function<void(NodeLife)> on_up;                                          // a link stands (again)
    std::function<void(NodeLife, Frame&)> on_answer;                              // on an outgoing link
    std::function<Generation()> generation;
  };
  Neighbours(Loop& loop, Hello self, Deadlines deadlines, Handlers handlers);

  // The wanted set; links to others are closed, standing ones stay.
  void set(const std::vector<Member>& wanted);
  // False if there is no link that stands. Then the frame is dropped.
  bool send(NodeId node, const Frame& frame);
  void tick();  // every heartbeat interval

  [[nodiscard]] bool is_up(NodeId node) const;
  [[nodiscard]] Duration last_heard_boottime() const { return heard_boottime_; }
  [[nodiscard]] bool has_any() const { return !links_.empty(); }
  struct View {
    NodeId node;
    const char* state;
    Duration silent_for;
  };
  [[nodiscard]] std::vector<View> view() const;

 private:
  enum class State { down, connecting, greeting, up, dead };
  struct Link {
    NodeLife life;
    std::string address;
    State state = State::down;
    std::unique_ptr<Stream> connecting;
    std::uint64_t watch = 0;
    std::shared_ptr<Connection> connection;
    Duration heard{};  // steady clock
    Duration attempted{};
  };
  void connect(Link& link);
  void connected(NodeId node);
  void on_frame(NodeId node, Frame& frame);
  void broken(NodeId node, const Error& error);
  void lose(Link& link, FaultKind kind, const std::string& detail);
  void hear(Link& link);
  void drop(Link& link);

  Loop& loop_;
  Hello self_;
  Deadlines deadlines_;
  Handlers handlers_;
  std::map<NodeId, Link> links_;
  Duration heard_boottime_{};
};

}  // namespace pawl::job
