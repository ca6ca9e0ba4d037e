#include "job/recovery/suspicion.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "job/recovery/duties.h"
#include "job/recovery/members.h"
#include "job/recovery/spread.h"

namespace pawl::job {
namespace {

constexpr std::size_t kFewMembers = 2;  // so few need a third to tell whose cable is cut

bool is_bystander(const JobState& state, NodeLife life) {
  return !is_evicted(state, life) && std::ranges::none_of(state.seats, [&](const Member& member) {
    return member.life.node == life.node && !is_evicted(state, member.life);
  });
}

std::optional<NodeRecord> lowest_bystander(const JobState& state, const Registrations& registrations) {
  for (const auto& [id, record] : registrations.nodes)
    if (is_bystander(state, record.life)) return record;
  return std::nullopt;
}

// The nodes that watch each other, by position. In a recovery the survivors close up: nobody is left unwatched because his
// neighbours are gone. A member's seat is its lowest.
std::vector<Member> places_of(const JobState& state, const Registrations& registrations) {
  std::vector<Member> places;
  for (const Member& member : state.seats)
    if ((places.empty() || places.back().life != member.life) && !is_evicted(state, member.life))
      places.push_back(member);
  if (places.size() != kFewMembers) return places;
  if (const auto third = lowest_bystander(state, registrations))
    places.push_back({Seat(static_cast<std::uint32_t>(state.seats.size())), third->life, third->address, 0});
  return places;
}

std::optional<std::uint32_t> position_in(const std::vector<Member>& places, NodeLife life) {
  for (std::uint32_t i = 0; i < places.size(); ++i)
    if (places[i].life == life) return i;
  return std::nullopt;
}

bool is_orphaned_to(const JobState& state, const Registrations& registrations, NodeLife self) {
  return is_lowest_registered(state, registrations, self) &&
         std::ranges::none_of(state.seats, [&](const Member& member) {
           return !is_evicted(state, member.life) && registrations.has(member.life);
         });
}

// When this node last heard of it or, if that is later, began to listen.
Duration silent_for(const Contact& contact, const SuspicionView& view) {
  return view.now - std::max(contact.heard, *view.attentive_since);
}

// Half at least of those it has links to; in a job where all are linked with all, of all others. Who is proven dead does
// not count.
bool hears_half(const SuspicionView& view, const Deadlines& deadlines) {
  std::size_t all = 0;
  std::size_t heard = 0;
  for (const Contact& contact : view.contacts) {
    if (contact.refused) continue;
    ++all;
    heard += view.now - contact.heard <= deadlines.silence ? 1 : 0;
  }
  const Links links = links_of(view.state, view.registrations, view.self);
  if (!links.with_all) return 2 * heard >= all;
  for (const NodeLife& life : links.lives) {
    if (std::ranges::find(view.contacts, life, &Contact::life) != view.contacts.end()) continue;
    ++all;
    heard += contains(view.beating, life.node) ? 1 : 0;
  }
  return 2 * heard >= all;
}

// To the root all keep a link: of these some bear witness besides those beside it, or what n say would be told to n.
std::vector<NodeLife> witnesses_among(const std::vector<Member>& places, const SuspicionView& view, NodeLife victim,
                                      const Deadlines& deadlines) {
  const auto victims_position = position_in(places, victim);
  std::vector<NodeLife> witnesses;
  if (!victims_position || !view.attentive_since) return witnesses;
  const auto count = static_cast<std::uint32_t>(places.size());
  const std::vector<std::uint32_t> beside = linked_positions(*victims_position, count);
  for (const std::uint32_t i : linking_positions(*victims_position, count)) {
    if (*victims_position == 0 && !contains(beside, i) && !is_spread(i, count)) continue;
    const NodeLife life = places[i].life;
    if (life != victim && !is_absent(view.registrations, life, *view.attentive_since, view.now, deadlines))
      witnesses.push_back(life);
  }
  return witnesses;
}

std::vector<NodeLife> accusers_of(const SuspicionView& view, NodeLife victim, const std::vector<NodeLife>& witnesses) {
  std::vector<NodeLife> accusers;
  for (const Accusation& accusation : view.accusations)
    if (accusation.victim == victim && contains(witnesses, accusation.accuser)) accusers.push_back(accusation.accuser);
  return accusers;
}

}  // namespace

std::vector<Member> watched_by(const JobState& state, const Registrations& registrations, NodeLife self) {
  if (state.phase == JobPhase::finished || state.phase == JobPhase::failed || is_evicted(state, self)) return {};
  std::vector<Member> places = places_of(state, registrations);
  std::vector<Member> watched;
  if (const auto mine = position_in(places, self)) {
    for (const std::uint32_t position : linked_positions(*mine, static_cast<std::uint32_t>(places.size())))
      watched.push_back(places[position]);
  } else if (is_orphaned_to(state, registrations, self)) {
    watched = std::move(places);
  }
  return watched;
}

Links links_of(const JobState& state, const Registrations& registrations, NodeLife self) {
  const std::vector<Member> places = places_of(state, registrations);
  const auto count = static_cast<std::uint32_t>(places.size());
  Links links;
  if (const auto mine = position_in(places, self)) {
    const std::vector<std::uint32_t> ahead = linked_positions(*mine, count);
    std::set<std::uint32_t> positions(ahead.begin(), ahead.end());
    for (const std::uint32_t position : linking_positions(*mine, count)) positions.insert(position);
    for (const std::uint32_t position : positions) links.lives.push_back(places[position].life);
  }
  links.with_all = links.lives.size() + 1 >= places.size();
  return links;
}

std::vector<NodeLife> witnesses_of(const SuspicionView& view, NodeLife victim, const Deadlines& deadlines) {
  return witnesses_among(places_of(view.state, view.registrations), view, victim, deadlines);
}

void count_heard(FenceView& view, const Links& links, std::span<const Contact> contacts,
                 const std::map<NodeId, Duration>& beats, const Deadlines& deadlines) {
  for (const NodeLife& life : links.lives) {
    const auto contact = std::ranges::find(contacts, life, &Contact::life);
    if (contact != contacts.end() && contact->refused) continue;
    Duration heard = contact != contacts.end() ? contact->heard_boottime : Duration::zero();
    if (const auto beat = beats.find(life.node); beat != beats.end()) heard = std::max(heard, beat->second);
    ++view.members;
    view.heard += view.now_boottime - heard <= deadlines.silence ? 1 : 0;
  }
  view.knows_all = links.with_all;
}

bool is_absent(const Registrations& registrations, NodeLife life, Duration attentive_since, Duration now,
               const Deadlines& deadlines) {
  const auto gone = registrations.gone_since.find(life.node);
  if (gone == registrations.gone_since.end()) return false;
  // What ended within a lease of the control's return may have ended because the control was away. When it ended is not known
  // to who has found it missing since.
  return now > std::max(gone->second + deadlines.absence + registrations.time_to_end(life.node),
                        attentive_since + deadlines.lease + deadlines.silence);
}

bool leaves_quorum(const JobState& state, const Registrations& registrations, std::span<const NodeLife> victims) {
  const std::vector<NodeLife> survivors = survivors_of(state);
  const auto left = std::ranges::count_if(
      survivors, [&](NodeLife life) { return !contains(victims, life) && registrations.has(life); });
  return 2 * static_cast<std::size_t>(left) >= survivors.size();
}

std::vector<NodeLife> accused_by(const SuspicionView& view, const Deadlines& deadlines) {
  std::vector<NodeLife> accused;
  if (!view.attentive_since) return accused;
  std::optional<bool> trusts_itself;  // not asked while all are heard
  for (const Contact& contact : view.contacts) {
    if (contact.refused) continue;
    if (silent_for(contact, view) <= deadlines.silence + view.registrations.time_to_end(contact.life.node)) continue;
    if (!is_survivor(view.state, contact.life)) continue;
    if (!contains(witnesses_of(view, contact.life, deadlines), view.self)) continue;
    if (!trusts_itself) trusts_itself = hears_half(view, deadlines);
    if (*trusts_itself || is_absent(view.registrations, contact.life, *view.attentive_since, view.now, deadlines))
      accused.push_back(contact.life);
  }
  return accused;
}

std::vector<NodeLife> looked_up_by(const SuspicionView& view, const Deadlines& deadlines) {
  std::vector<NodeLife> lives;
  if (!view.attentive_since || view.registrations.known || !is_survivor(view.state, view.self)) return lives;
  for (const Contact& contact : view.contacts)
    if (!contact.refused && silent_for(contact, view) > deadlines.silence && is_survivor(view.state, contact.life))
      lives.push_back(contact.life);
  if (!lives.empty() && hears_half(view, deadlines)) lives.clear();
  return lives;
}

// Whom others accuse, and this node does not hear either, if it keeps a link there. Not itself: others judge it.
static std::vector<NodeLife> accused_by_others(const SuspicionView& view, const Deadlines& deadlines) {
  std::vector<NodeLife> victims;
  if (!view.attentive_since) return victims;
  const bool trusts_itself = hears_half(view, deadlines);
  for (const Accusation& accusation : view.accusations) {
    const NodeLife victim = accusation.victim;
    if (victim == view.self || contains(victims, victim) || !is_survivor(view.state, victim)) continue;
    const auto contact = std::ranges::find(view.contacts, victim, &Contact::life);
    if (contact != view.contacts.end() && view.now - contact->heard <= deadlines.silence) continue;
    if (trusts_itself || is_absent(view.registrations, victim, *view.attentive_since, view.now, deadlines))
      victims.push_back(victim);
  }
  return victims;
}

std::vector<Cause> convicted(const SuspicionView& view, const Deadlines& deadlines) {
  std::vector<Cause> causes;
  const std::vector<NodeLife> accused =
      view.judges_all ? accused_by_others(view, deadlines) : accused_by(view, deadlines);
  if (accused.empty() || !is_survivor(view.state, view.self)) return causes;
  const std::vector<Member> places = places_of(view.state, view.registrations);
  std::vector<NodeLife> victims;
  for (const NodeLife& life : accused) {
    const std::vector<NodeLife> witnesses = witnesses_among(places, view, life, deadlines);
    std::vector<NodeLife> accusers = accusers_of(view, life, witnesses);
    // Who judges by others' words alone counts those only that are there to take them back.
    if (view.judges_all)
      std::erase_if(accusers, [&](NodeLife accuser) { return !view.registrations.has(accuser); });
    else if (!contains(accusers, view.self))  // others must see this node's word, too
      continue;
    if (2 * accusers.size() <= witnesses.size()) continue;
    const bool absent = is_absent(view.registrations, life, *view.attentive_since, view.now, deadlines);
    victims.push_back(life);
    causes.push_back({absent ? FaultKind::node_lost : FaultKind::node_silent, life, std::nullopt,
                      text("no sign of life, say nodes ", numbers_of(accusers), absent ? "; its lease ended" : ""), 0});
  }
  if (!leaves_quorum(view.state, view.registrations, victims)) causes.clear();
  return causes;
}

}  // namespace pawl::job
