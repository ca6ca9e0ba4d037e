#include "job/redundancy/equal_sums.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>

#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kNumbers32 = std::uint64_t{1} << 32;

// The next numbers of the line. False: they are not there.
bool take(std::string_view& line, std::span<std::uint64_t> out) {
  for (std::uint64_t& number : out) {
    const std::size_t end = std::min(line.find(' '), line.size());
    if (!parse_number(line.substr(0, end), number)) return false;
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return true;
}

}  // namespace

void EqualSums::add(const Key& key, const Told& told) {
  Told& known = told_[key];
  known.of = std::max(known.of, told.of);
  known.seats += told.seats;
  for (const auto& [sum, seats] : told.by_sum) {
    const auto found = known.by_sum.try_emplace(sum, Seats{0, seats.first}).first;
    found->second.count += seats.count;
    found->second.first = std::min(found->second.first, seats.first);
  }
  const auto has_fewer = [](const auto& a, const auto& b) {
    return std::pair(a.second.count, b.second.first) < std::pair(b.second.count, a.second.first);
  };
  while (known.by_sum.size() > kSumsMax) known.by_sum.erase(std::ranges::min_element(known.by_sum, has_fewer));
  if (told_.size() > kComparedMax) told_.erase(std::prev(told_.end()));
}

void EqualSums::add(const EqualSum& one) {
  add(Key(one.step, one.what), Told{one.of, one.seats, {{one.sum, {one.seats, one.first}}}});
}

void EqualSums::add(const EqualSums& all) {
  for (const auto& [key, told] : all.told_) add(key, told);
}

void EqualSums::forget(Step upto) {
  std::erase_if(told_, [upto](const auto& each) { return each.first.first <= upto; });
}

EqualSums EqualSums::incomplete() const {
  EqualSums left = *this;
  std::erase_if(left.told_, [](const auto& each) { return each.second.seats >= each.second.of; });
  return left;
}

std::vector<Compared> EqualSums::compared(Step step) const {
  std::vector<Compared> all;
  for (auto each = told_.lower_bound(Key(step, {{0, 0}, 0})); each != told_.end() && each->first.first == step;
       ++each) {
    const Told& told = each->second;
    if (told.seats < told.of) continue;
    Compared one{step, each->first.second, static_cast<std::uint32_t>(told.seats), {}, {}};
    for (const auto& [sum, seats] : told.by_sum)
      one.others.push_back({step, one.what, told.of, sum, seats.count, seats.first});
    std::ranges::sort(one.others, {}, &EqualSum::first);
    const auto most = std::ranges::max_element(one.others, {}, &EqualSum::seats);  // the first of them
    one.most = *most;
    one.others.erase(most);
    all.push_back(std::move(one));
  }
  const auto length = [](const Compared& one) { return one.what.extent.end - one.what.extent.begin; };
  std::ranges::stable_sort(all, std::greater{}, length);
  return all;
}

std::string to_text(const EqualSums& sums) {
  std::string out;
  for (const auto& [key, told] : sums.told_) {
    out += text(key.first, ' ', key.second.extent.begin, ' ', key.second.extent.end, ' ', key.second.digest, ' ',
                told.of, ' ', told.seats);
    for (const auto& [sum, seats] : told.by_sum) out += text(' ', sum, ' ', seats.count, ' ', seats.first);
    out += '\n';
  }
  return out;
}

Result<EqualSums> parse_equal_sums(std::string_view text) {
  const Error corrupt{Code::corrupt, "these are no sums of equal bytes"};
  EqualSums sums;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return corrupt;
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end + 1);
    std::array<std::uint64_t, 6> numbers{};
    if (!take(line, numbers)) return corrupt;
    const auto [step, first, last, digest, of, seats] = numbers;
    if (first >= last || of >= kNumbers32 || seats >= kNumbers32) return corrupt;
    EqualSums::Told told{static_cast<std::uint32_t>(of), seats, {}};
    std::uint64_t counted = 0;
    while (!line.empty()) {
      std::array<std::uint64_t, 3> one{};
      if (!take(line, one) || one[1] == 0 || one[1] > seats || one[2] >= kNumbers32) return corrupt;
      counted += one[1];
      told.by_sum[one[0]] = {static_cast<std::uint32_t>(one[1]), Seat(static_cast<std::uint32_t>(one[2]))};
    }
    if (counted == 0 || counted > seats || told.by_sum.size() > EqualSums::kSumsMax) return corrupt;
    sums.add({Step(step), {{first, last}, digest}}, told);
  }
  return sums;
}

}  // namespace pawl::job
