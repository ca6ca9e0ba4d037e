// Neighbours: this daemon's links to the members it watches and talks to. On the loop's thread.
//
// One outgoing connection to each: beats go out, answers come back, and with them the proof of life. Beside it a
// lifeline, which ends with its keeper (lifelines.h): a death is noticed at once, whatever the memory is that a dying
// pawld still holds. Refused: the node is dead (its keeper owns the listening socket). Another incarnation or job answers: the life we knew is over. It rejects
// this pawld's token or version: it lives, and either may be the one that is wrong. Accepted or swallowed but silent: its
// pawld restarts, or the node is stopped, or it or this one is cut off. In these cases the link is tried again for ever,
// and what a silence means is weighed elsewhere (job/recovery/suspicion.h). TCP sends again after pauses that double, so a
// connection that was cut may be silent for as long again once the cut is healed: soon after the last word another one is
// made beside it. Incoming links: peer_listener.h; they only
// answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/daemon/connection.h"
#include "job/daemon/dial.h"
#include "job/daemon/lifelines.h"
#include "job/membership/job_state.h"
#include "job/recovery/deadlines.h"
#include "job/recovery/suspicion.h"
#include "job/transport/messages.h"

namespace pawl::job {

class Neighbours {
 public:
  struct Handlers {
    std::function<void(NodeLife, const std::string& proof)> on_lost;   // it is gone for certain; once for each life
    std::function<void(NodeLife, const std::string& why)> on_evicted;  // it says that this node was evicted
    std::function<void(NodeLife)> on_up;                               // a link stands (again)
    std::function<void(NodeLife, Frame&)> on_answer;                   // on an outgoing link
    std::function<Generation()> generation;
    std::function<std::string(NodeLife)> lifeline_of = {};  // its keeper's address for lifelines; empty: not known
  };
  Neighbours(Loop& loop, Hello self, Deadlines deadlines, Handlers handlers);

  // The wanted set; links to others are closed, standing ones stay.
  void set(const std::vector<Member>& wanted);
  void set_lifelines();  // again, since one may end elsewhere now
  // False if there is no link that stands. Then the frame is dropped.
  bool send(NodeId node, const Frame& frame);
  void tick();  // every heartbeat interval

  [[nodiscard]] bool is_up(NodeId node) const;
  [[nodiscard]] std::vector<Contact> contacts() const;
  struct View {
    NodeId node;
    const char* state;
    Duration silent_for;
    bool lifeline = false;  // one stands
  };
  [[nodiscard]] std::vector<View> view() const;

 private:
  enum class State { down, connecting, greeting, up, dead };
  struct Link {
    NodeLife life;
    std::string address;
    State state = State::down;
    std::unique_ptr<Dial> dial;
    std::shared_ptr<Connection> connection;
    Duration heard{};  // steady clock
    Duration heard_boottime{};
    Duration attempted{};
    Duration connected{};  // since when its connection is that of this link
    // While the connection says nothing, another one; it takes the first one's place when the peer answers on it. The first
    // one stays until then: the peer may only be slow.
    std::unique_ptr<Dial> dial_beside;
    std::shared_ptr<Connection> beside;
    std::string rejected;  // why, as it said last
  };
  void connect(Link& link);
  void connected(NodeId node, Result<std::unique_ptr<Stream>> stream);
  void dial_beside(Link& link);
  void connected_beside(NodeId node, Result<std::unique_ptr<Stream>> stream);
  void use_beside(Link& link);
  void drop_beside(Link& link);
  [[nodiscard]] std::shared_ptr<Connection> greet(const Link& link, std::unique_ptr<Stream> stream);
  void on_frame(NodeId node, const std::shared_ptr<Connection>& from, Frame& frame);
  void broken(NodeId node, const std::shared_ptr<Connection>& connection, const Error& error);
  void unconnected(Link& link, const Error& error);
  void refused(Link& link, const PeerRefusedMessage& answer);
  void lose(Link& link, const std::string& proof);
  void hear(Link& link);
  void drop(Link& link);

  Loop& loop_;
  Hello self_;
  Deadlines deadlines_;
  Handlers handlers_;
  std::map<NodeId, Link> links_;
  Lifelines lifelines_;
};

}  // namespace pawl::job
