// RendezvousServer: this node's end of the job's rendezvous.
//
// The root of the tree has the keys and answers; what it has carried out lies in a log that outlives this pawld, so a
// returning root goes on as the last one would have. Every other node sends requests to the root, and again over each
// new link. Requests of a generation that this node has not entered yet are kept until it has. With a generation all
// that waits in it is dropped; trainers ask again. No sockets here: hooks send, on_answer() receives.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "env/clock.h"
#include "job/daemon/rendezvous_log.h"
#include "job/rendezvous/rendezvous_store.h"

namespace pawl::job {

class RendezvousServer {
 public:
  using OnAnswer = std::function<void(const RendezvousAnswer&)>;
  struct Hooks {
    std::function<Generation()> generation;  // of the state; this node may not have entered it yet
    std::function<bool()> is_root;
    std::function<void(std::uint64_t id, const RendezvousRequest&)> send_to_root;  // lost where no link stands
  };
  RendezvousServer(Clock& clock, RendezvousLog& log, Hooks hooks)
      : clock_(clock), log_(log), hooks_(std::move(hooks)) {}

  // The state's generation, before anybody of it is answered. Does nothing if it was entered already.
  void enter();

  // For a trainer of this node, or this node itself. `on_answer` may never be called.
  void ask(RendezvousRequest request, OnAnswer on_answer);
  // The root's answer to what was sent under this id.
  void on_answer(std::uint64_t id, const RendezvousAnswer& answer);
  void ask_again();  // a link to the root stands anew

  // Another node's request, of its generation. `is_alive`: its connection is still there.
  struct Asker {
    std::function<bool()> is_alive;
    OnAnswer on_answer;
  };
  void on_peer_request(Generation generation, RendezvousRequest request, Asker asker);

  [[nodiscard]] std::size_t waiting_count() const { return waits_.size(); }

 private:
  struct Wait {
    RendezvousRequest request;
    OnAnswer on_answer;
    Duration until{};  // nobody waits any longer
  };
  struct EarlyRequest {
    Generation generation;
    RendezvousRequest request;
    Asker asker;
  };
  void serve(RendezvousRequest request, OnAnswer on_answer);
  void answer_waiting(const std::string& key);
  std::uint64_t wait(RendezvousRequest request, OnAnswer on_answer);

  Clock& clock_;
  RendezvousLog& log_;
  Hooks hooks_;
  RendezvousStore store_;  // at the root: of the whole job
  Generation entered_;
  std::map<std::uint64_t, Wait> waits_;  // at the root: gets; elsewhere: what the root has not answered
  std::vector<EarlyRequest> early_;
  std::uint64_t next_id_ = 1;
};

}  // namespace pawl::job
