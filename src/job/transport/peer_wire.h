// What pawld says to pawld, over TCP in frames (job/transport/frame.h).
//
// Every connection begins with `hello`; the answer is `welcome` or `refused`. What may follow depends on its purpose:
// link   heartbeats, reports up and progress down the tree, the rendezvous store. One for each direction of a
//        neighbour pair; requests go one way, answers come back on the same connection.
// data   the replica stream of one seat to one holder.
// fetch  recovery: one slot of one seat.
// A message of another generation than the hello's is refused; receivers land bytes in their final place and verify
// them there before they acknowledge.
#pragma once

#include <cstdint>
#include <string>

#include "base/ids.h"
#include "job/transport/frame.h"

namespace pawl::job {

inline constexpr std::uint32_t kPeerWireVersion = 2;

enum class Purpose : std::uint8_t { link = 1, data = 2, fetch = 3 };

enum class PeerWire : std::uint16_t {
  hello = 40,    // Hello
  welcome = 41,  // u32 node, u64 incarnation
  refused = 42,  // u8 PeerRefusal, str why

  // link
  beat = 50,  // u64 generation. Answer: beat_back
  beat_back = 51,
  report = 52,    // u64 generation, u64 Progress::pack(), u64 held, u64 voided: SeatReport of the sender's subtree
  progress = 53,  // u64 generation, u64 Progress::pack()
  store =
      54,  // u64 generation, StoreRequest (job/rendezvous/rendezvous_store.h), to the root. Answer: store_answer with the same
           // id, when there is one; asked again over every new link
  store_answer = 55,  // StoreAnswer

  // data: one step after the other
  open = 60,  // u64 generation, u64 step, u64 samples, ArenaShape. Answer: opened, busy (ask again later), held
  opened = 61,
  busy = 62,        // the reuse gate leaves no slot yet
  held = 63,        // acknowledgement: the slot lies verified and sealed in the holder's memory. u64 step
  bucket = 64,      // u32 index, u32 crc32c; the payload's bytes follow the fields
  bucket_bad = 65,  // u32 index: the bytes that arrived do not have that sum
  seal = 66,        // u64 step. Answer: held
  abandon = 67,     // u64 step: void

  // fetch
  fetch = 70,       // u32 seat, u8 own(1)|replica(2), u64 slot generation, u64 step. Answer: slot_begin or refused
  slot_begin = 71,  // u64 generation, u64 step, u64 samples, ArenaShape; then every bucket in order
};

enum class PeerRefusal : std::uint8_t {
  never = 1,    // another job, version or token
  stale = 2,    // of an old generation or incarnation
  later = 3,    // not yet in that generation: ask again
  missing = 4,  // no such slot
};

struct Hello {
  std::uint32_t version = kPeerWireVersion;
  std::string job;
  std::string token;
  NodeId node;
  Incarnation incarnation;
  Incarnation expected;  // of the receiver; 0: any
  Generation generation;
  Purpose purpose = Purpose::link;
  Seat seat;  // data: whose replica stream

  [[nodiscard]] std::string encode() const {
    return Writer()
        .u32(version)
        .str(job)
        .str(token)
        .u32(node.value)
        .u64(incarnation.value)
        .u64(expected.value)
        .u64(generation.value)
        .u8(static_cast<std::uint8_t>(purpose))
        .u32(seat.value)
        .take();
  }
  [[nodiscard]] static bool decode(std::string_view payload, Hello& out) {
    Reader in(payload);
    out.version = in.u32();
    if (!in.ok() || out.version != kPeerWireVersion) return in.ok();  // the rest may look different
    out.job = in.str();
    out.token = in.str();
    out.node = NodeId(in.u32());
    out.incarnation = Incarnation(in.u64());
    out.expected = Incarnation(in.u64());
    out.generation = Generation(in.u64());
    out.purpose = static_cast<Purpose>(in.u8());
    out.seat = Seat(in.u32());
    return in.done();
  }
};

}  // namespace pawl::job
