#include "job/recovery/node_followers.h"

#include <algorithm>
#include <vector>

#include "base/contains.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kFormers = 4;
constexpr std::size_t kFewSurvivors = 2;  // of which a spare is the third witness

std::uint32_t expected_nodes(const JobSpec& spec) {
  return std::max(spec.node_count + spec.spare_count, 1u);
}

// Most often node numbers begin at 0; where they begin elsewhere some come out low as well.
std::uint32_t place_of(const FollowView& view, NodeId node) {
  return node.value % expected_nodes(view.spec);
}

bool is_chosen(const FollowView& view, std::uint64_t place, std::uint64_t count, std::uint64_t turn) {
  return is_spread(place, count, turn, view.limits.at_once);
}

bool is_former(const FollowView& view, const Deadlines& deadlines) {
  const std::uint32_t place = place_of(view, view.self.node);
  const std::uint64_t turn = doubling_turn(view.joined_for, deadlines.silence);
  return place < kFormers || (turn > 0 && is_chosen(view, place, expected_nodes(view.spec), turn));
}

bool is_led(const JobState& state) {
  return state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
}

bool leads(const FollowView& view) {
  const JobState& state = *view.state;
  if (state.leader != view.self) return false;
  return is_led(state) || (state.phase == JobPhase::running && state.arena_bytes == 0);
}

bool may_linger(const FollowView& view, const Deadlines& deadlines) {
  const std::vector<NodeLife>& evicted = view.state->evicted;
  const auto place = static_cast<std::uint64_t>(std::ranges::find(evicted, view.self) - evicted.begin());
  const auto turn = static_cast<std::uint64_t>(view.in_state_for / deadlines.silence);
  return is_led(*view.state) && is_chosen(view, place, evicted.size(), turn);
}

bool is_drained_or_opens(const FollowView& view) {
  if (view.state->phase != JobPhase::running || view.leaving.empty()) return false;
  const std::span<const NodeLife> survivors = view.roster.survivors();
  return contains(view.leaving.first(std::min<std::size_t>(view.leaving.size(), view.limits.at_once)), view.self) ||
         contains(survivors.first(2), view.self);
}

bool has_post(const FollowView& view, const Deadlines& deadlines) {
  if (is_chosen(view, view.position, view.position_count, 0)) return true;
  const Duration quiet_for = is_led(*view.state) ? view.quiet_for : Duration::zero();
  for (const std::uint64_t turn :
       {doubling_turn(quiet_for, deadlines.leader), doubling_turn(view.accused_for, deadlines.silence)})
    if (turn > 0 && is_chosen(view, view.position, view.position_count, turn)) return true;
  return false;
}

}  // namespace

bool do_all_follow(const JobSpec& spec, const FollowLimits& limits) {
  return spec.node_count + spec.spare_count <= limits.all_max;
}

std::uint32_t bystanders_before(const FollowView& view) {
  const std::uint32_t own = place_of(view, view.self.node);
  std::vector<bool> taken(own, false);
  const auto take = [&](const std::vector<NodeLife>& lives) {
    for (const NodeLife& life : lives)
      if (const std::uint32_t place = place_of(view, life.node); place < own) taken[place] = true;
  };
  take(view.roster.survivors());
  take(view.state->evicted);
  take(view.state->departed);
  return static_cast<std::uint32_t>(std::ranges::count(taken, false));
}

bool must_follow_nodes(const FollowView& view, const Deadlines& deadlines) {
  if (do_all_follow(view.spec, view.limits)) return true;
  if (view.state == nullptr) return is_former(view, deadlines);
  const JobPhase phase = view.state->phase;
  if (phase == JobPhase::finished || phase == JobPhase::failed) return false;
  if (view.roster.survivors().size() <= kFewSurvivors || leads(view)) return true;
  if (view.roster.is_evicted(view.self)) return may_linger(view, deadlines);
  if (!view.roster.is_survivor(view.self)) return view.few_registered || bystanders_before(view) < view.limits.at_once;
  return is_drained_or_opens(view) || has_post(view, deadlines);
}

}  // namespace pawl::job
