#include "job/daemon/equal_buckets.h"

#include <algorithm>

#include "base/crc32c.h"

namespace pawl::job {

UnsentBuckets::UnsentBuckets(std::vector<EqualExtent> offers, std::uint32_t bucket_bytes, std::uint64_t payload_bytes)
    : offers_(std::move(offers)), bucket_bytes_(bucket_bytes), payload_bytes_(payload_bytes) {}

void UnsentBuckets::begin_step() {
  if (sent_in_full_ == 0 && !was_wanted_) next_ = kStepsLate;  // of the step before nothing was wanted
  if (sent_in_full_ > 0) --sent_in_full_;
  was_wanted_ = false;
}

std::vector<const EqualExtent*> UnsentBuckets::offers(std::uint32_t bucket_count) const {
  if (sent_in_full_ > 0 || offers_.empty()) return {};
  std::vector<const EqualExtent*> found(bucket_count, nullptr);
  for (const EqualExtent& offer : offers_)
    for (std::uint64_t i = (offer.extent.begin + bucket_bytes_ - 1) / bucket_bytes_; i < bucket_count; ++i) {
      if (std::min((i + 1) * bucket_bytes_, payload_bytes_) > offer.extent.end) break;
      found[i] = &offer;
    }
  return found;
}

void UnsentBuckets::note_wanted(bool differ) {
  const std::uint64_t least = differ ? kStepsDifferent : kStepsLate;
  if (was_wanted_ && sent_in_full_ > least) return;  // it is one step
  was_wanted_ = true;
  next_ = std::max(next_, least);
  sent_in_full_ = next_ + 1;  // begin_step counts the step that follows at once
  next_ = std::min(2 * next_, kStepsMax);
}

namespace {

FoundEqual take_from(const Arena& arena, const Slot& into, std::uint32_t index, std::uint32_t crc32c,
                     Generation generation, Step step) {
  const std::span<std::byte> place = into.bucket(index);
  bool may_come = true;  // until a later step is found
  for (std::uint32_t i = 0; i < arena.slot_count(); ++i) {
    const Slot slot = arena.slot(i);
    const SlotWord word = slot.word();
    if (word.state == SlotState::empty || word.generation != generation) continue;
    if (step < word.step) may_come = false;
    if (word.step != step) continue;
    if (index >= slot.buckets().size() || slot.bucket(index).size() != place.size()) return FoundEqual::missing;
    if (!slot.bucket_ready(index, generation, step))
      return word.frozen || word.state != SlotState::dirty ? FoundEqual::missing : FoundEqual::capturing;
    if (slot.buckets()[index].crc32c == crc32c &&
        copy_crc32c(place.data(), slot.bucket(index).data(), place.size()) == crc32c) {
      into.bucket_done(index, crc32c, generation, step);
      return FoundEqual::taken;
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // it may have been reopened while it was looked at
    const SlotWord now = slot.word();
    const bool is_there = now.generation == generation && now.step == step && now.state != SlotState::empty;
    return is_there && slot.bucket_ready(index, generation, step) ? FoundEqual::differs : FoundEqual::missing;
  }
  return may_come ? FoundEqual::earlier : FoundEqual::missing;
}

}  // namespace

FoundEqual take_equal(const Slot& slot, std::uint32_t index, std::uint32_t crc32c, std::uint64_t digest,
                      Generation generation, Step step, const std::vector<EqualArena>& arenas) {
  FoundEqual best = FoundEqual::missing;
  for (const EqualArena& each : arenas) {
    if (each.state.digest != digest || !each.arena) continue;
    const FoundEqual found = take_from(each.arena->arena, slot, index, crc32c, generation, step);
    if (found == FoundEqual::taken) return found;
    best = std::min(best, found);
  }
  return best;
}

void AwaitedBuckets::add(const SameBucketsMessage& told) {
  std::uint32_t index = told.first;
  for (const std::uint32_t sum : told.crc32c) awaited_.push_back({index++, sum, told.digest});
}

FoundEqual AwaitedBuckets::take(const Bucket& bucket) const {
  return take_equal(slot_, bucket.index, bucket.crc32c, bucket.digest, generation_, step_, *arenas_);
}

void AwaitedBuckets::settle(Duration waited, const std::atomic<bool>& ended, std::size_t at_most) {
  std::size_t looked_at = 0;
  std::size_t not_there = 0;  // of these; they go to the front
  for (; looked_at < awaited_.size() && looked_at < at_most && not_there < kLookAheadMax && !ended; ++looked_at) {
    const Bucket bucket = awaited_[looked_at];
    const FoundEqual found = take(bucket);
    if ((found == FoundEqual::capturing && waited < kCaptureMax) ||
        (found == FoundEqual::earlier && waited < kBeginMax)) {
      awaited_[not_there++] = bucket;
      continue;
    }
    (found == FoundEqual::taken ? taken_ : wanted_.buckets).push_back(bucket.index);
    if (found == FoundEqual::differs) wanted_.differ = true;
  }
  const auto begin = awaited_.begin();
  awaited_.erase(begin + static_cast<std::ptrdiff_t>(not_there), begin + static_cast<std::ptrdiff_t>(looked_at));
}

BucketsWantedMessage AwaitedBuckets::take_wanted() {
  if (wanted_.differ) wanted_.buckets.insert(wanted_.buckets.end(), taken_.begin(), taken_.end());
  taken_.clear();
  BucketsWantedMessage some{wanted_.differ, {}};
  const auto from = wanted_.buckets.end() - static_cast<std::ptrdiff_t>(std::min(wanted_.buckets.size(), kWantedMax));
  some.buckets.assign(from, wanted_.buckets.end());
  wanted_.buckets.erase(from, wanted_.buckets.end());
  return some;
}

std::vector<EqualExtent> offers_there(const std::vector<EqualOffer>& offers, Seat seat, std::span<const Seat> others) {
  std::vector<EqualExtent> found;
  for (const EqualOffer& offer : offers)
    if (offer.seat == seat && std::ranges::any_of(others, [&](Seat other) { return offer.seats.has(other); }))
      found.push_back(offer.state);
  return found;
}

}  // namespace pawl::job
