#include "job/recovery/node_followers.h"

#include <algorithm>

#include "base/contains.h"

namespace pawl::job {
namespace {

constexpr std::uint32_t kFormersAtOnce = 4;
constexpr std::size_t kFirstFollowers = 4;  // of those that would otherwise all
constexpr std::size_t kFirstTurns = 16;     // a rack of members that are not registered takes nobody's turn
constexpr std::size_t kFewSurvivors = 2;    // of which a spare is the third witness

// Most often node numbers begin at 0; where they begin elsewhere some come out low as well. Each further four begin later.
bool is_former(const FollowView& view, const Deadlines& deadlines) {
  const std::uint32_t all = std::max(view.spec.node_count + view.spec.spare_count, 1u);
  const std::int64_t turn = view.self.node.value % all / kFormersAtOnce;
  return view.joined_for >= deadlines.silence * (turn * (turn + 1) / 2);
}

bool is_among_first(std::span<const NodeLife> lives, NodeLife self, std::size_t count) {
  return contains(lives.first(std::min(lives.size(), count)), self);
}

// Only members that are registered count for a turn, and who follows nothing does not know them: so some follow in good time.
bool may_take_a_turn(const FollowView& view, const Deadlines& deadlines) {
  if (view.quiet_for <= deadlines.leader) return false;
  const auto place =
      static_cast<std::size_t>(std::ranges::find(view.roster.survivors(), view.self) - view.roster.survivors().begin());
  const std::size_t turn = place < kFirstTurns ? 1 : 2 + (place - kFirstTurns) / kFirstFollowers;
  return view.quiet_for > deadlines.leader * static_cast<std::int64_t>(turn);
}

// Who hears less than half of its neighbours suspects itself, and accuses of these who loses its registration, which takes longer.
Duration patience_with_silence(const FollowView& view, const Deadlines& deadlines) {
  std::size_t all = 0, silent = 0;
  for (const Contact& contact : view.contacts) {
    if (contact.refused) continue;
    ++all;
    silent += view.now - contact.heard > deadlines.silence / 2 ? 1 : 0;
  }
  return 2 * silent > all ? deadlines.silence : deadlines.silence / 2;
}

// Before it would accuse: a registration that ends while it follows is noticed in time.
bool may_bear_witness(const FollowView& view, const Deadlines& deadlines) {
  if (view.accuses) return true;
  if (!view.attentive_since) return false;
  const SuspicionView suspicion{*view.state, view.registrations,   {},      view.contacts,
                                view.self,   view.attentive_since, view.now};
  const Duration patience = patience_with_silence(view, deadlines);
  return std::ranges::any_of(view.contacts, [&](const Contact& contact) {
    return !contact.refused && view.roster.is_survivor(contact.life) &&
           view.now - std::max(contact.heard, *view.attentive_since) > patience &&
           contains(witnesses_of(suspicion, contact.life, deadlines), view.self);
  });
}

}  // namespace

bool must_follow_nodes(const FollowView& view, const Deadlines& deadlines) {
  if (view.spec.node_count + view.spec.spare_count <= view.all_follow_max) return true;
  if (view.state == nullptr) return is_former(view, deadlines);
  const JobState& state = *view.state;
  if (state.phase == JobPhase::finished || state.phase == JobPhase::failed) return false;
  const std::vector<NodeLife>& survivors = view.roster.survivors();
  if (!view.roster.is_survivor(view.self) || survivors.size() <= kFewSurvivors) return true;
  const bool led = state.phase == JobPhase::quiescing || state.phase == JobPhase::restoring;
  if (led) {
    if (state.leader == view.self || may_take_a_turn(view, deadlines)) return true;
    // Of a leader without a seat only its lease tells that it is gone.
    if (!view.roster.is_member(state.leader) && is_among_first(survivors, view.self, kFirstFollowers)) return true;
  }
  if (state.phase == JobPhase::running && state.leader == view.self && state.arena_bytes == 0) return true;
  const bool drains = state.phase == JobPhase::running && !view.leaving.empty();
  if (drains && (contains(view.leaving, view.self) || is_among_first(survivors, view.self, 2))) return true;
  if (is_among_first(view.failed, view.self, kFirstFollowers)) return true;
  return may_bear_witness(view, deadlines);
}

}  // namespace pawl::job
