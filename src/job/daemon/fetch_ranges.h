// FetchRanges: which buckets of a slot are still to come, and which of its sources has them.
//
// Streams take ranges of buckets, one at a time each, the first ones first; what a stream did not get done it gives back.
// So a slow source holds up one range, and whoever is faster takes the others. Pure; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "job/layout/extent.h"

namespace pawl::job {

struct BucketRange {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  bool operator==(const BucketRange&) const = default;
};

class FetchRanges {
 public:
  struct Options {
    std::uint32_t bucket_count = 0;
    std::uint32_t bucket_bytes = 0;  // of the stream, each but the last
    std::uint32_t range_max = 1;     // buckets that one stream takes at once
  };
  // `offers`: what each source has of the stream.
  FetchRanges(Options options, std::vector<Extents> offers);

  // Of that source the next buckets that nobody has taken; nullopt: there are none, at least now.
  [[nodiscard]] std::optional<BucketRange> take(std::size_t source);
  void done(std::uint32_t bucket);
  void give_back(BucketRange range);  // those of them that are not done
  // The source has not got that extent after all. A range that somebody has taken is not touched.
  void withdraw(std::size_t source, Extent extent);

  [[nodiscard]] bool all_done() const { return done_count_ == states_.size(); }
  [[nodiscard]] bool may_give(std::size_t source) const;  // a bucket that is not done, taken or not
  [[nodiscard]] bool any_lost() const;                    // a bucket that is not done, and that no source has
  [[nodiscard]] Extent extent_of(BucketRange range) const;

 private:
  enum class State : std::uint8_t { open, taken, done };
  [[nodiscard]] bool has(std::size_t source, std::uint32_t bucket) const;
  const Options options_;
  std::vector<Extents> offers_;  // joined
  std::vector<State> states_;
  std::size_t done_count_ = 0;
};

}  // namespace pawl::job
