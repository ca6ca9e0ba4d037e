#include "job/snapshot/arena.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>

#include "base/crc32c.h"
#include "base/text.h"

namespace pawl::job {

// The bytes of a slot's header. `word` decides who may touch the rest: between a won try_open and a won try_seal it is
// the opener's. Readers may look at any time and prove afterwards that the word stood still, hence all is atomic.
struct SlotHeader {
  std::atomic<std::uint64_t> word;
  // From here to `header_crc32c` and then `job`: what the header's CRC covers. The first three are written when the slot
  // is opened, samples first; the rest by the seal.
  std::atomic<std::uint64_t> samples;
  std::atomic<std::uint64_t> generation;
  std::atomic<std::uint64_t> step;
  std::atomic<std::uint64_t> layout_digest;
  std::atomic<std::uint64_t> payload_bytes;
  std::atomic<std::uint64_t> plan_digest;  // of the plan by which the step was spread
  std::atomic<std::uint32_t> seat;
  std::atomic<std::uint32_t> bucket_count;
  std::atomic<std::uint32_t> extent_count;
  std::atomic<std::uint32_t> table_crc32c;    // of the buckets' crc32c, one after another
  std::atomic<std::uint32_t> extents_crc32c;  // of the table of extents
  std::atomic<std::uint32_t> header_crc32c;
  char job[64];                     // zero-filled; written once, by Arena::format
  std::atomic<std::uint64_t> torn;  // SlotWord{generation, step, sealed} that is
  std::atomic<std::uint64_t> pin;  // SlotWord{generation, step, sealed} that nobody may overwrite; only pawld writes it
  std::atomic<std::uint64_t> reserved[12];
};

// A line in the table of extents, which follows the header; the acknowledgements follow it. Written by the seal.
struct SlotExtent {
  std::atomic<std::uint64_t> generation;  // of the version that these bytes are
  std::atomic<std::uint64_t> step;
  std::atomic<std::uint64_t> payload_offset;
  std::atomic<std::uint64_t> size_bytes;
  std::atomic<std::uint64_t> stream;  // and where in it they belong
  std::atomic<std::uint64_t> stream_offset;
  std::atomic<std::uint64_t> unit;  // and in which buffer of the pool it lies
  std::atomic<std::uint64_t> buffer;
};

namespace {

constexpr std::uint64_t kMagic = 0x314E'5241'4C57'4150;  // "PAWLARN1"
constexpr std::uint32_t kVersion = 2;
constexpr std::uint32_t kExtentCount = 1;  // the whole payload
constexpr std::uint32_t kShelfCountMax = 1 << 16;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kPayloadBytesMax = std::uint64_t{1} << 46;
constexpr std::uint64_t kLayoutBytesMax = std::uint64_t{1} << 30;
constexpr std::uint64_t kBucketCountMax = std::uint64_t{1} << 30;
constexpr std::uint32_t kBucketBytesMin = 4 << 10;
constexpr std::uint32_t kBucketBytesMax = 16 << 20;

struct ArenaParts {            // what a slot is divided into, and by what
  std::uint32_t extent_count;  // lines in each slot's table of extents
  std::uint32_t buffer_count;  // of the pool of units, behind the slots
  std::uint64_t buffer_bytes;
  std::uint64_t pool_offset;
  std::uint64_t plan_digest;  // of the plan for which the segment was made: shelf_count is of it
};

struct ArenaHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t kind;
  std::uint32_t seat;
  std::uint32_t slot_count;
  std::uint64_t payload_bytes;
  std::uint64_t stable_bytes;
  std::uint32_t bucket_bytes;
  std::uint32_t bucket_count;
  std::uint64_t layout_digest;
  std::uint64_t layout_bytes;
  std::uint64_t slot_offset;    // of slot 0 in the segment
  std::uint64_t slot_bytes;     // from one slot to the next
  std::uint64_t segment_bytes;  // all of it
  std::uint32_t layout_crc32c;
  std::uint32_t shelf_count;
  char job[64];
  ArenaParts parts;
  std::uint32_t header_crc32c;  // of all bytes before it
};

// docs/format.md, to be believed by a stranger.
static_assert(std::endian::native == std::endian::little);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(offsetof(ArenaHeader, magic) == 0);
static_assert(offsetof(ArenaHeader, version) == 8);
static_assert(offsetof(ArenaHeader, kind) == 12);
static_assert(offsetof(ArenaHeader, seat) == 16);
static_assert(offsetof(ArenaHeader, slot_count) == 20);
static_assert(offsetof(ArenaHeader, payload_bytes) == 24);
static_assert(offsetof(ArenaHeader, stable_bytes) == 32);
static_assert(offsetof(ArenaHeader, bucket_bytes) == 40);
static_assert(offsetof(ArenaHeader, bucket_count) == 44);
static_assert(offsetof(ArenaHeader, layout_digest) == 48);
static_assert(offsetof(ArenaHeader, layout_bytes) == 56);
static_assert(offsetof(ArenaHeader, slot_offset) == 64);
static_assert(offsetof(ArenaHeader, slot_bytes) == 72);
static_assert(offsetof(ArenaHeader, segment_bytes) == 80);
static_assert(offsetof(ArenaHeader, layout_crc32c) == 88);
static_assert(offsetof(ArenaHeader, job) == 96);
static_assert(offsetof(ArenaHeader, shelf_count) == 92);
static_assert(offsetof(ArenaHeader, parts.extent_count) == 160);
static_assert(offsetof(ArenaHeader, parts.buffer_count) == 164);
static_assert(offsetof(ArenaHeader, parts.buffer_bytes) == 168);
static_assert(offsetof(ArenaHeader, parts.pool_offset) == 176);
static_assert(offsetof(ArenaHeader, parts.plan_digest) == 184);
static_assert(offsetof(ArenaHeader, header_crc32c) == 192);
static_assert(sizeof(ArenaHeader) <= kPage);
static_assert(offsetof(SlotHeader, word) == 0);
static_assert(offsetof(SlotHeader, samples) == 8);
static_assert(offsetof(SlotHeader, generation) == 16);
static_assert(offsetof(SlotHeader, step) == 24);
static_assert(offsetof(SlotHeader, layout_digest) == 32);
static_assert(offsetof(SlotHeader, payload_bytes) == 40);
static_assert(offsetof(SlotHeader, plan_digest) == 48);
static_assert(offsetof(SlotHeader, seat) == 56);
static_assert(offsetof(SlotHeader, bucket_count) == 60);
static_assert(offsetof(SlotHeader, extent_count) == 64);
static_assert(offsetof(SlotHeader, table_crc32c) == 68);
static_assert(offsetof(SlotHeader, extents_crc32c) == 72);
static_assert(offsetof(SlotHeader, header_crc32c) == 76);
static_assert(offsetof(SlotHeader, job) == 80);
static_assert(offsetof(SlotHeader, torn) == 144);
static_assert(offsetof(SlotHeader, pin) == 152);
static_assert(offsetof(SlotHeader, reserved) == 160);
static_assert(sizeof(SlotHeader) == 256);
static_assert(offsetof(SlotExtent, generation) == 0);
static_assert(offsetof(SlotExtent, step) == 8);
static_assert(offsetof(SlotExtent, payload_offset) == 16);
static_assert(offsetof(SlotExtent, size_bytes) == 24);
static_assert(offsetof(SlotExtent, stream) == 32);
static_assert(offsetof(SlotExtent, stream_offset) == 40);
static_assert(offsetof(SlotExtent, unit) == 48);
static_assert(offsetof(SlotExtent, buffer) == 56);
static_assert(sizeof(SlotExtent) == 64);
static_assert(offsetof(Bucket, ready) == 0 && offsetof(Bucket, crc32c) == 8 && sizeof(Bucket) == 16);

constexpr std::uint64_t to_page(std::uint64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

// Where things are, for a spec that check_spec let pass (nothing overflows then).
std::uint64_t slot_offset_of(const ArenaSpec& spec) {
  return kPage + to_page(spec.layout.size());
}
std::uint64_t buckets_offset_of(const ArenaSpec& spec) {  // within a slot
  return to_page(sizeof(SlotHeader) + kExtentCount * sizeof(SlotExtent) +
                 std::uint64_t{spec.shelf_count} * sizeof(std::atomic<std::uint64_t>));
}
std::uint64_t payload_offset_of(const ArenaSpec& spec) {  // within a slot
  return buckets_offset_of(spec) + to_page(std::uint64_t{Arena::bucket_count(spec)} * sizeof(Bucket));
}
std::uint64_t slot_bytes_of(const ArenaSpec& spec) {
  return payload_offset_of(spec) + to_page(spec.payload_bytes);
}

Status check_spec(const ArenaSpec& spec) {
  if (spec.job.size() >= sizeof(ArenaHeader::job) || spec.job.find('\0') != std::string::npos) {
    return Error{Code::invalid, "the job's name is longer than 63 characters or holds a zero"};
  }
  if (spec.kind != ArenaKind::own && spec.kind != ArenaKind::replica) {
    return Error{Code::invalid, text("kind ", static_cast<std::uint32_t>(spec.kind), " is not known")};
  }
  if (spec.slot_count < 2 || spec.slot_count > 4) {
    return Error{Code::invalid, text(spec.slot_count, " slots; must be 2..4")};
  }
  if (spec.payload_bytes == 0 || spec.payload_bytes > kPayloadBytesMax) {
    return Error{Code::invalid, text("payload of ", spec.payload_bytes, " bytes; must be 1..2^46")};
  }
  if (spec.stable_bytes > spec.payload_bytes) {
    return Error{Code::invalid,
                 text("stable part of ", spec.stable_bytes, " bytes in a payload of ", spec.payload_bytes)};
  }
  if (spec.bucket_bytes < kBucketBytesMin || spec.bucket_bytes > kBucketBytesMax || spec.bucket_bytes % kPage != 0) {
    return Error{Code::invalid, text("buckets of ", spec.bucket_bytes, " bytes; must be 4 KiB..16 MiB, whole pages")};
  }
  if (spec.payload_bytes / spec.bucket_bytes >= kBucketCountMax) {
    return Error{Code::invalid, text("more than 2^30 buckets of ", spec.bucket_bytes, " bytes")};
  }
  if (spec.layout.size() > kLayoutBytesMax) return Error{Code::invalid, "layout text of more than 1 GiB"};
  if (spec.shelf_count > (spec.kind == ArenaKind::own ? kShelfCountMax : 0)) {
    return Error{Code::invalid, text(spec.shelf_count, " shelves; must be 0..", kShelfCountMax, ", of a replica 0")};
  }
  return {};
}

std::uint32_t crc_of(const void* bytes, std::size_t size, std::uint32_t seed = 0) {
  return crc32c(std::span(static_cast<const std::byte*>(bytes), size), seed);
}

Error corrupt(std::string what) {
  return Error{Code::corrupt, std::move(what)};
}

// A field that later versions of pawl may use: what it would mean is not known here.
Error not_zero(std::string_view field, std::uint64_t value) {
  return corrupt(text(field, " is ", value, ", not 0"));
}

Status check_unused(const ArenaHeader& header) {
  if (header.parts.extent_count != kExtentCount)
    return corrupt(text("arena: extent_count is ", header.parts.extent_count, ", not ", kExtentCount));
  if (header.parts.buffer_count != 0) return not_zero("arena: buffer_count", header.parts.buffer_count);
  if (header.parts.buffer_bytes != 0) return not_zero("arena: buffer_bytes", header.parts.buffer_bytes);
  if (header.parts.pool_offset != 0) return not_zero("arena: pool_offset", header.parts.pool_offset);
  if (header.parts.plan_digest != 0) return not_zero("arena: plan_digest", header.parts.plan_digest);
  return {};
}

// A reader that may meet a reopened slot proves afterwards that the word stood still (verify). For that, whoever sees a
// byte written by the new opener must also see the new word: a release fence between the two. Tsan knows no fences; the
// readers it would warn of are those of crc32c, which it does not watch.
void order_open_before_writes() {
#if defined(__SANITIZE_THREAD__)
#elif defined(__has_feature)
#if !__has_feature(thread_sanitizer)
  std::atomic_thread_fence(std::memory_order_release);
#endif
#else
  std::atomic_thread_fence(std::memory_order_release);
#endif
}

std::uint64_t ready_bits(Generation generation, Step step) {
  return SlotWord{generation, step, SlotState::dirty, false}.pack();
}

std::uint64_t sealed_bits(Generation generation, Step step) {
  return SlotWord{generation, step, SlotState::sealed, false}.pack();
}

std::uint32_t table_crc(std::span<Bucket> buckets) {
  std::array<std::uint32_t, 256> some{};
  std::uint32_t crc = 0;
  while (!buckets.empty()) {
    const std::size_t count = std::min(buckets.size(), some.size());
    for (std::size_t i = 0; i < count; ++i) some[i] = buckets[i].crc32c.load(std::memory_order_relaxed);
    crc = crc_of(some.data(), count * sizeof some[0], crc);
    buckets = buckets.subspan(count);
  }
  return crc;
}

// The sealed part of a header, copied out.
struct SealRecord {
  std::uint64_t samples, generation, step, layout_digest, payload_bytes, plan_digest;
  std::uint32_t seat, bucket_count, extent_count, table_crc32c, extents_crc32c, unused;
  char job[64];
};
constexpr std::size_t kSealNumbersBytes = offsetof(SealRecord, unused);
static_assert(kSealNumbersBytes == offsetof(SlotHeader, header_crc32c) - offsetof(SlotHeader, samples));

std::uint32_t crc_of(const SealRecord& record) {
  return crc_of(record.job, sizeof record.job, crc_of(&record, kSealNumbersBytes));
}

SealRecord read_seal(const SlotHeader& header) {
  constexpr auto relaxed = std::memory_order_relaxed;
  SealRecord record{};
  record.samples = header.samples.load(relaxed);
  record.generation = header.generation.load(relaxed);
  record.step = header.step.load(relaxed);
  record.layout_digest = header.layout_digest.load(relaxed);
  record.payload_bytes = header.payload_bytes.load(relaxed);
  record.plan_digest = header.plan_digest.load(relaxed);
  record.seat = header.seat.load(relaxed);
  record.bucket_count = header.bucket_count.load(relaxed);
  record.extent_count = header.extent_count.load(relaxed);
  record.table_crc32c = header.table_crc32c.load(relaxed);
  record.extents_crc32c = header.extents_crc32c.load(relaxed);
  std::memcpy(record.job, header.job, sizeof record.job);
  return record;
}

// An extent, copied out.
struct ExtentRecord {
  std::uint64_t generation, step, payload_offset, size_bytes, stream, stream_offset, unit, buffer;
};
static_assert(sizeof(ExtentRecord) == sizeof(SlotExtent));

std::uint32_t crc_of(const ExtentRecord& record) {
  return crc_of(&record, sizeof record);
}

ExtentRecord read_extent(const SlotExtent& extent) {
  constexpr auto relaxed = std::memory_order_relaxed;
  return {extent.generation.load(relaxed), extent.step.load(relaxed),   extent.payload_offset.load(relaxed),
          extent.size_bytes.load(relaxed), extent.stream.load(relaxed), extent.stream_offset.load(relaxed),
          extent.unit.load(relaxed),       extent.buffer.load(relaxed)};
}

// The only extent of today: the whole payload, of the slot's own step.
ExtentRecord whole_payload(const ArenaSpec& spec, Generation generation, Step step) {
  return {generation.value, step.value, 0, spec.payload_bytes, 0, 0, 0, 0};
}

void write_extent(SlotExtent& extent, const ExtentRecord& record) {
  constexpr auto relaxed = std::memory_order_relaxed;
  extent.generation.store(record.generation, relaxed);
  extent.step.store(record.step, relaxed);
  extent.payload_offset.store(record.payload_offset, relaxed);
  extent.size_bytes.store(record.size_bytes, relaxed);
  extent.stream.store(record.stream, relaxed);
  extent.stream_offset.store(record.stream_offset, relaxed);
  extent.unit.store(record.unit, relaxed);
  extent.buffer.store(record.buffer, relaxed);
}

void write_seal(SlotHeader& header, SlotExtent& extent, const ArenaSpec& spec, Generation generation, Step step,
                std::uint32_t table) {
  constexpr auto relaxed = std::memory_order_relaxed;  // the word's release comes after
  const ExtentRecord whole = whole_payload(spec, generation, step);
  write_extent(extent, whole);
  header.generation.store(generation.value, relaxed);
  header.step.store(step.value, relaxed);
  header.layout_digest.store(spec.layout_digest, relaxed);
  header.payload_bytes.store(spec.payload_bytes, relaxed);
  header.plan_digest.store(0, relaxed);
  header.seat.store(spec.seat.value, relaxed);
  header.bucket_count.store(Arena::bucket_count(spec), relaxed);
  header.extent_count.store(kExtentCount, relaxed);
  header.table_crc32c.store(table, relaxed);
  header.extents_crc32c.store(crc_of(whole), relaxed);
  header.header_crc32c.store(crc_of(read_seal(header)), relaxed);
}

}  // namespace

SlotWord Slot::word() const {
  return SlotWord::unpack(header_->word.load(std::memory_order_acquire));
}

std::span<std::byte> Slot::payload() const {
  return {payload_, spec_->payload_bytes};
}

std::span<std::byte> Slot::bucket(std::uint32_t index) const {
  const std::uint64_t begin = std::uint64_t{index} * spec_->bucket_bytes;
  if (begin >= spec_->payload_bytes) return {};
  return payload().subspan(begin, std::min<std::uint64_t>(spec_->bucket_bytes, spec_->payload_bytes - begin));
}

std::span<Bucket> Slot::buckets() const {
  auto* table = reinterpret_cast<Bucket*>(reinterpret_cast<std::byte*>(header_) + buckets_offset_of(*spec_));
  return {table, Arena::bucket_count(*spec_)};
}

SlotExtent& Slot::extent() const {
  return *reinterpret_cast<SlotExtent*>(header_ + 1);
}

std::span<std::atomic<std::uint64_t>> Slot::acknowledgements() const {
  return {reinterpret_cast<std::atomic<std::uint64_t>*>(&extent() + kExtentCount), spec_->shelf_count};
}

std::uint64_t Slot::samples() const {
  return header_->samples.load(std::memory_order_relaxed);
}

std::optional<std::uint64_t> Slot::samples_of(SlotWord of) const {
  if (of.state == SlotState::empty) return std::nullopt;
  // acquire: pairs with the release in begin_step.
  const bool said =
      of.state == SlotState::sealed || (header_->step.load(std::memory_order_acquire) == of.step.value &&
                                        header_->generation.load(std::memory_order_acquire) == of.generation.value);
  return said ? std::optional(samples()) : std::nullopt;
}

// Of a slot whose word has just become dirty.
void Slot::begin_step(Generation generation, Step step, std::uint64_t samples) const {
  order_open_before_writes();
  for (auto& acknowledgement : acknowledgements()) acknowledgement.store(0, std::memory_order_relaxed);
  for (Bucket& bucket : buckets()) bucket.ready.store(0, std::memory_order_relaxed);
  header_->samples.store(samples, std::memory_order_relaxed);
  // release: who sees both numbers sees the samples. No generation has a step twice, so whoever was here before left
  // others.
  header_->generation.store(generation.value, std::memory_order_release);
  header_->step.store(step.value, std::memory_order_release);
}

bool Slot::try_open(SlotWord expected, Generation generation, Step step, std::uint64_t samples) const {
  if (expected.frozen) return false;
  std::uint64_t bits = expected.pack();
  // acquire: whoever emptied or sealed the slot before is done with it. release: nothing of ours is before it.
  if (!header_->word.compare_exchange_strong(bits, SlotWord{generation, step, SlotState::dirty, false}.pack(),
                                             std::memory_order_acq_rel, std::memory_order_relaxed)) {
    return false;
  }
  begin_step(generation, step, samples);
  return true;
}

void Slot::bucket_done(std::uint32_t index, std::uint32_t crc32c, Generation generation, Step step) const {
  Bucket& bucket = buckets()[index];
  bucket.crc32c.store(crc32c, std::memory_order_relaxed);
  // release: pairs with the acquire in bucket_ready; the bytes and the CRC come before.
  bucket.ready.store(ready_bits(generation, step), std::memory_order_release);
}

bool Slot::bucket_ready(std::uint32_t index, Generation generation, Step step) const {
  return buckets()[index].ready.load(std::memory_order_acquire) == ready_bits(generation, step);
}

bool Slot::all_ready(Generation generation, Step step) const {
  const std::uint64_t ready = ready_bits(generation, step);
  // acquire: the copy threads' bytes are behind us, so that the seal's release passes them on.
  return std::ranges::all_of(buckets(),
                             [=](const Bucket& b) { return b.ready.load(std::memory_order_acquire) == ready; });
}

bool Slot::try_seal(Generation generation, Step step) const {
  std::uint64_t dirty = SlotWord{generation, step, SlotState::dirty, false}.pack();
  if (header_->word.load(std::memory_order_relaxed) != dirty || !all_ready(generation, step)) return false;
  write_seal(*header_, extent(), *spec_, generation, step, table_crc(buckets()));
  // release: who sees the seal sees the header, the table and the payload. A freeze that came first makes this fail.
  return header_->word.compare_exchange_strong(dirty, SlotWord{generation, step, SlotState::sealed, false}.pack(),
                                               std::memory_order_acq_rel, std::memory_order_relaxed);
}

bool Slot::try_abandon(Generation generation, Step step) const {
  std::uint64_t dirty = SlotWord{generation, step, SlotState::dirty, false}.pack();
  // release: the next opener, perhaps another process, writes after our last write.
  return header_->word.compare_exchange_strong(dirty, SlotWord{}.pack(), std::memory_order_acq_rel,
                                               std::memory_order_relaxed);
}

bool Slot::try_give_up(Generation generation, Step step) const {
  std::uint64_t sealed = sealed_bits(generation, step);
  // release: the next opener writes after our last read.
  return header_->word.compare_exchange_strong(sealed, SlotWord{}.pack(), std::memory_order_acq_rel,
                                               std::memory_order_relaxed);
}

SlotWord Slot::freeze() const {
  // acq_rel: a seal that won before is seen whole; one that comes after finds the bit and fails.
  return SlotWord::unpack(header_->word.fetch_or(kSlotFrozenBit, std::memory_order_acq_rel) | kSlotFrozenBit);
}

void Slot::unfreeze(bool keep) const {
  // A frozen word has one writer, the daemon, so a load and a store lose nothing.
  const std::uint64_t bits = header_->word.load(std::memory_order_acquire);
  if ((bits & kSlotFrozenBit) == 0) return;
  header_->word.store(keep ? bits & ~kSlotFrozenBit : SlotWord{}.pack(), std::memory_order_release);
}

// A frozen word has one writer, so a live one, which has others, is the only thing that can come between.
bool Slot::change_frozen(SlotWord to) const {
  std::uint64_t bits = header_->word.load(std::memory_order_acquire);
  return (bits & kSlotFrozenBit) != 0 &&
         header_->word.compare_exchange_strong(bits, to.pack(), std::memory_order_acq_rel, std::memory_order_relaxed);
}

bool Slot::open_frozen(Generation generation, Step step, std::uint64_t samples) const {
  if (!change_frozen({generation, step, SlotState::dirty, true})) return false;
  begin_step(generation, step, samples);
  return true;
}

bool Slot::empty_frozen() const {
  return change_frozen({{}, {}, SlotState::empty, true});
}

Status Slot::seal_frozen(Generation generation, Step step) const {
  const SlotWord expected{generation, step, SlotState::dirty, true};
  if (word() != expected) return Error{Code::stale, text("the slot is not frozen and dirty at step ", step)};
  if (!all_ready(generation, step)) return Error{Code::invalid, text("not every bucket of step ", step, " is ready")};
  write_seal(*header_, extent(), *spec_, generation, step, table_crc(buckets()));
  header_->word.store(SlotWord{generation, step, SlotState::sealed, true}.pack(), std::memory_order_release);
  return {};
}

bool Slot::acknowledged(SlotWord of, std::uint32_t shelf) const {
  return of.state != SlotState::empty && shelf < spec_->shelf_count &&
         acknowledgements()[shelf].load(std::memory_order_acquire) == sealed_bits(of.generation, of.step);
}

bool Slot::acknowledged_by_all(SlotWord of) const {
  const std::uint64_t bits = sealed_bits(of.generation, of.step);
  return of.state != SlotState::empty && std::ranges::all_of(acknowledgements(), [bits](const auto& acknowledgement) {
           return acknowledgement.load(std::memory_order_acquire) == bits;
         });
}

bool Slot::acknowledge(Generation generation, Step step, std::uint32_t shelf) const {
  const SlotWord now = word();
  if (shelf >= spec_->shelf_count || now.state == SlotState::empty || now.generation != generation ||
      now.step != step) {
    return false;
  }
  // Should the slot be reopened right here, what is stored names a step that it no longer holds.
  acknowledgements()[shelf].store(sealed_bits(generation, step), std::memory_order_release);
  return true;
}

void Slot::mark_torn(Generation generation, Step step) const {
  header_->torn.store(sealed_bits(generation, step), std::memory_order_release);
}

bool Slot::torn(SlotWord of) const {
  return of.state != SlotState::empty &&
         header_->torn.load(std::memory_order_acquire) == sealed_bits(of.generation, of.step);
}

// The header and the table of a slot that was sealed as `word`.
Status Slot::check_header(SlotWord word) const {
  const SealRecord record = read_seal(*header_);
  if (crc_of(record) != header_->header_crc32c.load(std::memory_order_relaxed))
    return corrupt("header: checksum differs");
  if (record.generation != word.generation.value || record.step != word.step.value) {
    return corrupt(text("header is of generation ", record.generation, " step ", record.step, ", the slot's word of ",
                        word.generation, " step ", word.step));
  }
  if (record.seat != spec_->seat.value) return corrupt(text("header is of seat ", record.seat, ", not ", spec_->seat));
  if (std::strncmp(record.job, spec_->job.c_str(), sizeof record.job) != 0) return corrupt("header is of another job");
  if (record.layout_digest != spec_->layout_digest) return corrupt("header is of another layout");
  if (record.payload_bytes != spec_->payload_bytes || record.bucket_count != Arena::bucket_count(*spec_)) {
    return corrupt(text("header is of a payload of ", record.payload_bytes, " bytes, not ", spec_->payload_bytes));
  }
  if (record.table_crc32c != table_crc(buckets())) return corrupt("bucket table: checksum differs");
  if (record.extent_count != kExtentCount)
    return corrupt(text("header: extent_count is ", record.extent_count, ", not ", kExtentCount));
  if (record.plan_digest != 0) return not_zero("header: plan_digest", record.plan_digest);
  if (record.extents_crc32c != crc_of(read_extent(extent()))) return corrupt("table of extents: checksum differs");
  PAWL_TRY(check_extents(word));
  return check_unused();
}

Status Slot::check_extents(SlotWord word) const {
  const ExtentRecord found = read_extent(extent());
  const ExtentRecord whole = whole_payload(*spec_, word.generation, word.step);
  if (found.generation != whole.generation || found.step != whole.step) {
    return corrupt(text("extent 0 is of generation ", found.generation, " step ", found.step, ", the slot's word of ",
                        whole.generation, " step ", whole.step));
  }
  if (found.payload_offset != 0 || found.size_bytes != whole.size_bytes) {
    return corrupt(text("extent 0 is ", found.size_bytes, " bytes at ", found.payload_offset, ", not the payload's ",
                        whole.size_bytes));
  }
  if (found.stream != 0) return not_zero("extent 0: stream", found.stream);
  if (found.stream_offset != 0) return not_zero("extent 0: stream_offset", found.stream_offset);
  if (found.unit != 0) return not_zero("extent 0: unit", found.unit);
  if (found.buffer != 0) return not_zero("extent 0: buffer", found.buffer);
  return {};
}

// What no CRC covers: it is written at other times than the seal, or never.
Status Slot::check_unused() const {
  for (const auto& reserved : header_->reserved)
    if (const std::uint64_t value = reserved.load(std::memory_order_relaxed); value != 0)
      return not_zero("header: reserved", value);
  for (const Bucket& bucket : buckets())
    if (bucket.reserved != 0) return not_zero("bucket table: reserved", bucket.reserved);
  return {};
}

Status Slot::check_payload() const {
  const std::span<Bucket> table = buckets();
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    if (crc32c(bucket(i)) != table[i].crc32c.load(std::memory_order_relaxed)) {
      return corrupt(text("bucket ", i, ": checksum differs"));
    }
  }
  return {};
}

