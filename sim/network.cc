#include "network.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/text.h"

namespace pawl::sim {

using namespace std::chrono_literals;

namespace {
constexpr std::size_t kRoomBytes = 256 << 10;
constexpr Duration kFirstRetry = 200ms;
constexpr Duration kLastRetry = 1s;  // real ones wait longer; who waits for them has given up by then
const char* const kGone = "the other side is gone (EPIPE)";
}  // namespace

Thing::~Thing() {
  if (wires != nullptr) wires->forget(handle);
}

Ready End::ready() const {
  const bool over = !broken.empty();
  return {.readable = !arrived.empty() || ended || over,
          .writable = over || (connected && under_way_bytes < kRoomBytes),
          .hung_up = ended || over};
}

Wires::Wires(Scheduler& scheduler, std::uint32_t machines, double bytes_a_second)
    : scheduler_(scheduler),
      machines_(machines),
      bytes_a_second_(bytes_a_second),
      paths_(std::size_t{machines} * machines),
      powered_(machines, true) {}

void Wires::register_thing(const std::shared_ptr<Thing>& thing) {
  thing->wires = this;
  thing->handle = kHandlesFrom + static_cast<int>(things_.size());
  things_.push_back(thing.get());
}

Thing* Wires::find(int handle) {
  const auto at = static_cast<std::size_t>(handle - kHandlesFrom);
  return handle < kHandlesFrom || at >= things_.size() ? nullptr : things_[at];
}

void Wires::changed(Thing& thing) {
  scheduler_.notify(thing.waiting);
  if (thing.poller == nullptr) return;
  thing.poller->changed.insert(thing.handle);
  scheduler_.notify(thing.poller->waiting);
}

std::shared_ptr<Port> Wires::open_port(std::uint32_t machine, const std::string& address) {
  auto port = std::make_shared<Port>();
  register_thing(port);
  ports_[address] = {machine, port};
  return port;
}

void Wires::close_port(const std::string& address) {
  const auto found = ports_.find(address);
  if (found == ports_.end()) return;
  for (const auto& end : found->second.second->backlog) close(*end);
  ports_.erase(found);
}

std::shared_ptr<Flag> Wires::make_flag() {
  auto flag = std::make_shared<Flag>();
  register_thing(flag);
  return flag;
}

std::shared_ptr<End> Wires::make_end(Process& owner) {
  auto end = std::make_shared<End>();
  register_thing(end);
  end->machine = owner.machine;
  own(owner, end);
  return end;
}

void Wires::own(Process& process, const std::shared_ptr<End>& end) {
  end->owner = &process;
  auto& all = ends_of_[process.pid];
  if (all.size() % 64 == 63) std::erase_if(all, [](const auto& weak) { return weak.expired(); });
  all.push_back(end);
}

// --- Connecting

std::shared_ptr<End> Wires::start_connect(Process& from, const std::string& address, bool local) {
  auto end = make_end(from);
  end->local = local;
  knock(end, address, local ? 0ms : kFirstRetry);
  return end;
}

void Wires::knock(const std::shared_ptr<End>& caller, const std::string& address, Duration pause) {
  const auto found = ports_.find(address);
  // Where nobody listens the address still says which machine: "10.0.0.<machine>:<port>".
  std::uint32_t machine = caller->machine;
  if (!caller->local) {
    const std::size_t dot = address.rfind('.');
    (void)parse_number(std::string_view(address).substr(dot + 1, address.rfind(':') - dot - 1), machine);
  }
  const Path& way = path(caller->machine, machine);
  const Duration there = caller->local ? Duration(3us) : scheduler_.between(way.latency, way.latency + way.jitter);
  scheduler_.after(there, [this, caller, address, machine, pause, there] {
    if (caller->closed) return;
    const bool answered = caller->local || (is_open(caller->machine, machine) && is_open(machine, caller->machine) &&
                                            has_power(machine) && has_power(caller->machine));
    if (!answered) {
      scheduler_.after(pause, [this, caller, address, pause] {
        if (!caller->closed) knock(caller, address, std::min(2 * pause, kLastRetry));
      });
      return;
    }
    const auto port = ports_.find(address);
    if (port == ports_.end()) {
      scheduler_.after(there, [this, caller] {
        caller->broken = "nobody listens (ECONNREFUSED)";
        changed(*caller);
      });
      return;
    }
    auto called = std::make_shared<End>();
    register_thing(called);
    called->machine = machine;
    called->local = caller->local;
    called->connected = true;
    called->other = caller;
    called->peer_pid = caller->owner->pid;
    caller->other = called;
    port->second.second->backlog.push_back(called);
    changed(*port->second.second);
    scheduler_.after(there, [this, caller] {
      caller->connected = true;
      changed(*caller);
    });
  });
  (void)found;
}

std::pair<std::shared_ptr<End>, std::shared_ptr<End>> Wires::packet_pair(Process& first, Process& second) {
  auto a = make_end(first);
  auto b = make_end(second);
  for (const auto& [one, other] : {std::pair(a, b), std::pair(b, a)}) {
    one->local = one->packets = one->connected = true;
    one->other = other;
    one->peer_pid = other->owner->pid;
  }
  return {a, b};
}

// --- Bytes

Result<std::size_t> Wires::send(End& end, std::span<const std::byte> bytes, std::vector<Passed> passed) {
  if (!end.broken.empty()) return Error{Code::unreachable, "send: " + end.broken};
  if (!end.connected) return std::size_t{0};
  const std::size_t room = kRoomBytes - std::min(kRoomBytes, end.under_way_bytes);
  const std::size_t count = end.packets && room > 0 ? bytes.size() : std::min(room, bytes.size());
  if (count == 0) return std::size_t{0};
  const auto other = end.other.lock();
  if (!other) return Error{Code::unreachable, std::string("send: ") + kGone};
  Piece piece;
  piece.bytes.assign(reinterpret_cast<const char*>(bytes.data()), count);
  piece.passed = std::move(passed);
  if (!end.local && damage_from_ != 0 && count >= damage_from_) {
    piece.bytes[scheduler_.random(count)] ^= static_cast<char>(1 << scheduler_.random(8));
    damage_from_ = 0;
  }
  const Path& way = path(end.machine, other->machine);
  // Pieces are under way at the same time, in order: only their bytes go one after another.
  const Duration latency = end.local ? Duration(2us) : scheduler_.between(way.latency, way.latency + way.jitter);
  const Duration bytes_take =
      end.local ? Duration::zero()
                : Duration(static_cast<std::int64_t>(1e9 * static_cast<double>(count) / bytes_a_second_));
  const Duration before = end.under_way.empty() ? scheduler_.now() : end.under_way.back().due;
  piece.due = std::max(before, scheduler_.now() + latency) + bytes_take;
  end.under_way_bytes += count;
  end.under_way.push_back(std::move(piece));
  move(std::static_pointer_cast<End>(end.shared_from_this()));
  return count;
}

void Wires::move(const std::shared_ptr<End>& from) {
  if (from->moving || from->under_way.empty()) return;
  from->moving = true;
  scheduler_.at(from->under_way.front().due, [this, from] { arrive(from); });
}

void Wires::arrive(const std::shared_ptr<End>& from) {
  from->moving = false;
  if (from->under_way.empty()) return;
  const auto to = from->other.lock();
  if (!has_power(from->machine)) return;
  const bool open = from->local || (to != nullptr && is_open(from->machine, to->machine) && has_power(to->machine));
  if (!open && to != nullptr) {
    from->pause = std::min(std::max<Duration>(2 * from->pause, 5ms), Duration(400ms));
    from->under_way.front().due = scheduler_.now() + scheduler_.between(1ms, from->pause);
    return move(from);
  }
  from->pause = Duration::zero();
  Piece piece = std::move(from->under_way.front());
  from->under_way.pop_front();
  const bool full = from->under_way_bytes >= kRoomBytes;
  from->under_way_bytes -= piece.bytes.size();
  if (to != nullptr) {
    // What its reader has not taken still fills the sender's room.
    if (piece.kind == Piece::Kind::data && to->arrived_bytes + piece.bytes.size() > kRoomBytes && !to->closed) {
      from->under_way_bytes += piece.bytes.size();
      piece.due = scheduler_.now() + 100us;
      from->under_way.push_front(std::move(piece));
      return move(from);
    }
    deliver(*to, std::move(piece));
  }
  if (full) changed(*from);
  move(from);
}

void Wires::deliver(End& to, Piece piece) {
  if (to.closed && piece.kind == Piece::Kind::data) {  // nobody is there any more
    if (const auto back = to.other.lock()) {
      Piece reset;
      reset.kind = Piece::Kind::reset;
      reset.due = scheduler_.now() + path(to.machine, back->machine).latency;
      to.under_way.push_back(std::move(reset));
      move(std::static_pointer_cast<End>(to.shared_from_this()));
    }
    return;
  }
  if (to.closed) return;
  switch (piece.kind) {
    case Piece::Kind::data:
      to.arrived_bytes += piece.bytes.size();
      to.arrived.push_back(std::move(piece));
      break;
    case Piece::Kind::end:
      to.ended = true;
      break;
    case Piece::Kind::reset:
      to.broken = "reset by the other side (ECONNRESET)";
      break;
  }
  changed(to);
}

void Wires::deliver_now(End& to) {
  const auto from = to.other.lock();
  while (from != nullptr && !from->under_way.empty()) {
    Piece piece = std::move(from->under_way.front());
    from->under_way.pop_front();
    from->under_way_bytes -= piece.bytes.size();
    deliver(to, std::move(piece));
  }
}

Result<std::size_t> Wires::receive(End& end, std::span<std::byte> buffer) {
  std::size_t taken = 0;
  while (taken < buffer.size() && !end.arrived.empty()) {
    Piece& piece = end.arrived.front();
    if (!piece.passed.empty()) {
      if (taken > 0) break;  // never joined with what came before
      for (Passed& one : piece.passed) end.passed.push_back(std::move(one));
      piece.passed.clear();
    }
    const std::size_t count = std::min(buffer.size() - taken, piece.bytes.size());
    std::memcpy(buffer.data() + taken, piece.bytes.data(), count);
    taken += count;
    end.arrived_bytes -= count;
    const bool whole = count == piece.bytes.size();
    if (whole || end.packets)
      end.arrived.pop_front();
    else
      piece.bytes.erase(0, count);
    if (end.packets) break;
  }
  if (taken > 0) return taken;
  if (!end.broken.empty()) return Error{Code::unreachable, "receive: " + end.broken};
  if (end.ended) return Error{Code::unreachable, "closed by the other side (EOF)"};
  return std::size_t{0};
}

std::vector<Passed> Wires::pass(std::span<const int> fds) {
  std::vector<Passed> passed;
  for (const int fd : fds) {
    Passed one;
    if (Thing* thing = find(fd); thing != nullptr)
      one.flag = std::static_pointer_cast<Flag>(thing->shared_from_this());
    else
      one.segment = Fd(::dup(fd));
    passed.push_back(std::move(one));
  }
  return passed;
}

// --- Ends

void Wires::close(End& end) {
  if (end.closed) return;
  end.closed = true;
  const auto self = std::static_pointer_cast<End>(end.shared_from_this());
  const auto other = end.other.lock();
  if (other == nullptr) return;
  Piece last;
  last.kind = end.arrived_bytes > 0 ? Piece::Kind::reset : Piece::Kind::end;
  last.due = scheduler_.now() + (end.local ? Duration(2us) : path(end.machine, other->machine).latency);
  if (!end.under_way.empty()) last.due = std::max(last.due, end.under_way.back().due);
  end.under_way.push_back(std::move(last));
  move(self);
}

void Wires::close_all(Process& process, bool silent) {
  for (const auto& weak : ends_of_[process.pid]) {
    const auto end = weak.lock();
    if (end == nullptr) continue;
    if (!silent) {
      close(*end);
      continue;
    }
    end->closed = true;
    end->under_way.clear();
    end->under_way_bytes = 0;
  }
  ends_of_.erase(process.pid);
}

// --- The seam's classes

namespace {

class WireStream final : public Stream {
 public:
  WireStream(Wires& wires, std::shared_ptr<End> end) : wires_(wires), end_(std::move(end)) {}
  ~WireStream() override { wires_.close(*end_); }

