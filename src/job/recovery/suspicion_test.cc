#include "job/recovery/suspicion.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "job/recovery/members.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

NodeLife life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}
std::vector<NodeLife> lives(std::initializer_list<std::uint32_t> nodes) {
  std::vector<NodeLife> out;
  for (const std::uint32_t node : nodes) out.push_back(life(node));
  return out;
}

class Suspect : public testing::Test {
 protected:
  // Members 0 .. `members`-1 of one seat each, then spares; all registered.
  void begin(std::uint32_t members, std::uint32_t spares = 0) {
    state.generation = Generation(4);
    state.phase = JobPhase::running;
    state.leader = life(0);
    state.seats.clear();
    for (std::uint32_t node = 0; node < members; ++node) state.seats.push_back({Seat(node), life(node), "", 0});
    for (std::uint32_t node = 0; node < members + spares; ++node) registrations.nodes[NodeId(node)].life = life(node);
  }
  void sign_off(std::uint32_t node, Duration at) {
    registrations.nodes.erase(NodeId(node));
    registrations.gone_since[NodeId(node)] = at;
  }
  // What `self` sees if it has heard all but `silent` just now, and those 4 s ago.
  SuspicionView seen_by(std::uint32_t self, std::initializer_list<std::uint32_t> silent) {
    contacts.clear();
    for (const Member& member : watched_by(state, registrations, life(self))) {
      const bool heard = std::ranges::find(silent, member.life.node.value) == silent.end();
      contacts.push_back({member.life, heard ? now : now - 4s, {}, false});
    }
    return {state, registrations, accusations, contacts, life(self), attentive_since, now};
  }
  std::vector<NodeLife> accused(std::uint32_t self, std::initializer_list<std::uint32_t> silent) {
    return accused_by(seen_by(self, silent), deadlines);
  }
  std::vector<NodeLife> watched(std::uint32_t self) {
    std::vector<NodeLife> out;
    for (const Member& member : watched_by(state, registrations, life(self))) out.push_back(member.life);
    return out;
  }

  Deadlines deadlines = derive_deadlines(3s);
  JobState state;
  Registrations registrations;
  std::vector<Accusation> accusations;
  std::vector<Contact> contacts;
  std::optional<Duration> attentive_since = 100s;
  Duration now = 200s;
};

// The next pawld of a node begins when the killed one has given its memory back.
TEST_F(Suspect, WhoHasMuchMemoryIsSilentForLongerBeforeItIsAccused) {
  begin(4);
  EXPECT_EQ(accused(0, {1}), lives({1}));
  registrations.memory_bytes[NodeId(1)] = std::uint64_t{23} << 30;
  EXPECT_EQ(accused(0, {1}), lives({}));
  now += 5s;
  attentive_since = 100s;
  SuspicionView view = seen_by(0, {});
  contacts[0].heard = now - 9s;
  view.contacts = contacts;
  EXPECT_EQ(accused_by(view, deadlines), std::vector{contacts[0].life});
  registrations.memory_bytes[NodeId(1)] = 8 << 20;
  EXPECT_EQ(accused(0, {1}), lives({1}));  // and a small one is not
}

TEST_F(Suspect, MembersWatchTheirNeighboursSparesNobody) {
  begin(4, 2);
  EXPECT_EQ(watched(0), lives({1, 2, 3}));
  EXPECT_TRUE(watched(4).empty());
  state.phase = JobPhase::finished;
  EXPECT_TRUE(watched(0).empty());
}

TEST_F(Suspect, TheLowestSpareIsTheThirdOfAJobOfTwo) {
  begin(2, 2);
  EXPECT_EQ(watched(0), lives({1, 2}));
  EXPECT_EQ(watched(2), lives({0, 1}));
  EXPECT_TRUE(watched(3).empty());
  EXPECT_EQ(witnesses_of(seen_by(0, {}), life(1), deadlines), lives({0, 2}));
  sign_off(2, 150s);
  EXPECT_EQ(watched(3), lives({0, 1}));
}

