#include "job/daemon/keeper_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "env/clock.h"
#include "env/files.h"
#include "env/temporary_directory.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kPatience = 30s;

class Outputs : public testing::Test {
 protected:
  Outputs() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
    terminal_.reset(ends[0]);
    tee_.reset(ends[1]);
  }
  [[nodiscard]] KeeperOutputOptions options(std::uint32_t tee, std::uint32_t seats = 1) const {
    return {NodeId(3), seats, tee, tee_.get()};
  }
  Fd log(const std::string& name) const {
    return Fd(::open(directory_.path(name).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  }
  TrainerStreams open(KeeperOutput& output, std::uint32_t local_index = 0) const {
    auto streams = output.open(local_index, log("out"), log("err"));
    EXPECT_TRUE(streams);
    return std::move(*streams);
  }
  static void write(const Fd& end, std::string_view bytes) {
    EXPECT_EQ(::write(end.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  std::string ended(KeeperOutput& output, TrainerStreams streams, std::uint32_t local_index = 0) {
    streams = {};
    return output.close(local_index, kPatience);
  }
  std::string shown() {
    std::string all;
    char buffer[4096];
    for (ssize_t got = 0; (got = ::read(terminal_.get(), buffer, sizeof buffer)) > 0;)
      all.append(buffer, static_cast<std::size_t>(got));
    return all;
  }
  std::string content(const std::string& name) { return read_file(directory_.path(name)).value_or("none"); }

  const TemporaryDirectory directory_;
  Fd terminal_, tee_;
};

TEST_F(Outputs, GoToTheLogsAndTheEndOfStderrIsKept) {
  KeeperOutput output(options(0));
  TrainerStreams streams = open(output);
  write(streams.stdout_end, "step 1\n");
  write(streams.stderr_end, std::string(3000, 'x') + "\nKeyError: 1\nlast");
  EXPECT_EQ(ended(output, std::move(streams)), "KeyError: 1\nlast");
  EXPECT_EQ(content("out"), "step 1\n");
  EXPECT_EQ(content("err"), std::string(3000, 'x') + "\nKeyError: 1\nlast");
  EXPECT_EQ(shown(), "");
  EXPECT_EQ(output.close(0, kPatience), "");
}

TEST_F(Outputs, AreShownInWholeLinesWithTheirNode) {
  KeeperOutput output(options(kTeeStdout, 2));
  TrainerStreams streams = open(output, 1);
  write(streams.stdout_end, "a\nb");
  write(streams.stderr_end, "not shown\n");
  write(streams.stdout_end, "c\n\nend");
  (void)ended(output, std::move(streams), 1);
  EXPECT_EQ(shown(), "[node 3.1] a\n[node 3.1] bc\n[node 3.1] \n[node 3.1] end\n");
}

TEST_F(Outputs, OfTheFirstSeatAreShownAsTheyAreOnceItIsKnown) {
  KeeperOutput output(options(kTeeFirstSeat | kTeeStdout | kTeeStderr, 2));
  TrainerStreams first = open(output, 0);
  TrainerStreams second = open(output, 1);
  write(first.stdout_end, "loading\n");
  write(second.stdout_end, "loading, too\n");
  output.show(0, true);
  write(first.stdout_end, "10 %\r20 %\r");
  write(first.stderr_end, "warning");
  (void)ended(output, std::move(first), 0);
  (void)ended(output, std::move(second), 1);
  const std::string said = shown();
  EXPECT_NE(said.find("loading\n"), std::string::npos) << said;
  EXPECT_NE(said.find("10 %\r20 %\r"), std::string::npos) << said;
  EXPECT_NE(said.find("warning\n"), std::string::npos) << said;
  EXPECT_EQ(said.find("too"), std::string::npos) << said;
  EXPECT_EQ(content("out").size(), std::string("loading\nloading, too\n10 %\r20 %\r").size());
}

TEST_F(Outputs, OfASeatThatIsHiddenAgainAreNot) {
  KeeperOutput output(options(kTeeFirstSeat | kTeeStdout));
  TrainerStreams streams = open(output);
  output.show(0, true);
  output.show(0, false);
  write(streams.stdout_end, "step 1\n");
  (void)ended(output, std::move(streams));
  EXPECT_EQ(shown(), "");
}

TEST_F(Outputs, AFullDiskIsSaidOnceAndStopsNobody) {
  KeeperOutput output(options(kTeeStderr));
  auto streams = output.open(0, Fd(::open("/dev/full", O_WRONLY | O_CLOEXEC)), log("err"));
  ASSERT_TRUE(streams);
  for (int i = 0; i < 100; ++i) write(streams->stdout_end, std::string(10000, 'x') + "\n");
  write(streams->stderr_end, "still there\n");
  (void)ended(output, std::move(*streams));
  const std::string said = shown();
  EXPECT_NE(said.find("pawl: node 3: a trainer's log can't be written"), std::string::npos) << said;
  EXPECT_NE(said.find("No space left on device"), std::string::npos) << said;
  EXPECT_EQ(said.find("can't be written"), said.rfind("can't be written")) << said;
  EXPECT_NE(said.find("[node 3] still there\n"), std::string::npos) << said;
}

TEST_F(Outputs, AProcessThatKeepsThePipeIsNotWaitedForForEver) {
  KeeperOutput output(options(0));
  TrainerStreams streams = open(output);
  write(streams.stderr_end, "said\n");
  while (content("err") != "said\n") real_clock().sleep(1ms);
  EXPECT_EQ(output.close(0, 1ms), "said\n");
}

}  // namespace
}  // namespace pawl::job
