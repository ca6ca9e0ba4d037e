#include "collectors.h"

#include <utility>
#include <vector>

#include "base/log.h"
#include "job/membership/node_report.h"

namespace pawl::sim {

namespace {

constexpr Duration kBetweenDeaths = std::chrono::seconds(20);  // five in a row end a node

const char* const kNames[] = {"dies_before", "dies_after", "late", "never", "drops", "changes", "stale"};

}  // namespace

PutFault BadCollectors::strike(Process& client, const std::string& key, std::string& value) {
  if (key.find("/collected/") == std::string::npos) return PutFault::none;
  const std::string sound = value;
  const std::uint64_t drawn = random_();
  auto trouble = static_cast<Trouble>(drawn % (2 * static_cast<std::uint64_t>(Trouble::count)));
  if (trouble >= Trouble::count || (trouble == Trouble::stale && last_.empty())) {
    last_ = sound;
    return PutFault::none;
  }
  const bool kills = trouble == Trouble::dies_before || trouble == Trouble::dies_after;
  if (kills && (!may_die_ || scheduler_.now() < no_death_before_)) trouble = Trouble::never;
  if (trouble == Trouble::dies_before || trouble == Trouble::dies_after)
    no_death_before_ = scheduler_.now() + kBetweenDeaths;
  log_warn("sim_bad_collector", "client", client.name, "key", key, "what", kNames[static_cast<std::size_t>(trouble)]);
  std::vector<std::string> reports;
  for (const std::string_view report : job::split_reports(value)) reports.emplace_back(report);
  const std::size_t one = drawn / 64 % reports.size();
  switch (trouble) {
    case Trouble::dies_before:
      return PutFault::dies_before;
    case Trouble::dies_after:
      return PutFault::dies_after;
    case Trouble::late:
      return PutFault::late;
    case Trouble::never:
      return PutFault::never;
    case Trouble::drops:
      reports.erase(reports.begin() + static_cast<std::ptrdiff_t>(one));
      break;
    case Trouble::changes:
      reports[one][drawn / 4096 % reports[one].size()] ^= static_cast<char>(1 << drawn / 1024 % 4);
      break;
    case Trouble::stale:
      reports = {std::exchange(last_, sound)};
      break;
    case Trouble::count:
      break;
  }
  value = job::join_reports(reports);
  return PutFault::none;
}

}  // namespace pawl::sim
