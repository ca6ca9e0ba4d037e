// The rendezvous log: what was appended comes back, of its own generation, through any number of rewritings.
#include "job/daemon/rendezvous_log.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <random>

namespace pawl::job {
namespace {

// What a keeper does with a held segment.
struct Keeper {
  Fd held;
  int count = 0;
  RendezvousLog::Hold hold() {
    return [this](const std::string& name, int fd) {
      EXPECT_EQ(name, "store");
      held = Fd(dup(fd));
      ++count;
    };
  }
};

std::vector<std::string> come_back(Keeper& keeper, Generation generation) {
  RendezvousLog log(real_shared_memory(), "test", keeper.hold());
  const Status adopted = log.adopt(Fd(dup(keeper.held.get())));
  EXPECT_TRUE(adopted) << adopted.error().what;
  return log.records(generation);
}

std::vector<std::string> nothing() {
  return {};
}

TEST(RendezvousLog, WhatWasAppendedComesBackOfItsGeneration) {
  Keeper keeper;
  RendezvousLog log(real_shared_memory(), "test", keeper.hold());
  EXPECT_TRUE(log.records(Generation(3)).empty());
  ASSERT_TRUE(log.append(Generation(3), "one", nothing));
  ASSERT_TRUE(log.append(Generation(3), std::string("\0two", 4), nothing));
  EXPECT_EQ(keeper.count, 1);
  EXPECT_EQ(come_back(keeper, Generation(3)), (std::vector<std::string>{"one", std::string("\0two", 4)}));
  EXPECT_TRUE(come_back(keeper, Generation(4)).empty());
  ASSERT_TRUE(log.append(Generation(4), "new", nothing));
  EXPECT_EQ(come_back(keeper, Generation(4)), (std::vector<std::string>{"new"}));
  EXPECT_TRUE(come_back(keeper, Generation(3)).empty());
}

TEST(RendezvousLog, GoesOnWhereTheLastPawldWasAndIsRewrittenWhenFull) {
  Keeper keeper;
  std::mt19937 random(7);
  std::vector<std::string> all;
  for (int life = 0; life < 20; ++life) {
    RendezvousLog log(real_shared_memory(), "test", keeper.hold());
    if (keeper.held.valid()) {
      ASSERT_TRUE(log.adopt(Fd(dup(keeper.held.get()))));
    }
    EXPECT_EQ(log.records(Generation(1)), all);
    for (int i = 0; i < 20; ++i) {
      std::string record(1 + random() % 30'000, static_cast<char>(random()));
      ASSERT_TRUE(log.append(Generation(1), record, [&] { return all; }));
      all.push_back(std::move(record));
    }
  }
  EXPECT_GT(keeper.count, 3);
}

TEST(RendezvousLog, RefusesDamage) {
  Keeper keeper;
  RendezvousLog log(real_shared_memory(), "test", keeper.hold());
  ASSERT_TRUE(log.append(Generation(1), "a record", nothing));
  Mapping memory = std::move(*map_segment(keeper.held.get(), 64));
  RendezvousLog next(real_shared_memory(), "test", keeper.hold());
  memory.bytes()[30] ^= std::byte{1};
  EXPECT_FALSE(next.adopt(Fd(dup(keeper.held.get()))));
  memory.bytes()[30] ^= std::byte{1};
  memory.bytes()[19] = std::byte{0x7f};  // a length beyond all
  EXPECT_FALSE(next.adopt(Fd(dup(keeper.held.get()))));
  memory.bytes()[0] ^= std::byte{1};
  EXPECT_FALSE(next.adopt(Fd(dup(keeper.held.get()))));
}

}  // namespace
}  // namespace pawl::job
