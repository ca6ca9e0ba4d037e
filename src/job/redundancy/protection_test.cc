#include "job/redundancy/protection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "job/redundancy/placement.h"

namespace pawl::job {
namespace {

using Domains = std::vector<std::uint32_t>;

std::vector<Seat> seats_of(std::initializer_list<std::uint32_t> numbers) {
  std::vector<Seat> seats;
  for (const std::uint32_t number : numbers) seats.emplace_back(number);
  return seats;
}

ProtectionPolicy policy_of(std::string_view words) {
  return *parse_redundancy(words);
}

std::uint32_t seat_count_of(const Positions& positions) {
  return std::accumulate(positions.seat_counts.begin(), positions.seat_counts.end(), 0u);
}

std::vector<StateGroup> groups_of_one(std::uint32_t seats, std::uint64_t bytes) {
  std::vector<StateGroup> groups;
  for (std::uint32_t seat = 0; seat < seats; ++seat) groups.push_back({{Seat(seat)}, bytes, seat});
  return groups;
}

std::vector<ShelfId> all_shelves(const ProtectionPlan& plan) {
  std::vector<ShelfId> ids;
  for (const Shelf& shelf : plan.shelves) ids.push_back(shelf.id);
  return ids;
}

const Shelf& shelf_of(const ProtectionPlan& plan, const ShelfId& id) {
  return *std::ranges::find(plan.shelves, id, &Shelf::id);
}

std::uint64_t sent_bytes(const ProtectionPlan& plan) {
  std::uint64_t sum = 0;
  for (const Stripe& stripe : plan.stripes)
    for (const Fragment& fragment : stripe.at)
      if (fragment.fill == FragmentFill::sent) sum += stripe.data[0].end - stripe.data[0].begin;
  return sum;
}

// --- Words

TEST(APolicy, IsReadAndWrittenAlike) {
  for (const char* words :
       {"copies:0", "copies:2", "cut:1", "raim5", "rs:4+2", "auto", "auto,own=cut", "rs:4+2,own=cut"})
    EXPECT_EQ(to_text(policy_of(words)), words);
  EXPECT_EQ(policy_of("copies:2,own=cut"), policy_of("cut:2"));
  EXPECT_EQ(policy_of("cut:2,own=whole"), policy_of("copies:2"));
  EXPECT_EQ(policy_of("rs:4+2").losses, 2u);
  EXPECT_EQ(policy_of("rs:4+2").data_count, 4u);
}

TEST(APolicy, ThatIsNoneIsRefusedWithWhatIsPossible) {
  for (const char* words : {"", "copies", "copies:", "copies:x", "copies:65", "cut:0", "raim5:1", "rs:4", "rs:0+1",
                            "rs:4+0", "auto:1", "ring", "copies:1,", "copies:1,own=half"}) {
    const auto policy = parse_redundancy(words);
    ASSERT_FALSE(policy) << words;
    EXPECT_TRUE(policy.error().what.ends_with("possible are copies:K (K copies in other failure domains) and auto"))
        << policy.error().what;
  }
}

TEST(APolicy, OfParityIsRefusedUntilItIsBuilt) {
  const auto plan = protect(groups_of_one(4, 10), {{1, 1, 1, 1}}, policy_of("rs:2+1"));
  EXPECT_EQ(plan.error().what, "rs:2+1: parity is not built yet; use copies:1");
  EXPECT_FALSE(protect(groups_of_one(4, 10), {{1, 1, 1, 1}}, policy_of("raim5")));
}

// --- Groups

TEST(Groups, AreJoinedOfWhatSeatsDeclare) {
  const GroupShare shares[] = {
      {"dp of tp=0", Seat(2), 100, 7}, {"seat 0", Seat(0), 8, 1}, {"dp of tp=0", Seat(0), 100, 7}};
  const auto groups = join_shares(shares);
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].seats, seats_of({0, 2}));
  EXPECT_EQ((*groups)[1].seats, seats_of({0}));
}