TEST_F(Suspect, ManyHearNothingOfASilentRootAndAsManySayItAsOfASmallOne) {
  for (const std::uint32_t members : {10u, 100u, 500u}) {
    begin(members);
    accusations.clear();
    std::size_t convicting = 0;
    for (std::uint32_t node = 1; node < members; ++node)
      if (!accused(node, {0}).empty()) accusations.push_back({life(0), life(node)});
    EXPECT_GE(accusations.size(), std::min(members - 1, 16u)) << members;
    EXPECT_LE(accusations.size(), 19u) << "each word is told to all";
    const auto lower =
        std::ranges::count_if(accusations, [&](const auto& word) { return word.accuser.node.value < members / 2; });
    EXPECT_NEAR(static_cast<double>(lower), static_cast<double>(accusations.size()) / 2, 1) << "from everywhere";
    for (std::uint32_t node = 1; node < members; ++node) convicting += convicted(seen_by(node, {0}), deadlines).size();
    EXPECT_EQ(convicting, accusations.size());
  }
}

// Nodes may be numbered through racks in turn: then those at equal distances are in one.
TEST_F(Suspect, TheRootsWitnessesLieInManyRacksHoweverNodesAreNumbered) {
  const std::uint32_t members = 1024;
  begin(members);
  std::vector<std::uint32_t> accusers;
  for (std::uint32_t node = 1; node < members; ++node)
    if (!accused(node, {0}).empty()) accusers.push_back(node);
  EXPECT_GE(accusers.size(), 16u);
  for (const std::uint32_t racks : {8u, 16u, 32u, 64u}) {
    std::map<std::uint32_t, std::size_t> in_rack;
    for (const std::uint32_t node : accusers) ++in_rack[node % racks];
    for (const auto& [rack, count] : in_rack) EXPECT_LT(count, accusers.size() / 2) << racks << " racks";
  }
}

TEST_F(Suspect, InARecoveryTheSurvivorsCloseUp) {
  begin(9);
  EXPECT_EQ(watched(5), lives({0, 2, 4, 6, 7}));
  state.phase = JobPhase::quiescing;
  state.evicted = lives({0, 2, 4, 6, 7});
  EXPECT_EQ(watched(5), lives({1, 3, 8}));
  EXPECT_TRUE(watched(4).empty());
}

TEST_F(Suspect, AnOrphanedJobIsWatchedByTheLowestOfTheOthers) {
  begin(3, 2);
  for (std::uint32_t node = 0; node < 3; ++node) sign_off(node, 150s);
  EXPECT_EQ(watched(3), lives({0, 1, 2}));
  EXPECT_TRUE(watched(4).empty());
}

TEST_F(Suspect, SilenceIsAnAccusation) {
  begin(4);
  EXPECT_TRUE(accused(0, {}).empty());
  EXPECT_EQ(accused(0, {2}), lives({2}));
  now = 203s;  // it has been attentive for 3 s only
  attentive_since = 200s;
  EXPECT_TRUE(accused(0, {2}).empty());
  now = 203001ms;
  EXPECT_EQ(accused(0, {2}), lives({2}));
  attentive_since.reset();
  EXPECT_TRUE(accused(0, {2}).empty());
}

TEST_F(Suspect, WhoHearsFewSuspectsItself) {
  begin(4);
  EXPECT_TRUE(accused(0, {1, 2}).empty());
  EXPECT_TRUE(accused(0, {1, 2, 3}).empty());
  sign_off(2, now - 1s);  // it may be about to return
  EXPECT_TRUE(accused(0, {1, 2, 3}).empty());
  sign_off(2, now - 3s);
  EXPECT_EQ(accused(0, {1, 2, 3}), lives({2}));
}

