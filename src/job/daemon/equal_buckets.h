// EqualBuckets: buckets of a replica's step that need not be sent, because the holder's node captures the same bytes itself.
//
// State that was declared equal on several seats (job/layout/equal_state.h) lies in an own slot of each of them. Where a holder's
// node has such a seat, the sender tells the sums of these buckets only, and the holder copies each from that seat's slot of the
// same step: what it has copied must have the sum that was told, as what comes over the wire must. So a replica is what it always
// is, nothing else in the job knows where its bytes came from, and a declaration that is wrong, or a seat that is late, costs what
// was saved: the bytes are asked for when the step is sealed, and sent. Then everything is sent for a while.
// Pure, but for the copies. (docs/decisions/0013, "Equal bytes are not sent")
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "env/clock.h"
#include "job/daemon/memory.h"
#include "job/membership/inventory.h"
#include "job/transport/messages.h"

namespace pawl::job {

// The sender's half: which buckets of a step to tell only the sums of. Of one stream, whose task calls.
class UnsentBuckets {
 public:
  // So many steps are sent in full after one of which the holder wanted bytes all the same, because they were late or missing there,
  // or because they differed; twice as many after each further such step.
  static constexpr std::uint64_t kStepsLate = 2;
  static constexpr std::uint64_t kStepsDifferent = 64;
  static constexpr std::uint64_t kStepsMax = 4096;

  UnsentBuckets() = default;
  // `offers`: what the holder's node has seats with, in whole buckets of the payload.
  UnsentBuckets(std::vector<EqualExtent> offers, std::uint32_t bucket_bytes, std::uint64_t payload_bytes);

  void begin_step();
  // Of each bucket of this step, the extent by which the holder may find it; nullptr: its bytes are to be sent. Empty: of all.
  [[nodiscard]] std::vector<const EqualExtent*> offers(std::uint32_t bucket_count) const;
  void note_wanted(bool differ);  // in this step

 private:
  std::vector<EqualExtent> offers_;
  std::uint64_t bucket_bytes_ = 0;
  std::uint64_t payload_bytes_ = 0;
  std::uint64_t sent_in_full_ = 0;  // so many steps are still to be
  std::uint64_t next_ = kStepsLate;
  bool was_wanted_ = false;
};

// An own arena of a holder's node, and a part of it that was declared equal on other seats.
struct EqualArena {
  EqualExtent state;
  ArenaHandle arena;
};

enum class FoundEqual : std::uint8_t {
  taken,      // the bucket lies in its place, proven
  capturing,  // not captured yet, but the step is being captured
  earlier,    // that seat has not come to the step
  differs,    // it is here with another sum
  missing,    // no seat here has it, or will
};

// Takes bucket `index` of (generation, step) into `slot` from the first of `arenas` that has it with that sum. Of several answers,
// the first in the order above. What is found there may be overwritten meanwhile: only the sum of what was copied counts.
[[nodiscard]] FoundEqual take_equal(const Slot& slot, std::uint32_t index, std::uint32_t crc32c, std::uint64_t digest,
                                    Generation generation, Step step, const std::vector<EqualArena>& arenas);

// The holder's half: the buckets of the open step that were told. Each is taken as soon as a seat here has captured it, or wanted:
// at once if it is here with another sum, or can't come; where a seat here has not begun the step, or still captures it, after a while.
// If one differs, all are wanted, those that were taken too: one sum more that is equal by accident then makes no difference.
class AwaitedBuckets {
 public:
  // Trainers that work together are rarely further apart.
  static constexpr Duration kBeginMax = std::chrono::milliseconds(50);
  static constexpr Duration kCaptureMax = std::chrono::seconds(1);
  static constexpr std::size_t kLookAheadMax =
      64;  // further than copy threads are apart: what lies behind is not there either
  static constexpr std::size_t kWantedMax = 65'536;  // in one message
  static constexpr std::size_t kNoLimit = ~std::size_t{0};

  AwaitedBuckets() = default;
  AwaitedBuckets(const Slot& slot, Generation generation, Step step)
      : slot_(slot), generation_(generation), step_(step) {}

  [[nodiscard]] bool knows_arenas() const { return arenas_.has_value(); }
  void set_arenas(std::vector<EqualArena> arenas) { arenas_ = std::move(arenas); }
  // `told` is of the open step, and its buckets are in the slot; the arenas are known.
  void add(const SameBucketsMessage& told);
  // Takes what is here, of `at_most` buckets. `waited`: since everything was told. Leaves off as soon as `ended`.
  void settle(Duration waited, const std::atomic<bool>& ended, std::size_t at_most = kNoLimit);
  [[nodiscard]] bool empty() const { return awaited_.empty(); }
  // What is to be sent after all, some of it; asked for until there is nothing more.
  [[nodiscard]] BucketsWantedMessage take_wanted();

 private:
  struct Bucket {
    std::uint32_t index = 0;
    std::uint32_t crc32c = 0;
    std::uint64_t digest = 0;
  };
  [[nodiscard]] FoundEqual take(const Bucket& bucket) const;

  Slot slot_;
  Generation generation_;
  Step step_;
  std::optional<std::vector<EqualArena>> arenas_;
  std::deque<Bucket> awaited_;
  std::vector<std::uint32_t> taken_;
  BucketsWantedMessage wanted_;
};

// Of `offers`, those of `seat` whose group has one of `others`: those of a holder's node.
[[nodiscard]] std::vector<EqualExtent> offers_there(const std::vector<EqualOffer>& offers, Seat seat,
                                                    std::span<const Seat> others);

}  // namespace pawl::job
