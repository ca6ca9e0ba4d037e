// MemoryNetwork: a network within this process, for tests: no descriptor, no port, and any clock.
//
// Addresses are names that somebody listens at. A stream holds what its reader has not taken, up to kRoomBytes. Handles
// are numbers of its own. Bytes take no time; nothing is lost. Descriptors are not passed: send_with_fds refuses them.
// Outlives all that it makes. Thread-safe, over one lock.
#pragma once

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/text.h"
#include "env/clock.h"
#include "env/network.h"
#include "env/tasks.h"

namespace pawl {

class MemoryNetwork final : public Network {
 public:
  static constexpr std::size_t kRoomBytes = 256 << 10;
  using StreamPair = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;

  MemoryNetwork(Tasks& tasks, Clock& clock) : clock_(clock), changed_(tasks.make_condition()) {}

  [[nodiscard]] std::unique_ptr<Listener> listen(const Address& address) {
    auto queue = std::make_shared<Queue>();
    std::lock_guard lock(mutex_);
    listening_[text(address)] = queue;
    return std::make_unique<MemoryListener>(*this, new_handle(queue), text(address), queue);
  }
  [[nodiscard]] StreamPair local_pair() { return connected_pair({.local = true}); }
  [[nodiscard]] StreamPair packet_pair() { return connected_pair({.local = true, .packets = true}); }

  Result<std::unique_ptr<Stream>> connect(const Address& address, Deadline /*deadline*/) override {
    return start_connect(address);
  }
  Result<std::unique_ptr<Stream>> start_connect(const Address& address) override {
    StreamPair pair = connected_pair({});
    std::lock_guard lock(mutex_);
    const auto found = listening_.find(text(address));
    if (found == listening_.end())
      return Error{Code::unreachable, text("connect to ", address, ": nobody listens (ECONNREFUSED)")};
    found->second->waiting.push_back(std::move(pair.second));
    changed_->notify_all();
    return std::move(pair.first);
  }
  Result<std::unique_ptr<Poller>> make_poller() override {
    return std::unique_ptr<Poller>(std::make_unique<MemoryPoller>(*this));
  }
  Result<std::unique_ptr<SharedEvent>> make_event() override {
    std::lock_guard lock(mutex_);
    auto flag = std::make_shared<Flag>();
    return std::unique_ptr<SharedEvent>(std::make_unique<MemoryEvent>(*this, new_handle(flag), flag));
  }

 private:
  // What a handle stands for, as a poller sees it. Under the network's lock.
  struct Thing {
    virtual ~Thing() = default;
    [[nodiscard]] virtual Ready ready() const = 0;
  };
  struct Queue final : Thing {
    std::deque<std::unique_ptr<Stream>> waiting;
    [[nodiscard]] Ready ready() const override { return {.readable = !waiting.empty()}; }
  };
  struct Flag final : Thing {
    bool raised = false;
    [[nodiscard]] Ready ready() const override { return {.readable = raised}; }
  };
  // One direction.
  struct Flow {
    std::deque<std::string> pieces;  // as they were sent
    std::size_t bytes = 0;
    bool ended = false;  // one of its sides has closed or was shut down
  };
  struct Kind {
    bool local = false;
    bool packets = false;
  };
  struct End final : Thing {
    Kind kind;
    std::shared_ptr<Flow> in, out;
    [[nodiscard]] Ready ready() const override {
      return {.readable = in->bytes > 0 || in->ended,
              .writable = out->bytes < kRoomBytes || out->ended,
              .hung_up = in->ended};
    }
  };

