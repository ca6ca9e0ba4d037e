// Arena: the memory that holds one seat's snapshots, as an owner's or as a replica holder's. One format for both.
//
// A segment of shared memory: header page, layout text, then `slot_count` slots of equal size. A slot is a header (the
// SlotWord first) with the slot's extents and the acknowledgements of the shelves that the seat feeds, a table with the
// CRC32C of each bucket, and the payload: the seat's stable tensors one after another in declared order, then its
// volatile ones and blobs, each at a multiple of 64 bytes. A bucket is `bucket_bytes` of the payload (the last may be
// shorter). Every number is little endian, every offset a static_assert in arena.cc, all of it in docs/format.md.
// Fields that nothing uses yet (plan, pool of units, more extents than one) are zero, and readers refuse others:
// docs/decisions/0011.
//
// What always holds: a sealed slot's header and bucket table carry a CRC of their own, its payload matches the table;
// nothing is read from a slot as sealed unless its word was sealed before and is unchanged after (or it is frozen).
// Memory belongs to the caller (env/shared_memory.h) and must outlive the Arena, which is a view and may be copied.
// Calls are thread-safe, also towards other processes that follow the protocol. Indices must be in range.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/result.h"
#include "job/snapshot/slot_word.h"

namespace pawl::job {

inline constexpr std::uint32_t kSlotCountMin = 2;        // ping-pong
inline constexpr std::uint32_t kSlotCountPersisted = 3;  // of an own arena whose steps go to storage: one may be pinned

enum class ArenaKind : std::uint32_t { own = 1, replica = 2 };

struct ArenaSpec {
  std::string job;  // at most 63 characters
  Seat seat;        // whose state
  ArenaKind kind = ArenaKind::own;
  std::uint32_t slot_count = 2;  // ping-pong; 2..4
  std::uint64_t payload_bytes = 0;
  std::uint64_t stable_bytes = 0;          // the payload's first part; the rest is volatile
  std::uint32_t bucket_bytes = 256 << 10;  // 4 KiB..16 MiB, a multiple of 4 KiB
  std::uint64_t layout_digest = 0;         // of `layout`; a restore must find it equal
  std::string layout;                      // canonical text (job/layout/seat_layout.h)
  // Arenas on other nodes that get the seat's state from this one (shelves; today its replicas), each with a place for its
  // acknowledgement; 0 of a replica.
  std::uint32_t shelf_count = 0;
};

// A bucket's line in the table. `ready` is the slot's (generation, step) once the bytes and `crc32c` are in place
// (release), so that a sender may take the bucket while others are still being captured.
struct Bucket {
  std::atomic<std::uint64_t> ready;  // SlotWord{generation, step, dirty}.pack(); anything else: not yet
  std::atomic<std::uint32_t> crc32c;
  std::uint32_t reserved;
};

struct SlotHeader;  // arena.cc's; docs/format.md
struct SlotExtent;

// One slot of an Arena: a view, valid while the Arena or a copy of it lives.
class Slot {
 public:
  [[nodiscard]] SlotWord word() const;  // acquire
  [[nodiscard]] std::span<std::byte> payload() const;
  [[nodiscard]] std::span<std::byte> bucket(std::uint32_t index) const;
  [[nodiscard]] std::span<Bucket> buckets() const;
  [[nodiscard]] std::uint64_t samples() const;  // of a sealed slot
  // What the slot was opened with as `of`, which was its word. nullopt: whoever opened it has not said so yet; or the
  // slot has been reopened, which the word then tells.
  [[nodiscard]] std::optional<std::uint64_t> samples_of(SlotWord of) const;

  // expected -> dirty(generation, step); clears acknowledgements and buckets. False: it has changed, or is frozen.
  // Whether `expected` may be overwritten is not asked here: job/redundancy/progress.h.
  [[nodiscard]] bool try_open(SlotWord expected, Generation generation, Step step, std::uint64_t samples) const;
  // Stores the CRC and marks the bucket ready as one of (generation, step), which its writer has opened the slot for: never
  // of what the word says by now. A writer that comes late, when the slot has another step, so spoils that step's seal
  // and never gets its own bytes sealed as another step's.
  void bucket_done(std::uint32_t index, std::uint32_t crc32c, Generation generation, Step step) const;
  [[nodiscard]] bool bucket_ready(std::uint32_t index, Generation generation, Step step) const;
  // Every bucket ready: writes the header's CRC, then dirty -> sealed. False: frozen meanwhile (the step is void), or a
  // bucket is missing. Whoever filled buckets has called bucket_done before.
  [[nodiscard]] bool try_seal(Generation generation, Step step) const;
  // dirty(generation, step) -> empty. False: frozen meanwhile.
  [[nodiscard]] bool try_abandon(Generation generation, Step step) const;
  // sealed(generation, step) -> empty: what lies here will never be held by all, so the seat has the step no more. Whoever
  // reads it proves by the word, as ever. False: frozen meanwhile, or another step's.
  [[nodiscard]] bool try_give_up(Generation generation, Step step) const;
  // From here on nobody seals, opens or abandons this slot. Idempotent. Returns the word as frozen.
  SlotWord freeze() const;
  // Frozen -> as it was (keep) or empty. Only by the daemon, at `running`.
  void unfreeze(bool keep) const;
  // Only by a daemon in a recovery, which fills a slot: frozen|anything -> frozen|dirty, then -> frozen|sealed; or takes
  // away what proved wrong: frozen|anything -> frozen|empty. False: the slot is not frozen, and nothing has changed.
  [[nodiscard]] bool open_frozen(Generation generation, Step step, std::uint64_t samples) const;
  [[nodiscard]] bool empty_frozen() const;
  // Fails: `stale` if it is not the slot that was opened so; `invalid` if a bucket is not one of (generation, step).
  [[nodiscard]] Status seal_frozen(Generation generation, Step step) const;

