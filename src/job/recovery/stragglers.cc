#include "job/recovery/stragglers.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr double kLeastUs = 16;
constexpr double kPerOctave = 4;

std::size_t bucket_of(std::uint64_t us) {
  if (us <= static_cast<std::uint64_t>(kLeastUs)) return 0;
  const double at = std::log2(static_cast<double>(us) / kLeastUs) * kPerOctave;
  return std::min(static_cast<std::size_t>(at), PaceSummary::kBuckets - 1);
}

// The middle of a bucket.
std::uint64_t us_of(std::size_t bucket) {
  return static_cast<std::uint64_t>(kLeastUs * std::exp2((static_cast<double>(bucket) + 0.5) / kPerOctave));
}

void keep_slowest(std::vector<SeatPace>& paces) {
  std::ranges::sort(paces, [](const SeatPace& a, const SeatPace& b) {
    return a.own_us != b.own_us ? a.own_us > b.own_us : a.seat < b.seat;
  });
  if (paces.size() > PaceSummary::kSlowestMax) paces.resize(PaceSummary::kSlowestMax);
}

bool is_times(std::uint64_t us, double times, std::uint64_t median) {
  return static_cast<double>(us) > times * static_cast<double>(median);
}

// "a:b,": takes it from the front.
bool take_pair(std::string_view& in, std::uint64_t& a, std::uint64_t& b) {
  const std::size_t colon = in.find(':');
  const std::size_t comma = in.find(',');
  if (colon == in.npos || comma == in.npos || colon > comma) return false;
  if (!parse_number(in.substr(0, colon), a) || !parse_number(in.substr(colon + 1, comma - colon - 1), b)) return false;
  in.remove_prefix(comma + 1);
  return true;
}

}  // namespace

void add(PaceSummary& summary, const SeatPace& pace) {
  ++summary.counts[bucket_of(pace.own_us)];
  summary.slowest.push_back(pace);
  keep_slowest(summary.slowest);
}

void add(PaceSummary& summary, const PaceSummary& other) {
  for (std::size_t i = 0; i < PaceSummary::kBuckets; ++i) summary.counts[i] += other.counts[i];
  summary.slowest.insert(summary.slowest.end(), other.slowest.begin(), other.slowest.end());
  keep_slowest(summary.slowest);
}

std::uint64_t median_us(const PaceSummary& summary) {
  std::uint64_t seats = 0;
  for (const std::uint32_t count : summary.counts) seats += count;
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < PaceSummary::kBuckets; ++i) {
    below += summary.counts[i];
    if (seats > 0 && 2 * below >= seats) return us_of(i);
  }
  return 0;
}

std::string to_text(const PaceSummary& summary) {
  std::string out;
  for (const SeatPace& pace : summary.slowest) out += text(pace.seat, ":", pace.own_us, ",");
  out += "|";
  for (std::size_t i = 0; i < PaceSummary::kBuckets; ++i)
    if (summary.counts[i] > 0) out += text(i, ":", summary.counts[i], ",");
  return out;
}

Result<PaceSummary> parse_paces(std::string_view in) {
  const Error wrong{Code::corrupt, "this is no summary of paces"};
  PaceSummary summary;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  while (!in.empty() && in.front() != '|') {
    if (!take_pair(in, a, b) || a > UINT32_MAX || summary.slowest.size() == PaceSummary::kSlowestMax) return wrong;
    summary.slowest.push_back({Seat(static_cast<std::uint32_t>(a)), b});
  }
  if (in.empty()) return wrong;
  in.remove_prefix(1);
  while (!in.empty()) {
    if (!take_pair(in, a, b) || a >= PaceSummary::kBuckets || b > UINT32_MAX) return wrong;
    summary.counts[a] = static_cast<std::uint32_t>(b);
  }
  return summary;
}

void PaceWindow::look(Step step, bool own, Duration now) {
  if (looks_ == 0 || step < last_) {  // also after a recovery that went back
    *this = {};
    first_ = step;
    began_ = now;
  }
  last_ = step;
  ++looks_;
  if (own) ++own_;
}

bool PaceWindow::full(Duration now) const {
  return looks_ >= kPaceLooks && last_.value - first_.value >= kPaceSteps && now > began_;
}

std::uint64_t PaceWindow::take_us(Duration now) {
  const double step_us = static_cast<double>((now - began_) / 1us) / static_cast<double>(last_.value - first_.value);
  const double share = static_cast<double>(own_) / static_cast<double>(looks_);
  *this = {};
  return static_cast<std::uint64_t>(step_us * share);
}

StragglerVerdict judge_stragglers(const PaceSummary& all, StragglerNotes notes) {
  StragglerVerdict verdict;
  const std::uint64_t median = median_us(all);
  std::map<Seat, std::uint32_t> slow_for;
  for (const SeatPace& pace : all.slowest) {
    if (!is_times(pace.own_us, kSlow, median)) continue;
    const auto before = notes.slow_for.find(pace.seat);
    const std::uint32_t windows = (before != notes.slow_for.end() ? before->second : 0) + 1;
    slow_for[pace.seat] = windows;
    const bool known = std::ranges::any_of(notes.named, [&](const Straggler& one) { return one.seat == pace.seat; });
    if (!known && windows >= kSlowWindows) verdict.begun.push_back({pace.seat, pace.own_us, median});
  }
  for (Straggler one : notes.named) {
    const auto now = std::ranges::find(all.slowest, one.seat, &SeatPace::seat);
    const bool still = now != all.slowest.end() && is_times(now->own_us, kSlowNoMore, median);
    if (now != all.slowest.end()) one = {one.seat, now->own_us, median};
    (still ? verdict.notes.named : verdict.ended).push_back(one);
  }
  verdict.notes.named.insert(verdict.notes.named.end(), verdict.begun.begin(), verdict.begun.end());
  verdict.notes.slow_for = std::move(slow_for);
  return verdict;
}

}  // namespace pawl::job