// Node 4 has links to 0, 1 and 3; node 2 has one to it.
TEST_F(Suspect, OfFiveMembersItCountsThoseThatHaveALinkToIt) {
  begin(5);
  EXPECT_EQ(watched(4), lives({0, 1, 3}));
  SuspicionView view = seen_by(4, {1, 3});
  EXPECT_TRUE(accused_by(view, deadlines).empty());
  view.beating = {NodeId(2)};
  EXPECT_EQ(accused_by(view, deadlines), lives({1, 3}));
  begin(9);  // these are not all linked with all
  EXPECT_EQ(watched(4), lives({0, 1, 3, 5, 6}));
  SuspicionView of_nine = seen_by(4, {3, 5, 6});
  of_nine.beating = {NodeId(2), NodeId(8)};
  EXPECT_TRUE(accused_by(of_nine, deadlines).empty());
}

TEST_F(Suspect, OneAccuserDoesNotSuffice) {
  begin(4);
  accusations = {{life(2), life(0)}};
  EXPECT_TRUE(convicted(seen_by(0, {2}), deadlines).empty());
  accusations.push_back({life(2), life(1)});
  const auto causes = convicted(seen_by(0, {2}), deadlines);
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].kind, FaultKind::node_silent);
  EXPECT_EQ(causes[0].node, life(2));
  EXPECT_EQ(causes[0].detail, "no sign of life, say nodes 0,1");
  EXPECT_EQ(convicted(seen_by(1, {2}), deadlines).size(), 1u);
  EXPECT_TRUE(convicted(seen_by(3, {2}), deadlines).empty());  // its word is not there yet
}

TEST_F(Suspect, WhatIsHeardAgainIsNotHeldUp) {
  begin(4);
  accusations = {{life(2), life(0)}, {life(2), life(1)}, {life(2), life(3)}};
  EXPECT_TRUE(convicted(seen_by(0, {}), deadlines).empty());
}

TEST_F(Suspect, StrangersAndOtherLivesAreNoWitnesses) {
  begin(9);
  const std::vector<NodeLife> witnesses = witnesses_of(seen_by(4, {5}), life(5), deadlines);
  EXPECT_EQ(witnesses, lives({2, 3, 4, 6}));
  accusations = {{life(5), life(4)}, {life(5), life(0)}, {life(5), life(8)}, {life(5), life(6, 2)}};
  EXPECT_TRUE(convicted(seen_by(4, {5}), deadlines).empty());
  EXPECT_TRUE(accused(0, {5}).empty());
}

TEST_F(Suspect, OfTwoTheLeaseOrASpareDecides) {
  begin(2);
  accusations = {{life(1), life(0)}};
  EXPECT_TRUE(convicted(seen_by(0, {1}), deadlines).empty());
  sign_off(1, now - 3s);
  ASSERT_EQ(convicted(seen_by(0, {1}), deadlines).size(), 1u);
  EXPECT_EQ(convicted(seen_by(0, {1}), deadlines)[0].kind, FaultKind::node_lost);
  begin(2, 1);
  registrations.gone_since.clear();
  EXPECT_TRUE(convicted(seen_by(0, {1}), deadlines).empty());
  accusations.push_back({life(1), life(2)});
  EXPECT_EQ(convicted(seen_by(0, {1}), deadlines).size(), 1u);
  EXPECT_TRUE(convicted(seen_by(2, {1}), deadlines).empty());  // a spare may accuse, but opens nothing
}

TEST_F(Suspect, ManyThatVanishAtOnceAreTheControlsFault) {
  begin(4);
  for (const std::uint32_t node : {1u, 2u, 3u}) {
    sign_off(node, now - 3s);
    accusations.push_back({life(node), life(0)});
  }
  EXPECT_EQ(accused(0, {1, 2, 3}), lives({1, 2, 3}));
  EXPECT_TRUE(convicted(seen_by(0, {1, 2, 3}), deadlines).empty());
  registrations.nodes[NodeId(1)].life = life(1);
  registrations.gone_since.erase(NodeId(1));
  for (const std::uint32_t node : {2u, 3u}) accusations.push_back({life(node), life(1)});
  EXPECT_EQ(convicted(seen_by(0, {2, 3}), deadlines).size(), 2u);  // half and the control are left
}