TEST(Groups, WhoseSeatsDifferAreRefusedWithBoth) {
  const GroupShare bytes[] = {{"dp", Seat(0), 100, 7}, {"dp", Seat(5), 96, 7}};
  EXPECT_EQ(
      join_shares(bytes).error().what,
      "group 'dp': seats 0 and 5 should have the same state, and have 100 bytes of layout 0000000000000007 and 96 "
      "bytes of layout 0000000000000007");
  const GroupShare layouts[] = {{"dp", Seat(0), 100, 7}, {"dp", Seat(5), 100, 8}};
  EXPECT_FALSE(join_shares(layouts));
  const GroupShare twice[] = {{"dp", Seat(3), 100, 7}, {"dp", Seat(3), 100, 7}};
  EXPECT_EQ(join_shares(twice).error().what, "group 'dp': seat 3 declares it twice");
}

TEST(Groups, OfNoSeatsOrOthersSeatsAreRefused) {
  const Positions two{{1, 1}};
  EXPECT_FALSE(protect({{{}, 10, 0}}, two, policy_of("copies:1")));
  EXPECT_FALSE(protect({{seats_of({2}), 10, 0}}, two, policy_of("copies:1")));
  EXPECT_FALSE(protect({{seats_of({1, 0}), 10, 0}}, two, policy_of("copies:1")));
  EXPECT_FALSE(protect({{seats_of({0}), 10, 0}}, {{1, 1}, {0}}, policy_of("copies:1")));
}

// --- Plans

TEST(CopiesOfSingleSeats, AreTheRingsReplicas) {
  const Positions positions{{1, 3, 2, 1}, {0, 1, 0, 2}};
  for (const Domains& domains : {Domains(), positions.domains})
    for (std::uint32_t k = 0; k <= 2; ++k) {
      const Ring ring(positions.seat_counts, k, domains);
      ProtectionPolicy policy;
      policy.losses = k;
      const auto plan = protect(groups_of_one(7, 100), {positions.seat_counts, domains}, policy);
      ASSERT_TRUE(plan) << plan.error().what;
      for (std::uint32_t seat = 0; seat < 7; ++seat) {
        const auto holders = ring.holders_of(Seat(seat));
        ASSERT_EQ(plan->feeds[seat].size(), holders.size());
        for (std::uint32_t i = 0; i < holders.size(); ++i) {
          EXPECT_EQ(plan->feeds[seat][i], (ShelfId{ShelfKind::copy, seat, i}));
          EXPECT_EQ(shelf_of(*plan, plan->feeds[seat][i]).position, holders[i]);
        }
      }
    }
}

TEST(CopiesOfAGroup, AreCapturedAndNotSent) {
  // Four data-parallel paths on four nodes, in two domains.
  const std::vector<StateGroup> group = {{seats_of({0, 1, 2, 3}), 1 << 20, 0}};
  const Positions positions{{1, 1, 1, 1}, {0, 0, 1, 1}};
  const auto plan = protect(group, positions, policy_of("copies:1"));
  EXPECT_EQ(sent_bytes(*plan), 0u);
  EXPECT_TRUE(std::ranges::all_of(plan->feeds, [](const auto& fed) { return fed.empty(); }));
  const auto cut = protect(group, positions, policy_of("cut:1"));
  EXPECT_EQ(sent_bytes(*cut), 0u);
  for (const Shelf& shelf : cut->shelves) EXPECT_EQ(shelf.bytes, (1u << 20) * 2 / 4);  // (k+1)/n
}

TEST(CopiesOfAGroup, AreSentWhereItsSeatsAreInTooFewDomains) {
  const std::vector<StateGroup> group = {{seats_of({0, 1}), 8192, 0}};
  const Positions positions{{2, 1, 1}};
  const auto whole = protect(group, positions, policy_of("copies:1"));
  EXPECT_EQ(sent_bytes(*whole), 8192u) << "once, not once for each seat";
  EXPECT_EQ(whole->feeds[0].size(), 1u);
  EXPECT_TRUE(whole->feeds[1].empty());
  const auto cut = protect(group, positions, policy_of("cut:2"));
  EXPECT_EQ(sent_bytes(*cut), 2u * 8192);
  EXPECT_EQ(cut->feeds[1].size(), 2u) << "each sends what it captures";
}

