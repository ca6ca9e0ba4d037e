#include "job/persist/slot_part.h"

#include <atomic>

#include "job/layout/seat_layout.h"
#include "job/persist/seat_share.h"

namespace pawl::job {

checkpoint::MemorySums sums_of(const Slot& slot, const ArenaSpec& spec) {
  checkpoint::MemorySums sums{slot.payload(), spec.bucket_bytes, {}};
  for (const Bucket& bucket : slot.buckets()) sums.crc32c.push_back(bucket.crc32c.load(std::memory_order_relaxed));
  return sums;
}

Status write_slot_part(CheckpointStore& store, const std::string& folder, Seat seat, const Slot& slot,
                       const ArenaSpec& spec, PartProgress& progress) {
  PAWL_TRY(slot.verify_header());
  const checkpoint::MemorySums sums = sums_of(slot, spec);
  PAWL_ASSIGN(const SeatLayout layout, parse_layout(spec.layout));
  const std::string info = to_json(SeatInfo{slot.samples(), spec.bucket_bytes});
  const auto pieces = share_of(layout, seat, slot.payload(), spec.layout, info);
  const std::string beside = text_of(beside_of(layout, seat, slot.payload()));
  const std::string values(values_in(layout, slot.payload()));  // now: what is read after the proof is not proven
  return store.write(folder, {seat, pieces, beside, values, &sums}, progress);
}

}  // namespace pawl::job
