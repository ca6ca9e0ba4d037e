// RendezvousServer: this node's end of the job's rendezvous.
//
// The root of the tree has the keys and answers; what it has carried out lies in a log that outlives this pawld, so a
// returning root goes on as the last one would have. Every other node sends requests to the root, and again over each
// new link. Requests of a generation that this node has not entered yet, or whose world it does not know, are kept until it does. With a generation all
// that waits in it is dropped; trainers ask again. No sockets here: hooks send, on_answer() receives.
// The link to the root may be cut for hours while all else is sound. After a second a request goes by another member, which
// passes it on if its own link to the root stands; every second by the next one, as long as somebody waits.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
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
    // The generation's world is known, and with it who is the root: before that nobody here asks anything, but who has heard of it
    // sooner may. It may be another world than the one that is left.
    std::function<bool()> is_open = [] { return true; };
    std::function<bool(std::uint64_t id, const RendezvousRequest&)> send_to_root;  // false: no link stands, it is lost
    std::function<bool()> reaches_root = [] { return true; };                      // a link to it stands
    // By the `turn`-th of the other members to which a link stands, round and round. Not set: there are none.
    std::function<void(std::uint64_t id, const RendezvousRequest&, std::size_t turn)> send_by_another = {};
  };
  RendezvousServer(Clock& clock, RendezvousLog& log, Hooks hooks)
      : clock_(clock), log_(log), hooks_(std::move(hooks)) {}

  // The state's generation, before anybody of it is answered. Does nothing if it was entered already.
  void enter();

  void open();  // if it is now, who has asked before is answered

  // For a trainer of this node, or this node itself. `on_answer` may never be called.
  void ask(RendezvousRequest request, OnAnswer on_answer);
  // The root's answer to what was sent under this id.
  void on_answer(std::uint64_t id, const RendezvousAnswer& answer);
  void ask_again();  // a link to the root stands anew
  void tick();       // those who wait without one try another way

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
    std::vector<std::string> keys;  // looked for; all before `missing` have been there
    std::size_t missing = 0;
    Duration until{};     // nobody waits any longer
    bool passed = false;  // for another node: only to the root itself, or it could go round in circles
  };
  struct EarlyRequest {
    Generation generation;
    RendezvousRequest request;
    Asker asker;
  };
  using Waits = std::map<std::uint64_t, Wait>;
  void serve(RendezvousRequest request, OnAnswer on_answer);
  void answer_waiting(const std::string& key);
  std::uint64_t wait(RendezvousRequest request, OnAnswer on_answer, bool passed = false);
  void drop_expired();
  Wait take(Waits::iterator found);
  [[nodiscard]] bool is_complete(std::uint64_t id, Wait& wait);
  [[nodiscard]] std::size_t first_missing(const std::vector<std::string>& keys) const;  // their number: none is
  void send(std::uint64_t id, const Wait& wait);

  Clock& clock_;
  RendezvousLog& log_;
  Hooks hooks_;
  RendezvousStore store_;  // at the root: of the whole job
  Generation entered_;
  Waits waits_;  // by id. At the root: gets; elsewhere: what the root has not answered
  // The same by what is looked for, of several keys the one that is missing: all ranks wait here at once, and each of
  // their keys is put once.
  std::set<std::pair<std::string, std::uint64_t>> by_key_;
  std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>> by_request_;  // client, number, id
  std::set<std::pair<Duration, std::uint64_t>> by_end_;
  std::vector<EarlyRequest> early_;
  std::uint64_t next_id_ = 1;
  bool by_another_ = false;  // there has been no link to the root for long enough
  std::size_t turn_ = 0;     // of those who may pass requests on
  Duration turned_at_{};     // or a link to the root stood, or the generation began
};

}  // namespace pawl::job
