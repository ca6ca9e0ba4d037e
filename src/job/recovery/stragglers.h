// Stragglers: seats that compute longer than the others, so that the whole job waits for them.
//
// In a synchronous training all steps take equally long; what differs is a seat's *own part* of a step: the time in which
// it computes and waits for nobody. A daemon looks at each of its trainers' phases at every tick and so knows, after some
// steps, which share of the time was its own (PaceWatch). The paces of all seats go up the tree as a summary of bounded
// size: the slowest few, and a histogram, in which the median is right to a tenth. The root names a seat whose own part is
// more than kSlow times the median, window after window. Nothing is decided from it: it is for people. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

inline constexpr double kSlow = 1.5;         // times the median
inline constexpr double kSlowNoMore = 1.25;  // so that nobody is named in turns
inline constexpr std::uint32_t kSlowWindows = 2;
inline constexpr std::uint64_t kPaceSteps = 10;  // a window has so many steps, and looks, at least
inline constexpr std::uint64_t kPaceLooks = 100;

struct SeatPace {
  Seat seat;
  std::uint64_t own_us = 0;  // of a step, microseconds
  bool operator==(const SeatPace&) const = default;
};

// Of the seats of a subtree.
struct PaceSummary {
  static constexpr std::size_t kBuckets = 96;  // a quarter of an octave each, from 16 us on: more than four minutes
  static constexpr std::size_t kSlowestMax = 4;
  std::array<std::uint32_t, kBuckets> counts{};
  std::vector<SeatPace> slowest;  // the slowest first
  bool operator==(const PaceSummary&) const = default;
};
void add(PaceSummary& summary, const SeatPace& pace);
void add(PaceSummary& summary, const PaceSummary& other);  // of other seats
// Of an even number of seats the lower middle; 0: no seat.
[[nodiscard]] std::uint64_t median_us(const PaceSummary& summary);

[[nodiscard]] std::string to_text(const PaceSummary& summary);  // at most 2 KiB
// Fails: `corrupt`.
[[nodiscard]] Result<PaceSummary> parse_paces(std::string_view text);

// One trainer's looks. `own`: its phase is one in which it computes.
class PaceWindow {
 public:
  void look(Step step, bool own, Duration now);
  // Its own part of a step, if the window is full; then the next one begins.
  [[nodiscard]] bool full(Duration now) const;
  [[nodiscard]] std::uint64_t take_us(Duration now);

 private:
  std::uint64_t looks_ = 0;
  std::uint64_t own_ = 0;
  Step first_;
  Step last_;
  Duration began_{};
};

struct Straggler {
  Seat seat;
  std::uint64_t own_us = 0;
  std::uint64_t median_us = 0;
  bool operator==(const Straggler&) const = default;
};
struct StragglerNotes {
  std::map<Seat, std::uint32_t> slow_for;  // windows in a row
  std::vector<Straggler> named;
};
struct StragglerVerdict {
  StragglerNotes notes;
  std::vector<Straggler> begun;
  std::vector<Straggler> ended;  // as they were last
};
// At the root, once for each of its windows.
[[nodiscard]] StragglerVerdict judge_stragglers(const PaceSummary& all, StragglerNotes notes);

}  // namespace pawl::job
