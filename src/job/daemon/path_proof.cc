#include "job/daemon/path_proof.h"

#include <algorithm>
#include <utility>

namespace pawl::job {

PathProof::PathProof(std::span<const Source> sources) {
  for (const Source& source : sources) {
    const bool is_path = source.kind == SourceKind::path;
    places_.push_back({.is_path = is_path});
    (is_path ? has_paths_ : has_own_) = true;
  }
}

bool PathProof::may_ask(std::size_t source) const {
  return !is_path(source) || !has_own_ || !sums_.empty();
}

bool PathProof::wants_sums(std::size_t source) const {
  return has_paths_ && (is_path(source) ? !places_[source].is_heard : sums_.empty());
}

bool PathProof::is_awaited(std::size_t source) const {
  return !has_own_ && !places_[source].is_heard && !places_[source].is_passed_over;
}

bool PathProof::awaits_any() const {
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (is_awaited(i)) return true;
  return false;
}

void PathProof::pass_over(std::size_t source) {
  places_[source].is_passed_over = true;
}

std::size_t PathProof::compared() const {
  return has_own_ ? 0 : static_cast<std::size_t>(std::ranges::count(places_, true, &Place::is_heard));
}

std::optional<PathProof::Difference> PathProof::hear(std::size_t source, std::uint32_t first_bucket,
                                                     std::vector<std::uint32_t> sums, std::size_t slots_buckets) {
  places_[source].is_heard = true;
  if (sums_.empty()) {
    if (sums.size() != slots_buckets) return std::nullopt;
    sums_ = std::move(sums);
    sums_from_ = source;
    return std::nullopt;
  }
  for (std::size_t i = 0; i < sums.size(); ++i) {
    const auto bucket = static_cast<std::uint32_t>(first_bucket + i);
    if (!is_right(bucket, sums[i])) return Difference{bucket, sums_from_};
  }
  return std::nullopt;
}

bool PathProof::is_right(std::uint32_t bucket, std::uint32_t sum) const {
  return bucket < sums_.size() && sums_[bucket] == sum;
}

}  // namespace pawl::job
