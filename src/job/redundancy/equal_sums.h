// EqualSums: whether bytes that were declared equal on several seats are equal, told by their sums.
//
// Of each step that is not committed yet: which sums a part of the payload has on the seats that have told theirs, and how many
// seats each. Each node adds up its own seats and what its children in the tree say. The node at which all seats of a group have
// told theirs compares them, and passes them on no further. Of more than kSumsMax different ones those of the fewest seats are
// only counted. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "job/layout/equal_state.h"

namespace pawl::job {

struct EqualSum {
  Step step;
  EqualExtent what;      // its digest names the group, and what lies there
  std::uint32_t of = 0;  // seats in the group
  std::uint64_t sum = 0;
  std::uint32_t seats = 1;  // that have it
  Seat first;               // the least of them
  bool operator==(const EqualSum&) const = default;
};

struct Compared {
  Step step;
  EqualExtent what;
  std::uint32_t seats = 0;       // in all
  EqualSum most;                 // of the most seats; of as many, with the least seat
  std::vector<EqualSum> others;  // with other sums, by their least seat; empty: all are equal
  [[nodiscard]] std::uint32_t count() const { return seats - most.seats; }  // that have others
};

class EqualSums {
 public:
  static constexpr std::size_t kSumsMax = 4;         // of a step and extent
  static constexpr std::size_t kComparedMax = 4096;  // steps and extents; the latest of more are not compared

  // Of seats that are in none of those that were added.
  void add(const EqualSum& one);
  void add(const EqualSums& all);
  void forget(Step upto);  // these steps and those before
  [[nodiscard]] bool empty() const { return told_.empty(); }
  // Of which some seat has not told its sum yet.
  [[nodiscard]] EqualSums incomplete() const;
  // Of that step, what all seats of the group have told; what is part of another one comes after it.
  [[nodiscard]] std::vector<Compared> compared(Step step) const;
  bool operator==(const EqualSums&) const = default;

 private:
  friend std::string to_text(const EqualSums&);
  friend Result<EqualSums> parse_equal_sums(std::string_view);
  struct Seats {
    std::uint32_t count = 0;
    Seat first;
    bool operator==(const Seats&) const = default;
  };
  struct Told {
    std::uint32_t of = 0;
    std::uint64_t seats = 0;  // that have told, those with forgotten sums counted
    std::map<std::uint64_t, Seats> by_sum;
    bool operator==(const Told&) const = default;
  };
  using Key = std::pair<Step, EqualExtent>;
  void add(const Key& key, const Told& told);
  std::map<Key, Told> told_;
};

// On the wire. Fails: `corrupt` if it is none.
[[nodiscard]] std::string to_text(const EqualSums& sums);
[[nodiscard]] Result<EqualSums> parse_equal_sums(std::string_view text);

}  // namespace pawl::job
