// MasterRendezvous: addresses exchanged at MASTER_ADDR:MASTER_PORT, as torchrun's environment names them, without pawl.
//
// Rank 0 listens there for as long as one exchange lasts; each rank says where it listens and is told where the next
// one does. Fails after a minute, or at once if the port is taken.
#pragma once

#include "ring.h"

namespace charlm {

class MasterRendezvous : public Rendezvous {
 public:
  explicit MasterRendezvous(Address master) : master_(std::move(master)) {}
  Outcome exchange(std::uint32_t rank, std::uint32_t world, const Address& mine, Watch& watch, Address* next) override;

 private:
  Outcome serve(std::uint32_t world, const Address& mine, Watch& watch, Address* next);
  Address master_;
};

}  // namespace charlm
