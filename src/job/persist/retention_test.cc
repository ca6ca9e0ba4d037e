#include "job/persist/retention.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "job/persist/persist_round.h"

namespace pawl::job {
namespace {

using checkpoint::ListedCheckpoint;

PersistRecord record_of(std::uint64_t published, std::vector<Step> older) {
  PersistRecord record;
  record.published = record.step = Step(published);
  record.older = std::move(older);
  return record;
}

std::vector<ListedCheckpoint> sound(const std::vector<std::uint64_t>& steps) {
  std::vector<ListedCheckpoint> listed(steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    listed[i].step = steps[i];
    listed[i].path = text("/c/step-", steps[i]);
    listed[i].finished = true;
    listed[i].identity.id = text("a", steps[i]);
    for (std::size_t k = i; k-- > 0;) listed[i].identity.before.push_back({steps[k], text("a", steps[k])});
  }
  return listed;
}

using Steps = std::vector<Step>;

Steps steps_to_remove(const PersistRecord& record, const std::vector<ListedCheckpoint>& listed,
                      checkpoint::Retention retention) {
  Steps steps;
  for (const ListedCheckpoint& one : checkpoints_to_remove(record, listed, retention)) steps.emplace_back(one.step);
  return steps;
}

TEST(RecordRetention, TheRecordForgetsWhatIsGivenUp) {
  const PersistRecord record = record_of(50, {Step(40), Step(30), Step(20), Step(10)});
  EXPECT_EQ(after_retention(record, {}), record);
  EXPECT_EQ(after_retention(record, {1, 0}).older, Steps{});
  EXPECT_EQ(after_retention(record, {2, 0}).older, Steps{Step(40)});
  EXPECT_EQ(after_retention(record, {2, 20}).older, (Steps{Step(40), Step(20)}));
  EXPECT_EQ(after_retention(record, {9, 0}), record);
  EXPECT_EQ(after_retention(record, {1, 0}).published, Step(50));
  EXPECT_EQ(after_retention({}, {1, 0}), PersistRecord());
}

TEST(RecordRetention, WhatTheRecordNamesStays) {
  const auto listed = sound({10, 20, 30, 40, 50});
  EXPECT_EQ(steps_to_remove(record_of(50, {}), listed, {2, 0}), (Steps{Step(10), Step(20), Step(30)}));
  EXPECT_EQ(steps_to_remove(record_of(50, {Step(20)}), listed, {2, 0}), (Steps{Step(10), Step(30)}));
  EXPECT_EQ(steps_to_remove(record_of(50, {}), listed, {2, 20}), (Steps{Step(10), Step(30)}));
  EXPECT_EQ(steps_to_remove(record_of(50, {}), listed, {}), Steps{});
}

// The job went back behind 40 and 50, which were damaged in a way that no size shows.
TEST(RecordRetention, WhatIsNewerThanWhatIsPublishedIsNeitherCountedNorRemoved) {
  const auto listed = sound({10, 20, 30, 40, 50});
  EXPECT_EQ(steps_to_remove(record_of(30, {}), listed, {1, 0}), (Steps{Step(10), Step(20)}));
  EXPECT_EQ(steps_to_remove(record_of(0, {}), listed, {1, 0}), Steps{})
      << "one to begin with stays until there is a newer";
}

// It went on from 20, and has passed the 30 and 40 of the history that it left: by number 40 is between its own.
TEST(RecordRetention, WhatWasLeftBehindIsNeitherCountedNorRemoved) {
  auto listed = sound({10, 20, 30, 40});
  auto own = sound({10, 20, 35, 45, 55});
  for (std::size_t i = 2; i < own.size(); ++i) listed.push_back(own[i]);
  EXPECT_EQ(steps_to_remove(record_of(55, {}), listed, {2, 0}), (Steps{Step(10), Step(20), Step(35)}));
  EXPECT_EQ(steps_to_remove(record_of(55, {}), listed, {5, 0}), Steps{});
  listed.back().identity = {};
  EXPECT_EQ(steps_to_remove(record_of(55, {}), listed, {1, 0}), Steps{}) << "it does not say what was before it";
}

// The same number, written again by another history.
TEST(RecordRetention, AStepOfTheSameNumberIsNotTheOneThatWasBefore) {
  auto listed = sound({10, 20, 30});
  listed[0].identity.id = "another";
  EXPECT_EQ(steps_to_remove(record_of(30, {}), listed, {1, 0}), Steps{Step(20)});
}

TEST(RecordRetention, WhatIsPublishedStaysThoughTheListingFindsNothingOfIt) {
  auto listed = sound({10, 20, 30});
  listed[2].damage = "cut short";
  EXPECT_EQ(steps_to_remove(record_of(30, {}), listed, {1, 0}), Steps{Step(10)});
}

// Whatever is published one after another: at each moment what the record names is there.
TEST(RecordRetention, NothingThatIsNamedIsEverRemoved) {
  for (const checkpoint::Retention retention : {checkpoint::Retention{1, 0}, {2, 0}, {2, 30}, {9, 50}, {12, 0}}) {
    PersistRecord record;
    std::vector<std::uint64_t> there;
    for (std::uint64_t step = 10; step <= 400; step += 10) {
      record.step = Step(step);
      there.push_back(step);
      record = after_retention(after_publish(record, 1), retention);
      for (const Step gone : steps_to_remove(record, sound(there), retention)) std::erase(there, gone.value);
      for (const Step named : record.older) EXPECT_TRUE(std::ranges::find(there, named.value) != there.end());
      EXPECT_EQ(there.back(), step);
    }
    EXPECT_EQ(checkpoint::to_remove(there, retention), std::vector<std::uint64_t>{}) << "all that may go has gone";
  }
}

}  // namespace
}  // namespace pawl::job
