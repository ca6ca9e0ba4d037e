#include "job/daemon/path_proof.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

constexpr std::size_t kSlotsBuckets = 3;

std::vector<Source> sources_as(std::initializer_list<SourceKind> kinds) {
  std::vector<Source> sources(kinds.size());
  std::size_t i = 0;
  for (const SourceKind kind : kinds) sources[i++].kind = kind;
  return sources;
}

TEST(PathProof, NothingIsAskedForSumsWhereThereIsNoPath) {
  const PathProof proof(sources_as({SourceKind::replica, SourceKind::own_arena}));
  for (std::size_t source = 0; source < 2; ++source) {
    EXPECT_TRUE(proof.may_ask(source));
    EXPECT_FALSE(proof.wants_sums(source));
    EXPECT_FALSE(proof.is_awaited(source));
  }
}

TEST(PathProof, APathWaitsForTheSumsOfTheSeatsOwnAndTellsTheSame) {
  PathProof proof(sources_as({SourceKind::path, SourceKind::replica, SourceKind::replica, SourceKind::path}));
  EXPECT_FALSE(proof.may_ask(0));
  EXPECT_TRUE(proof.wants_sums(1));
  EXPECT_FALSE(proof.awaits_any());
  EXPECT_FALSE(proof.hear(1, 0, {5, 6, 7}, kSlotsBuckets));
  EXPECT_FALSE(proof.wants_sums(2)) << "one is enough";
  EXPECT_TRUE(proof.may_ask(0));
  EXPECT_TRUE(proof.wants_sums(0));
  EXPECT_FALSE(proof.hear(0, 1, {6}, kSlotsBuckets));
  EXPECT_FALSE(proof.wants_sums(0));
  EXPECT_TRUE(proof.is_right(2, 7));
  EXPECT_EQ(proof.compared(), 0u) << "its own says what is right";
  EXPECT_FALSE(proof.is_right(2, 8));
  EXPECT_FALSE(proof.is_right(3, 0));
  const auto differs = proof.hear(3, 0, {5, 9}, kSlotsBuckets);
  ASSERT_TRUE(differs);
  EXPECT_EQ(differs->bucket, 1u);
  EXPECT_EQ(differs->other, 1u);
}

TEST(PathProof, WithoutAnyOfTheSeatsOwnAllPathsThatAreNotPassedOverAreHeardFirst) {
  PathProof proof(sources_as({SourceKind::path, SourceKind::path, SourceKind::path}));
  EXPECT_FALSE(proof.hear(1, 0, {5, 6, 7}, kSlotsBuckets));
  EXPECT_TRUE(proof.is_awaited(0));
  EXPECT_FALSE(proof.is_awaited(1));
  proof.pass_over(0);
  EXPECT_TRUE(proof.awaits_any());
  EXPECT_EQ(proof.compared(), 1u);
  const auto differs = proof.hear(2, 0, {5, 6, 8}, kSlotsBuckets);
  EXPECT_FALSE(proof.awaits_any());
  EXPECT_EQ(proof.compared(), 2u);
  ASSERT_TRUE(differs);
  EXPECT_EQ(differs->bucket, 2u);
  EXPECT_EQ(differs->other, 1u);
}

// A part says nothing of the rest.
TEST(PathProof, APartProvesNothing) {
  PathProof proof(sources_as({SourceKind::path, SourceKind::path}));
  EXPECT_FALSE(proof.hear(0, 0, {5, 6}, kSlotsBuckets));
  EXPECT_FALSE(proof.is_right(0, 5));
  EXPECT_FALSE(proof.hear(1, 0, {1, 2, 3}, kSlotsBuckets));
  EXPECT_FALSE(proof.is_right(0, 5));
}

}  // namespace
}  // namespace pawl::job
