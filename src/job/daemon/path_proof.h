// PathProof: which sources of a fetch may give bytes, by the sums of their buckets.
//
// What is right is said by a slot of the seat's own, if there is any among the sources: a path, another seat's slot that was
// declared equal, gives nothing before that has told its sums, and the path the same. Where there is none, all paths that are not
// passed over tell theirs before any gives bytes, and the first one's count. Pure; not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "job/membership/job_state.h"

namespace pawl::job {

class PathProof {
 public:
  explicit PathProof(std::span<const Source> sources);  // in the order by which they are named below

  [[nodiscard]] bool is_path(std::size_t source) const { return places_[source].is_path; }
  [[nodiscard]] bool has_paths() const { return has_paths_; }
  [[nodiscard]] bool may_ask(std::size_t source) const;
  [[nodiscard]] bool wants_sums(std::size_t source) const;
  // One that was not heard yet, and is before bytes come from any.
  [[nodiscard]] bool is_awaited(std::size_t source) const;
  [[nodiscard]] bool awaits_any() const;
  void pass_over(std::size_t source);  // it is asked no more: the others do not wait for it
  // Of how many paths the sums are equal where nothing else could prove them.
  [[nodiscard]] std::size_t compared() const;

  struct Difference {
    std::uint32_t bucket = 0;
    std::size_t other = 0;  // the source that has told another sum
  };
  // The sums of these buckets, all of the slot's where it has all of them.
  [[nodiscard]] std::optional<Difference> hear(std::size_t source, std::uint32_t first_bucket,
                                               std::vector<std::uint32_t> sums, std::size_t slots_buckets);
  [[nodiscard]] bool is_right(std::uint32_t bucket, std::uint32_t sum) const;  // of a path that was heard

 private:
  struct Place {
    bool is_path = false;
    bool is_heard = false;
    bool is_passed_over = false;
  };
  std::vector<Place> places_;
  bool has_own_ = false;
  bool has_paths_ = false;
  std::vector<std::uint32_t> sums_;  // of all buckets; empty: not known yet
  std::size_t sums_from_ = 0;
};

}  // namespace pawl::job