TEST(APlan, InTooFewDomainsIsRefusedOrMadeByConsent) {
  const Positions positions{{1, 1, 1, 1}, {0, 0, 1, 1}};
  ProtectionPolicy policy = policy_of("copies:2");
  const auto refused = protect(groups_of_one(4, 10), positions, policy);
  EXPECT_EQ(refused.error().code, Code::full);
  EXPECT_NE(refused.error().what.find("each byte must lie in 3 of them, and the nodes that train are in 2"),
            std::string::npos)
      << refused.error().what;
  policy.accepts_less = true;
  const auto degraded = protect(groups_of_one(4, 10), positions, policy);
  ASSERT_TRUE(degraded) << degraded.error().what;
  EXPECT_EQ(degraded->degraded.size(), 1u);
  for (const Stripe& stripe : degraded->stripes) {
    std::set<std::uint32_t> nodes, domains;
    for (const Fragment& fragment : stripe.at) {
      nodes.insert(fragment.position);
      domains.insert(degraded->domains[fragment.position]);
    }
    EXPECT_EQ(nodes.size(), 3u);
    EXPECT_EQ(domains.size(), 2u);
  }
}

TEST(APlan, ThatNeedsMoreThanThereIsIsRefusedWithTheArithmetic) {
  const Positions positions{{2, 2}};
  ProtectionBudgets budgets;
  budgets.memory_bytes = 799;
  EXPECT_EQ(
      protect(groups_of_one(4, 100), positions, policy_of("copies:1"), budgets).error().what,
      "copies:1 needs more memory than there is: position 0 has 2 slots of 200 bytes of its own and 200 of others, "
      "800 in all; 799 are possible");
  budgets.memory_bytes = 800;
  budgets.sent_bytes = 199;
  EXPECT_EQ(protect(groups_of_one(4, 100), positions, policy_of("copies:1"), budgets).error().what,
            "copies:1 sends more than the network can take: position 0 sends 200 bytes in each step; 199 are possible");
  budgets.sent_bytes = 200;
  EXPECT_TRUE(protect(groups_of_one(4, 100), positions, policy_of("copies:1"), budgets));
}

TEST(AnAutomaticPolicy, KeepsTheOwnCopyWholeWhileThereIsMemory) {
  const std::vector<StateGroup> group = {{seats_of({0, 1, 2, 3}), 1 << 20, 0}};
  const Positions positions{{1, 1, 1, 1}};
  EXPECT_EQ(to_text(protect(group, positions, policy_of("auto"))->policy), "copies:1");
  ProtectionBudgets budgets;
  budgets.memory_bytes = 1 << 20;  // two slots of half of it
  EXPECT_EQ(to_text(protect(group, positions, policy_of("auto"), budgets)->policy), "cut:1");
  budgets.memory_bytes /= 2;
  EXPECT_FALSE(protect(group, positions, policy_of("auto"), budgets));
  EXPECT_EQ(to_text(protect(groups_of_one(2, 10), {{2}}, policy_of("auto"))->policy), "copies:0");
}

TEST(ADigest, IsOfAllThatThePlanSays) {
  const Positions positions{{1, 1, 1}};
  const auto digest = [&](std::vector<StateGroup> groups, std::string_view words, Domains domains = {}) {
    return protect(std::move(groups), {positions.seat_counts, std::move(domains)}, policy_of(words))->digest;
  };
  const std::uint64_t one = digest(groups_of_one(3, 100), "copies:1");
  EXPECT_EQ(one, digest(groups_of_one(3, 100), "copies:1"));
  EXPECT_EQ(one, digest(groups_of_one(3, 100), "copies:1", {5, 3, 9})) << "names of domains don't matter";
  EXPECT_NE(one, digest(groups_of_one(3, 101), "copies:1"));
  EXPECT_NE(one, digest(groups_of_one(3, 100), "copies:2"));
  EXPECT_NE(one, digest(groups_of_one(3, 100), "copies:1", {0, 0, 1}));
}

// --- Parity, which the types hold and nobody makes yet: three seats of unequal bytes, XORed on a fourth node

