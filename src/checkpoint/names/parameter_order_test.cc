#include "checkpoint/names/parameter_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace pawl::checkpoint {
namespace {

std::vector<NamedShape> named(std::initializer_list<std::pair<const char*, Shape>> list) {
  std::vector<NamedShape> out;
  for (const auto& [name, shape] : list) out.push_back({name, shape});
  return out;
}

TEST(OrderParameters, OneGroupInTheModelsOrderIsThatOrder) {
  const auto names = named({{"a", {2, 3}}, {"b", {2, 3}}, {"c", {4}}});
  const std::vector<IndexedGroup> groups = {{Shape{2, 3}, Shape{2, 3}, Shape{4}}};
  Result<NameIndices> order = order_parameters(names, groups);
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0, 1, 2}}));
}

// Decayed and not: matrices and vectors. There is one way, however many layers are alike.
TEST(OrderParameters, GroupsOfDifferentShapesHaveOneWay) {
  std::vector<NamedShape> names;
  std::vector<IndexedGroup> groups(2);
  NameIndices expected(2);
  for (std::uint32_t layer = 0; layer < 500; ++layer) {
    for (const char* word : {"w", "b"}) {
      const bool is_matrix = *word == 'w';
      const Shape shape = is_matrix ? Shape{8, 8} : Shape{8};
      expected[is_matrix ? 0 : 1].push_back(static_cast<std::uint32_t>(names.size()));
      groups[is_matrix ? 0 : 1].push_back(shape);
      names.push_back({std::string(word) + std::to_string(layer), shape});
    }
  }
  Result<NameIndices> order = order_parameters(names, groups);
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, expected);
}

TEST(OrderParameters, AFrozenParameterIsLeftOutWhereItsShapeSaysSo) {
  const auto names = named({{"emb", {9, 4}}, {"w", {4, 4}}, {"b", {4}}});
  const std::vector<IndexedGroup> groups = {{Shape{4, 4}, Shape{4}}};
  Result<NameIndices> order = order_parameters(names, groups);
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{1, 2}}));
}

// The order alone can tell: of w1 b1 w2 c with numbers w b c, w is the first, since b follows it.
TEST(OrderParameters, TheOrderCanTellWhatShapesDoNot) {
  const auto names = named({{"w1", {4, 4}}, {"b1", {4}}, {"w2", {4, 4}}, {"c", {3}}});
  const std::vector<IndexedGroup> groups = {{Shape{4, 4}, Shape{4}, Shape{3}}};
  Result<NameIndices> order = order_parameters(names, groups);
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0, 1, 3}}));
}

// A name's place in the groups follows from its shape alone, whatever the orders.
TEST(NameByShape, OneNameOfEachShapeInAnyOrder) {
  const auto names = named({{"a", {2}}, {"b", {3}}, {"frozen", {9}}, {"c", {2, 2}}});
  Result<NameIndices> order = name_by_shape(names, std::vector<IndexedGroup>{{Shape{2, 2}, Shape{3}}, {Shape{2}}});
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{3, 1}, {0}}));
  order = name_by_shape(named({{"a", {2}}, {"b", {3}}}), std::vector<IndexedGroup>{{Shape{3}, std::nullopt}});
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{1, 0}}));  // the one that is left
}

TEST(NameByShape, WhatCouldBeExchangedIsRefused) {
  const auto expect_none = [](const std::vector<NamedShape>& names, const std::vector<IndexedGroup>& groups) {
    Result<NameIndices> order = name_by_shape(names, groups);
    ASSERT_FALSE(order.has_value());
    EXPECT_EQ(order.error().code, Code::invalid);
    EXPECT_NE(order.error().what.find("--param-names"), std::string::npos) << order.error().what;
  };
  const auto twins = named({{"a", {2}}, {"b", {2}}, {"c", {3}}});
  expect_none(twins, {{Shape{2}, Shape{2}, Shape{3}}});
  expect_none(twins, {{Shape{2}}});                // one of them is frozen
  expect_none(twins, {{Shape{3}, std::nullopt}});  // whose?
  expect_none(twins, {{Shape{3}, Shape{3}}});      // more numbers than names
  expect_none(twins, {{Shape{5}}});                // no such shape
  expect_none(named({{"a", {2}}, {"b", {3}}}), {{std::nullopt, std::nullopt}});
  expect_none({{"a", std::nullopt}}, {{Shape{2}}});
  expect_none({}, {{Shape{2}}});
}