  Status send_all(std::initializer_list<std::span<const std::byte>> parts, Deadline deadline) override {
    for (std::span<const std::byte> part : parts)
      while (!part.empty()) {
        PAWL_ASSIGN(const std::size_t sent, wires_.send(*end_, part));
        part = part.subspan(sent);
        if (sent == 0) PAWL_TRY(wait_writable(deadline));
      }
    return {};
  }
  Status receive_all(std::span<std::byte> buffer, Deadline deadline) override {
    while (!buffer.empty()) {
      PAWL_ASSIGN(const std::size_t received, wires_.receive(*end_, buffer));
      buffer = buffer.subspan(received);
      if (received == 0) PAWL_TRY(wait(deadline, &Ready::readable));
    }
    return {};
  }
  Status send_with_fds(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) override {
    for (std::vector<Passed> passed = wires_.pass(fds); !bytes.empty();) {
      PAWL_ASSIGN(const std::size_t sent, wires_.send(*end_, bytes, std::move(passed)));
      passed.clear();
      bytes = bytes.subspan(sent);
      if (sent == 0) PAWL_TRY(wait_writable(deadline));
    }
    return {};
  }
  Status wait_writable(Deadline deadline) override { return wait(deadline, &Ready::writable); }
  void shut_down() override {
    wires_.close(*end_);
    end_->broken = "shut down here";
    wires_.changed(*end_);
  }
  int handle() const override { return end_->handle; }
  Result<std::size_t> try_send(std::span<const std::byte> bytes) override { return wires_.send(*end_, bytes); }
  Result<std::size_t> try_receive(std::span<std::byte> buffer) override { return wires_.receive(*end_, buffer); }
  Status finish_connect() override {
    if (!end_->broken.empty()) return Error{Code::unreachable, "connect: " + end_->broken};
    return {};
  }
  bool is_local() const override { return end_->local; }
  Result<PeerCredentials> peer_credentials() const override {
    if (!end_->local) return Error{Code::invalid, "not a local stream"};
    return PeerCredentials{.pid = static_cast<pid_t>(end_->peer_pid)};
  }

