#include "cli/job/recovery_tally.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

json event(const char* kind, std::uint64_t generation, std::uint64_t at_ms, const json& more = json::object()) {
  json made = {{"kind", kind}, {"generation", generation}, {"at_ms", at_ms}, {"node", 1}};
  made.update(more);
  return json::parse(made.dump());  // numbers as the control has them
}

TEST(RecoveryTally, SaysWhoEndedHowLongItTookAndWhatIsDoneAgain) {
  RecoveryTally tally;
  EXPECT_FALSE(tally.note(event("running", 1, 1000, {{"resume", 0}})));
  EXPECT_EQ(tally.totals(), "");
  EXPECT_FALSE(tally.note(event("fault_detected", 1, 5000)));
  EXPECT_FALSE(tally.note(event("fault_detected", 1, 4980)));
  EXPECT_FALSE(tally.note(event("frozen", 2, 5001, {{"step", 41}})));
  EXPECT_FALSE(tally.note(event("frozen", 2, 5002, {{"step", 42}})));
  EXPECT_EQ(tally.note(event("trainer_ended", 2, 5003, {{"seat", 2}, {"how", "exited 1 in or after step 42"}})),
            "seat 2 (node 1): its trainer exited 1 in or after step 42");
  EXPECT_EQ(tally.note(event("running", 2, 5400, {{"resume", 40}})), "recovered in 0.42 s, 2 steps to do again");
  EXPECT_FALSE(tally.note(event("running", 2, 5401, {{"resume", 40}})));
  EXPECT_EQ(tally.totals(), "1 recovery, 2 steps done again, 0.42 s in all");
}

TEST(RecoveryTally, SaysWhatARecoveryWaitsFor) {
  RecoveryTally tally;
  EXPECT_EQ(tally.note(event("recovery_waits", 2, 5003,
                             {{"seat", 3}, {"what", "412 MiB from node 2"}, {"for_ms", 4120}, {"deadline_ms", 34120}})),
            "seat 3 waits for 412 MiB from node 2, 4.1 s so far, deadline 34.1 s");
  EXPECT_EQ(tally.note(event("recovery_waits", 2, 5003, {{"what", "node 2 to be ready"}, {"for_ms", 2000}})),
            "the recovery waits for node 2 to be ready, 2.0 s so far");
  EXPECT_EQ(wait_text({{"seat", 3u}, {"what", "a copy"}, {"for_ms", 100u}, {"seats", 3u}}),
            "seat 3 waits for a copy, 0.1 s so far; 2 other seats of its node wait, too");
  EXPECT_EQ(wait_text({{"seat", nullptr}, {"what", "a spare"}, {"for_ms", 100u}, {"deadline_ms", nullptr}}),
            "the recovery waits for a spare, 0.1 s so far");
}

TEST(RecoveryTally, SaysWhichSeatsDifferAndWhere) {
  RecoveryTally tally;
  EXPECT_EQ(tally.note(event(
                "paths_differ", 1, 5000,
                {{"step", 20}, {"seats", {1}}, {"count", 1}, {"like", 0}, {"like_count", 3}, {"bytes", "bytes 0-"}})),
            "the state of seat 1 differs from that of seat 0 and 2 others at step 20, in bytes 0- of what was declared "
            "equal on them");
  EXPECT_EQ(
      difference_text(
          {{"step", 20u}, {"seats", {1u, 3u}}, {"count", 5u}, {"like", 0u}, {"like_count", 1u}, {"bytes", "bytes 0-"}}),
      "the state of seats 1, 3 and 3 others differs from that of seat 0 at step 20, in bytes 0- of what was declared "
      "equal on them");
  EXPECT_EQ(tally.note(event("paths_differ_in", 1, 5000, {{"seat", 1}, {"tensors", {"wte (weight)"}}, {"count", 2}})),
            "seat 1 differs in wte (weight) and 1 other");
  EXPECT_EQ(tally.note(event("paths_equal", 1, 5000, {{"step", 30}, {"bytes", "bytes 0-"}})),
            "at step 30 they are equal again in bytes 0-");
}

TEST(RecoveryTally, QuotesWhatTrainersSaidOnce) {
  RecoveryTally tally;
  const std::string quote = "ValueError: the batch has no element of the kind that is wanted";
  const auto ended = [&](std::uint64_t seat, const std::string& said) {
    const std::string how =
        "exited 1 in or after step 3: " + said + ", its output is in /run/node-" + std::to_string(seat);
    return tally.note(event("trainer_ended", 2, 5003, {{"seat", seat}, {"how", how}}));
  };
  EXPECT_EQ(ended(1, quote),
            "seat 1 (node 1): its trainer exited 1 in or after step 3: " + quote + ", its output is in /run/node-1");
  EXPECT_EQ(ended(0, quote),
            "seat 0 (node 1): its trainer exited 1 in or after step 3: as above, its output is in /run/node-0");
  EXPECT_EQ(ended(2, "KeyError: 7"), ended(2, "KeyError: 7")) << "short ones are told each time";
}

TEST(RecoveryTally, AFailureAfterTheLastStepCounts) {
  RecoveryTally tally;
  (void)tally.note(event("trainer_ended", 2, 5003, {{"seat", 1}, {"how", "exited 1 in or after step 3"}}));
  EXPECT_FALSE(tally.failed_after_all());
  EXPECT_EQ(tally.note(event("trainer_ended", 2, 5003,
                             {{"seat", 0}, {"how", "exited 1 in or after step 20: OSError"}, {"after_all", true}})),
            "seat 0 (node 1): its trainer exited 1 in or after step 20: OSError; the job's steps are all done");
  EXPECT_TRUE(tally.failed_after_all());
}

TEST(RecoveryTally, ADrainIsARecoveryThatBeginsWhenTheTrainersWait) {
  RecoveryTally tally;
  (void)tally.note(event("running", 1, 1000));
  EXPECT_EQ(tally.note(event("drain_begun", 1, 2000, {{"leaving", 3}, {"step", 9}, {"waited_ms", 200}})),
            "node 3 is drained after step 9");
  (void)tally.note(event("frozen", 2, 2001, {{"step", 9}}));
  EXPECT_EQ(tally.note(event("running", 2, 2300, {{"resume", 9}})), "recovered in 0.50 s, 0 steps to do again");
  EXPECT_EQ(tally.totals(), "1 recovery, 0 steps done again, 0.50 s in all");
}

TEST(RecoveryTally, ADeathInARecoveryIsOneRecovery) {
  RecoveryTally tally;
  (void)tally.note(event("running", 1, 1000));
  (void)tally.note(event("fault_detected", 1, 2000));
  (void)tally.note(event("frozen", 2, 2001, {{"step", 10}}));
  (void)tally.note(event("fault_detected", 2, 2500));
  (void)tally.note(event("frozen", 3, 2501, {{"step", 10}}));
  EXPECT_EQ(tally.note(event("running", 3, 3000, {{"resume", 9}})), "recovered in 1.00 s, 1 step to do again");
  (void)tally.note(event("frozen", 3, 3001, {{"step", 90}}));  // too late: it is counted with none
  (void)tally.note(event("fault_detected", 3, 4000));
  EXPECT_EQ(tally.note(event("running", 4, 4500, {{"resume", 12}})), "recovered in 0.50 s, 0 steps to do again");
  EXPECT_EQ(tally.totals(), "2 recoveries, 1 step done again, 1.50 s in all");
}

}  // namespace
}  // namespace pawl::job
