#include "job/recovery/suspect.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "base/text.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

constexpr std::size_t kAccusersMin = 2;
constexpr std::uint64_t kWord = 5040;  // divisible by 1 to 10; what a node says is divided by whom it names

std::string_view host_of(std::string_view address) {
  const std::size_t colon = address.rfind(':');
  std::string_view host = address.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

std::optional<NodeLife> named(const JobState& state, std::string_view lost) {
  std::uint32_t rank = 0;
  if (parse_number(lost, rank)) {
    if (rank >= state.seats.size()) return std::nullopt;
    return state.seats[rank].life;
  }
  std::optional<NodeLife> found;
  for (const Member& member : state.seats) {
    if (host_of(member.address) != lost || found == member.life) continue;
    if (found) return std::nullopt;  // several on one machine
    found = member.life;
  }
  return found;
}

std::set<NodeLife> all_named(const JobState& state, std::string_view lost) {
  std::set<NodeLife> lives;
  while (!lost.empty()) {
    const std::size_t end = std::min(lost.find(' '), lost.size());
    if (const auto life = named(state, lost.substr(0, end))) lives.insert(*life);
    lost.remove_prefix(std::min(end + 1, lost.size()));
  }
  return lives;
}

struct Words {
  std::size_t accusers = 0;
  std::uint64_t weight = 0;
};

// It failed for that one's sake, and others for its own: a node whose links are gone finds all its neighbours gone.
bool names_one(const std::map<NodeLife, std::set<NodeLife>>& found_gone, NodeLife life) {
  const auto said = found_gone.find(life);
  return said != found_gone.end() && said->second.size() == 1;
}

}  // namespace

std::optional<NodeLife> name_suspect(const JobState& state, const std::map<Seat, FaultReport>& reports) {
  std::map<NodeLife, std::set<NodeLife>> found_gone;  // by whom, a node speaks once
  for (const auto& [seat, report] : reports) {
    if (report.seat.value >= state.seats.size()) continue;
    const NodeLife reporter = state.seats[report.seat.value].life;
    std::set<NodeLife>& gone = found_gone[reporter];
    for (NodeLife life : all_named(state, report.lost))
      if (life != reporter) gone.insert(life);
  }
  const std::size_t survivors = survivors_of(state).size();
  if (found_gone.size() == 1 && found_gone.begin()->second.empty() && survivors > kAccusersMin)
    return found_gone.begin()->first;
  std::map<NodeLife, Words> against;
  for (const auto& [reporter, gone] : found_gone) {
    for (NodeLife life : gone) {
      ++against[life].accusers;
      against[life].weight += kWord / gone.size();
    }
  }
  std::optional<NodeLife> suspect;
  std::uint64_t heaviest = 0;
  bool alone = false;
  for (const auto& [life, words] : against) {
    if (names_one(found_gone, life) || words.weight < heaviest) continue;
    alone = words.weight > heaviest;
    heaviest = words.weight;
    suspect = life;
  }
  if (!suspect || !alone || against[*suspect].accusers < kAccusersMin) return std::nullopt;
  return suspect;
}

}  // namespace pawl::job
