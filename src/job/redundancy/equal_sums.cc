#include "job/redundancy/equal_sums.h"

#include <algorithm>
#include <array>

#include "base/text.h"

namespace pawl::job {
namespace {

// The next number of the line; false: there is none.
bool take(std::string_view& line, std::uint64_t& out) {
  const std::size_t end = std::min(line.find(' '), line.size());
  if (!parse_number(line.substr(0, end), out)) return false;
  line.remove_prefix(std::min(end + 1, line.size()));
  return true;
}

constexpr std::uint64_t kNumbers32 = std::uint64_t{1} << 32;

bool parse_line(std::string_view line, EqualSum& out) {
  std::array<std::uint64_t, 7> numbers{};
  for (std::uint64_t& number : numbers)
    if (!take(line, number)) return false;
  const auto [step, begin, end, digest, sum, seats, first] = numbers;
  if (!line.empty() || begin >= end || seats == 0 || seats >= kNumbers32 || first >= kNumbers32) return false;
  out = {Step(step),
         {{begin, end}, digest},
         sum,
         static_cast<std::uint32_t>(seats),
         Seat(static_cast<std::uint32_t>(first))};
  return true;
}

}  // namespace

void EqualSums::add(const EqualSum& one) {
  const std::pair key(one.step, one.what);
  auto found = sums_.find(key);
  if (found == sums_.end()) {
    if (sums_.size() >= kComparedMax) return;
    found = sums_.emplace(key, BySum()).first;
  }
  BySum& by_sum = found->second;
  const auto [seats, is_new] = by_sum.try_emplace(one.sum, Seats{0, one.first});
  seats->second.count += one.seats;
  seats->second.first = std::min(seats->second.first, one.first);
  if (by_sum.size() <= kSumsMax) return;
  const auto has_fewer = [](const auto& a, const auto& b) {
    return std::pair(a.second.count, b.second.first) < std::pair(b.second.count, a.second.first);
  };
  by_sum.erase(std::ranges::min_element(by_sum, has_fewer));
}

void EqualSums::add(const EqualSums& all) {
  for (const auto& [key, by_sum] : all.sums_)
    for (const auto& [sum, seats] : by_sum) add({key.first, key.second, sum, seats.count, seats.first});
}

void EqualSums::forget(Step upto) {
  std::erase_if(sums_, [upto](const auto& each) { return each.first.first <= upto; });
}

std::uint64_t Compared::seats() const {
  std::uint64_t all = most.seats;
  for (const EqualSum& other : others) all += other.seats;
  return all;
}

std::vector<Compared> EqualSums::compared(Step upto) const {
  std::vector<Compared> all;
  for (const auto& [key, by_sum] : sums_) {
    if (key.first > upto) break;
    Compared one{key.first, key.second, {}, {}};
    for (const auto& [sum, seats] : by_sum)
      one.others.push_back({key.first, key.second, sum, seats.count, seats.first});
    std::ranges::sort(one.others, {}, &EqualSum::first);
    const auto most = std::ranges::max_element(one.others, {}, &EqualSum::seats);  // the first of them
    one.most = *most;
    one.others.erase(most);
    if (one.seats() > 1) all.push_back(std::move(one));
  }
  return all;
}

std::string to_text(const EqualSums& sums) {
  std::string out;
  for (const auto& [key, by_sum] : sums.sums_)
    for (const auto& [sum, seats] : by_sum)
      out += text(key.first, ' ', key.second.extent.begin, ' ', key.second.extent.end, ' ', key.second.digest, ' ', sum,
                  ' ', seats.count, ' ', seats.first, '\n');
  return out;
}

Result<EqualSums> parse_equal_sums(std::string_view text) {
  EqualSums sums;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    EqualSum one;
    if (end == std::string_view::npos || !parse_line(text.substr(0, end), one))
      return Error{Code::corrupt, "these are no sums of equal bytes"};
    sums.add(one);
    text.remove_prefix(end + 1);
  }
  return sums;
}

}  // namespace pawl::job
