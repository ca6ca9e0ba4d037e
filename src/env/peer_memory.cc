#include "env/peer_memory.h"

#include <limits.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <mutex>
#include <random>

#include "base/text.h"

namespace pawl {

// What others read and write of a process. All words are read and written by the kernel for them, aligned and whole.
struct PeerMemory::Door {
  std::atomic<std::uint64_t> cookie{0};                         // of the PeerMemory that has it; 0: none has
  std::atomic<std::uint64_t> is_open{0};                        // 1: others may write
  std::atomic<std::uint64_t> greeting{0};                       // anyone's
  std::array<std::atomic<std::uint64_t>, kPeersMax> writing{};  // how many of our threads write to each peer
};

// Doors stay for as long as the process: others may look at one that was closed.
struct PeerMemory::Doors {
  std::mutex mutex;
  std::vector<std::unique_ptr<Door>> all;
  std::vector<Door*> free;
  std::size_t open = 0;

  static Doors& of_process() {
    static auto* const doors = new Doors;  // never destroyed
    return *doors;
  }
  Door* take() {
    const std::lock_guard lock(mutex);
    if (free.empty()) {
      all.push_back(std::make_unique<Door>());
      free.push_back(all.back().get());
    }
    Door* const door = free.back();
    free.pop_back();
    if (++open == 1) (void)::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);  // refused without Yama: not needed
    return door;
  }
  void give_back(Door* door) {
    const std::lock_guard lock(mutex);
    free.push_back(door);
    if (--open == 0) (void)::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  }
};

namespace {

constexpr std::string_view kVersion = "door1";

std::uint64_t random_cookie() {
  std::random_device device;
  const std::uint64_t cookie = std::uint64_t{device()} << 32 | device();
  return cookie == 0 ? 1 : cookie;
}

Error refused(pid_t pid, std::string_view what, int error) {
  return system_error(text("the memory of process ", pid, " can't be ", what), error);
}

// The first bytes of both that are left, so that each call moves as much as the system takes at once.
class Cursor {
 public:
  explicit Cursor(std::span<const iovec> all) : all_(all) {}
  [[nodiscard]] bool at_end() const { return next_ == all_.size(); }
  [[nodiscard]] std::span<const iovec> batch() {
    count_ = std::min<std::size_t>(all_.size() - next_, some_.size());
    std::copy_n(all_.begin() + static_cast<std::ptrdiff_t>(next_), count_, some_.begin());
    some_[0].iov_base = static_cast<std::byte*>(some_[0].iov_base) + done_;
    some_[0].iov_len -= done_;
    return {some_.data(), count_};
  }
  void advance(std::size_t bytes) {
    for (bytes += done_, done_ = 0; next_ < all_.size() && bytes >= all_[next_].iov_len; ++next_)
      bytes -= all_[next_].iov_len;
    done_ = bytes;
  }

 private:
  std::span<const iovec> all_;
  std::size_t next_ = 0, done_ = 0, count_ = 0;
  std::array<iovec, IOV_MAX> some_{};
};

}  // namespace

PeerMemory::PeerMemory() : door_(Doors::of_process().take()) {
  door_->cookie = random_cookie();
  door_->is_open = 1;
}

PeerMemory::~PeerMemory() {
  while (!close(std::chrono::seconds(60))) continue;
  door_->cookie = 0;
  Doors::of_process().give_back(door_);
}

std::string PeerMemory::ticket() const {
  return text(kVersion, " ", ::getpid(), " ", reinterpret_cast<std::uintptr_t>(door_), " ", door_->cookie.load());
}

Result<PeerMemory::Peer> PeerMemory::parse_ticket(const std::string& ticket) {
  Peer peer;
  const char* at = ticket.data();
  const char* const end = at + ticket.size();
  const auto number = [&](auto& to) {
    if (at == end || *at != ' ') return false;
    const auto [after, error] = std::from_chars(at + 1, end, to);
    at = after;
    return error == std::errc{};
  };
  bool good = ticket.starts_with(kVersion);
  if (good) at += kVersion.size();
  good = good && number(peer.pid) && number(peer.address) && number(peer.cookie) && at == end && peer.pid > 0;
  if (!good) return Error{Code::invalid, text("\"", ticket, "\" is no ticket of this version")};
  return peer;
}

// One word of the peer's door. Fails: `unreachable` where the door is another's by now, or the process gone; `io`.
Status PeerMemory::look(const Peer& peer, std::size_t offset, std::uint64_t& word) const {
  std::array<std::uint64_t, 2> found{};
  const std::array<iovec, 2> to{{{&found[0], 8}, {&found[1], 8}}};
  const std::array<iovec, 2> from{{{reinterpret_cast<void*>(peer.address + offsetof(Door, cookie)), 8},
                                   {reinterpret_cast<void*>(peer.address + offset), 8}}};
  const ssize_t read = ::process_vm_readv(peer.pid, to.data(), to.size(), from.data(), from.size(), 0);
  if (read < 0 && errno != ESRCH && errno != EFAULT) return refused(peer.pid, "read", errno);
  if (read != 16 || found[0] != peer.cookie)
    return Error{Code::unreachable, text("process ", peer.pid, " is gone, or has left")};
  word = found[1];
  return {};
}