 private:
  Status wait(Deadline deadline, bool Ready::*what) {
    while (!(end_->ready().*what)) {
      if (deadline.passed()) return Error{Code::timeout, "the deadline passed"};
      const Duration left = deadline.left();
      wires_.scheduler().wait(end_->waiting, left == kForever ? kForever : wires_.scheduler().now() + left);
    }
    return {};
  }
  Wires& wires_;
  const std::shared_ptr<End> end_;
};

class WireListener final : public Listener {
 public:
  WireListener(Wires& wires, Process& process, std::shared_ptr<Port> port)
      : wires_(wires), process_(process), port_(std::move(port)) {}
  int handle() const override { return port_->handle; }
  Result<std::unique_ptr<Stream>> try_accept() override {
    if (port_->backlog.empty()) return std::unique_ptr<Stream>();
    std::shared_ptr<End> end = std::move(port_->backlog.front());
    port_->backlog.pop_front();
    wires_.own(process_, end);
    return stream_of(wires_, std::move(end));
  }

 private:
  Wires& wires_;
  Process& process_;
  const std::shared_ptr<Port> port_;
};

class WireEvent final : public SharedEvent {
 public:
  WireEvent(Wires& wires, std::shared_ptr<Flag> flag) : wires_(wires), flag_(std::move(flag)) {}
  void raise() override {
    flag_->raised = true;
    wires_.changed(*flag_);
  }
  bool lower() override { return std::exchange(flag_->raised, false); }
  int handle() const override { return flag_->handle; }