// What was found counts only if the slot was not reopened meanwhile (a freeze in between changes nothing).
Status Slot::prove(SlotWord before, Status found) const {
  // A read-modify-write that changes nothing: its release part keeps all reads above in front of it.
  SlotWord after = SlotWord::unpack(header_->word.fetch_or(0, std::memory_order_acq_rel));
  after.frozen = before.frozen;
  if (after != before) return Error{Code::stale, text("step ", before.step, " was dropped while it was read")};
  return found ? Status() : std::move(found).error().within(text("step ", before.step));
}

void Slot::pin(Generation generation, Step step) const {
  header_->pin.store(sealed_bits(generation, step), std::memory_order_release);
}
void Slot::unpin() const {
  header_->pin.store(0, std::memory_order_release);
}
bool Slot::pinned(SlotWord of) const {
  return header_->pin.load(std::memory_order_acquire) == sealed_bits(of.generation, of.step);
}

SlotWord Slot::word_for_gate() const {
  SlotWord now = word();
  now.frozen = now.frozen || (now.state == SlotState::sealed && pinned(now));
  return now;
}

Status Slot::verify_header() const {
  const SlotWord before = word();
  if (before.state != SlotState::sealed) return Error{Code::stale, "the slot is not sealed"};
  return prove(before, check_header(before));
}