Status PeerMemory::join(std::span<const std::string> tickets, std::size_t self) {
  if (!peers_.empty()) return Error{Code::invalid, "joined already"};
  if (tickets.size() > kPeersMax || self >= tickets.size())
    return Error{Code::invalid, text("number ", self, " of ", tickets.size(), " tickets; ", kPeersMax, " at most")};
  std::vector<Peer> peers;
  for (const std::string& ticket : tickets) {
    PAWL_ASSIGN(const Peer peer, parse_ticket(ticket));
    std::uint64_t word = 0;
    if (Status looked = look(peer, offsetof(Door, is_open), word); !looked)
      return Error{Code::io, std::move(looked).error().what};
    const iovec from{&word, 8};
    const iovec to{reinterpret_cast<void*>(peer.address + offsetof(Door, greeting)), 8};
    if (::process_vm_writev(peer.pid, &from, 1, &to, 1, 0) != 8) return refused(peer.pid, "written", errno);
    peers.push_back(peer);
  }
  if (peers[self].address != reinterpret_cast<std::uintptr_t>(door_) || peers[self].cookie != door_->cookie)
    return Error{Code::invalid, text("ticket ", self, " is not this process's")};
  peers_ = std::move(peers);
  self_ = self;
  return {};
}

Status PeerMemory::write(std::size_t number, std::span<const iovec> from, std::span<const iovec> to) {
  if (number >= peers_.size()) return Error{Code::invalid, text("peer ", number, " of ", peers_.size())};
  const Peer& peer = peers_[number];
  std::atomic<std::uint64_t>& writing = door_->writing[number];
  writing.fetch_add(1);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  std::uint64_t is_open = 0;
  Status status = look(peer, offsetof(Door, is_open), is_open);
  if (status && is_open != 1) status = Error{Code::unreachable, text("process ", peer.pid, " has left")};
  for (Cursor ours(from), theirs(to); status && !ours.at_end();) {
    const std::span<const iovec> some = ours.batch(), there = theirs.batch();
    const ssize_t wrote = ::process_vm_writev(peer.pid, some.data(), some.size(), there.data(), there.size(), 0);
    if (wrote < 0 && errno == ESRCH) {
      status = Error{Code::unreachable, text("process ", peer.pid, " is gone")};
    } else if (wrote <= 0) {
      status = refused(peer.pid, "written", wrote < 0 ? errno : EFAULT);
    } else {
      ours.advance(static_cast<std::size_t>(wrote));
      theirs.advance(static_cast<std::size_t>(wrote));
    }
  }
  writing.fetch_sub(1);
  return status;
}

Status PeerMemory::read(std::size_t number, std::uint64_t address, std::span<std::byte> to) const {
  if (number >= peers_.size()) return Error{Code::invalid, text("peer ", number, " of ", peers_.size())};
  const Peer& peer = peers_[number];
  std::uint64_t is_open = 0;
  PAWL_TRY(look(peer, offsetof(Door, is_open), is_open));
  while (!to.empty()) {
    const iovec mine{to.data(), to.size()}, its{reinterpret_cast<void*>(address), to.size()};
    const ssize_t got = ::process_vm_readv(peer.pid, &mine, 1, &its, 1, 0);
    if (got < 0 && errno == ESRCH) return Error{Code::unreachable, text("process ", peer.pid, " is gone")};
    if (got <= 0) return refused(peer.pid, "read", got < 0 ? errno : EFAULT);
    to = to.subspan(static_cast<std::size_t>(got));
    address += static_cast<std::uint64_t>(got);
  }
  return {};
}

bool PeerMemory::writes_here(const Peer& peer) const {
  std::uint64_t writing = 0;
  const Status looked = look(peer, offsetof(Door, writing) + 8 * self_, writing);
  if (!looked) return looked.error().code != Code::unreachable;  // what can't be looked at may write
  return writing != 0;
}

Status PeerMemory::close(Duration patience) {
  door_->is_open = 0;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Deadline deadline = Deadline::in(patience);
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    while (i != self_ && writes_here(peers_[i])) {
      if (deadline.passed())
        return Error{Code::timeout, text("process ", peers_[i].pid, " still writes into this one's memory")};
      real_clock().sleep(std::chrono::milliseconds(1));
    }
  }
  return {};
}

}  // namespace pawl
