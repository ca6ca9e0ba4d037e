#include "job/redundancy/placement.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

namespace pawl::job {
namespace {

// Positions by domain, within a domain in their own order; and the length of the longest domain.
struct Grouped {
  std::vector<std::uint32_t> positions;
  std::vector<std::uint32_t> begins;  // of each domain, and behind the last the end
  std::uint32_t largest = 0;
};

Grouped group_by_domain(std::span<const std::uint32_t> domains, std::uint32_t domain_count) {
  Grouped grouped;
  grouped.begins.resize(domain_count + 1);
  for (const std::uint32_t domain : domains) ++grouped.begins[domain + 1];
  for (std::uint32_t i = 1; i <= domain_count; ++i) {
    grouped.largest = std::max(grouped.largest, grouped.begins[i]);
    grouped.begins[i] += grouped.begins[i - 1];
  }
  std::vector<std::uint32_t> next(grouped.begins.begin(), grouped.begins.end());
  grouped.positions.resize(domains.size());
  for (std::uint32_t position = 0; position < domains.size(); ++position)
    grouped.positions[next[domains[position]]++] = position;
  return grouped;
}

// Holders chosen one after another, of the least busy first: in other domains for as long as there are any.
class Chooser {
 public:
  Chooser(std::span<const std::uint32_t> domains, std::uint32_t domain_count)
      : domains_(domains), loads_(domains.size()), within_(domain_count) {
    for (std::uint32_t position = 0; position < domains.size(); ++position) {
      within_[domains[position]].insert({0, position});
      all_.insert({0, position});
    }
    for (std::uint32_t domain = 0; domain < domain_count; ++domain) least_.insert({0, domain});
  }

  // `weight`: how much each of them will hold of it.
  void choose(std::uint32_t position, std::uint32_t weight, std::span<std::uint32_t> holders) {
    std::size_t chosen = 0;
    for (auto domain = least_.begin(); domain != least_.end() && chosen < holders.size(); ++domain)
      if (domain->second != domains_[position]) holders[chosen++] = within_[domain->second].begin()->second;
    choose_anywhere(position, holders, chosen);
    for (const std::uint32_t holder : holders) take(holder, weight);
  }

 private:
  using Loads = std::set<std::pair<std::uint64_t, std::uint32_t>>;

  void choose_anywhere(std::uint32_t position, std::span<std::uint32_t> holders, std::size_t chosen) const {
    for (const auto& [load, candidate] : all_) {
      if (chosen == holders.size()) return;
      if (candidate != position && std::ranges::count(holders.first(chosen), candidate) == 0)
        holders[chosen++] = candidate;
    }
  }

  void take(std::uint32_t holder, std::uint32_t weight) {
    const std::uint32_t domain = domains_[holder];
    Loads& loads = within_[domain];
    least_.erase({loads.begin()->first, domain});
    loads.erase({loads_[holder], holder});
    all_.erase({loads_[holder], holder});
    loads_[holder] += weight;
    loads.insert({loads_[holder], holder});
    all_.insert({loads_[holder], holder});
    least_.insert({loads.begin()->first, domain});
  }

  std::span<const std::uint32_t> domains_;
  std::vector<std::uint64_t> loads_;  // of each position
  Loads all_;                         // positions, by what they hold
  std::vector<Loads> within_;         // the same of each domain
  Loads least_;                       // domains, by what their least busy position holds
};

}  // namespace

Ring::Ring(std::span<const std::uint32_t> seat_counts, std::uint32_t replica_count,
           std::span<const std::uint32_t> domains)
    : replica_count_(
          std::min(replica_count, seat_counts.empty() ? 0 : static_cast<std::uint32_t>(seat_counts.size() - 1))) {
  for (const std::uint32_t count : seat_counts) {
    first_seats_.push_back(first_seats_.back() + count);
    seats_per_node_max_ = std::max(seats_per_node_max_, count);
  }
  learn_domains(domains);
  choose_holders();
  count_wards();
}

void Ring::learn_domains(std::span<const std::uint32_t> domains) {
  domains_.resize(position_count());
  if (domains.size() != domains_.size()) {
    std::iota(domains_.begin(), domains_.end(), 0);
    domain_count_ = position_count();
    return;
  }
  std::unordered_map<std::uint32_t, std::uint32_t> numbers;
  for (std::size_t i = 0; i < domains.size(); ++i)
    domains_[i] = numbers.try_emplace(domains[i], static_cast<std::uint32_t>(numbers.size())).first->second;
  domain_count_ = static_cast<std::uint32_t>(numbers.size());
}

void Ring::choose_holders() {
  const std::size_t n = position_count();
  holders_.resize(n * replica_count_);
  if (replica_count_ == 0) return;
  const Grouped grouped = group_by_domain(domains_, domain_count_);
  const std::size_t stride = grouped.largest;
  if ((std::size_t{replica_count_} + 1) * stride <= n) {
    for (std::size_t at = 0; at < n; ++at)
      for (std::size_t i = 0; i < replica_count_; ++i)
        holders_[std::size_t{grouped.positions[at]} * replica_count_ + i] =
            grouped.positions[(at + (i + 1) * stride) % n];
    return;
  }
  std::vector<std::uint32_t> largest_first(domain_count_);
  std::iota(largest_first.begin(), largest_first.end(), 0);
  const auto size_of = [&grouped](std::uint32_t domain) { return grouped.begins[domain + 1] - grouped.begins[domain]; };
  std::ranges::stable_sort(largest_first, std::ranges::greater{}, size_of);
  Chooser chooser(domains_, domain_count_);
  for (const std::uint32_t domain : largest_first)
    for (std::uint32_t at = grouped.begins[domain]; at < grouped.begins[domain + 1]; ++at) {
      const std::uint32_t position = grouped.positions[at];
      chooser.choose(position, seats_at(position),
                     {holders_.data() + std::size_t{position} * replica_count_, replica_count_});
    }
}

void Ring::count_wards() {
  std::vector<std::uint32_t> wards(position_count());
  for (std::uint32_t position = 0; position < position_count(); ++position)
    for (const std::uint32_t holder : holders_at(position)) wards[holder] += seats_at(position);
  if (!wards.empty()) wards_per_node_max_ = std::ranges::max(wards);
}

std::uint32_t Ring::position_of(Seat seat) const {
  const auto behind = std::ranges::upper_bound(first_seats_, seat.value);
  return static_cast<std::uint32_t>(behind - first_seats_.begin()) - 1;
}

std::vector<std::uint32_t> Ring::holders_of(Seat seat) const {
  const auto holders = holders_at(position_of(seat));
  return {holders.begin(), holders.end()};
}

std::vector<Seat> Ring::wards_of(std::uint32_t position) const {
  std::vector<Seat> wards;
  for (std::uint32_t i = 0; i < replica_count_; ++i)
    for (std::uint32_t owner = 0; owner < position_count(); ++owner)
      if (holders_[std::size_t{owner} * replica_count_ + i] == position)
        for (std::uint32_t seat = first_seats_[owner]; seat < first_seats_[owner + 1]; ++seat) wards.emplace_back(seat);
  return wards;
}

}  // namespace pawl::job
