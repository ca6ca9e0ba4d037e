// A sealed arena in which bytes are changed: by a flipped bit, or by a process that should not have had the segment.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "base/crc32c.h"
#include "job/snapshot/arena.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using namespace pawl;

using namespace pawl::job;

constexpr std::size_t kPageBytes = 4096;

ArenaSpec small_spec() {
  ArenaSpec spec;
  spec.job = "fuzz";
  spec.payload_bytes = 5000;  // two buckets, the last one short
  spec.stable_bytes = 4900;
  spec.bucket_bytes = 4096;
  spec.layout = "a layout";
  spec.shelf_count = 2;
  return spec;
}

struct Free {
  void operator()(std::byte* memory) const { std::free(memory); }
};

// The arena as every input finds it: one slot sealed at step 7.
std::span<std::byte> fresh_arena() {
  static const std::size_t size_bytes = (Arena::size_bytes(small_spec()) + kPageBytes - 1) / kPageBytes * kPageBytes;
  static const std::unique_ptr<std::byte, Free> memory(
      static_cast<std::byte*>(std::aligned_alloc(kPageBytes, size_bytes)));
  const std::span<std::byte> bytes(memory.get(), size_bytes);
  std::ranges::fill(bytes, std::byte{0});
  const Result<Arena> arena = Arena::format(bytes, small_spec());
  if (!arena) std::abort();
  const Slot slot = arena->slot(0);
  if (!slot.try_open(slot.word(), Generation(1), Step(7), 0)) std::abort();
  for (std::uint32_t i = 0; i < Arena::bucket_count(small_spec()); ++i) {
    std::ranges::fill(slot.bucket(i), static_cast<std::byte>(i + 1));
    slot.bucket_done(i, crc32c(slot.bucket(i)), Generation(1), Step(7));
  }
  if (!slot.try_seal(Generation(1), Step(7)) || !slot.verify()) std::abort();
  return bytes;
}

// Each three bytes of the input: where, and what is changed there.
void damage(std::span<std::byte> bytes, std::span<const unsigned char> input) {
  for (; input.size() >= 3; input = input.subspan(3))
    bytes[(input[0] | input[1] << 8) % bytes.size()] ^= static_cast<std::byte>(input[2]);
}

// Only the payload is damaged: that must be noticed. (At most four changes near each other: what CRC32C promises.)
void damage_payload(std::span<const unsigned char> input) {
  const Result<Arena> arena = Arena::open(fresh_arena());
  if (!arena || input.size() < 6) std::abort();
  const Slot slot = arena->slot(0);
  const std::span<std::byte> payload = slot.payload();
  const std::size_t at = (input[0] | input[1] << 8) % (payload.size() - 4);
  bool changed = false;
  for (std::size_t i = 0; i < 4; ++i) {
    payload[at + i] ^= static_cast<std::byte>(input[2 + i]);
    changed = changed || input[2 + i] != 0;
  }
  if (slot.verify().has_value() == changed) std::abort();
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::span input(data, size);
  if (size < 7) return 0;
  if (input[0] % 2 == 0) {
    damage_payload(input.subspan(1));
    return 0;
  }
  const std::span<std::byte> memory = fresh_arena();
  damage(memory, input.subspan(1));
  const Result<Arena> arena = Arena::open(memory);
  if (!arena) return 0;
  for (std::uint32_t i = 0; i < arena->slot_count(); ++i) {
    const Slot slot = arena->slot(i);
    (void)slot.verify();
    (void)slot.acknowledged_by_all(slot.word());
  }
  return 0;
}
