// The embedded server as a server: its directory, its addresses, its log when disks fail. Its protocol is tested in
// control_conformance_test.cc and protocol_conformance_test.cc.
#include "job/control/server.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/un.h>

#include <condition_variable>
#include <fstream>
#include <thread>

#include "job/control/control_backend.h"
#include "job/control/failing_files.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class ServerTest : public testing::Test {
 protected:
  TemporaryDirectory directory_;

  ControlServerOptions options() {
    ControlServerOptions out;
    out.data_directory = directory_.path() + "/data";
    return out;
  }
  std::unique_ptr<ControlServer> start(ControlServerOptions with) {
    auto server = ControlServer::start(std::move(with));
    EXPECT_TRUE(server) << server.error().what;
    return server ? std::move(*server) : nullptr;
  }
  static std::unique_ptr<Control> connect(const ControlServer& server, ControlOptions with = {}) {
    return std::move(*connect_control(server.addresses()[0], std::move(with)));
  }
  Error refusal(ControlServerOptions with) {
    auto server = ControlServer::start(std::move(with));
    EXPECT_FALSE(server);
    return server ? Error{} : server.error();
  }
};

TEST_F(ServerTest, OneServerPerDirectory) {
  const auto first = start(options());
  const Error error = refusal(options());
  EXPECT_EQ(error.code, Code::invalid);
  EXPECT_NE(error.what.find(text("in use by process ", ::getpid())), std::string::npos) << error.what;
}

TEST_F(ServerTest, OneServerPerAddress) {
  auto first_options = options();
  first_options.addresses = {"127.0.0.1:0", "unix:" + directory_.path() + "/socket"};
  const auto first = start(first_options);
  for (const std::string& address : first->addresses()) {
    auto second = options();
    second.data_directory += "2";
    second.addresses = {address};
    const Error error = refusal(second);
    EXPECT_EQ(error.code, Code::invalid);
    EXPECT_NE(error.what.find("listen on " + address), std::string::npos) << error.what;
    EXPECT_NE(error.what.find("give another"), std::string::npos) << error.what;
    ASSERT_TRUE((*connect_control(address))->put("a", "1")) << "the first goes on";
  }
}

TEST_F(ServerTest, AForgottenSocketFileIsReplaced) {
  auto unix_options = options();
  unix_options.addresses = {"unix:" + directory_.path() + "/socket"};
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  (directory_.path() + "/socket").copy(name.sun_path, sizeof name.sun_path - 1);
  {
    const Fd killed(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(0, ::bind(killed.get(), reinterpret_cast<sockaddr*>(&name), sizeof name));
  }
  ASSERT_TRUE(std::filesystem::exists(directory_.path() + "/socket"));
  const auto server = start(unix_options);
  ASSERT_TRUE(connect(*server)->put("a", "1"));
}

TEST_F(ServerTest, WrongOptionsAreNamed) {
  for (const char* address : {"", "nowhere", "127.0.0.1:", "127.0.0.1:70000", "unix:", "no.such.host.invalid:0"}) {
    auto wrong = options();
    wrong.addresses = {address};
    EXPECT_EQ(refusal(wrong).code, Code::invalid) << address;
  }
  auto wrong = options();
  wrong.addresses.clear();
  EXPECT_EQ(refusal(wrong).code, Code::invalid);
  wrong = options();
  wrong.data_directory = directory_.path() + "/not/there";
  EXPECT_NE(refusal(wrong).what.find("give one"), std::string::npos);
  wrong.data_directory.clear();
  EXPECT_EQ(refusal(wrong).code, Code::invalid);
}

TEST_F(ServerTest, WithoutTheTokenNothingIsSaid) {
  auto guarded = options();
  guarded.token = "secret";
  const auto server = start(guarded);
  const auto friendly = connect(*server, {.token = "secret"});
  ASSERT_TRUE(friendly->put("a", "1"));
  const auto lease = friendly->lease_grant(seconds(60));
  ASSERT_TRUE(lease);
  EXPECT_TRUE(friendly->lease_keep_alive_once(*lease));
  for (const char* token : {"", "wrong", "secret2"}) {
    const auto stranger = connect(*server, {.token = token});
    EXPECT_EQ(stranger->get("a").error().code, Code::invalid);
    EXPECT_EQ(stranger->put("a", "2").error().code, Code::invalid);
    EXPECT_EQ(stranger->lease_keep_alive_once(*lease).error().code, Code::invalid);
  }
  std::atomic<int> heard = 0;
  const auto eavesdropper = connect(*server);
  const auto watch = eavesdropper->watch("", {.from_revision = 1}, [&](const WatchEvent&) { ++heard; });
  ASSERT_TRUE(friendly->put("a", "3"));
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_EQ(heard, 0);
}

TEST_F(ServerTest, AFlippedByteIsRefusedAndATornTailIsCut) {
  {
    const auto server = start(options());
    const auto control = connect(*server);
    for (int i = 0; i < 10; ++i) ASSERT_TRUE(control->put("key", text("value", i)));
  }
  const std::string path = options().data_directory + "/control.wal";
  const auto size = std::filesystem::file_size(path);
  std::filesystem::copy_file(path, path + ".sound");
  {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(size / 2));
    file.put('\x7f');
  }
  const Error error = refusal(options());
  EXPECT_EQ(error.code, Code::corrupt);
  EXPECT_NE(error.what.find(path + " at byte "), std::string::npos) << error.what;

  std::filesystem::rename(path + ".sound", path);
  std::filesystem::resize_file(path, size - 3);
  const auto server = start(options());
  EXPECT_EQ(connect(*server)->get("key")->value, "value8");
}