ProtectionPlan parity_plan() {
  ProtectionPlan plan;
  for (std::uint32_t seat = 0; seat < 3; ++seat) plan.groups.push_back({{Seat(seat)}, 100 + 10 * seat, 0});
  Stripe stripe;
  for (std::uint32_t seat = 0; seat < 3; ++seat) {
    stripe.data.push_back({GroupId(seat), 0, plan.groups[seat].bytes});
    stripe.at.push_back({{ShelfKind::own, seat, 0}, FragmentFill::captured, seat});
  }
  stripe.at.push_back({{ShelfKind::parity, 0, 0}, FragmentFill::encoded, 3});
  plan.stripes.push_back(stripe);
  plan.domains = {0, 1, 2, 3};
  finish_plan(plan, 3);
  return plan;
}

TEST(AStripeWithParity, IsFedByAllItsDataAndDecodesWithoutOne) {
  const ProtectionPlan plan = parity_plan();
  const ShelfId parity{ShelfKind::parity, 0, 0};
  EXPECT_EQ(shelf_of(plan, parity).bytes, 120u);
  for (std::uint32_t seat = 0; seat < 3; ++seat) EXPECT_EQ(plan.feeds[seat], std::vector<ShelfId>{parity});
  std::vector<ShelfId> sound = all_shelves(plan);
  EXPECT_EQ(survival_of(plan, sound, plan.domains).domains, 1u);
  const std::uint32_t shared[] = {0, 1, 1, 2};
  EXPECT_EQ(survival_of(plan, sound, shared).domains, 0u) << "two fragments die at once, and one is spare";
  EXPECT_EQ((*sources(plan, sound, Seat(1)))[0].from, (std::vector<ShelfId>{{ShelfKind::own, 1, 0}}));
  std::erase(sound, ShelfId{ShelfKind::own, 1, 0});
  EXPECT_EQ((*sources(plan, sound, Seat(1)))[0].from,
            (std::vector<ShelfId>{{ShelfKind::own, 0, 0}, {ShelfKind::own, 2, 0}, parity}));
  EXPECT_EQ(survival_of(plan, sound, plan.domains).domains, 0u);
  std::erase(sound, parity);
  EXPECT_EQ(sources(plan, sound, Seat(1)).error().code, Code::not_found);
  EXPECT_TRUE(sources(plan, sound, Seat(0)));
  const Survival lost = survival_of(plan, sound, plan.domains);
  EXPECT_FALSE(lost.whole);
  EXPECT_EQ(lost.weakest, seats_of({0, 1, 2}));
}

TEST(Survival, CountsWherePositionsReallyAreAndNamesTheWeakest) {
  const Positions positions{{1, 1, 1, 1}};
  const auto plan = protect(groups_of_one(4, 10), positions, policy_of("copies:1"));
  std::vector<ShelfId> sound = all_shelves(*plan);
  EXPECT_EQ(survival_of(*plan, sound, plan->domains).domains, 1u);
  // Positions 1 and 2 came to lie in one rack: seat 1 and its copy at 2 die together.
  const std::uint32_t moved[] = {0, 1, 1, 3};
  const Survival shared = survival_of(*plan, sound, moved);
  EXPECT_TRUE(shared.whole);
  EXPECT_EQ(shared.domains, 0u);
  EXPECT_EQ(shared.weakest, seats_of({1}));
  std::erase(sound, ShelfId{ShelfKind::own, 3, 0});
  EXPECT_EQ(survival_of(*plan, sound, plan->domains).weakest, seats_of({3}));
}

// --- Random plans beside a naive checker

struct RandomPlan {
  std::vector<StateGroup> groups;
  Positions positions;
  ProtectionPolicy policy;
};

