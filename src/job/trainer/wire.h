// What a trainer (libpawl) and its node's pawld say to each other, over a Unix stream socket in frames.
//
// The trainer speaks first: `attach`. Each request has an id; its answer carries the same. pawld answers a request
// when it can, which may be long after (join, restore, done, store, finish): a request is a named wait. A trainer
// that reconnects, because pawld was restarted, sends `attach` again (same pid, seat and generation) and then repeats
// the requests that were waiting, with the same ids: every request may be repeated. A recovery is not a message: pawld
// raises TrainerPage::recover_generation and writes the event fd; the trainer drops its waiting request and sends
// `join`. Descriptors travel as SCM_RIGHTS with the first byte of the frame that names them.
#pragma once

#include <cstdint>

namespace pawl::job {

inline constexpr std::uint32_t kTrainerWireVersion = 2;
inline constexpr std::uint32_t kNoSeat = 0xffffffffu;

enum class TrainerWire : std::uint16_t {
  // trainer -> pawld
  attach = 1,   // u32 version, u32 local_index (PAWL_LOCAL_INDEX), u64 nonce, u64 generation (0: new process), u32 seat
  join = 2,     // u64 generation left (0: none); copy threads are joined. Answer: seated
  layout = 3,   // u64 payload_bytes, u64 stable_bytes, u32 bucket_bytes, u64 digest, str layout text. Answer: arena or
                // refused
  restore = 4,  // u64 generation. Answer: slot (when the resume step lies sealed in the own arena)
  restore_bad = 5,  // u32 slot, str why: the source is corrupt. No answer: a recovery follows
  done = 6,         // u64 generation. Answer: running
  fault = 7,        // u64 generation, str what. Answer: noted
  store =
      8,  // u64 generation, StoreRequest (job/rendezvous/rendezvous_store.h; pawld fills in who asks). Answer: value, when there is
          // one. Any number may wait; of what changes something, one at a time
  finish = 10,      // u64 step to be committed first (0: none), u64 last step. Answer: finished
  detach = 11,      // a regular end. No answer
  stop_after = 12,  // u64 generation, u64 step. Answer: stopping, when every member's pages have it

  // pawld -> trainer
  attached =
      21,  // u32 version, u32 seat or kNoSeat; fds: page memfd, event fd (pawld writes), notice fd (trainer writes)
  seated = 22,    // u64 generation, u32 seat, u32 world, u32 local_rank, u64 resume_step, str store_prefix
  arena = 23,     // u64 size; fd: segment
  slot = 24,      // u32 index, u64 generation, u64 step
  running = 25,   // u64 generation
  noted = 26,     // nothing
  value = 27,     // StoreAnswer
  finished = 28,  // nothing
  refused = 29,   // u32 pawl_status, str why: the request will never be answered otherwise
  stopping = 30,  // u64 step: after which the job ends
};

// The trainer writes 1 to the notice fd whenever buckets or a seal are new; pawld reads what in the arena.

}  // namespace pawl::job