  class MemoryStream final : public Stream {
   public:
    MemoryStream(MemoryNetwork& network, int handle, std::shared_ptr<End> end)
        : network_(network), handle_(handle), end_(std::move(end)) {}
    ~MemoryStream() override {
      std::lock_guard lock(network_.mutex_);
      end_both();
      network_.things_.erase(handle_);
    }
    Status send_all(std::initializer_list<std::span<const std::byte>> parts, Deadline deadline) override {
      for (std::span<const std::byte> part : parts)
        while (!part.empty()) {
          PAWL_ASSIGN(const std::size_t sent, try_send(part));
          part = part.subspan(sent);
          if (sent == 0) PAWL_TRY(wait_writable(deadline));
        }
      return {};
    }
    Status receive_all(std::span<std::byte> buffer, Deadline deadline) override {
      while (!buffer.empty()) {
        PAWL_ASSIGN(const std::size_t received, try_receive(buffer));
        buffer = buffer.subspan(received);
        if (received > 0) continue;
        PAWL_TRY(network_.wait_until(deadline, [this] { return end_->ready().readable; }));
      }
      return {};
    }
    Status send_with_fds(std::span<const std::byte> bytes, std::span<const int> fds, Deadline deadline) override {
      if (!fds.empty()) return Error{Code::invalid, "a network in memory passes no descriptors"};
      return send_all({bytes}, deadline);
    }
    Status wait_writable(Deadline deadline) override {
      return network_.wait_until(deadline, [this] { return end_->ready().writable; });
    }
    void shut_down() override {
      std::lock_guard lock(network_.mutex_);
      end_both();
    }

    int handle() const override { return handle_; }
    Result<std::size_t> try_send(std::span<const std::byte> bytes) override {
      std::lock_guard lock(network_.mutex_);
      Flow& out = *end_->out;
      if (out.ended) return Error{Code::unreachable, "send: the other side is gone (EPIPE)"};
      const std::size_t room = kRoomBytes - std::min(out.bytes, kRoomBytes);
      const std::size_t count = end_->kind.packets && room > 0 ? bytes.size() : std::min(room, bytes.size());
      if (count == 0) return std::size_t{0};
      out.pieces.emplace_back(reinterpret_cast<const char*>(bytes.data()), count);
      out.bytes += count;
      network_.changed_->notify_all();
      return count;
    }
    Result<std::size_t> try_receive(std::span<std::byte> buffer) override {
      std::lock_guard lock(network_.mutex_);
      Flow& in = *end_->in;
      std::size_t taken = 0;
      while (taken < buffer.size() && !in.pieces.empty()) {
        std::string& piece = in.pieces.front();
        const std::size_t count = std::min(buffer.size() - taken, piece.size());
        std::memcpy(buffer.data() + taken, piece.data(), count);
        taken += count;
        in.bytes -= count;
        piece.erase(0, count);
        if (piece.empty()) in.pieces.pop_front();
        if (end_->kind.packets) break;
      }
      if (taken > 0) network_.changed_->notify_all();
      if (taken == 0 && in.ended) return Error{Code::unreachable, "closed by the other side (EOF)"};
      return taken;
    }
    Status finish_connect() override { return {}; }
    bool is_local() const override { return end_->kind.local; }
    Result<PeerCredentials> peer_credentials() const override {
      if (!end_->kind.local) return Error{Code::invalid, "not a local stream"};
      return PeerCredentials{.pid = 1};
    }

   private:
    void end_both() {  // under the lock
      end_->out->ended = end_->in->ended = true;
      network_.changed_->notify_all();
    }
    MemoryNetwork& network_;
    const int handle_;
    const std::shared_ptr<End> end_;
  };

  class MemoryListener final : public Listener {
   public:
    MemoryListener(MemoryNetwork& network, int handle, std::string address, std::shared_ptr<Queue> queue)
        : network_(network), handle_(handle), address_(std::move(address)), queue_(std::move(queue)) {}
    ~MemoryListener() override {
      std::deque<std::unique_ptr<Stream>> unheard;  // closed when the lock is free
      std::lock_guard lock(network_.mutex_);
      const auto found = network_.listening_.find(address_);
      if (found != network_.listening_.end() && found->second == queue_)
        network_.listening_.erase(found);  // not a later one's
      network_.things_.erase(handle_);
      unheard.swap(queue_->waiting);
    }
    int handle() const override { return handle_; }
    Result<std::unique_ptr<Stream>> try_accept() override {
      std::lock_guard lock(network_.mutex_);
      if (queue_->waiting.empty()) return std::unique_ptr<Stream>();
      std::unique_ptr<Stream> stream = std::move(queue_->waiting.front());
      queue_->waiting.pop_front();
      return stream;
    }

   private:
    MemoryNetwork& network_;
    const int handle_;
    const std::string address_;
    const std::shared_ptr<Queue> queue_;
  };

