// Processes that meet in a folder: who is let in, whose reports count, and who is waited for.
#include "checkpoint/output/worker_meeting.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/text.h"
#include "env/files.h"
#include "env/temporary_directory.h"

namespace pawl::checkpoint {
namespace {

using namespace std::chrono_literals;

class WorkerMeetingTest : public testing::Test {
 protected:
  [[nodiscard]] WorkerMeeting meeting(std::uint32_t worker, std::uint32_t workers = 2, std::string job = "7.0",
                                      std::string digest = "abc") const {
    return WorkerMeeting({folder_.path("workers"), worker, workers, std::move(job), std::move(digest)});
  }
  const TemporaryDirectory folder_;
};

const MeetingWait kShort{.longest = 300ms};
const MeetingWait kLong{.longest = 20s};

TEST_F(WorkerMeetingTest, LetsAllGoWhoseWorkIsTheSameAndTakesTheirReports) {
  WorkerMeeting first = meeting(0, 3), second = meeting(1, 3), third = meeting(2, 3);
  std::string joined;
  std::thread early([&] {  // before there is any folder
    const Result<std::string> attempt = second.join(kLong);
    joined = attempt ? *attempt : attempt.error().what;
  });
  std::this_thread::sleep_for(100ms);
  ASSERT_TRUE(first.open());
  std::thread late([&] { EXPECT_TRUE(third.join(kLong)); });
  const Status gathered = first.gather("attempt1", kLong);
  early.join();
  late.join();
  ASSERT_TRUE(gathered) << gathered.error().what;
  EXPECT_EQ(joined, "attempt1");
  EXPECT_TRUE(first.goes_on() && second.goes_on() && third.goes_on());

  const ShareReport report{.bytes = 5,
                           .bytes_read = 7,
                           .overflowed = {{1, 2}},
                           .sums = {{0, 9}, {3, 0xFFFF'FFFF}},
                           .texts = {"a\nb\n", "", "sum 3\n"}};
  ASSERT_TRUE(first.leave_report({.bytes = 1}));
  ASSERT_TRUE(second.leave_report(report));
  ASSERT_TRUE(third.tell_progress(3));
  EXPECT_EQ(first.standing_of(2)->bytes, 3u);
  EXPECT_FALSE(first.standing_of(2)->report);
  std::uint64_t seen = 0;
  const auto late_one = first.wait_for_reports(kShort, [&](std::uint64_t bytes) { seen = bytes; });
  ASSERT_FALSE(late_one);
  EXPECT_EQ(late_one.error().code, Code::timeout);
  EXPECT_NE(late_one.error().what.find("worker 2 of 3 wrote nothing for 300 ms"), std::string::npos);
  EXPECT_EQ(seen, 9u);
  ASSERT_TRUE(third.leave_report({.bytes = 4}));
  const auto reports = first.wait_for_reports(kShort, [&](std::uint64_t bytes) { seen = bytes; });
  ASSERT_TRUE(reports) << reports.error().what;
  EXPECT_EQ((*reports)[1], report);
  EXPECT_EQ(seen, 10u);
}

TEST_F(WorkerMeetingTest, RefusesOtherSourcesPlansAndNumbersOfWorkers) {
  for (const bool other_number : {false, true}) {
    WorkerMeeting first = meeting(0), other = meeting(1, other_number ? 3 : 2, "7.0", other_number ? "abc" : "abd");
    ASSERT_TRUE(first.open());
    Status joined;
    std::thread second([&] {
      if (Result<std::string> attempt = other.join(kLong); !attempt) joined = attempt.error();
    });
    const Status gathered = first.gather("attempt1", kLong);
    second.join();
    ASSERT_FALSE(gathered);
    EXPECT_NE(gathered.error().what.find("worker 1 (process "), std::string::npos);
    EXPECT_NE(gathered.error().what.find("has another source"), std::string::npos);
    ASSERT_FALSE(joined);
    EXPECT_EQ(joined.error().what, gathered.error().what);
    ASSERT_TRUE(remove_tree(folder_.path(), folder_.path("workers")));
  }
}

TEST_F(WorkerMeetingTest, NeverJoinsWhatAnEarlierAttemptLeft) {
  WorkerMeeting old = meeting(0), old_worker = meeting(1);
  ASSERT_TRUE(old.open());
  std::thread helper([&] { EXPECT_TRUE(old_worker.join(kLong)); });
  ASSERT_TRUE(old.gather("attempt1", kLong));
  helper.join();
  ASSERT_TRUE(old_worker.leave_report({.bytes = 5}));
  // All of that is still there, and no worker 0 lives.
  WorkerMeeting again = meeting(1);
  const Result<std::string> joined = again.join(kShort);
  ASSERT_FALSE(joined);
  EXPECT_EQ(joined.error().code, Code::timeout);
  // It says the former once its own greeting lies there, which a slow machine may not get to in time.
  const std::string& what = joined.error().what;
  EXPECT_TRUE(what.find("worker 0 did not let us begin within 300 ms") != std::string::npos ||
              what.find("worker 0 did not begin within 300 ms") != std::string::npos)
      << what;
  // A second attempt in the same place, as if nobody had emptied it, does not take the first one's report.
  WorkerMeeting second = meeting(0);
  second.set_attempt("attempt2");
  EXPECT_FALSE(second.standing_of(1)->report);
  EXPECT_FALSE(second.goes_on());
  EXPECT_EQ(second.wait_for_reports(kShort, [](auto) {}).error().code, Code::timeout);
}

TEST_F(WorkerMeetingTest, LeavesWorkersOfAnotherJobOutside) {
  WorkerMeeting first = meeting(0);
  ASSERT_TRUE(first.open());
  WorkerMeeting stranger = meeting(1, 2, "8.0", "other");
  std::thread other([&] { EXPECT_EQ(stranger.join(kShort).error().code, Code::timeout); });
  const Status gathered = first.gather("attempt1", kShort);
  other.join();
  ASSERT_FALSE(gathered);
  EXPECT_EQ(gathered.error().code, Code::timeout);
  EXPECT_NE(gathered.error().what.find("1 of 2 workers did not come within 300 ms: 1"), std::string::npos);
}

TEST_F(WorkerMeetingTest, PassesOnWhyAWorkerFailedAndSeesDamage) {
  WorkerMeeting first = meeting(0), second = meeting(1);
  ASSERT_TRUE(first.open());
  first.set_attempt("a");
  second.set_attempt("a");
  ASSERT_TRUE(second.leave_report({.bytes = 5, .texts = {"some words"}}));
  const std::string path = folder_.path("workers/report-1-a");
  std::string bytes = *read_file(path);
  for (const std::size_t at : {std::size_t{3}, bytes.find("some words"), bytes.size() - 2}) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    ASSERT_TRUE(write_file_atomically(path, flipped));
    EXPECT_EQ(first.standing_of(1).error().code, Code::corrupt) << at;
    ASSERT_TRUE(write_file_atomically(path, bytes.substr(0, at)));
    EXPECT_EQ(first.standing_of(1).error().code, Code::corrupt) << at;
  }
  ASSERT_TRUE(write_file_atomically(path, bytes));
  EXPECT_TRUE(first.standing_of(1)->report);
  second.leave_failure({Code::full, "no room\nfor it"});
  const auto standing = first.standing_of(1);
  ASSERT_FALSE(standing);
  EXPECT_EQ(standing.error().code, Code::full);
  EXPECT_EQ(standing.error().what, "worker 1 of 2: no room for it");
}

TEST_F(WorkerMeetingTest, EndsWhenItIsToldTo) {
  const std::atomic<bool> cancel{true};
  WorkerMeeting first = meeting(0);
  ASSERT_TRUE(first.open());
  EXPECT_EQ(first.gather("a", {20s, &cancel}).error().code, Code::cancelled);
  EXPECT_EQ(meeting(1).join({20s, &cancel}).error().code, Code::cancelled);
  EXPECT_EQ(first.wait_for_reports({20s, &cancel}, [](auto) {}).error().code, Code::cancelled);
}

}  // namespace
}  // namespace pawl::checkpoint
