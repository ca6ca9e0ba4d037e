// What a new pawld makes of the segments that the keeper gives back.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "env/files.h"
#include "env/temporary_directory.h"
#include "job/daemon/pawld.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"

namespace pawl::job {
namespace {

class HeldSegments : public testing::Test {
 protected:
  HeldSegments() { EXPECT_TRUE(write_file_atomically(directory.path("token"), "a token")); }
  // Its way to the control fails, so that it goes no further than its segments.
  Status start_with(const std::string& name, Fd held) {
    PacketPair pair = *make_packet_pair();
    DaemonOptions options;
    options.job = "test";
    options.run_dir = directory.path();
    DaemonLines lines;
    lines.keeper = real_stream(std::move(pair.first));
    lines.peers = real_listener(*listen_tcp({"127.0.0.1", 0}));
    lines.trainers = real_listener(*listen_unix(directory.path("pawld.sock")));
    lines.held.emplace_back(name, std::move(held));
    lines.connect_control = [this](const std::string&) {
      asked_control = true;
      return Result<std::unique_ptr<Control>>(Error{Code::unreachable, "no control"});
    };
    lines.exit = [](int) {};
    Pawld pawld(options, std::move(lines), environment);
    Status started = pawld.start();
    std::byte packet[256];
    for (Result<std::size_t> got = 1; (got = try_receive(pair.second.get(), packet)) && *got > 0;)
      told.emplace_back(reinterpret_cast<const char*>(packet), *got);
    return started;
  }

  TemporaryDirectory directory{"/tmp"};
  ManualClock clock;
  Environment environment{clock, real_tasks(), real_network(), real_files(), real_processes(), real_shared_memory()};
  Fd segment = *create_segment("test", 1 << 20);
  std::vector<std::string> told;  // to the keeper
  bool asked_control = false;
};

TEST_F(HeldSegments, OneThatIsNoneOfOursIsDropped) {
  EXPECT_FALSE(start_with("own.0", std::move(segment)));
  EXPECT_TRUE(asked_control);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0], packet_of(ToKeeper(DropSegment{"own.0"})));
}

// It may hold the only copy: the next pawld tries again.
TEST_F(HeldSegments, OneThatCanNotBeMappedIsKept) {
  for (const char* name : {"own.0", "replica.1", "page.0", "store"}) {
    const Duration began = clock.now();
    Fd unwritable(::open(text("/proc/self/fd/", segment.get()).c_str(), O_RDONLY | O_CLOEXEC));
    const Status started = start_with(name, std::move(unwritable));
    ASSERT_FALSE(started);
    EXPECT_EQ(started.error().code, Code::io);
    EXPECT_NE(started.error().what.find(name), std::string::npos) << started.error().what;
    EXPECT_TRUE(told.empty());
    EXPECT_FALSE(asked_control);
    EXPECT_GT(clock.now() - began, std::chrono::seconds(1)) << "five short lives end the node";
  }
}

}  // namespace
}  // namespace pawl::job
