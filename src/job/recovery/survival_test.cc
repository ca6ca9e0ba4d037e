#include "job/recovery/survival.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "job/recovery/members.h"

namespace pawl::job {
namespace {

// Four nodes in two racks, one seat each, all of which have step 41 as their placement promises.
class ARunningJob : public testing::Test {
 protected:
  ARunningJob() {
    for (std::uint32_t node = 0; node < 4; ++node) {
      const std::string rack = text("rack", node / 2);
      seats.push_back({Seat(node), life(node), "", 0, rack, rack});
    }
    hold_all();
  }
  static NodeLife life(std::uint32_t node) { return {NodeId(node), Incarnation(7)}; }
  void hold_all() {
    inventories.clear();
    const Ring ring = ring_of(seats, 1);
    for (std::uint32_t node = 0; node < 4; ++node) {
      Inventory inventory{seats[node].life, Generation(1), Step(41), {}, {}, 0};
      inventory.items.push_back(item(node, SourceKind::own_arena));
      for (const Seat ward : ring.wards_of(node)) inventory.items.push_back(item(ward.value, SourceKind::replica));
      inventories.push_back(inventory);
    }
  }
  static InventoryItem item(std::uint32_t seat, SourceKind kind) {
    return {Seat(seat), kind, Generation(1), Step(41), SlotState::sealed, 5};
  }
  Survival survival(std::vector<NodeId> dead = {}, Step step = Step(41)) {
    const PlanInput input{4, inventories, lineage, {}, {}, Step(41), seats, 1};
    return survival_if(plan_of_copies(seats, 1), input, dead, step);
  }

  std::vector<Member> seats;
  std::vector<Inventory> inventories;
  std::vector<LineageEntry> lineage = {{Generation(1), Step(0)}};
};

TEST_F(ARunningJob, KeepsCopiesInTheOtherRack) {
  const Ring ring = ring_of(seats, 1);
  EXPECT_EQ(ring.domain_count(), 2u);
  for (std::uint32_t seat = 0; seat < 4; ++seat) EXPECT_NE(ring.holders_of(Seat(seat))[0] / 2, seat / 2);
}

TEST_F(ARunningJob, IsCountedByTheSeatsBeforeInAnotherWorld) {
  std::vector<Member> turned = {seats[3], seats[2], seats[1], seats[0]};
  for (std::uint32_t seat = 0; seat < 4; ++seat) {
    turned[seat].seat = Seat(seat);
    turned[seat].before = Seat(3 - seat);
  }
  seats = turned;
  EXPECT_TRUE(survival().whole);
  EXPECT_EQ(survival({NodeId(0)}).whole, true);
  for (Member& member : seats) member.before.reset();  // as if the slots went by the new numbers
  EXPECT_FALSE(survival({NodeId(0), NodeId(1)}).whole);
}

TEST_F(ARunningJob, SurvivesARackAndThenNoMore) {
  EXPECT_EQ(survival().domains, 1u);
  EXPECT_TRUE(survival().whole);
  const Survival after = survival({NodeId(0)});
  EXPECT_TRUE(after.whole);
  EXPECT_EQ(after.domains, 0u);
  EXPECT_EQ(after.weakest, (std::vector<Seat>{Seat(0), Seat(2)})) << "its own, and the one whose copy it held";
  EXPECT_TRUE(survival({NodeId(0), NodeId(1)}).whole);
  EXPECT_FALSE(survival({NodeId(0), NodeId(2)}).whole);
  EXPECT_FALSE(survival({}, Step(40)).whole) << "nobody holds that one";
}

TEST_F(ARunningJob, IsExposedWhenASpareOfTheWrongRackTookASeat) {
  // Node 9 of rack 0 sits where node 2 sat, and holds what the plan, which a swap keeps, puts there.
  seats[2].life = {NodeId(9), Incarnation(7)};
  seats[2].domain = "rack0";
  hold_all();
  const Survival now = survival();
  EXPECT_TRUE(now.whole);
  EXPECT_EQ(now.domains, 0u);
  EXPECT_EQ(now.weakest, (std::vector<Seat>{Seat(0), Seat(2)}));
  const Ring ring = ring_of(seats, 1);
  EXPECT_EQ(ring.holders_of(Seat(0))[0], 2u);
  const auto shared = shared_domains(seats, ring);
  ASSERT_EQ(shared.size(), 2u);
  EXPECT_EQ(to_text(shared[0], ring), "seat 0: copies at nodes 0 and 9 are both in failure domain rack0");
  EXPECT_EQ(shared_domains_at(seats, ring, 2).size(), 2u);
  EXPECT_EQ(shared_domains_at(seats, ring, 1).size(), 0u);
  EXPECT_EQ(shared_domains_of(seats, ring, 2).size(), 1u);
}

TEST_F(ARunningJob, CountsOnlyWhatIsSealedAndOfTheHistory) {
  inventories[0].items[0].state = SlotState::dirty;
  EXPECT_EQ(survival().weakest, std::vector<Seat>{Seat(0)});
  hold_all();
  lineage = {{Generation(1), Step(40)}, {Generation(2), Step(40)}};
  EXPECT_FALSE(survival().whole) << "step 41 of generation 1 is off the lineage";
}

}  // namespace
}  // namespace pawl::job
