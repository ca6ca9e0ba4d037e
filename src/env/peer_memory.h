// PeerMemory: writing straight into the memory of other processes of this machine, with their leave.
//
// Linux's cross memory attach (process_vm_writev): one copy, no buffer between, no message. Processes that work
// together each open one, tell each other their tickets by their own means, and join. What always holds:
//  * a ticket leads to the process that made it, or nowhere: a cookie in its memory is compared before every write, so
//    a process number that was used again, or that means another process in this namespace, is refused;
//  * nobody writes after close() has returned `ok`. A writer says that it writes, then looks whether the other is open;
//    who closes says so, then waits for those that write: one of the two sees the other, as in Dekker's algorithm.
// The other process need do nothing meanwhile, and is told nothing: by their own means again.
//
// It needs the right to trace the other process: the same user, and a system that allows it. Where Yama restricts that
// (Ubuntu's default), a process lets all processes of its user trace it while its PeerMemory is open.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "env/clock.h"

namespace pawl {

class PeerMemory {
 public:
  static constexpr std::size_t kPeersMax = 256;  // this process among them

  PeerMemory();   // open
  ~PeerMemory();  // close(), waiting for as long as it takes
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  // One line of text, for join() of the others.
  [[nodiscard]] std::string ticket() const;
  // `tickets`: the same on all of them, in the same order; number `self` is this one's. Reads and writes a word of
  // each. Fails: `invalid` (no ticket, too many, joined already); `io` where the system refuses, or another process is
  // there.
  [[nodiscard]] Status join(std::span<const std::string> tickets, std::size_t self);

  // Copies `from`, of this process, to `to`, addresses of peer number `peer`: as many bytes; no range is empty.
  // Thread-safe, after join().
  // Fails: `unreachable` where the peer has closed or is gone; `io`. Some of it may have been written then.
  [[nodiscard]] Status write(std::size_t peer, std::span<const iovec> from, std::span<const iovec> to);

  // Copies what lies at `address` of that peer, as it is now. After join(). Fails as write().
  [[nodiscard]] Status read(std::size_t peer, std::uint64_t address, std::span<std::byte> to) const;

  // From now on nobody writes into this process. Idempotent. Fails: `timeout` where a peer's write goes on for so long
  // (a process that is stopped): nobody may rely on this process's memory then; call again.
  [[nodiscard]] Status close(Duration patience);

 private:
  struct Door;
  struct Doors;
  struct Peer {
    pid_t pid = 0;
    std::uint64_t address = 0, cookie = 0;
  };
  [[nodiscard]] static Result<Peer> parse_ticket(const std::string& ticket);
  [[nodiscard]] Status look(const Peer& peer, std::size_t offset, std::uint64_t& word) const;
  [[nodiscard]] bool writes_here(const Peer& peer) const;

  Door* door_;
  std::vector<Peer> peers_;
  std::size_t self_ = 0;
};

}  // namespace pawl