void expect_refused(const std::vector<NamedShape>& names, const std::vector<IndexedGroup>& groups) {
  Result<NameIndices> order = order_parameters(names, groups);
  ASSERT_FALSE(order.has_value());
  EXPECT_EQ(order.error().code, Code::invalid);
  EXPECT_NE(order.error().what.find("--param-names"), std::string::npos) << order.error().what;
}

TEST(OrderParameters, TwoWaysAreRefused) {
  // A frozen layer like the trained one.
  expect_refused(named({{"l0.w", {4, 4}}, {"l0.b", {4}}, {"l1.w", {4, 4}}, {"l1.b", {4}}}), {{Shape{4, 4}, Shape{4}}});
  // Layers in two groups, as a learning rate that decays by layer needs them.
  expect_refused(named({{"l0.w", {4, 4}}, {"l1.w", {4, 4}}}), {{Shape{4, 4}}, {Shape{4, 4}}});
  // A number without a state fits any of the two.
  expect_refused(named({{"a", {2}}, {"b", {3}}}), {{std::nullopt}});
}

TEST(OrderParameters, NoWayIsRefused) {
  expect_refused(named({{"a", {2}}, {"b", {3}}}), {{Shape{3}, Shape{2}}});  // another order
  expect_refused(named({{"a", {2}}}), {{Shape{2}, Shape{2}}});              // more numbers than names
  expect_refused(named({{"a", {2}}, {"b", {3}}}), {{Shape{5}}});            // no such shape
  expect_refused({}, {{Shape{5}}});
}

TEST(OrderParameters, UnknownShapesFitWhereTheCountsLeaveOneWay) {
  const auto names = named({{"a", {2}}, {"b", {3}}});
  Result<NameIndices> order = order_parameters(names, std::vector<IndexedGroup>{{std::nullopt, Shape{3}}});
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0, 1}}));
  const std::vector<NamedShape> bare = {{"a", {}}, {"b", {}}};
  order = order_parameters(bare, std::vector<IndexedGroup>{{Shape{7}, Shape{3}}});
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0, 1}}));
}

// Against a search of everything: it finds a way exactly where there is just one.
TEST(OrderParameters, AgreesWithASearchOfAllWays) {
  std::mt19937 random(20261121);
  int unique = 0;
  for (int round = 0; round < 3000; ++round) {
    const std::size_t count = 1 + random() % 7;
    std::vector<NamedShape> names;
    for (std::size_t i = 0; i < count; ++i) names.push_back({std::to_string(i), Shape{1 + random() % 3}});
    std::vector<IndexedGroup> groups(1 + random() % 3);
    NameIndices truth(groups.size());
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::size_t g = random() % (groups.size() + 1);
      if (g == groups.size()) continue;
      groups[g].push_back(random() % 8 == 0 ? std::nullopt : std::optional<Shape>(names[i].shape));
      truth[g].push_back(i);
    }
    std::set<NameIndices> ways;
    std::uint64_t codes = 1;
    for (std::size_t i = 0; i < count; ++i) codes *= groups.size() + 1;
    for (std::uint64_t code = 0; code < codes; ++code) {
      NameIndices way(groups.size());
      std::uint64_t rest = code;
      bool fits = true;
      for (std::uint32_t i = 0; i < count; ++i, rest /= groups.size() + 1) {
        const std::size_t g = rest % (groups.size() + 1);
        if (g == groups.size()) continue;
        const std::size_t at = way[g].size();
        fits = fits && at < groups[g].size() && (!groups[g][at] || *groups[g][at] == *names[i].shape);
        way[g].push_back(i);
      }
      for (std::size_t g = 0; g < groups.size(); ++g) fits = fits && way[g].size() == groups[g].size();
      if (fits) ways.insert(way);
    }
    Result<NameIndices> order = order_parameters(names, groups);
    ASSERT_EQ(order.has_value(), ways.size() == 1) << "round " << round << ": " << ways.size() << " ways";
    if (!order) continue;
    ++unique;
    EXPECT_EQ(*order, *ways.begin());
    EXPECT_EQ(*order, truth);
  }
  EXPECT_GT(unique, 300);
}

