// Streams: the bulk traffic of this node in one generation: replicas of its own seats to their holders, replicas of its
// wards' seats from them, and slots for nodes that fetch them in a recovery.
//
// Each stream is a thread of its own (replication.h, fetch.h). end() never waits for them: idle() tells when none
// touches memory any more, and the daemon then drives on.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "job/daemon/connection.h"
#include "job/daemon/fetch.h"
#include "job/daemon/holds.h"
#include "job/daemon/node_context.h"
#include "job/daemon/replication.h"
#include "job/daemon/seat_arenas.h"

namespace pawl::job {

class Streams {
 public:
  struct Hooks {
    std::function<Hello(Purpose)> hello;  // this node's, of the state's generation
    std::function<void()> on_held;        // a holder has acknowledged a step; on the loop
    std::function<void(const GivenUpStep&)> on_given_up = [](const GivenUpStep&) {};  // on the loop
  };
  Streams(NodeContext& context, Memory& memory, SeatArenas& arenas, Holds& holds,
          const std::atomic<std::uint64_t>& progress_bits, Hooks hooks);

  void set_gate_off(bool off) { stream_.gate_off = off; }
  void set_fetch_sizes(const FetchSizes& sizes) { stream_.fetch_sizes = sizes; }
  void set_spread_sizes(const SpreadSizes& sizes) { stream_.spread_sizes = sizes; }
  void set_send_limit(std::uint64_t bytes_a_second) { send_limit_.set(bytes_a_second); }  // of replicas; 0: none
  void start();            // of the seats here whose streams are missing, or are of an arena that was replaced
  void end();              // all of the generation
  void notice(Seat seat);  // its trainer has written something new

  // A connection whose hello was accepted. If it is not yet the time for it, it is refused and stays as it is; else it
  // is welcomed and its socket taken. Of a replica stream: its first connection, or a lane of it.
  void adopt_data(const std::shared_ptr<Connection>& connection, const Hello& hello);
  void adopt_fetch(const std::shared_ptr<Connection>& connection);

  // Why a step of this seat does not get to its holder, by the holder's index; none: nothing stands in its way.
  [[nodiscard]] std::map<std::uint32_t, std::string> obstacles(Seat seat) const;

  [[nodiscard]] bool idle() const { return workers_.idle(); }
  [[nodiscard]] const StreamContext& stream_context() const { return stream_; }
  [[nodiscard]] std::uint64_t bytes_sent() const { return stream_.bytes_sent->value(); }
  [[nodiscard]] std::uint64_t bytes_received() const { return stream_.bytes_received->value(); }
  [[nodiscard]] std::uint64_t bytes_spared() const { return stream_.bytes_spared->value(); }

 private:
  void adopt_lane(const std::shared_ptr<Connection>& connection, const Hello& hello);
  [[nodiscard]] std::vector<Seat> seats_before(std::uint32_t position) const;
  [[nodiscard]] std::vector<std::shared_ptr<ReplicaSender>> senders_for(const Member& member, const ArenaHandle& arena);

  NodeContext& context_;
  Memory& memory_;
  SeatArenas& arenas_;
  Holds& holds_;
  Hooks hooks_;
  Workers workers_;
  SendLimit send_limit_;
  StreamContext stream_;
  std::map<Seat, std::vector<std::shared_ptr<ReplicaSender>>> senders_;
  std::map<Seat, std::shared_ptr<ReplicaReceiver>> receivers_;
  std::vector<std::weak_ptr<FetchServer>> fetch_servers_;
};

}  // namespace pawl::job
