// EqualSums: whether bytes that were declared equal on several seats are equal, told by their sums.
//
// Of each step that is not committed yet: which sums a part of the payload has on the seats that have it, and how many seats
// each. Each node adds up its own seats and what its children in the tree say; the root has all of them when the step is
// committed, since it is committed once every seat holds it. Of more than kSumsMax different ones those of the fewest seats
// are forgotten: that they differ is known then. Pure.
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
  EqualExtent what;  // its digest names the group, and what lies there
  std::uint64_t sum = 0;
  std::uint32_t seats = 1;  // that have it
  Seat first;               // the least of them
  bool operator==(const EqualSum&) const = default;
};

struct Compared {
  Step step;
  EqualExtent what;
  EqualSum most;                 // of the most seats; of as many, with the least seat
  std::vector<EqualSum> others;  // with other sums, by their least seat; empty: all are equal
  [[nodiscard]] std::uint64_t seats() const;
};

class EqualSums {
 public:
  static constexpr std::size_t kSumsMax = 4;         // of a step and extent
  static constexpr std::size_t kComparedMax = 4096;  // steps and extents; what comes beyond is not compared

  // Of seats that are in none of those that were added.
  void add(const EqualSum& one);
  void add(const EqualSums& all);
  void forget(Step upto);  // these steps and those before
  [[nodiscard]] bool empty() const { return sums_.empty(); }
  // Of these steps and those before, what more than one seat has told; by steps, a part before what it is part of.
  [[nodiscard]] std::vector<Compared> compared(Step upto) const;
  bool operator==(const EqualSums&) const = default;

 private:
  friend std::string to_text(const EqualSums&);
  struct Seats {
    std::uint32_t count = 0;
    Seat first;
    bool operator==(const Seats&) const = default;
  };
  using BySum = std::map<std::uint64_t, Seats>;
  std::map<std::pair<Step, EqualExtent>, BySum> sums_;
};

// On the wire. Fails: `corrupt` if it is none.
[[nodiscard]] std::string to_text(const EqualSums& sums);
[[nodiscard]] Result<EqualSums> parse_equal_sums(std::string_view text);

}  // namespace pawl::job
