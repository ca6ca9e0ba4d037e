#include "job/layout/equal_state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace pawl::job {
namespace {

LayoutEntry tensor(std::string name, std::uint64_t elements, std::uint64_t equal_axes, std::uint32_t mesh = 0) {
  LayoutEntry entry;
  entry.name = std::move(name);
  entry.role = "weight";
  entry.shape = {elements};
  entry.box = whole_box(entry.shape);
  entry.mesh = mesh;
  entry.equal_axes = equal_axes;
  return entry;
}

SeatLayout layout_of(const Mesh& mesh, const std::vector<LayoutEntry>& entries, std::uint32_t world,
                     std::uint64_t blob_capacity = 0) {
  LayoutBuilder builder(world);
  EXPECT_TRUE(builder.add_mesh(mesh));
  for (const LayoutEntry& entry : entries) {
    const auto added = builder.add(entry);
    EXPECT_TRUE(added) << added.error().what;
  }
  if (blob_capacity > 0) {
    EXPECT_TRUE(builder.add_blob("rng", blob_capacity));
  }
  return *builder.build();
}

TEST(EqualState, NamesAxesAndThePlaceOnAllOthers) {
  const Mesh mesh{"dense", {{"pp", 2}, {"dp", 3}, {"tp", 2}}};
  const SeatLayout layout = layout_of(mesh, {tensor("w", 16, 2)}, 12);
  const auto states = equal_state_of(layout, Seat(9));  // pp=1, dp=1, tp=1
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].group, "dense: dp of pp=1,tp=1");
  EXPECT_EQ(states[0].seats, (SeatsAlong{Seat(7), 2, 3}));
  EXPECT_EQ(states[0].bytes, 64u);
}

TEST(EqualState, IsTheSameOnAllSeatsOfAGroupAndOnNoOther) {
  const Mesh mesh{"m", {{"a", 2}, {"b", 3}, {"c", 4}}};
  for (std::uint64_t axes = 1; axes < 8; ++axes) {
    std::map<std::string, std::set<std::uint32_t>> groups;
    std::map<std::string, SeatsAlong> seats;
    for (std::uint32_t rank = 0; rank < 24; ++rank)
      for (const EqualState& state : equal_state_of(layout_of(mesh, {tensor("w", 16, axes)}, 24), Seat(rank))) {
        groups[state.group].insert(rank);
        seats.emplace(state.group, state.seats);
        EXPECT_EQ(seats[state.group], state.seats) << state.group;
      }
    for (const auto& [group, members] : groups)
      for (std::uint32_t rank = 0; rank < 24; ++rank)
        EXPECT_EQ(seats[group].has(Seat(rank)), members.contains(rank)) << group << ", rank " << rank;
    EXPECT_EQ(groups.empty(), axes == 5) << axes;  // a and c: b lies between them
  }
}

TEST(EqualState, AnAxisOfOneRankMakesNoGroup) {
  EXPECT_TRUE(equal_state_of(layout_of({"m", {{"dp", 1}, {"tp", 4}}}, {tensor("w", 16, 1)}, 4), Seat(0)).empty());
}

TEST(EqualState, JoinsNeighboursAndNothingElse) {
  const Mesh mesh{"m", {{"dp", 2}}};
  const SeatLayout layout =
      layout_of(mesh, {tensor("a", 10, 1), tensor("b", 16, 1), tensor("mine", 16, 0), tensor("c", 16, 1)}, 2, 100);
  const auto states = equal_state_of(layout, Seat(0));
  ASSERT_EQ(states.size(), 1u);
  ASSERT_EQ(states[0].extents.size(), 2u);
  EXPECT_EQ(states[0].extents[0].extent, (Extent{0, 128}));
  EXPECT_EQ(states[0].extents[1].extent, (Extent{192, 256}));
}

