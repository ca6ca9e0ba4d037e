#include "job/persist/persist_record.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace pawl::job {
namespace {

PersistRecord full_record() {
  PersistRecord record;
  record.attempt = 7;
  record.generation = Generation(2);
  record.phase = PersistPhase::writing;
  record.step = Step(500);
  record.tries = 2;
  record.folder = "/c/step-500.pawl-partial/attempt-7";
  record.published = Step(400);
  record.older = {Step(300), Step(200)};
  record.tried = Step(450);
  record.interval_ms = 77;
  record.published_wall_ms = 88;
  record.ended_wall_ms = 99;
  record.failures = 3;
  record.why = "no room: \"12\" bytes";
  return record;
}

TEST(PersistRecord, ComesBackAsItWas) {
  for (const PersistPhase phase : {PersistPhase::idle, PersistPhase::pinning, PersistPhase::writing}) {
    PersistRecord record = full_record();
    record.phase = phase;
    const auto parsed = parse_persist_record(to_json(record));
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_EQ(*parsed, record);
  }
  EXPECT_EQ(*parse_persist_record(to_json(PersistRecord{})), PersistRecord{});
}

TEST(PersistRecord, OfAnythingElseTheFieldIsNamed) {
  const nlohmann::json good = nlohmann::json::parse(to_json(full_record()));
  for (const auto& [field, value] : good.items()) {
    nlohmann::json bad = good;
    bad[field] = nlohmann::json::array({-1});
    const auto parsed = parse_persist_record(bad.dump());
    ASSERT_FALSE(parsed) << field;
    EXPECT_EQ(parsed.error().code, Code::corrupt);
    EXPECT_NE(parsed.error().what.find(field), std::string::npos) << parsed.error().what;
    bad.erase(field);
    EXPECT_FALSE(parse_persist_record(bad.dump())) << field;
  }
  nlohmann::json more = good;
  more["newer"] = 1;
  EXPECT_FALSE(parse_persist_record(more.dump()));
  nlohmann::json many = good;
  many["older"] = std::vector<int>(kOlderMax + 1, 3);
  EXPECT_FALSE(parse_persist_record(many.dump()));
  EXPECT_FALSE(parse_persist_record(""));
  EXPECT_FALSE(parse_persist_record("[]"));
  EXPECT_FALSE(parse_persist_record(std::string(1 << 20, ' ')));
}

TEST(PersistRecord, AFolderIsNamedByItsStep) {
  EXPECT_EQ(checkpoint_path("/data/run", Step(500)), "/data/run/step-500");
}

}  // namespace
}  // namespace pawl::job