// Holds the disk's syncs back until let go.
class Gate {
 public:
  void shut() { set(true); }
  void open() { set(false); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++waiting_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !shut_; });
    --waiting_;
  }
  void wait_until_somebody_waits() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, seconds(10), [&] { return waiting_ > 0; });
  }

 private:
  void set(bool shut) {
    std::lock_guard lock(mutex_);
    shut_ = shut;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool shut_ = false;
  int waiting_ = 0;
};

TEST_F(ServerTest, NothingIsToldBeforeItIsOnDiskAndWritersShareASync) {
  constexpr int kWriters = 20;
  FailingFiles files(0, false);
  Gate gate;
  files.before_sync = [&] { gate.pass(); };
  auto with = options();
  with.files = &files;
  const auto server = start(with);
  const auto control = connect(*server, {.deadline = seconds(20)});
  const auto hasty = connect(*server, {.deadline = milliseconds(300)});
  ASSERT_TRUE(control->put("key", "old"));
  std::atomic<int> heard = 0, acknowledged = 0;
  const auto watch = control->watch("", {.from_revision = 1}, [&](const WatchEvent&) { ++heard; });
  while (heard < 1) std::this_thread::sleep_for(milliseconds(1));

  gate.shut();
  std::vector<std::thread> writers;
  for (int i = 0; i < kWriters; ++i)
    writers.emplace_back([&, i] {
      EXPECT_TRUE(control->put("key", text(i)));
      ++acknowledged;
    });
  gate.wait_until_somebody_waits();
  EXPECT_EQ(hasty->get("key").error().code, Code::timeout) << "an answer would show what may yet be lost";
  EXPECT_EQ(acknowledged, 0);
  EXPECT_EQ(heard, 1);
  const int before = files.calls();
  gate.open();
  for (auto& writer : writers) writer.join();
  EXPECT_LE(files.calls() - before, 10) << "a write and a sync for each of a few frames, not for each writer";
  while (heard < 1 + kWriters) std::this_thread::sleep_for(milliseconds(1));
}

TEST_F(ServerTest, NoAcknowledgedWriteIsLostWhicheverDiskCallFails) {
  bool untouched = false;
  for (int fail_at = 1; !untouched; ++fail_at) {
    ASSERT_LT(fail_at, 100);
    TemporaryDirectory fresh;
    FailingFiles files(fail_at, fail_at % 2 == 0);
    auto with = options();
    with.data_directory = fresh.path();
    with.log_bytes_max = 600;  // so that replacing the log is among the calls
    with.key_values.history_events_max = 2;
    with.files = &files;
    std::map<std::string, Revision> acknowledged;
    {
      auto server = ControlServer::start(with);
      if (!server) {
        EXPECT_TRUE(files.failed()) << server.error().what;
      } else {
        const auto control = connect(**server, {.deadline = milliseconds(100)});
        bool all = true;
        for (int i = 0; i < 8 && all; ++i) {
          const auto swap = control->compare_and_swap(text("key", i), 0, "1");
          all = swap && swap->won;
          if (all) acknowledged[text("key", i)] = swap->revision;
        }
        untouched = all && !files.failed();
        if (!all) {
          pollfd told{(*server)->failed_fd(), POLLIN, 0};
          EXPECT_EQ(::poll(&told, 1, 5000), 1);
          EXPECT_FALSE((*server)->failure());
          EXPECT_FALSE(control->list("")) << "memory is ahead of the disk: say nothing";
        }
      }
    }
    with.files = nullptr;
    const auto again = start(with);
    ASSERT_TRUE(again) << "failing call " << fail_at;
    const auto listing = connect(*again)->list("");
    ASSERT_TRUE(listing);
    std::map<std::string, Revision> found;
    for (const auto& kv : listing->kvs) found[kv.key] = kv.mod_revision;
    for (const auto& [key, revision] : acknowledged) EXPECT_EQ(found[key], revision) << "failing call " << fail_at;
    EXPECT_LE(found.size(), acknowledged.size() + 1);
  }
}

TEST_F(ServerTest, AFailedLogEndsTheServer) {
  int ends[2];
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  const Fd stop_read(ends[0]), stop_write(ends[1]);
  FailingFiles files(8, true);
  auto with = options();
  with.files = &files;
  std::thread client;
  const auto ended = run_control_server(with, stop_read.get(), [&](const std::vector<std::string>& addresses) {
    client = std::thread([address = addresses[0]] {
      const auto control = std::move(*connect_control(address, {.deadline = milliseconds(200)}));
      for (int i = 0; i < 5; ++i) (void)control->put("a", text(i));
    });
  });
  client.join();
  ASSERT_FALSE(ended);
  EXPECT_NE(ended.error().what.find("injected"), std::string::npos) << ended.error().what;
}