TEST(EqualState, ReachesToTheEndWhereNothingElseFollows) {
  const auto states = equal_state_of(layout_of({"m", {{"dp", 2}}}, {tensor("a", 10, 1)}, 2), Seat(0));
  ASSERT_EQ(states.size(), 1u);
  ASSERT_EQ(states[0].extents.size(), 1u);
  EXPECT_TRUE(states[0].extents[0].extent.is_whole());
}

TEST(EqualState, ItsDigestKnowsNoPlaceAndThatOfAnExtentDoes) {
  const Mesh mesh{"m", {{"dp", 2}}};
  const auto one = equal_state_of(layout_of(mesh, {tensor("a", 16, 1), tensor("mine", 16, 0)}, 2), Seat(0));
  const auto other = equal_state_of(layout_of(mesh, {tensor("mine", 16, 0), tensor("a", 16, 1)}, 2), Seat(1));
  const auto longer = equal_state_of(layout_of(mesh, {tensor("a", 32, 1), tensor("mine", 16, 0)}, 2), Seat(1));
  EXPECT_EQ(one[0].digest, other[0].digest);
  EXPECT_NE(one[0].digest, longer[0].digest);
  EXPECT_NE(one[0].extents[0].digest, other[0].extents[0].digest);
}

TEST(EqualState, OfManyRunsTheLongestCount) {
  std::vector<LayoutEntry> entries;
  for (std::uint64_t i = 0; i < 20; ++i) {
    entries.push_back(tensor("e" + std::to_string(i), 16 * (i + 1), 1));
    entries.push_back(tensor("m" + std::to_string(i), 16, 0));
  }
  const auto states = equal_state_of(layout_of({"m", {{"dp", 2}}}, entries, 2), Seat(0));
  ASSERT_EQ(states[0].extents.size(), kEqualExtentsMax);
  EXPECT_EQ(states[0].extents.front().extent.end - states[0].extents.front().extent.begin, 64u * 5);
}

TEST(EqualState, BytesInAnotherOrderAreOthers) {
  const auto digest_of_order = [](std::vector<std::uint32_t> order) {
    LayoutEntry entry = tensor("a", 16, 1);
    entry.shape = {4, 4};
    entry.box = whole_box(entry.shape);
    entry.order = std::move(order);
    return equal_state_of(layout_of({"m", {{"dp", 2}}}, {entry}, 2), Seat(0))[0];
  };
  EXPECT_NE(digest_of_order({}).digest, digest_of_order({1, 0}).digest);
  EXPECT_NE(digest_of_order({}).extents[0].digest, digest_of_order({1, 0}).extents[0].digest);
  EXPECT_EQ(digest_of_order({}).digest, digest_of_order({0, 1}).digest);
}

TEST(Layout, SaysAlongWhichAxesAnEntryIsEqual) {
  const SeatLayout layout = layout_of({"m", {{"dp", 2}, {"tp", 2}}}, {tensor("a", 16, 1), tensor("b", 16, 0)}, 4);
  const std::string text = text_of(layout);
  EXPECT_NE(text.find("\t0\t64\tequal 1\n"), std::string::npos) << text;
  const auto parsed = parse_layout(text);
  ASSERT_TRUE(parsed) << parsed.error().what;
  EXPECT_EQ(*parsed, layout);
  EXPECT_EQ(parsed->entries[0].equal_axes, 1u);
  std::string odd = text;
  odd.replace(odd.find("equal 1"), 7, "equal 4");
  EXPECT_FALSE(parse_layout(odd));
  odd.replace(odd.find("equal 4"), 7, "equal 0");
  EXPECT_FALSE(parse_layout(odd));
}

TEST(Layout, RefusesToBeEqualWhereNothingCanProveIt) {
  LayoutBuilder builder(2);
  EXPECT_TRUE(builder.add_mesh({"m", {{"dp", 2}}}));
  EXPECT_FALSE(builder.add(tensor("a", 16, 2)));
  LayoutEntry changing = tensor("b", 16, 1);
  changing.lifetime = Lifetime::volatile_;
  EXPECT_FALSE(builder.add(changing));
}

}  // namespace
}  // namespace pawl::job
