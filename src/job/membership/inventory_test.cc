#include "job/membership/inventory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "job/membership/test_records.h"

namespace pawl::job {
namespace {

constexpr auto kOwn = SourceKind::own_arena;
constexpr auto kReplica = SourceKind::replica;

// Of everything that may be there one: seats in a row and apart, two layouts in one arena, one slot twice, parts of streams.
Inventory full_inventory() {
  Inventory inventory;
  inventory.life = {NodeId(4294967295), Incarnation(kHuge)};
  inventory.generation = Generation(kGenerationMax);
  inventory.committed = Step(kStepMax);
  inventory.items = {{Seat(2), kOwn, Generation(0), Step(0), SlotState::sealed, 1},
                     {Seat(2), kReplica, Generation(3), Step(41), SlotState::sealed, kHuge},
                     {Seat(3), kReplica, Generation(3), Step(41), SlotState::sealed, 0},
                     {Seat(3), kReplica, Generation(3), Step(42), SlotState::dirty, 7},
                     {Seat(3), kReplica, Generation(3), Step(42), SlotState::dirty, 7},
                     {Seat(9), kReplica, Generation(kGenerationMax), Step(kStepMax), SlotState::sealed, 5},
                     {Seat(10), kReplica, Generation(3), Step(41), SlotState::sealed, 5, {0, 4096}},
                     {Seat(10), kReplica, Generation(3), Step(41), SlotState::sealed, 5, {8192, kStreamEnd}},
                     {Seat(11), kReplica, Generation(3), Step(41), SlotState::dirty, 5, {0, kHuge - 1}},
                     {Seat(4294967295), kReplica, Generation(3), Step(41), SlotState::sealed, 5}};
  inventory.trainers_alive = {Seat(3), Seat(4), Seat(9)};
  inventory.frozen_wall_ms = kHuge;
  inventory.equal = {{{Seat(0), 1, 4}, {{0, 4096}, kHuge}, Seat(2)},
                     {{Seat(0), 1, 4}, {{0, 4096}, kHuge}, Seat(3)},
                     {{Seat(0), 1, 4}, {{8192, kStreamEnd}, 1}, Seat(3)},
                     {{Seat(1), 2, 2147483648u}, {{0, kStreamEnd}, 0}, Seat(4294967295)}};
  return inventory;
}

// As usual: eight seats and eight wards, each with a layout of its own, all in the same two steps.
Inventory usual_inventory() {
  Inventory inventory;
  inventory.life = {NodeId(9998), Incarnation(1'764'000'000'123'456'789u)};
  inventory.generation = Generation(12);
  inventory.committed = Step(123'456);
  inventory.frozen_wall_ms = 1'764'000'000'123u;
  for (const auto& [first, kind] : {std::pair(79'976u, kReplica), std::pair(79'984u, kOwn)}) {
    for (std::uint32_t seat = first; seat < first + 8; ++seat) {
      const std::uint64_t layout = seat * 0x9e3779b97f4a7c15u;
      inventory.items.push_back({Seat(seat), kind, Generation(11), Step(123'456), SlotState::sealed, layout});
      inventory.items.push_back({Seat(seat), kind, Generation(11), Step(123'457),
                                 kind == kReplica ? SlotState::dirty : SlotState::sealed, layout});
      if (kind == kOwn) inventory.trainers_alive.emplace_back(seat);
    }
  }
  return inventory;
}

void expect_corrupt(const std::string& record, std::string_view part) {
  const auto inventory = parse_inventory(record);
  ASSERT_FALSE(inventory) << record;
  EXPECT_EQ(inventory.error().code, Code::corrupt);
  EXPECT_NE(inventory.error().what.find(part), std::string::npos) << inventory.error().what;
}

TEST(Inventory, ComesBackAsItWas) {
  const auto full = parse_inventory(to_text(full_inventory()));
  ASSERT_TRUE(full) << full.error().what;
  EXPECT_EQ(*full, full_inventory());
  EXPECT_EQ(*parse_inventory(to_text(usual_inventory())), usual_inventory());
  EXPECT_EQ(*parse_inventory(to_text(Inventory())), Inventory());
}

TEST(Inventory, IsWrittenLikeThis) {
  Inventory inventory = full_inventory();
  inventory.life = {NodeId(12), Incarnation(17)};
  inventory.generation = Generation(4);
  inventory.committed = Step(41);
  inventory.frozen_wall_ms = 99;
  inventory.items.resize(3);
  EXPECT_EQ(to_text(inventory),
            "inventory 3 12.17 generation 4 committed 41 frozen_ms 99\n"
            "alive 3-4 9-9\n"
            "own_arena 2-2 0.0 layout AAAAAAAAAAB\n"
            "replica 2-3 3.41 layout P__________AAAAAAAAAAA\n"
            "equal 2-3 0+1*4 0-4096 P__________\n"
            "equal 3-3 0+1*4 8192- AAAAAAAAAAB\n"
            "equal 4294967295-4294967295 1+2*2147483648 0- AAAAAAAAAAA\n"
            "end");
  const Inventory full = full_inventory();
  inventory.items = {full.items.begin() + 6, full.items.begin() + 9};
  EXPECT_NE(to_text(inventory).find("replica 10-10 3.41:0-4096 3.41:8192- layout"), std::string::npos);
  EXPECT_NE(to_text(inventory).find("replica 11-11 3.41:0-18446744073709551614.dirty layout"), std::string::npos);
}

TEST(Inventory, ATornSlotIsTold) {
  Inventory inventory;
  for (std::uint32_t seat = 0; seat < 2; ++seat)
    inventory.items.push_back({Seat(seat), kOwn, Generation(1), Step(4), SlotState::sealed, 3, {}, seat == 1});
  inventory.items.push_back({Seat(1), kOwn, Generation(1), Step(5), SlotState::dirty, 3});
  EXPECT_NE(to_text(inventory).find("own_arena 0-0 1.4 layout"), std::string::npos) << to_text(inventory);
  EXPECT_NE(to_text(inventory).find("own_arena 1-1 1.4.torn 1.5.dirty layout"), std::string::npos);
  EXPECT_EQ(*parse_inventory(to_text(inventory)), inventory);
}

TEST(Inventory, WhatIsEqualIsNamedAsItIsWritten) {
  const auto with = [](std::string_view rows) {
    return text("inventory 3 12.17 generation 4 committed 41 frozen_ms 99\n", rows, "\nend");
  };
  EXPECT_TRUE(parse_inventory(with("equal 2-3 0+1*4 0-4096 AAAAAAAAAAA")));
  for (const auto& [row, why] :
       {std::pair("equal 2 0+1*4 0-4096 AAAAAAAAAAA", "FIRST-LAST"),
        std::pair("equal 2-3 0+0*4 0-4096 AAAAAAAAAAA", "STRIDE"),
        std::pair("equal 2-3 0+1*1 0-4096 AAAAAAAAAAA", "STRIDE"),
        std::pair("equal 2-3 4294967295+1*2 0-4096 AAAAAAAAAAA", "STRIDE"),
        std::pair("equal 2-3 0+1*4 4096-4096 AAAAAAAAAAA", "BEGIN-END"),
        std::pair("equal 2-3 0+1*4 0-4096 AAAA", "a digest"),
        std::pair("equal 2-4 0+1*4 0-4096 AAAAAAAAAAA", "not one of those"),
        std::pair("equal 2-3 0+1*4 0-4096 AAAAAAAAAAA\nequal 2-3 0+1*4 0-4096 AAAAAAAAAAA", "ascending"),
        std::pair("equal 2-3 0+1*4 0-4096 AAAAAAAAAAA\nown_arena 2-2 1.1 layout AAAAAAAAAAA", "slots after")})
    expect_corrupt(with(row), why);
}

TEST(Inventory, OfEightSeatsHas400BytesAtMost) {
  EXPECT_LE(to_text(usual_inventory()).size(), 400u) << to_text(usual_inventory());
  Inventory alike = usual_inventory();
  for (InventoryItem& item : alike.items) item.layout_digest = 77;
  EXPECT_LE(to_text(alike).size(), 250u) << to_text(alike);
}

TEST(Inventory, IsInOrderAndWithoutEmptySlots) {
  Inventory inventory = usual_inventory();
  std::mt19937_64 random(7);
  std::ranges::shuffle(inventory.items, random);
  inventory.items.push_back({Seat(1), kOwn, Generation(1), Step(0), SlotState::empty, 3});
  EXPECT_EQ(to_text(inventory), to_text(usual_inventory()));
}

TEST(Inventory, AMistakeIsNamedByItsLine) {
  const std::string record = to_text(usual_inventory());
  const auto refused = [&](std::string_view from, std::string_view to, std::string_view why) {
    expect_corrupt(replaced(record, from, to), why);
  };
  refused("inventory 3 ", "inventory 2 ", "line 1: of another version");
  refused("inventory 3 ", "inventory ", "line 1: of another version");
  refused("9998.", "9998:", "line 1: the node's life");
  refused("9998.", "4294967296.", "line 1: the node's life");
  refused("generation 12", "generation 2097152", "line 1: the generation");
  refused("committed 123456", "committed 1099511627776", "line 1: the committed step");
  refused("committed ", "", "line 1: the committed step");
  refused("frozen_ms 1764000000123", "frozen_ms -1", "line 1: the time");
  refused("frozen_ms 1764000000123", "frozen_ms 1764000000123 warm 1", "line 1: has words");
  refused("alive 79984-79991", "alive", "line 2: the seats");
  refused("alive 79984-79991", "alive 79984-79983", "line 2: the seats");
  refused("alive 79984-79991", "alive 0-262144", "line 2: the seats");
  refused("alive 79984-79991", "alive 0-262143 7-7", "line 2: has too many seats");
  refused("alive", "dead", "line 2: this version");
  refused("replica", "mirror", "line 3: this version");
  refused("replica", "alive", "line 3: this version");
  refused("79976-79983", "79976-79982", "line 3: the layouts");
  refused("79976-79983", "0-131072", "line 3: has too many slots");
  refused(" 11.123456", " 11:123456", "line 3: a slot");
  refused(" 11.123456", " 11.1099511627776", "line 3: a slot");
  refused(".dirty", ".clean", "line 3: a slot");
  refused(".dirty", ".torn.dirty", "line 3: a slot");
  refused("11.123456 11.123457.dirty", "11.123457.dirty 11.123456", "line 3: not in ascending order");
  refused(" 11.123456 11.123457.dirty", "", "line 3: has no slots");
  refused("layout ", "layout !", "line 3: the layouts");
  for (const char* part : {":", ":1", ":0-", ":5-5", ":6-5", ":-5", ":0-18446744073709551615",
                           ":0-18446744073709551616", ":0-1:2-3", ":0x1-2"})
    refused(" 11.123456", text(" 11.123456", part), "line 3: a slot");
  refused("\nend", "", "has no end");
  refused("\nend", "\n\nend", "line 5: this version");
  refused("\nend", " \nend", "line 4: ends with a blank");
  expect_corrupt(record + "\n", "has no end");
  expect_corrupt(replaced(to_text(full_inventory()), "AAAAAAAAAAB", "QAAAAAAAAAB"), "a layout is not a digest");
  expect_corrupt(replaced(to_text(full_inventory()), "AAAAAAAAAAB", "AAAA+AAAAAB"), "a layout is not a digest");
  expect_corrupt(std::string(kRecordBytesMax + 1, ' '), "more than 1 MiB");
  for (const char* hostile : {"", "end", "\nend", " ", "{}", "inventory\nend", "\xff\nend"})
    expect_corrupt(hostile, "inventory");
}

TEST(Inventory, EveryPrefixIsRefused) {
  for (const std::string& whole : {to_text(full_inventory()), to_text(usual_inventory())})
    for (std::size_t length = 0; length < whole.size(); ++length)
      ASSERT_FALSE(parse_inventory(std::string_view(whole).substr(0, length))) << length;
}

// Whatever a byte turns into, the answer is a record or Code::corrupt; and what is accepted is written as it was read.
TEST(Inventory, DamagedTextNeverAborts) {
  std::mt19937_64 random(20261);
  int accepted = 0;
  for (int round = 0; round < 40000; ++round) {
    const std::string whole = to_text(round % 2 == 0 ? full_inventory() : usual_inventory());
    const std::string changed = damaged(whole, random, "0123456789 .:-\nA");
    const auto inventory = parse_inventory(changed);
    if (!inventory) {
      ASSERT_EQ(inventory.error().code, Code::corrupt) << "round " << round;
      continue;
    }
    ++accepted;
    ASSERT_EQ(*parse_inventory(to_text(*inventory)), *inventory) << "round " << round << ": " << changed;
  }
  EXPECT_GT(accepted, 0);  // another number
}

}  // namespace
}  // namespace pawl::job