// A mesh of data-parallel by model-parallel ranks, of which some state is replicated along the first axis, some is each
// seat's own; on nodes of one or several seats, in domains of any size.
RandomPlan draw(std::mt19937_64& random) {
  const auto below = [&random](std::uint64_t n) { return static_cast<std::uint32_t>(random() % n); };
  RandomPlan drawn;
  const std::uint32_t paths = 1 + below(6), parts = 1 + below(3);
  const std::uint32_t seats = paths * parts;
  for (std::uint32_t left = seats; left > 0;) {
    drawn.positions.seat_counts.push_back(std::min(left, 1 + below(3)));
    left -= drawn.positions.seat_counts.back();
  }
  const std::uint32_t domains = 1 + below(6);
  if (below(4) != 0)
    for (std::size_t i = 0; i < drawn.positions.seat_counts.size(); ++i)
      drawn.positions.domains.push_back(below(domains));
  for (std::uint32_t part = 0; part < parts && below(5) != 0; ++part) {
    StateGroup group{{}, random() % 40'000, part};
    for (std::uint32_t path = 0; path < paths; ++path) group.seats.emplace_back(path * parts + part);
    drawn.groups.push_back(std::move(group));
  }
  for (std::uint32_t seat = 0; seat < seats; ++seat) drawn.groups.push_back({{Seat(seat)}, 1 + random() % 9000, seat});
  drawn.policy.losses = below(4);
  drawn.policy.cut_own = below(2) == 0;
  drawn.policy.accepts_less = below(8) == 0;
  return drawn;
}

// Who has which bytes, by looking: bytes of a group as a set of blocks between all borders.
class NaiveChecker {
 public:
  explicit NaiveChecker(const ProtectionPlan& plan) : plan_(plan) {
    for (const Stripe& stripe : plan.stripes) {
      borders_[stripe.data[0].group].insert(stripe.data[0].begin);
      borders_[stripe.data[0].group].insert(stripe.data[0].end);
    }
    for (std::uint32_t group = 0; group < plan.groups.size(); ++group) {
      borders_[GroupId(group)].insert(0);
      borders_[GroupId(group)].insert(plan.groups[group].bytes);
    }
  }

  [[nodiscard]] bool is_readable(const std::set<std::uint32_t>& dead) const {
    for (const auto& [group, borders] : borders_)
      for (auto begin = borders.begin(); std::next(begin) != borders.end(); ++begin) {
        const bool had = std::ranges::any_of(plan_.stripes, [&, group = group](const Stripe& stripe) {
          const StreamExtent& extent = stripe.data[0];
          return extent.group == group && extent.begin <= *begin && *begin < extent.end &&
                 std::ranges::any_of(stripe.at, [&](const Fragment& fragment) {
                   return !dead.contains(plan_.domains[fragment.position]);
                 });
        });
        if (!had) return false;
      }
    return true;
  }

 private:
  const ProtectionPlan& plan_;
  std::map<GroupId, std::set<std::uint64_t>> borders_;
};

void for_each_loss(std::uint32_t domains, std::uint32_t losses, std::set<std::uint32_t>& dead, std::uint32_t from,
                   const std::function<void()>& act) {
  act();
  if (dead.size() == losses) return;
  for (std::uint32_t domain = from; domain < domains; ++domain) {
    if (!dead.insert(domain).second) continue;
    for_each_loss(domains, losses, dead, domain + 1, act);
    dead.erase(domain);
  }
}

// Each byte of the seat's groups once, from shelves that live and have it.
void expect_whole(const ProtectionPlan& plan, const std::vector<StreamRead>& reads, Seat seat,
                  const std::set<std::uint32_t>& dead) {
  std::map<GroupId, std::uint64_t> at;
  for (const StreamRead& read : reads) {
    ASSERT_EQ(read.extent.begin, at[read.extent.group]);
    at[read.extent.group] = read.extent.end;
    ASSERT_EQ(read.from.size(), 1u);
    ASSERT_FALSE(dead.contains(plan.domains[shelf_of(plan, read.from[0]).position]));
    const bool has = std::ranges::any_of(plan.stripes, [&](const Stripe& stripe) {
      return stripe.data[0] == read.extent &&
             std::ranges::any_of(stripe.at, [&](const Fragment& fragment) { return fragment.shelf == read.from[0]; });
    });
    ASSERT_TRUE(has);
  }
  for (std::uint32_t group = 0; group < plan.groups.size(); ++group)
    if (std::ranges::count(plan.groups[group].seats, seat) > 0) {
      ASSERT_EQ(at[GroupId(group)], plan.groups[group].bytes);
    }
}

void expect_survives(const ProtectionPlan& plan) {
  const std::uint32_t domains = plan.domains.empty() ? 0 : std::ranges::max(plan.domains) + 1;
  const NaiveChecker naive(plan);
  std::set<std::uint32_t> dead;
  for_each_loss(domains, plan.policy.losses, dead, 0, [&] {
    ASSERT_TRUE(naive.is_readable(dead));
    std::vector<ShelfId> sound;
    for (const Shelf& shelf : plan.shelves)
      if (!dead.contains(plan.domains[shelf.position])) sound.push_back(shelf.id);
    for (std::uint32_t seat = 0; seat < plan.groups_of.size(); ++seat) {
      const auto reads = sources(plan, sound, Seat(seat));
      ASSERT_TRUE(reads) << reads.error().what;
      expect_whole(plan, *reads, Seat(seat), dead);
    }
    // After these died, so many more may: by definition, and by looking.
    const Survival survival = survival_of(plan, sound, plan.domains);
    ASSERT_TRUE(survival.whole);
    std::set<std::uint32_t> more = dead;
    for (const bool one_more : {false, true}) {
      bool all = true;
      for_each_loss(domains, static_cast<std::uint32_t>(dead.size()) + survival.domains + (one_more ? 1 : 0), more, 0,
                    [&] { all = all && naive.is_readable(more); });
      ASSERT_NE(all, one_more);
    }
  });
}

void expect_apart(const ProtectionPlan& plan) {
  for (const Stripe& stripe : plan.stripes) {
    std::set<std::uint32_t> domains;
    for (const Fragment& fragment : stripe.at) domains.insert(plan.domains[fragment.position]);
    ASSERT_GT(domains.size(), plan.policy.losses);
    const bool may_share = !plan.policy.cut_own && plan.groups[stripe.data[0].group.value].seats.size() > 1;
    if (!may_share) {
      ASSERT_EQ(domains.size(), stripe.at.size());
    }
    for (const Fragment& fragment : stripe.at)
      if (fragment.fill == FragmentFill::sent)
        for (const Fragment& other : stripe.at) {
          ASSERT_TRUE(&other == &fragment || plan.domains[other.position] != plan.domains[fragment.position]);
        }
  }
}

// The budgets are what a sum over all fragments says: with one byte less the plan is refused.
// Fewer than were asked for, but no domain is left out.
void expect_every_domain(const ProtectionPlan& plan) {
  const std::set<std::uint32_t> all(plan.domains.begin(), plan.domains.end());
  for (const Stripe& stripe : plan.stripes) {
    std::set<std::uint32_t> covered;
    for (const Fragment& fragment : stripe.at) covered.insert(plan.domains[fragment.position]);
    ASSERT_EQ(covered, all);
  }
}

void expect_budgets(const RandomPlan& drawn, const ProtectionPlan& plan) {
  std::map<std::uint32_t, std::uint64_t> memory, sent;
  for (const Stripe& stripe : plan.stripes)
    for (const Fragment& fragment : stripe.at) {
      const std::uint64_t bytes = stripe.data[0].end - stripe.data[0].begin;
      memory[fragment.position] += 2 * bytes;
      if (fragment.fill == FragmentFill::sent) sent[stripe.at[0].position] += bytes;
    }
  ProtectionBudgets budgets;
  budgets.memory_bytes = budgets.sent_bytes = 0;
  for (const auto& [position, bytes] : memory) budgets.memory_bytes = std::max(budgets.memory_bytes, bytes);
  for (const auto& [position, bytes] : sent) budgets.sent_bytes = std::max(budgets.sent_bytes, bytes);
  ASSERT_TRUE(protect(drawn.groups, drawn.positions, drawn.policy, budgets));
  ProtectionBudgets less = budgets;
  if (less.memory_bytes-- > 0) {
    ASSERT_FALSE(protect(drawn.groups, drawn.positions, drawn.policy, less));
  }
  less = budgets;
  if (less.sent_bytes-- > 0) {
    ASSERT_FALSE(protect(drawn.groups, drawn.positions, drawn.policy, less));
  }
}

TEST(APlan, ByConsentLeavesNoDomainOut) {
  const Positions positions{std::vector<std::uint32_t>(8, 1), {0, 0, 1, 1, 2, 2, 3, 3}};
  ProtectionPolicy policy;
  policy.losses = 4;
  policy.accepts_less = true;
  for (const bool cut : {false, true}) {
    policy.cut_own = cut;
    const auto plan = protect({{{Seat(0), Seat(3), Seat(5)}, 100'000, 1}}, positions, policy);
    ASSERT_TRUE(plan) << plan.error().what;
    expect_every_domain(*plan);
  }
}

TEST(APlan, OfMoreBytesThanThereCanBeIsRefused) {
  const Positions positions{{1, 1}, {}};
  ProtectionPolicy policy;
  for (const std::uint64_t bytes : {std::uint64_t{1} << 63, ~std::uint64_t{0}})
    for (const bool cut : {false, true}) {
      policy.cut_own = cut;
      const auto refused = protect({{{Seat(0), Seat(1)}, bytes, 1}}, positions, policy);
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().what.find("are not possible"), std::string::npos) << refused.error().what;
    }
}

TEST(RandomPlans, KeepEveryByteThroughAnyLossThatTheyPromise) {
  std::mt19937_64 random(20);
  std::uint32_t made = 0, refused = 0, degraded = 0, unsent = 0;
  for (int i = 0; i < 1500 && !HasFatalFailure(); ++i) {
    const RandomPlan drawn = draw(random);
    const auto plan = protect(drawn.groups, drawn.positions, drawn.policy);
    if (!plan) {
      ++refused;
      const Domains& named = drawn.positions.domains;
      const std::size_t there = named.empty() ? drawn.positions.seat_counts.size()
                                              : std::set<std::uint32_t>(named.begin(), named.end()).size();
      ASSERT_LE(there, drawn.policy.losses) << plan.error().what;
      continue;
    }
    if (!plan->degraded.empty()) {
      ++degraded;
      expect_every_domain(*plan);
      continue;
    }
    ++made;
    expect_apart(*plan);
    expect_survives(*plan);
    expect_budgets(drawn, *plan);
    for (std::uint32_t group = 0; group < plan->groups.size(); ++group) {
      std::set<std::uint32_t> domains;
      const Ring ring(drawn.positions.seat_counts, 0, drawn.positions.domains);
      for (const Seat seat : plan->groups[group].seats) domains.insert(ring.domain_of(ring.position_of(seat)));
      if (domains.size() <= plan->policy.losses) continue;
      for (const std::uint32_t stripe : plan->stripes_of[group])
        for (const Fragment& fragment : plan->stripes[stripe].at) {
          ASSERT_EQ(fragment.fill, FragmentFill::captured);
          ++unsent;
        }
    }
  }
  EXPECT_GT(made, 700u);
  EXPECT_GT(refused, 50u);
  EXPECT_GT(degraded, 10u);
  EXPECT_GT(unsent, 1000u);
}

TEST(RandomPlans, ReadNoLessWithAFurtherSoundShelf) {
  std::mt19937_64 random(21);
  for (int i = 0; i < 500 && !HasFatalFailure(); ++i) {
    const RandomPlan drawn = draw(random);
    const auto plan = protect(drawn.groups, drawn.positions, drawn.policy);
    if (!plan) continue;
    std::vector<ShelfId> sound;
    std::vector<ShelfId> rest = all_shelves(*plan);
    std::ranges::shuffle(rest, random);
    std::vector<bool> readable(seat_count_of(drawn.positions));
    for (const ShelfId& shelf : rest) {
      sound.push_back(shelf);
      for (std::uint32_t seat = 0; seat < readable.size(); ++seat) {
        const bool now = sources(*plan, sound, Seat(seat)).has_value();
        ASSERT_TRUE(now || !readable[seat]);
        readable[seat] = now;
      }
    }
    ASSERT_TRUE(std::ranges::all_of(readable, [](bool is) { return is; }));
  }
}

}  // namespace
}  // namespace pawl::job
