// PeerListener: connections that other nodes (and whoever asks questions) open to this one.
//
// Each begins with a hello, which is judged; a link then stays here and its requests are handed on, a stream's socket
// goes to its thread. Outgoing links are in neighbours.h.
// Whoever says nothing for as long as a node may be silent is closed: one that never says hello, and a link whose other
// end beats no more (its machine is gone, and no FIN ever came), or each of them would cost a descriptor for good.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "job/daemon/acceptor.h"
#include "job/daemon/connection.h"
#include "job/daemon/node_context.h"
#include "job/transport/messages.h"

namespace pawl::job {

// What a hello is judged by.
struct HelloJudge {
  NodeLife self;
  std::string job;
  std::string token;
  const JobState* state = nullptr;  // nullptr: none yet
};
// nullopt: it is welcome. Pure.
[[nodiscard]] std::optional<PeerRefusedMessage> judge_hello(const Hello& hello, const HelloJudge& judge);

class PeerListener {
 public:
  using ConnectionHandle = std::shared_ptr<Connection>;
  struct Handlers {
    std::function<std::string(const std::string& json)> on_question;
    std::function<void(const ConnectionHandle&, const Hello&)> on_data;  // or a lane's; answers the hello itself
    std::function<void(const ConnectionHandle&)> on_fetch;               // likewise
    std::function<void(NodeId, Generation)> on_beat;                     // the sender's generation
    std::function<void(NodeId, Generation, const SeatReport&)> on_report;
    std::function<void(NodeId, Generation, const std::string& paces)> on_paces = {};
    std::function<void(NodeId, Generation, const std::string& sums)> on_equal_sums = {};
    std::function<void(const NarrowMessage&)> on_narrow = {};
    std::function<void(NodeId, const PersistMessage&)> on_persist = {};
    std::function<void(Generation, Progress)> on_progress;
    std::function<void(const ConnectionHandle&, NodeLife, const Frame&)> on_collect = {};  // of a collector's group
    std::function<void(const ConnectionHandle&, std::uint64_t id, PeerRendezvousMessage)> on_rendezvous;
  };
  PeerListener(Loop& loop, NodeContext& context, std::string token, std::unique_ptr<Listener> listener,
               Handlers handlers);
  void open();                                   // from now on who connects is heard, and who is silent closed
  void adopt(std::unique_ptr<Stream> accepted);  // one that was accepted

 private:
  void on_frame(const ConnectionHandle& connection, const Frame& frame);
  void on_hello(const ConnectionHandle& connection, const Frame& frame);
  void on_link_frame(NodeId node, const ConnectionHandle& connection, const Frame& frame);
  void close_silent();

  Counter& other_versions_;
  Loop& loop_;
  NodeContext& context_;
  const std::string token_;
  Handlers handlers_;
  struct Peer {
    std::optional<NodeId> node;             // whose link it is; nullopt: none, or not welcomed yet
    std::optional<NodeLife> reporter = {};  // who sends its reports here
    Duration heard{};
  };
  std::map<ConnectionHandle, Peer> connections_;
  std::map<NodeId, std::weak_ptr<Connection>> links_;  // the newest of each node
  Acceptor acceptor_;
};

}  // namespace pawl::job
