#include "checkpoint/names/attention_heads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace pawl::checkpoint {
namespace {

using Spans = std::vector<Span>;

// What was understood, "GROUPS x QUERIES of SIZE", or the error.
std::string said(std::uint64_t query_rows, std::uint64_t key_rows, FamilySettings settings) {
  StoredTensor tensor;
  tensor.name = "qkv";
  tensor.role = "weight";
  tensor.shape = {query_rows + 2 * key_rows, 8};
  const Result<AttentionHeads> heads = attention_heads_of(tensor, query_rows, key_rows, settings);
  if (!heads) return heads.error().what;
  return std::to_string(heads->groups) + " x " + std::to_string(heads->queries) + " of " +
         std::to_string(heads->head_size);
}

FamilySettings settings_of(std::uint64_t heads, std::uint64_t groups, std::uint64_t head_size) {
  FamilySettings settings;
  settings.attention_heads = heads;
  settings.query_groups = groups;
  settings.head_size = head_size;
  return settings;
}

// Two groups of three queries, a key and a value, of four rows each.
TEST(AttentionHeads, EachGroupHasItsQueriesThenAKeyThenAValue) {
  const AttentionHeads heads{2, 3, 4};
  EXPECT_EQ(heads.fused_spans(0), (Spans{{0, 12}, {20, 12}}));
  EXPECT_EQ(heads.fused_spans(1), (Spans{{12, 4}, {32, 4}}));
  EXPECT_EQ(heads.fused_spans(2), (Spans{{16, 4}, {36, 4}}));
  EXPECT_EQ(heads.block_spans(), (Spans{{0, 12}, {20, 12}, {12, 4}, {32, 4}, {16, 4}, {36, 4}}));
}

TEST(AttentionHeads, BlocksCoverEachRowOnce) {
  for (std::uint64_t groups = 1; groups <= 4; ++groups) {
    for (std::uint64_t queries = 1; queries <= 3; ++queries) {
      Spans spans = AttentionHeads{groups, queries, 5}.block_spans();
      std::ranges::sort(spans, {}, &Span::begin);
      std::uint64_t end = 0;
      for (const Span& span : spans) {
        EXPECT_EQ(span.begin, end);
        end += span.size;
      }
      EXPECT_EQ(end, groups * (queries + 2) * 5);
    }
  }
}

TEST(AttentionHeads, FollowFromTheRowsAndAnyOneNumber) {
  EXPECT_EQ(said(24, 8, settings_of(6, 0, 0)), "2 x 3 of 4");
  EXPECT_EQ(said(24, 8, settings_of(0, 2, 0)), "2 x 3 of 4");
  EXPECT_EQ(said(24, 8, settings_of(0, 0, 4)), "2 x 3 of 4");
  EXPECT_EQ(said(24, 8, settings_of(6, 2, 4)), "2 x 3 of 4");
  EXPECT_EQ(said(8, 8, settings_of(8, 0, 0)), "8 x 1 of 1") << "every query has a key of its own";
}

TEST(AttentionHeads, NothingIsGuessed) {
  EXPECT_EQ(said(24, 8, {}),
            "tensor qkv (weight) [40,8]: the checkpoint does not say how many attention heads it has: pass --heads, "
            "--query-groups or --head-size");
}

TEST(AttentionHeads, NumbersThatDoNotFitTheRowsAreRejected) {
  const auto unfit = [](std::uint64_t heads, std::uint64_t groups, std::uint64_t head_size) {
    return said(24, 8, settings_of(heads, groups, head_size)).find("don't fit") != std::string::npos;
  };
  EXPECT_TRUE(unfit(0, 3, 0)) << "8 rows of keys are not 3 heads";
  EXPECT_TRUE(unfit(0, 0, 3)) << "nor heads of 3 rows";
  EXPECT_TRUE(unfit(7, 0, 0)) << "7 heads are not groups of 3";
  EXPECT_TRUE(unfit(2, 0, 0)) << "fewer heads than one group has";
  EXPECT_TRUE(unfit(12, 2, 0)) << "2 groups of 3 are 6 heads";
  EXPECT_TRUE(unfit(6, 0, 8)) << "6 heads are of 4 rows";
  EXPECT_TRUE(unfit(0, 0, 16)) << "larger than all keys";
  EXPECT_EQ(said(65536, 65536, settings_of(0, 65536, 0)), "65536 x 1 of 1");
  EXPECT_NE(said(65537, 65537, settings_of(0, 65537, 0)).find("don't fit"), std::string::npos);
  EXPECT_EQ(said(24, 7, settings_of(6, 0, 0)),
            "tensor qkv (weight) [38,8]: 24 rows of queries and 7 of keys are not heads in groups");
  EXPECT_EQ(said(24, 0, settings_of(6, 0, 0)),
            "tensor qkv (weight) [24,8]: 24 rows of queries and 0 of keys are not heads in groups");
}

}  // namespace
}  // namespace pawl::checkpoint
