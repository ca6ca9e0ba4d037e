#include "job/recovery/stop_order.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace pawl::job {
namespace {

NodeLife life(std::uint32_t node) {
  return {NodeId(node), Incarnation(7)};
}

std::vector<Member> seats_on(std::initializer_list<std::uint32_t> nodes) {
  std::vector<Member> seats;
  for (const std::uint32_t node : nodes) {
    Member member;
    member.seat = Seat(static_cast<std::uint32_t>(seats.size()));
    member.life = life(node);
    seats.push_back(member);
  }
  return seats;
}

LastRecord record() {
  LastRecord out;
  out.attempt = kLastAttempts + 3;
  out.generation = Generation(5);
  out.by = life(1);
  out.step = Step(41);
  out.folder = "/c/step-41.pawl-partial";
  out.parts = {{Seat(1), life(2), SourceKind::replica}};
  return out;
}

TEST(StopOrders, AreReadBack) {
  const StopOrder order{"stopped by SIGTERM at node 1", 17, 57000};
  EXPECT_EQ(*parse_stop_order(to_json(order)), order);
  const StoppingNode node{life(3), "SIGINT at node 3", 60000};
  EXPECT_EQ(*parse_stopping_node(to_json(node)), node);
  LastRecord last = record();
  EXPECT_EQ(*parse_last_record(to_json(last)), last);
  last.phase = LastPhase::failed;
  last.why = "no room";
  last.parts.clear();
  EXPECT_EQ(*parse_last_record(to_json(last)), last);
  const PartTold told{kLastAttempts + 3, {Seat(0), Seat(4)}, "no room"};
  EXPECT_EQ(*parse_part_told(to_json(told)), told);
}

TEST(StopOrders, WhatIsNoneIsRefused) {
  for (const char* json : {"", "[]", "{}", R"({"why": 3})", "null", R"({"attempt": -1})", R"({"attempt": "x"})"}) {
    EXPECT_FALSE(parse_stop_order(json)) << json;
    EXPECT_FALSE(parse_stopping_node(json)) << json;
    EXPECT_FALSE(parse_last_record(json)) << json;
    EXPECT_FALSE(parse_part_told(json)) << json;
  }
}

TEST(StopOrders, EachSeatIsWrittenOnceWhereItsSourceLies) {
  const std::vector<Member> seats = seats_on({0, 1, 2});
  const std::vector<Source> sources = {
      {Seat(0), SourceKind::own_arena, life(0), Generation(1), Step(41)},
      {Seat(1), SourceKind::replica, life(2), Generation(1), Step(41)},  // its own node is gone
      {Seat(2), SourceKind::own_arena, life(2), Generation(1), Step(41)}};
  LastRecord last = record();
  last.parts = parts_elsewhere(sources, seats);
  EXPECT_EQ(last.parts, (std::vector<LastPart>{{Seat(1), life(2), SourceKind::replica}}));
  EXPECT_EQ(parts_of(last, seats, life(0)), (std::vector<PartToWrite>{{Seat(0), SourceKind::own_arena}}));
  EXPECT_EQ(parts_of(last, seats, life(1)), std::vector<PartToWrite>{});
  const std::vector<PartToWrite> both = parts_of(last, seats, life(2));
  ASSERT_EQ(both.size(), 2u);
  EXPECT_NE(std::ranges::find(both, PartToWrite{Seat(1), SourceKind::replica}), both.end());
  EXPECT_NE(std::ranges::find(both, PartToWrite{Seat(2), SourceKind::own_arena}), both.end());
}

// Its own arena, but on the node where it was before.
TEST(StopOrders, ASeatThatMovedIsWrittenWhereItWas) {
  const std::vector<Member> seats = seats_on({3, 1});
  const std::vector<Source> sources = {{Seat(0), SourceKind::own_arena, life(0), Generation(1), Step(41)},
                                       {Seat(1), SourceKind::own_arena, life(1), Generation(1), Step(41)}};
  EXPECT_EQ(parts_elsewhere(sources, seats), (std::vector<LastPart>{{Seat(0), life(0), SourceKind::own_arena}}));
}

TEST(StopOrders, AJobEndsWithAllItsNodesOrMoreThanItsCopies) {
  const std::vector<NodeLife> members = {life(0), life(1), life(2), life(3)};
  const auto stopping = [](std::initializer_list<std::uint32_t> nodes) {
    std::vector<StoppingNode> out;
    for (const std::uint32_t node : nodes) out.push_back({life(node), "SIGTERM", 1000});
    return out;
  };
  EXPECT_FALSE(ends_job(members, 0, stopping({1}), 1));
  EXPECT_TRUE(ends_job(members, 0, stopping({1, 2}), 1));
  EXPECT_FALSE(ends_job(members, 0, stopping({1, 2}), 2));
  EXPECT_TRUE(ends_job(members, 1, stopping({1}), 1)) << "it may hold what is left of the dead one's";
  EXPECT_TRUE(ends_job(members, 0, stopping({0, 1, 2, 3}), 7));
  EXPECT_FALSE(ends_job(members, 0, stopping({1, 8}), 1)) << "node 8 is a spare";
  EXPECT_FALSE(ends_job(members, 3, {}, 0));
  const std::vector<NodeLife> one = {life(0)};
  EXPECT_TRUE(ends_job(one, 0, stopping({0}), 1));
}

}  // namespace
}  // namespace pawl::job
