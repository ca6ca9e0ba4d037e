// Wires: the simulated network of all machines, and the sockets of their processes.
//
// Never destroyed, as all of a cluster (scheduler.h).
// TCP as a program sees it: bytes come late and in order; what is sent over a cut waits until the cut has healed and
// then comes at once or a little later, as after a retransmission; a machine without power answers nothing; one where
// nobody listens refuses; who writes to an end that is gone gets a reset. Local streams (Unix sockets, packet pairs)
// have none of these troubles, and carry descriptors: segments (real ones) and events.
// Handles are numbers from kHandlesFrom on, so that they are never taken for a real descriptor.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "env/fd.h"
#include "env/network.h"
#include "scheduler.h"

namespace pawl::sim {

inline constexpr int kHandlesFrom = 1 << 24;

class Wires;
struct PollerState;

// What a handle stands for.
struct Thing : std::enable_shared_from_this<Thing> {
  virtual ~Thing();
  [[nodiscard]] virtual Ready ready() const = 0;
  Wires* wires = nullptr;  // which knows its handle
  int handle = 0;
  WaitQueue waiting;              // tasks that wait for it alone
  PollerState* poller = nullptr;  // which has it among others
};

struct Flag final : Thing {  // a SharedEvent
  bool raised = false;
  [[nodiscard]] Ready ready() const override { return {.readable = raised}; }
};

// A descriptor on its way, or arrived.
struct Passed {
  std::shared_ptr<Flag> flag;
  Fd segment;
};

struct Piece {
  std::string bytes;
  std::vector<Passed> passed;
  Duration due{};
  enum class Kind { data, end, reset } kind = Kind::data;
};

struct End final : Thing {
  Process* owner = nullptr;
  std::uint32_t machine = 0;
  std::weak_ptr<End> other;
  bool local = false;
  bool packets = false;
  bool connected = false;
  bool closed = false;  // by its owner
  bool ended = false;   // the other side's end has arrived
  std::string broken;   // why nothing more can be moved; empty: it can
  std::deque<Piece> arrived;
  std::size_t arrived_bytes = 0;
  std::deque<Piece> under_way;  // from here to `other`
  std::size_t under_way_bytes = 0;
  bool moving = false;         // the next piece's arrival is planned
  std::vector<Passed> passed;  // arrived, not taken yet
  Duration pause{};            // between two tries over a cut
  std::uint32_t peer_pid = 0;  // of a local one
  [[nodiscard]] Ready ready() const override;
};

// A listening socket: of a process that owns it; others may accept from it.
struct Port final : Thing {
  std::deque<std::shared_ptr<End>> backlog;
  [[nodiscard]] Ready ready() const override { return {.readable = !backlog.empty()}; }
};

struct PollerState {
  WaitQueue waiting;
  struct Watched {
    std::uint64_t key;
    Interest interest;
  };
  std::map<int, Watched> watched;
  std::set<int> changed;  // of these: since they were last seen to be not ready
  bool woken = false;
};

// How bytes travel between two machines, one way.
struct Path {
  int cuts = 0;  // as many faults cut it
  Duration latency = std::chrono::microseconds(60);
  Duration jitter = std::chrono::microseconds(100);
};

class Wires {
 public:
  Wires(Scheduler& scheduler, std::uint32_t machines, double bytes_a_second);

  Scheduler& scheduler() { return scheduler_; }
  [[nodiscard]] Path& path(std::uint32_t from, std::uint32_t to) { return paths_[from * machines_ + to]; }
  [[nodiscard]] bool is_open(std::uint32_t from, std::uint32_t to) { return from == to || path(from, to).cuts == 0; }
  void set_power(std::uint32_t machine, bool on) { powered_[machine] = on; }
  [[nodiscard]] bool has_power(std::uint32_t machine) const { return powered_[machine]; }

  // `address`: host:port, or any text for a local one.
  [[nodiscard]] std::shared_ptr<Port> open_port(std::uint32_t machine, const std::string& address);
  void close_port(const std::string& address);
  [[nodiscard]] bool is_open_port(const std::string& address) const { return ports_.contains(address); }

  [[nodiscard]] std::shared_ptr<End> start_connect(Process& from, const std::string& address, bool local);
  [[nodiscard]] std::pair<std::shared_ptr<End>, std::shared_ptr<End>> packet_pair(Process& first, Process& second);
  [[nodiscard]] std::shared_ptr<Flag> make_flag();
  void close(End& end);
  // What its other side has sent over a local stream: the death of a sender takes nothing back.
  void deliver_now(End& to);
  // The next bytes that travel between machines, of at least that many at once, arrive with one bit flipped.
  void damage_next(std::size_t least_bytes) { damage_from_ = least_bytes; }
  // All that the process has open. Silent: its machine lost power, so nobody is told.
  void close_all(Process& process, bool silent);
  void own(Process& process, const std::shared_ptr<End>& end);

  Result<std::size_t> send(End& end, std::span<const std::byte> bytes, std::vector<Passed> passed = {});
  Result<std::size_t> receive(End& end, std::span<std::byte> buffer);
  void changed(Thing& thing);
  [[nodiscard]] Thing* find(int handle);
  [[nodiscard]] std::vector<Passed> pass(std::span<const int> fds);
  void forget(int handle) { things_[static_cast<std::size_t>(handle - kHandlesFrom)] = nullptr; }

 private:
  void register_thing(const std::shared_ptr<Thing>& thing);
  [[nodiscard]] std::shared_ptr<End> make_end(Process& owner);
  void knock(const std::shared_ptr<End>& caller, const std::string& address, Duration pause);
  void move(const std::shared_ptr<End>& from);
  void arrive(const std::shared_ptr<End>& from);
  void deliver(End& to, Piece piece);

  Scheduler& scheduler_;
  const std::uint32_t machines_;
  const double bytes_a_second_;
  std::vector<Path> paths_;
  std::vector<bool> powered_;
  std::map<std::string, std::pair<std::uint32_t, std::shared_ptr<Port>>> ports_;
  std::vector<Thing*> things_;                                        // by handle, from kHandlesFrom on; nullptr: gone
  std::map<std::uint32_t, std::vector<std::weak_ptr<End>>> ends_of_;  // by pid
  std::size_t damage_from_ = 0;                                       // 0: nothing is damaged
};

[[nodiscard]] std::unique_ptr<Stream> stream_of(Wires& wires, std::shared_ptr<End> end);
// Accepts for `process`.
[[nodiscard]] std::unique_ptr<Listener> listener_of(Wires& wires, Process& process, std::shared_ptr<Port> port);
[[nodiscard]] std::unique_ptr<SharedEvent> event_of(Wires& wires, std::shared_ptr<Flag> flag);

// The seam Network for one process.
class ProcessNetwork final : public Network {
 public:
  ProcessNetwork(Wires& wires, Process& process, Clock& clock) : wires_(wires), process_(process), clock_(clock) {}
  Result<std::unique_ptr<Stream>> connect(const Address& address, Deadline deadline) override;
  Result<std::unique_ptr<Stream>> start_connect(const Address& address) override;
  Result<std::unique_ptr<Poller>> make_poller() override;
  Result<std::unique_ptr<SharedEvent>> make_event() override;

 private:
  Wires& wires_;
  Process& process_;
  Clock& clock_;
};

}  // namespace pawl::sim