 private:
  Wires& wires_;
  const std::shared_ptr<Flag> flag_;
};

class WirePoller final : public Poller {
 public:
  WirePoller(Wires& wires, Clock& clock) : wires_(wires), clock_(clock), state_(new PollerState) {}
  ~WirePoller() override {
    for (const auto& [handle, watched] : state_->watched)
      if (Thing* thing = wires_.find(handle)) thing->poller = nullptr;
    delete state_;
  }
  Status add(int handle, std::uint64_t key, Interest interest) override {
    Thing* thing = wires_.find(handle);
    if (thing == nullptr || !state_->watched.emplace(handle, PollerState::Watched{key, interest}).second)
      return Error{Code::io, text("poll handle ", handle, ": none, or there already")};
    thing->poller = state_;
    state_->changed.insert(handle);
    return {};
  }
  Status modify(int handle, std::uint64_t key, Interest interest) override {
    const auto found = state_->watched.find(handle);
    if (found == state_->watched.end()) return Error{Code::io, text("poll handle ", handle, ": not there")};
    found->second = {key, interest};
    state_->changed.insert(handle);
    return {};
  }
  void remove(int handle) override {
    state_->watched.erase(handle);
    state_->changed.erase(handle);
    if (Thing* thing = wires_.find(handle)) thing->poller = nullptr;
  }
  Status wait(Duration timeout, std::vector<Ready>& ready) override {
    Scheduler& scheduler = wires_.scheduler();
    const Duration until = timeout < Duration::zero() ? kForever : scheduler.now() + timeout;
    for (;;) {
      look(ready);
      if (!ready.empty() || std::exchange(state_->woken, false)) break;
      if (!scheduler.wait(state_->waiting, until)) {
        look(ready);
        break;
      }
    }
    state_->woken = false;
    return {};
  }
  void wake() override {
    state_->woken = true;
    wires_.scheduler().notify(state_->waiting);
  }