TEST_F(ServerTest, StopsWhenItsDescriptorSaysSo) {
  int ends[2];
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  const Fd stop_read(ends[0]);
  Fd stop_write(ends[1]);
  const auto ended = run_control_server(options(), stop_read.get(), [&](const std::vector<std::string>& addresses) {
    EXPECT_TRUE((*connect_control(addresses[0]))->put("a", "1"));
    stop_write.reset();
  });
  EXPECT_TRUE(ended);
}

TEST_F(ServerTest, TheLogStaysSmallAndWatchesStillResume) {
  auto small = options();
  small.log_bytes_max = 20'000;
  small.fsync = false;
  small.key_values.history_events_max = 50;
  const std::string path = options().data_directory + "/control.wal";
  const std::string value(200, 'v');
  Revision last = 0;
  LeaseId lease = 0;
  {
    const auto server = start(small);
    const auto control = connect(*server);
    lease = *control->lease_grant(seconds(60));
    ASSERT_TRUE(control->put("leased", "1", lease));
    for (int i = 0; i < 1000; ++i) {
      last = *control->put(text("key", i % 7), text(value, i));
      ASSERT_LT(std::filesystem::file_size(path), 60'000u);
    }
  }
  const auto server = start(small);
  const auto control = connect(*server);
  const auto listing = control->list("");
  EXPECT_EQ(listing->revision, last);
  ASSERT_EQ(listing->kvs.size(), 8u);
  EXPECT_EQ(control->get("key0")->value, text(value, 994));
  EXPECT_EQ(control->get("key0")->create_revision, 3);
  EXPECT_EQ(control->get("leased")->create_revision, 2);

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<WatchEvent> recent, ancient;
  const auto into = [&](std::vector<WatchEvent>* events) {
    return [&, events](const WatchEvent& event) {
      std::lock_guard lock(mutex);
      events->push_back(event);
      changed.notify_all();
    };
  };
  const auto resuming = control->watch("", {.from_revision = last - 30}, into(&recent));
  const auto too_late = control->watch("", {.from_revision = 5}, into(&ancient));
  std::unique_lock lock(mutex);
  ASSERT_TRUE(changed.wait_for(lock, seconds(10), [&] { return recent.size() == 31 && ancient.size() == 1; }));
  EXPECT_EQ(recent.front().revision, last - 30);
  EXPECT_EQ(ancient[0].kind, WatchEvent::Kind::resync);
  EXPECT_EQ(ancient[0].revision, last);
  lock.unlock();
  ASSERT_TRUE(control->lease_revoke(lease));
  lock.lock();
  ASSERT_TRUE(changed.wait_for(lock, seconds(10), [&] { return ancient.size() == 2; }));
  EXPECT_EQ(ancient[1].kv.key, "leased");
}

TEST_F(ServerTest, LeasesOutliveATimeInWhichTheServerStoodStill) {
  SpawnOptions child;
  int ends[2];
  ASSERT_EQ(0, ::pipe2(ends, O_CLOEXEC));
  const Fd stop_read(ends[0]), stop_write(ends[1]);
  const std::string address = "unix:" + directory_.path() + "/socket";
  child.argv = {CONTROL_SERVER_MAIN, options().data_directory, address};
  child.stdin_fd = stop_read.get();
  child.parent_death_signal = SIGKILL;
  const auto process = spawn(child);
  ASSERT_TRUE(process);
  const auto control = std::move(*connect_control(address, {.deadline = seconds(10)}));
  constexpr auto kLease = seconds(1);
  const Duration granted = real_clock().now();
  const auto lease = control->lease_grant(kLease);
  ASSERT_TRUE(lease);
  const bool was_there = control->put("node", "1", *lease).has_value();
  const Duration stopped = real_clock().now();
  ASSERT_TRUE(send_signal(process->pidfd.get(), SIGSTOP));
  std::this_thread::sleep_for(milliseconds(1800));  // nobody could renew
  const Duration continued = real_clock().now();
  ASSERT_TRUE(send_signal(process->pidfd.get(), SIGCONT));
  const bool renewed = control->lease_keep_alive_once(*lease).has_value();
  const bool there = control->get("node").has_value();
  const Duration served = stopped - granted + (real_clock().now() - continued);
  if (served < kLease / 2) {  // else this test was too slow: somebody could have renewed it, and did not
    EXPECT_TRUE(was_there);
    EXPECT_TRUE(renewed);
    EXPECT_TRUE(there);
  }
  // Now somebody could have: it ends.
  for (const Deadline deadline = Deadline::in(seconds(20)); control->get("node") && !deadline.passed();)
    std::this_thread::sleep_for(milliseconds(50));
  EXPECT_EQ(control->get("node").error().code, Code::not_found);
  ASSERT_TRUE(send_signal(process->pidfd.get(), SIGKILL));
  ASSERT_TRUE(wait_exit(process->pidfd.get(), Deadline::in(seconds(10))));
}

}  // namespace
}  // namespace pawl::job
