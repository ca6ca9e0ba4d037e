#include "job/daemon/fetch_ranges.h"

#include <algorithm>

namespace pawl::job {

FetchRanges::FetchRanges(Options options, std::vector<Extents> offers)
    : options_(options), offers_(std::move(offers)), states_(options.bucket_count, State::open) {
  for (Extents& offer : offers_) offer = joined_extents(std::move(offer));
}

Extent FetchRanges::extent_of(BucketRange range) const {
  const std::uint32_t end = range.first + range.count;
  return {std::uint64_t{range.first} * options_.bucket_bytes,
          end >= options_.bucket_count ? kStreamEnd : std::uint64_t{end} * options_.bucket_bytes};
}

bool FetchRanges::has(std::size_t source, std::uint32_t bucket) const {
  const Extent wanted = extent_of({bucket, 1});
  return std::ranges::any_of(offers_[source], [wanted](const Extent& offer) {
    return offer.begin <= wanted.begin && wanted.end <= offer.end;
  });
}

std::optional<BucketRange> FetchRanges::take(std::size_t source) {
  const auto is_free = [&](std::uint32_t bucket) { return states_[bucket] == State::open && has(source, bucket); };
  BucketRange range;
  while (range.first < states_.size() && !is_free(range.first)) ++range.first;
  while (range.count < options_.range_max && range.first + range.count < states_.size() &&
         is_free(range.first + range.count))
    states_[range.first + range.count++] = State::taken;
  return range.count > 0 ? std::optional(range) : std::nullopt;
}

void FetchRanges::done(std::uint32_t bucket) {
  if (states_[bucket] != State::done) ++done_count_;
  states_[bucket] = State::done;
}

void FetchRanges::give_back(BucketRange range) {
  for (std::uint32_t i = range.first; i < range.first + range.count; ++i)
    if (states_[i] == State::taken) states_[i] = State::open;
}

void FetchRanges::withdraw(std::size_t source, Extent extent) {
  offers_[source] = without(offers_[source], {&extent, 1});
}

bool FetchRanges::may_give(std::size_t source) const {
  for (std::uint32_t i = 0; i < states_.size(); ++i)
    if (states_[i] != State::done && has(source, i)) return true;
  return false;
}

bool FetchRanges::any_lost() const {
  for (std::uint32_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::done) continue;
    bool any = false;
    for (std::size_t source = 0; source < offers_.size() && !any; ++source) any = has(source, i);
    if (!any) return true;
  }
  return false;
}

}  // namespace pawl::job