  class MemoryEvent final : public SharedEvent {
   public:
    MemoryEvent(MemoryNetwork& network, int handle, std::shared_ptr<Flag> flag)
        : network_(network), handle_(handle), flag_(std::move(flag)) {}
    ~MemoryEvent() override {
      std::lock_guard lock(network_.mutex_);
      network_.things_.erase(handle_);
    }
    void raise() override {
      std::lock_guard lock(network_.mutex_);
      flag_->raised = true;
      network_.changed_->notify_all();
    }
    bool lower() override {
      std::lock_guard lock(network_.mutex_);
      return std::exchange(flag_->raised, false);
    }
    int handle() const override { return handle_; }

   private:
    MemoryNetwork& network_;
    const int handle_;
    const std::shared_ptr<Flag> flag_;
  };

  class MemoryPoller final : public Poller {
   public:
    explicit MemoryPoller(MemoryNetwork& network) : network_(network) {}
    Status add(int handle, std::uint64_t key, Interest interest) override {
      std::lock_guard lock(network_.mutex_);
      const bool fresh = network_.things_.contains(handle) && watched_.emplace(handle, Watched{key, interest}).second;
      return fresh ? Status() : Status(Error{Code::io, text("poll handle ", handle, ": none, or there already")});
    }
    Status modify(int handle, std::uint64_t key, Interest interest) override {
      std::lock_guard lock(network_.mutex_);
      const auto found = watched_.find(handle);
      if (found == watched_.end()) return Error{Code::io, text("poll handle ", handle, ": not there")};
      found->second = {key, interest};
      return {};
    }
    void remove(int handle) override {
      std::lock_guard lock(network_.mutex_);
      watched_.erase(handle);
    }
    Status wait(Duration timeout, std::vector<Ready>& ready) override {
      const Deadline deadline = timeout < Duration::zero() ? Deadline::never() : Deadline::in(timeout, network_.clock_);
      (void)network_.wait_until(deadline, [&] {
        look(ready);
        return !ready.empty() || std::exchange(woken_, false);
      });
      return {};
    }
    void wake() override {
      std::lock_guard lock(network_.mutex_);
      woken_ = true;
      network_.changed_->notify_all();
    }

   private:
    struct Watched {
      std::uint64_t key;
      Interest interest;
    };
    void look(std::vector<Ready>& ready) const {  // under the lock
      ready.clear();
      for (const auto& [handle, watched] : watched_) {
        const auto thing = network_.things_.find(handle);
        if (thing == network_.things_.end()) continue;
        Ready now = thing->second->ready();
        now.key = watched.key;
        now.readable = (now.readable && watched.interest.read) || now.hung_up;
        now.writable = now.writable && watched.interest.write;
        if (now.readable || now.writable) ready.push_back(now);
      }
    }
    MemoryNetwork& network_;
    std::map<int, Watched> watched_;
    bool woken_ = false;
  };

  int new_handle(std::shared_ptr<Thing> thing) {  // under the lock
    things_[next_handle_] = std::move(thing);
    return next_handle_++;
  }
  StreamPair connected_pair(Kind kind) {
    auto there = std::make_shared<Flow>();
    auto back = std::make_shared<Flow>();
    std::lock_guard lock(mutex_);
    return {new_stream(kind, back, there), new_stream(kind, there, back)};
  }
  std::unique_ptr<Stream> new_stream(Kind kind, std::shared_ptr<Flow> in, std::shared_ptr<Flow> out) {
    auto end = std::make_shared<End>();
    end->kind = kind;
    end->in = std::move(in);
    end->out = std::move(out);
    return std::make_unique<MemoryStream>(*this, new_handle(end), end);
  }
  template <class Predicate>
  Status wait_until(Deadline deadline, Predicate is_so) {
    std::unique_lock lock(mutex_);
    while (!is_so()) {
      if (deadline.passed()) return Error{Code::timeout, "the deadline passed"};
      if (deadline.is_never())
        changed_->wait(lock);
      else
        changed_->wait_for(lock, deadline.left());
    }
    return {};
  }

  Clock& clock_;
  std::mutex mutex_;
  const std::unique_ptr<Condition> changed_;
  std::map<std::string, std::shared_ptr<Queue>> listening_;
  std::map<int, std::shared_ptr<Thing>> things_;  // by handle
  int next_handle_ = 1;
};

}  // namespace pawl