TEST_F(Suspect, WhatEndedWhileTheControlWasAwayHasALeaseAndASilenceToReturn) {
  begin(2);
  attentive_since = 200s;
  sign_off(1, 190s);
  EXPECT_FALSE(is_absent(registrations, life(1), 200s, 208s, deadlines));
  EXPECT_TRUE(is_absent(registrations, life(1), 200s, 208001ms, deadlines));
  registrations.gone_since[NodeId(1)] = 204s;  // the control ends leases a while after it is back
  EXPECT_FALSE(is_absent(registrations, life(1), 200s, 208s, deadlines));
  registrations.gone_since[NodeId(1)] = 300s;
  EXPECT_FALSE(is_absent(registrations, life(1), 200s, 302s, deadlines));
  EXPECT_TRUE(is_absent(registrations, life(1), 200s, 302001ms, deadlines));
}

// What a node that lost the control counts before it decides whether to fence itself.
TEST_F(Suspect, WhomANodeHearsCountsByEitherLink) {
  begin(4);
  std::vector<Contact> links;
  for (const std::uint32_t node : {1u, 2u, 3u}) links.push_back({life(node), {}, 100s, false});
  const auto count = [&](const std::map<NodeId, Duration>& beats, Duration boottime) {
    FenceView view;
    view.now_boottime = boottime;
    count_heard(view, links_of(state, registrations, life(0)), links, beats, deadlines);
    return view;
  };
  FenceView view = count({}, 100s + deadlines.silence);
  EXPECT_EQ(view.members, 4u);
  EXPECT_EQ(view.heard, 4u);
  EXPECT_TRUE(view.knows_all);
  view = count({{NodeId(2), 101s}}, 101s + deadlines.silence);  // on the link that node 2 has made
  EXPECT_EQ(view.members, 4u);
  EXPECT_EQ(view.heard, 2u);
  links[2].refused = true;
  EXPECT_EQ(count({}, 100s).members, 3u) << "the dead are no members";
  links.erase(links.begin());
  view = count({}, 100s);  // it has no link to node 1 yet
  EXPECT_EQ(view.members, 3u);
  EXPECT_EQ(view.heard, 2u);
}

TEST_F(Suspect, InALargeJobANodeCantCountEverybody) {
  begin(9);
  FenceView view;
  view.now_boottime = 100s;
  count_heard(view, links_of(state, registrations, life(5)), {}, {}, deadlines);
  EXPECT_FALSE(view.knows_all);
  EXPECT_EQ(view.members, 1 + links_of(state, registrations, life(5)).lives.size());
  EXPECT_EQ(view.heard, 1u);
}

// The control was away. Whoever lists late can't know that the registration ended before all had had the time to come back.
TEST_F(Suspect, WhoFindsAMemberMissingLateCountsItAbsentNoEarlierThanAnybodyElse) {
  begin(4);
  attentive_since = 100s;
  const Duration returned = 100s + deadlines.lease + deadlines.silence;
  sign_off(1, 100s + deadlines.lease + 100ms);  // listed then
  EXPECT_FALSE(is_absent(registrations, life(1), *attentive_since, returned, deadlines));
  EXPECT_TRUE(is_absent(registrations, life(1), *attentive_since, returned + 1ms, deadlines));
  sign_off(1, 150s);
  EXPECT_FALSE(is_absent(registrations, life(1), *attentive_since, 150s + deadlines.absence, deadlines));
  EXPECT_TRUE(is_absent(registrations, life(1), *attentive_since, 150s + deadlines.absence + 1ms, deadlines));
}

