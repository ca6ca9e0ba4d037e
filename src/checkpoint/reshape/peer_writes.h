// PeerWrites: boxes on their way into the memory of other processes, many in one system call.
//
// A box that needs a cast, or lies in short runs, is first made dense in a buffer here. Other boxes are sent from where
// they lie, so their memory must stay unchanged until flush(). One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/result.h"
#include "checkpoint/reshape/strided.h"
#include "env/peer_memory.h"

namespace pawl::checkpoint {

class PeerWrites {
 public:
  explicit PeerWrites(PeerMemory* peers) : peers_(peers) {}  // null: nothing will be added

  // copy.to is an address in `peer`. The answer is copy_box's. Fails as PeerMemory::write; flushes when it holds much.
  [[nodiscard]] Result<std::uint64_t> add(std::uint32_t peer, const BoxCopy& copy);
  // Has all of it written, and lets go of the sources. Fails as PeerMemory::write.
  [[nodiscard]] Status flush();

 private:
  struct Writes {
    std::vector<iovec> from, to;
  };
  PeerMemory* peers_;
  std::map<std::uint32_t, Writes> writes_;
  std::deque<std::unique_ptr<std::byte[]>> dense_;
  std::uint64_t dense_bytes_ = 0;
  std::size_t ranges_ = 0;
};

}  // namespace pawl::checkpoint