TEST(DealParameters, FollowsTheSizes) {
  const auto names = named({{"a", {10}}, {"b", {30}}, {"c", {20}}, {"d", {3, 3}}});
  // b (30) to rank 0, c (20) to rank 1, a (10) to rank 1 (30 and 20), then d to the first of 30 and 30.
  const std::vector<std::vector<IndexedGroup>> ranks = {{{Shape{30}}, {Shape{3, 3}}}, {{Shape{20}, Shape{10}}, {}}};
  Result<std::vector<NameIndices>> dealt = deal_parameters(names, ranks);
  ASSERT_TRUE(dealt.has_value()) << dealt.error().what;
  EXPECT_EQ(*dealt, (std::vector<NameIndices>{{{1}, {3}}, {{2, 0}, {}}}));
}

TEST(DealParameters, OtherDealsAndUnclearOnesAreRefused) {
  const auto names = named({{"a", {10}}, {"b", {30}}, {"c", {20}}});
  const std::vector<std::vector<IndexedGroup>> other = {{{Shape{30}, Shape{10}}}, {{Shape{20}}}};
  EXPECT_FALSE(deal_parameters(names, other).has_value());
  // One shape in two groups: which parameter is in which?
  const auto twins = named({{"a", {10}}, {"b", {10}}});
  const std::vector<std::vector<IndexedGroup>> unclear = {{{Shape{10}}, {}}, {{}, {Shape{10}}}};
  EXPECT_FALSE(deal_parameters(twins, unclear).has_value());
  const std::vector<std::vector<NamedShape>> sections = {{twins[1]}, {twins[0]}};
  Result<std::vector<NameIndices>> said = deal_parameters_in(sections, unclear);
  ASSERT_TRUE(said.has_value()) << said.error().what;
  EXPECT_EQ(*said, (std::vector<NameIndices>{{{0}, {}}, {{}, {1}}}));
  // A frozen parameter of a trained one's shape.
  const std::vector<std::vector<IndexedGroup>> fewer = {{{Shape{10}}}, {IndexedGroup{}}};
  EXPECT_FALSE(deal_parameters(twins, fewer).has_value());
}

TEST(ParameterNames, AreReadByLineAndAsJson) {
  Result<ParameterNames> lines = parse_parameter_names("a.weight\r\n  b 24x24\nc name\n\n\nd 3\n");
  ASSERT_TRUE(lines.has_value()) << lines.error().what;
  ASSERT_EQ(lines->sections.size(), 2u);
  ASSERT_EQ(lines->sections[0].size(), 3u);
  EXPECT_EQ(lines->sections[0][0].name, "a.weight");
  EXPECT_EQ(lines->sections[0][1].shape, (Shape{24, 24}));
  EXPECT_EQ(lines->sections[0][2].name, "c name");
  EXPECT_EQ(lines->sections[1][0].shape, (Shape{3}));
  EXPECT_TRUE(lines->says_groups);
  Result<ParameterNames> json = parse_parameter_names(" [\"a\", \"b 2x3\"]\n");
  ASSERT_TRUE(json.has_value()) << json.error().what;
  ASSERT_EQ(json->sections.size(), 1u);
  EXPECT_EQ(json->sections[0][1].shape, (Shape{2, 3}));
  EXPECT_FALSE(json->says_groups);
  Result<ParameterNames> one_group = parse_parameter_names("[[\"a\", \"b\"]]");
  ASSERT_TRUE(one_group.has_value()) << one_group.error().what;
  EXPECT_TRUE(one_group->says_groups);
  Result<ParameterNames> nested = parse_parameter_names("[[\"a\"], [\"b\", \"c\"]]");
  ASSERT_TRUE(nested.has_value()) << nested.error().what;
  EXPECT_EQ(nested->sections.size(), 2u);
  Result<ParameterNames> several =
      parse_parameter_names("{\"optG\": [\"a\"], \"optD\": [[\"a\"], [\"b\"]], \"optE\": \"netE\"}");
  ASSERT_TRUE(several.has_value()) << several.error().what;
  ASSERT_EQ(several->optimizers.size(), 3u);
  EXPECT_EQ(several->optimizers[0].optimizer, "optG");
  EXPECT_FALSE(several->optimizers[0].says_groups);
  EXPECT_EQ(several->optimizers[1].sections.size(), 2u);
  EXPECT_TRUE(several->optimizers[1].says_groups);
  EXPECT_EQ(several->optimizers[2].model, "netE");
  several = parse_parameter_names("[[[\"a\"], [\"b\"]], [[\"a\"]]]");
  ASSERT_TRUE(several.has_value()) << several.error().what;
  ASSERT_EQ(several->optimizers.size(), 2u);
  EXPECT_EQ(several->optimizers[0].sections.size(), 2u);
  EXPECT_TRUE(several->sections.empty());
  for (const char* bad :
       {"{}", "{\"a\": []}", "{\"a\": 1}", "{\"a\": [\"b\", \"b\"]}", "{\"a\": [\"b\"], \"a\": [\"c\"]}",
        "[[[[\"a\"]]]]", "[[[\"a\"]], [\"b\"]]", "{\"a\": [[[\"b\"]]]}"})
    EXPECT_FALSE(parse_parameter_names(bad).has_value()) << bad;
  EXPECT_FALSE(parse_parameter_names(std::string(1 << 20, '[')).has_value());
  for (const char* bad : {"", "\n\n", "[", "[1]", "a\na\n", "[\"a\", \"a\"]", "[\"a\"] x", "[[\"a\"], \"b\", 3]"})
    EXPECT_FALSE(parse_parameter_names(bad).has_value()) << bad;
}

