#include "job/daemon/orders.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

const std::string kOrder = "{}";

TEST(Orders, ADrainNamesALifeAndAPauseItsRevision) {
  const JobKeys keys("test");
  Orders orders("test");
  const std::string life = R"({"incarnation":3})";
  orders.apply(keys.drain(NodeId(5)), &life, 1);
  orders.apply(keys.drain(NodeId(2)), &life, 2);
  EXPECT_EQ(orders.drains().leaving, (std::vector<NodeLife>{{NodeId(2), Incarnation(3)}, {NodeId(5), Incarnation(3)}}));
  orders.apply(keys.drain(NodeId(2)), nullptr, 3);
  const std::string pause = R"({"generation":4,"node":5,"incarnation":3,"step":41})";
  orders.apply(keys.pause(), &pause, 9);
  const std::string ack = R"({"pause":9})";
  orders.apply(keys.pause_ack(Generation(4), NodeId(1)), &ack, 10);
  EXPECT_EQ(orders.drains().pause, (Pause{Generation(4), {NodeId(5), Incarnation(3)}, Step(41), 9}));
  EXPECT_EQ(orders.drains().paused.at(NodeId(1)), 9);
  orders.apply(keys.pause(), nullptr, 11);
  EXPECT_FALSE(orders.drains().pause);
  orders.apply_all({});
  EXPECT_TRUE(orders.drains().leaving.empty() && orders.drains().paused.empty());
}

TEST(Orders, OfAListingTheLatestAcknowledgementCounts) {
  const JobKeys keys("test");
  Orders orders("test");
  const std::string later = R"({"pause":30})", earlier = R"({"pause":9})";
  orders.apply_all({{{keys.pause_ack(Generation(10), NodeId(1)), later, 31, 31, 0},
                     {keys.pause_ack(Generation(9), NodeId(1)), earlier, 10, 10, 0}},
                    40});
  EXPECT_EQ(orders.drains().paused.at(NodeId(1)), 30);
}

TEST(Orders, ANodeIsCordonedUntilTheKeyIsErased) {
  const JobKeys keys("test");
  Orders orders("test");
  orders.apply(keys.cordon(NodeId(12)), &kOrder, 1);
  orders.apply(keys.cordon(NodeId(2)), &kOrder, 2);
  orders.apply(keys.cordon(NodeId(12)), &kOrder, 3);
  orders.apply(keys.node(NodeId(5)), &kOrder, 4);  // not an order
  orders.apply(keys.cordons() + "x", &kOrder, 5);
  orders.apply(JobKeys("test2").cordon(NodeId(7)), &kOrder, 6);
  EXPECT_EQ(orders.cordoned(), (std::vector{NodeId(2), NodeId(12)}));
  orders.apply(keys.cordon(NodeId(12)), nullptr, 7);
  EXPECT_EQ(orders.cordoned(), std::vector{NodeId(2)});
  orders.apply_all({{{keys.cordon(NodeId(3)), kOrder, 8, 8, 0}}, 9});  // of the other nobody saw the end
  EXPECT_EQ(orders.cordoned(), std::vector{NodeId(3)});
}

}  // namespace
}  // namespace pawl::job
