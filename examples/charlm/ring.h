// Ring: the collectives of data-parallel training over TCP, each rank talking to its two neighbours only.
//
// Sums run in one defined order, so that equal inputs give bitwise equal results, always: chunk c of a reduction is
//   ((x[c+1] + x[c+2]) + ...) + x[c]      ranks modulo world, x[r] being rank r's chunk c
// and ends on rank c. No failure ends the process: a neighbour's death is an Outcome within milliseconds, and then this
// ring is only good for close(). A connection begins with a handshake over (generation, world, rank, configuration), so
// that no leftover of an older generation gets in.
// Does not retry and does not know pawl: what interrupts its waits is the Watch. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "outcome.h"
#include "socket.h"

namespace charlm {

// How ranks learn each other's addresses: over pawl's rendezvous, or over MASTER_ADDR (rendezvous.h).
class Rendezvous {
 public:
  virtual ~Rendezvous() = default;
  // Publishes where this rank listens, and waits for the address of the next one, (rank + 1) % world.
  virtual Outcome exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch& watch,
                           Address* next) = 0;
};

struct RingOptions {
  std::uint32_t rank = 0;
  std::uint32_t world = 1;
  std::uint64_t generation = 0;            // must be equal on all ranks, and new after every failure
  std::uint64_t configuration = 0;         // a hash of what must be equal on all ranks
  std::string node_address = "127.0.0.1";  // where to listen: an address that the neighbours reach
};

// First on every connection, from the one that connected; and the answer.
inline constexpr std::uint64_t kRingMagic = 0x3130676e6972636cull;
struct RingHello {
  std::uint64_t magic;
  std::uint64_t generation;
  std::uint64_t configuration;
  std::uint32_t rank;
  std::uint32_t world;
};
enum class RingVerdict : std::uint32_t { welcome = 1, stale = 2, differs = 3 };
struct RingAnswer {
  std::uint64_t magic;
  RingVerdict verdict;
  std::uint32_t rank;
};

class Ring {
 public:
  // Closes what was open and connects to both neighbours. `refused`: a neighbour is configured differently.
  Outcome connect(const RingOptions& options, Rendezvous& rendezvous, Watch& watch);
  void close();
  // After a failure, before close(): the neighbours that are gone, as pawl_fault_report_lost wants them.
  [[nodiscard]] std::string lost() const;

  // `values` is cut in `world` equal chunks (its size divides evenly). Afterwards chunk `rank` holds the sum over all
  // ranks; the other chunks hold nothing of use.
  Outcome reduce_scatter(std::span<float> values, Watch& watch);
  // Chunk `rank` is this rank's contribution; afterwards all chunks are here.
  Outcome all_gather(std::span<float> values, Watch& watch);
  // The same for any bytes: `mine` of every rank in rank order.
  Outcome all_gather_bytes(std::span<const std::byte> mine, std::span<std::byte> all, Watch& watch);

 private:
  struct Header;
  Outcome shake_hands(const Socket& listener, Watch& watch);
  Outcome accept_previous(const Socket& listener, Watch& watch);
  Outcome pass_on(const void* out, void* in, std::size_t bytes, Watch& watch);

  RingOptions options_;
  Socket next_;
  Socket previous_;
  std::uint64_t sequence_ = 0;
  std::vector<float> incoming_;
};

}  // namespace charlm