Status Slot::verify() const {
  const SlotWord before = word();
  if (before.state != SlotState::sealed) return Error{Code::stale, "the slot is not sealed"};
  Status found = check_header(before);
  if (found) found = check_payload();
  return prove(before, std::move(found));
}

std::uint32_t Arena::bucket_count(const ArenaSpec& spec) {
  if (spec.bucket_bytes == 0) return 0;
  const std::uint64_t count = spec.payload_bytes / spec.bucket_bytes + (spec.payload_bytes % spec.bucket_bytes != 0);
  return static_cast<std::uint32_t>(std::min(count, kBucketCountMax));
}

std::uint64_t Arena::size_bytes(const ArenaSpec& spec) {
  if (!check_spec(spec)) return 0;
  return slot_offset_of(spec) + spec.slot_count * slot_bytes_of(spec);
}

Result<Arena> Arena::format(std::span<std::byte> memory, const ArenaSpec& spec) {
  PAWL_TRY(check_spec(spec));
  if (memory.size() < size_bytes(spec) || std::bit_cast<std::uintptr_t>(memory.data()) % kPage != 0) {
    return Error{Code::invalid, text("arena of ", size_bytes(spec), " bytes in ", memory.size(), " bytes of memory")};
  }
  ArenaHeader header{};
  header.version = kVersion;
  header.kind = static_cast<std::uint32_t>(spec.kind);
  header.seat = spec.seat.value;
  header.slot_count = spec.slot_count;
  header.payload_bytes = spec.payload_bytes;
  header.stable_bytes = spec.stable_bytes;
  header.bucket_bytes = spec.bucket_bytes;
  header.bucket_count = bucket_count(spec);
  header.layout_digest = spec.layout_digest;
  header.layout_bytes = spec.layout.size();
  header.slot_offset = slot_offset_of(spec);
  header.slot_bytes = slot_bytes_of(spec);
  header.segment_bytes = size_bytes(spec);
  header.layout_crc32c = crc_of(spec.layout.data(), spec.layout.size());
  header.shelf_count = spec.shelf_count;
  header.parts.extent_count = kExtentCount;
  std::memcpy(header.job, spec.job.data(), spec.job.size());
  header.magic = kMagic;
  header.header_crc32c = crc_of(&header, offsetof(ArenaHeader, header_crc32c));

  Arena arena;
  arena.memory_ = memory.data();
  arena.spec_ = std::make_shared<const ArenaSpec>(spec);
  for (std::uint32_t i = 0; i < spec.slot_count; ++i) {
    std::memcpy(arena.slot(i).header_->job, header.job, sizeof header.job);
  }
  std::memcpy(memory.data() + kPage, spec.layout.data(), spec.layout.size());
  std::memcpy(memory.data(), &header, sizeof header);
  return arena;
}

