// Lifelines: connections that end in the keepers of the nodes that this one watches. On the loop's thread.
//
// A keeper maps no segment, so the kernel closes its sockets within a millisecond of its death, whatever the memory is
// that its pawld and its trainers have yet to give back; a link to a pawld closes only after all of that. So when a
// lifeline that stood has broken, the keeper's address is asked once more: *refused* means that the keeper has died.
//
// Then the node is dead, though its pawld and its trainers may live for another moment: the kernel kills them as their
// parent's end becomes known (no process can ignore that), and none of them is started again by anybody but a next
// keeper, which waits for their ends and has another incarnation. What they do until then is what a node does that was
// cut off: it is evicted by compare-and-swap, its messages carry an old generation and incarnation, and its copies'
// slots are frozen. So whoever evicts it early takes no risk.
//
// A lifeline that breaks says nothing by itself, nor does a refusal where none has stood (a firewall may refuse a port
// for good). A node without lifelines, or behind a firewall that lets none through, is watched by its link alone
// (neighbours.h). The other end: keeper_lifelines.h.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/daemon/connection.h"
#include "job/daemon/dial.h"
#include "job/membership/job_state.h"
#include "job/transport/messages.h"

namespace pawl::job {

class Lifelines {
 public:
  struct Target {
    NodeLife life;
    std::string address;  // of its keeper, for lifelines; empty: not known. A line that stands is kept
  };
  using OnDead = std::function<void(NodeLife, const std::string& proof)>;  // once for each life
  // `silence`: as long as a line may be silent before it is made anew.
  Lifelines(Loop& loop, Hello self, Duration silence, OnDead on_dead);

  void set(const std::vector<Target>& wanted);  // lines to others are closed
  void tick();                                  // every heartbeat interval
  [[nodiscard]] bool stands(NodeId node) const;

 private:
  struct Line {
    NodeLife life;
    std::string address;
    std::unique_ptr<Dial> dial;
    std::shared_ptr<Connection> connection;
    bool up = false;
    bool stood = false;
    int retries = 0;      // without a pause, since it stood for a while
    Duration began{};     // this try
    Duration heard{};     // steady clock
    Duration said{};      // likewise
    Duration next_try{};  // likewise; a line that could not be made is not tried all the time
    Duration pause{};
  };
  void connect(Line& line);
  void connected(NodeId node, Result<std::unique_ptr<Stream>> stream);
  void on_frame(NodeId node, Frame& frame);
  void broken(NodeId node, const Error& error);
  void give_up(Line& line, const std::string& why);
  void hang_up(Line& line);
  void dead(Line& line, const std::string& proof);

  Loop& loop_;
  Hello self_;
  const Duration silence_;
  const OnDead on_dead_;
  std::map<NodeId, Line> lines_;
};

}  // namespace pawl::job
