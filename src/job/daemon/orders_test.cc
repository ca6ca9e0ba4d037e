#include "job/daemon/orders.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

const std::string kOrder = "{}";

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