// In a large job.
class FewKnow : public Suspect {
 protected:
  FewKnow() { begin(100); }
  // As seen by a witness, which does not know who is registered.
  std::vector<NodeLife> accused_blindly(std::uint32_t self, std::initializer_list<std::uint32_t> silent) {
    Registrations nothing;
    nothing.known = false;
    SuspicionView view = seen_by(self, silent);
    return accused_by({view.state, nothing, {}, view.contacts, view.self, view.attentive_since, view.now}, deadlines);
  }
  std::vector<NodeLife> convicted_by(std::uint32_t self, std::initializer_list<std::uint32_t> silent = {}) {
    SuspicionView view = seen_by(self, silent);
    view.judges_all = true;
    std::vector<NodeLife> lives;
    for (const Cause& cause : convicted(view, deadlines)) lives.push_back(*cause.node);
    return lives;
  }
  void accuse(std::uint32_t victim, std::initializer_list<std::uint32_t> accusers) {
    for (const std::uint32_t accuser : accusers) accusations.push_back({life(victim), life(accuser)});
  }
};

TEST_F(FewKnow, AWitnessAccusesWithoutKnowingWhoIsRegistered) {
  for (const std::uint32_t witness : {19u, 38u, 39u, 41u, 81u, 82u})
    EXPECT_EQ(accused_blindly(witness, {40}), lives({40})) << witness;
  EXPECT_TRUE(accused_blindly(39, {}).empty());
  EXPECT_TRUE(accused_blindly(39, {38, 40, 41, 0, 19}).empty()) << "it hears few itself";
}

TEST_F(FewKnow, WhoKnowsConvictsByTheWordsOfOthers) {
  accuse(40, {19, 38, 39});
  EXPECT_TRUE(convicted_by(70).empty()) << "half of them";
  accuse(40, {41, 50});
  EXPECT_EQ(convicted_by(70), lives({40}));
  EXPECT_EQ(convicted_by(39, {40}), lives({40}));
  EXPECT_TRUE(convicted_by(39).empty()) << "it hears it";
  EXPECT_TRUE(convicted_by(40).empty()) << "others judge it";
  sign_off(41, now);
  EXPECT_TRUE(convicted_by(70).empty()) << "who is gone can't take his word back";
  sign_off(41, now - 10s);
  EXPECT_EQ(convicted_by(70), lives({40})) << "and is no witness after a while";
}

TEST_F(FewKnow, WhoHearsFewConvictsOnlyWhoIsAbsent) {
  accuse(40, {19, 38, 39, 41, 81});
  const auto few = {71u, 72u, 69u, 0u};
  EXPECT_TRUE(convicted_by(70, few).empty());
  sign_off(40, now - 10s);
  EXPECT_EQ(convicted_by(70, few), lives({40}));
}

TEST_F(FewKnow, NobodyIsConvictedWhereNotHalfWouldBeLeft) {
  accuse(40, {19, 38, 39, 41, 81});
  for (std::uint32_t node = 49; node < 100; ++node) sign_off(node, now);
  EXPECT_TRUE(convicted_by(10).empty());
}

// Else where each node hears less than half of its neighbours nobody would ever be accused.
TEST_F(FewKnow, WhoHearsFewLooksUpThoseThatItDoesNotHear) {
  const auto looked_up = [&](std::initializer_list<std::uint32_t> silent) {
    SuspicionView view = seen_by(39, silent);
    return looked_up_by({view.state, registrations, {}, view.contacts, view.self, view.attentive_since, view.now},
                        deadlines);
  };
  const auto few = {38u, 40u, 41u, 0u, 19u};
  EXPECT_TRUE(looked_up(few).empty()) << "it knows";
  registrations.forget();
  EXPECT_TRUE(looked_up({}).empty());
  EXPECT_TRUE(looked_up({40}).empty()) << "it trusts itself";
  EXPECT_EQ(looked_up(few).size(), 5u);
  registrations.gone_since[NodeId(40)] = now - 10s;
  EXPECT_EQ(accused(39, few), lives({40}));
}

}  // namespace
}  // namespace pawl::job