TEST(ParameterNames, SectionsSayTheGroups) {
  const std::vector<std::vector<NamedShape>> sections = {{{"b", Shape{4}}}, {{"a", Shape{4}}}};
  Result<NameIndices> order = order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4}}, {Shape{4}}});
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0}, {1}}));
  EXPECT_FALSE(order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4}}, {Shape{5}}}).has_value());
  EXPECT_FALSE(order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4}}}).has_value());
  EXPECT_FALSE(order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4}}, {}}).has_value());
}

// One list for several groups goes by number: torch numbers group after group. Shapes only prove it.
TEST(ParameterNames, OneListOfSeveralGroupsGoesByNumber) {
  const std::vector<std::vector<NamedShape>> listed = {
      named({{"w1", {4, 4}}, {"w2", {4, 4}}, {"b1", {4}}, {"b2", {4}}})};
  const std::vector<std::size_t> sizes = {2, 2};
  const std::vector<IndexedGroup> groups = {{Shape{4, 4}, Shape{4, 4}}, {Shape{4}, Shape{4}}};
  Result<std::vector<std::vector<NamedShape>>> sections = sections_by_number(listed, sizes);
  ASSERT_TRUE(sections.has_value()) << sections.error().what;
  Result<NameIndices> order = order_parameters_in(*sections, groups);
  ASSERT_TRUE(order.has_value()) << order.error().what;
  EXPECT_EQ(*order, (NameIndices{{0, 1}, {2, 3}}));
  const std::vector<std::vector<NamedShape>> of_model = {
      named({{"w1", {4, 4}}, {"b1", {4}}, {"w2", {4, 4}}, {"b2", {4}}})};
  sections = sections_by_number(of_model, sizes);
  ASSERT_TRUE(sections.has_value()) << sections.error().what;
  EXPECT_FALSE(order_parameters_in(*sections, groups).has_value());  // the model's order is not the optimizer's
  sections = sections_by_number({named({{"w1", {4, 4}}})}, sizes);
  ASSERT_FALSE(sections.has_value());
  EXPECT_NE(sections.error().what.find("2 groups have 4 parameters, and 1 names"), std::string::npos)
      << sections.error().what;
  sections = sections_by_number(listed, std::vector<std::size_t>{2});  // of one group it may have more
  ASSERT_TRUE(sections.has_value()) << sections.error().what;
  EXPECT_EQ((*sections)[0].size(), 4u);
}

TEST(ParameterNames, AnotherOrderOfTheGroupsIsSaidAndNotTaken) {
  const std::vector<std::vector<NamedShape>> sections = {named({{"b", {4}}, {"c", {4}}}), named({{"w", {4, 4}}})};
  Result<NameIndices> order =
      order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4, 4}}, {Shape{4}, Shape{4}}});
  ASSERT_FALSE(order.has_value());
  EXPECT_NE(order.error().what.find("in the order 1, 0 they fit"), std::string::npos) << order.error().what;
  order = order_parameters_in(sections, std::vector<IndexedGroup>{{Shape{4}}, {Shape{4}, Shape{4}}});
  ASSERT_FALSE(order.has_value());
  EXPECT_EQ(order.error().what.find("they fit"), std::string::npos) << order.error().what;
}

}  // namespace
}  // namespace pawl::checkpoint