Result<Arena> Arena::open(std::span<std::byte> memory) {
  if (memory.size() < kPage || std::bit_cast<std::uintptr_t>(memory.data()) % kPage != 0) {
    return corrupt(text("arena: a segment of ", memory.size(), " bytes has no header"));
  }
  ArenaHeader header;  // a copy: what is checked is what is used, whoever writes the segment meanwhile
  std::memcpy(&header, memory.data(), sizeof header);
  if (header.magic != kMagic) return corrupt("arena: no header (wrong magic)");
  if (header.version != kVersion) {
    return corrupt(text("arena: format ", header.version,
                        ", written by another version of pawl; this one reads format ", kVersion));
  }
  if (header.header_crc32c != crc_of(&header, offsetof(ArenaHeader, header_crc32c))) {
    return corrupt("arena: the header's checksum differs");
  }
  PAWL_TRY(check_unused(header));
  if (header.job[sizeof header.job - 1] != '\0') return corrupt("arena: the job's name has no end");
  if (header.layout_bytes > memory.size() - kPage) return corrupt("arena: the layout ends beyond the segment");

  ArenaSpec spec;
  spec.job = header.job;
  spec.seat = Seat(header.seat);
  spec.kind = static_cast<ArenaKind>(header.kind);
  spec.slot_count = header.slot_count;
  spec.payload_bytes = header.payload_bytes;
  spec.stable_bytes = header.stable_bytes;
  spec.bucket_bytes = header.bucket_bytes;
  spec.layout_digest = header.layout_digest;
  spec.shelf_count = header.shelf_count;
  spec.layout.assign(reinterpret_cast<const char*>(memory.data() + kPage), header.layout_bytes);
  if (Status status = check_spec(spec); !status) return corrupt(std::move(status).error().within("arena").what);
  if (header.bucket_count != bucket_count(spec) || header.slot_offset != slot_offset_of(spec) ||
      header.slot_bytes != slot_bytes_of(spec) || header.segment_bytes != size_bytes(spec)) {
    return corrupt("arena: the header's offsets disagree with its sizes");
  }
  if (header.segment_bytes > memory.size()) {
    return corrupt(text("arena of ", header.segment_bytes, " bytes in a segment of ", memory.size()));
  }
  if (header.layout_crc32c != crc_of(spec.layout.data(), spec.layout.size())) {
    return corrupt("arena: the layout's checksum differs");
  }
  Arena arena;
  arena.memory_ = memory.data();
  arena.spec_ = std::make_shared<const ArenaSpec>(std::move(spec));
  return arena;
}

Slot Arena::slot(std::uint32_t index) const {
  Slot slot;
  std::byte* begin = memory_ + slot_offset_of(*spec_) + index * slot_bytes_of(*spec_);
  slot.header_ = reinterpret_cast<SlotHeader*>(begin);
  slot.payload_ = begin + payload_offset_of(*spec_);
  slot.spec_ = spec_.get();
  return slot;
}

}  // namespace pawl::job