 private:
  void look(std::vector<Ready>& ready) const {
    ready.clear();
    for (auto it = state_->changed.begin(); it != state_->changed.end();) {
      const Thing* thing = wires_.find(*it);
      Ready now = thing != nullptr ? thing->ready() : Ready{};
      const PollerState::Watched& watched = state_->watched.at(*it);
      now.key = watched.key;
      now.readable = (now.readable && watched.interest.read) || now.hung_up;
      now.writable = now.writable && watched.interest.write;
      const bool is_ready = now.readable || now.writable;
      if (is_ready) ready.push_back(now);
      it = is_ready ? std::next(it) : state_->changed.erase(it);
    }
  }
  Wires& wires_;
  Clock& clock_;
  PollerState* const state_;
};

}  // namespace

std::unique_ptr<Stream> stream_of(Wires& wires, std::shared_ptr<End> end) {
  return std::make_unique<WireStream>(wires, std::move(end));
}
std::unique_ptr<Listener> listener_of(Wires& wires, Process& process, std::shared_ptr<Port> port) {
  return std::make_unique<WireListener>(wires, process, std::move(port));
}
std::unique_ptr<SharedEvent> event_of(Wires& wires, std::shared_ptr<Flag> flag) {
  return std::make_unique<WireEvent>(wires, std::move(flag));
}

Result<std::unique_ptr<Stream>> ProcessNetwork::connect(const Address& address, Deadline deadline) {
  PAWL_ASSIGN(std::unique_ptr<Stream> stream, start_connect(address));
  if (Status writable = stream->wait_writable(deadline); !writable)
    return Error{Code::timeout, text("connect to ", address, ": ", writable.error().what)};
  PAWL_TRY(stream->finish_connect());
  return stream;
}

Result<std::unique_ptr<Stream>> ProcessNetwork::start_connect(const Address& address) {
  return stream_of(wires_, wires_.start_connect(process_, text(address), false));
}

Result<std::unique_ptr<Poller>> ProcessNetwork::make_poller() {
  return std::unique_ptr<Poller>(std::make_unique<WirePoller>(wires_, clock_));
}

Result<std::unique_ptr<SharedEvent>> ProcessNetwork::make_event() {
  return event_of(wires_, wires_.make_flag());
}

}  // namespace pawl::sim
