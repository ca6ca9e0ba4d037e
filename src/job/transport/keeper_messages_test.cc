#include "job/transport/keeper_messages.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

// The packet that `message` makes, and it is read back as the same.
std::string there_and_back(const ToKeeper& message) {
  const std::string packet = packet_of(message);
  const auto back = parse_to_keeper(packet);
  EXPECT_TRUE(back && back->index() == message.index() && packet_of(*back) == packet) << packet;
  return packet;
}
std::string there_and_back(const FromKeeper& message) {
  const std::string packet = packet_of(message);
  const auto back = parse_from_keeper(packet);
  EXPECT_TRUE(back && back->index() == message.index() && packet_of(*back) == packet) << packet;
  return packet;
}

TEST(KeeperMessages, AreTheseTexts) {
  EXPECT_EQ(there_and_back(ToKeeper(HoldSegment{"own.3"})), "hold own.3");
  EXPECT_EQ(there_and_back(ToKeeper(DropSegment{"own.3"})), "drop own.3");
  EXPECT_EQ(there_and_back(ToKeeper(SpawnTrainer{1, {}})), "spawn 1");
  EXPECT_EQ(there_and_back(ToKeeper(SpawnTrainer{1, {"A=b c", "D="}})), "spawn 1\nA=b c\nD=");
  EXPECT_EQ(there_and_back(ToKeeper(KillTrainer{2})), "kill 2");
  EXPECT_EQ(there_and_back(ToKeeper(ShowTrainer{2, true})), "show 2");
  EXPECT_EQ(there_and_back(ToKeeper(ShowTrainer{2, false})), "hide 2");
  EXPECT_EQ(there_and_back(ToKeeper(PawldAlive{Duration(7)})), "alive 7");
  EXPECT_EQ(there_and_back(ToKeeper(FenceNode{"cut off: no lease"})), "fence cut off: no lease");
  EXPECT_EQ(there_and_back(ToKeeper(ResetNode{"evicted"})), "reset evicted");
  EXPECT_EQ(there_and_back(ToKeeper(EndNode{1})), "end 1");
  EXPECT_EQ(there_and_back(FromKeeper(TrainerSpawned{1, 20, 300})), "spawned 1 20 300");
  EXPECT_EQ(there_and_back(FromKeeper(StopAsked{15, 60000})), "stop 15 60000");
  EXPECT_EQ(there_and_back(FromKeeper(TrainerExited{1, 20, "killed by SIGKILL, its output is in x"})),
            "exited 1 20 killed by SIGKILL, its output is in x");
  const FromKeeper exited = TrainerExited{1, 20, "exited 1", "Traceback\n  File x\nKeyError: 1\n"};
  EXPECT_EQ(there_and_back(exited), "exited 1 20 exited 1\nTraceback\n  File x\nKeyError: 1\n");
}

TEST(KeeperMessages, OthersAreNone) {
  for (const char* packet : {"", "hold", "hold ", "spawn", "spawn x", "kill", "kill 1 2", "show", "hide x", "end",
                             "end 256", "end -1", "alive x", "sing"})
    EXPECT_FALSE(parse_to_keeper(packet)) << packet;
  for (const char* packet : {"", "spawned", "spawned 1", "spawned 1 2", "spawned 1 2 x", "exited 1", "exited x 2 y",
                             "stop", "stop 15", "stop 15 x"})
    EXPECT_FALSE(parse_from_keeper(packet)) << packet;
  const auto exited = parse_from_keeper("exited 1 0 ");
  ASSERT_TRUE(exited);
  EXPECT_EQ(std::get<TrainerExited>(*exited).how, "");
}

}  // namespace
}  // namespace pawl::job