  // Whether a shelf has verified and acknowledged the step that `of` names, which was this slot's word (the slot may be
  // reopened between two looks at it). `shelf` counts those that the seat feeds: the i-th of Ring::holders_of
  // (job/redundancy/placement.h).
  [[nodiscard]] bool acknowledged(SlotWord of, std::uint32_t shelf) const;
  [[nodiscard]] bool acknowledged_by_all(SlotWord of) const;  // true of a sealed one whose seat feeds none
  // The shelf has (generation, step). Each acknowledgement is stored with its identity, so one that comes late, when the
  // slot has gone on to another step, counts for nothing. False: it is that late, or there is no such shelf.
  bool acknowledge(Generation generation, Step step, std::uint32_t shelf) const;

  // (generation, step), which this slot holds or held, was written while it was copied, and that was found after the
  // seal: its bytes are those of no step. Stored with its identity, as acknowledgements are.
  void mark_torn(Generation generation, Step step) const;
  // Of the step that `of` names, which was this slot's word.
  [[nodiscard]] bool torn(SlotWord of) const;

  // (generation, step), which this slot holds sealed, is not to be overwritten until unpin(), whatever is committed: it is being
  // written to storage. Only pawld pins, and only while the trainer's page shows no greater committed step; so nobody may be about
  // to overwrite it, and whoever sees a greater one in the page sees the pin. It counts for that step only.
  void pin(Generation generation, Step step) const;
  void unpin() const;
  [[nodiscard]] bool pinned(SlotWord of) const;
  // As word(), but frozen where it is pinned: for the gate, which lets nobody overwrite either. Read it after the page's progress.
  [[nodiscard]] SlotWord word_for_gate() const;

  // Header and bucket table of a sealed slot. `corrupt` names what differs; `stale`: not sealed, or reopened meanwhile.
  [[nodiscard]] Status verify_header() const;
  // Header, then the payload of every bucket against its CRC. Cost: one read of the payload.
  [[nodiscard]] Status verify() const;

 private:
  friend class Arena;
  void begin_step(Generation generation, Step step, std::uint64_t samples) const;
  bool change_frozen(SlotWord to) const;
  bool all_ready(Generation generation, Step step) const;
  Status check_header(SlotWord word) const;
  Status check_extents(SlotWord word) const;
  Status check_unused() const;
  Status check_payload() const;
  Status prove(SlotWord before, Status found) const;
  [[nodiscard]] SlotExtent& extent() const;
  [[nodiscard]] std::span<std::atomic<std::uint64_t>> acknowledgements() const;
  SlotHeader* header_ = nullptr;
  std::byte* payload_ = nullptr;
  const ArenaSpec* spec_ = nullptr;
};

class Arena {
 public:
  Arena() = default;
  // Bytes of the segment for `spec`; 0 if a number of it is out of range. Pure.
  [[nodiscard]] static std::uint64_t size_bytes(const ArenaSpec& spec);
  [[nodiscard]] static std::uint32_t bucket_count(const ArenaSpec& spec);
  // Writes a fresh header: all slots empty. `memory` is zeroed (a new segment), page-aligned and at least
  // size_bytes(spec). Fails: `invalid` if a number of the spec is out of range.
  [[nodiscard]] static Result<Arena> format(std::span<std::byte> memory, const ArenaSpec& spec);
  // A segment that somebody else formatted. Fails: `corrupt` names what is wrong; never reads outside `memory`.
  [[nodiscard]] static Result<Arena> open(std::span<std::byte> memory);

  [[nodiscard]] const ArenaSpec& spec() const { return *spec_; }
  [[nodiscard]] std::uint32_t slot_count() const { return spec_->slot_count; }
  [[nodiscard]] Slot slot(std::uint32_t index) const;

 private:
  std::byte* memory_ = nullptr;
  std::shared_ptr<const ArenaSpec> spec_;
};

}  // namespace pawl::job
