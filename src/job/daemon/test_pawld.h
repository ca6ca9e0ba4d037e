// For unit tests of a whole pawld: its control is in memory, and the test plays the keeper, the trainer and the other nodes.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <variant>

#include "env/files.h"
#include "env/temporary_directory.h"
#include "job/daemon/pawld.h"
#include "job/daemon/test_control.h"
#include "job/daemon/test_wire.h"
#include "job/transport/keeper_messages.h"

namespace pawl::job {

// Its loop returns as soon as a test's condition holds, and goes on with the next.
class PausingNetwork : public TestNetwork {
 public:
  Result<std::unique_ptr<Poller>> make_poller() override {
    PAWL_ASSIGN(std::unique_ptr<Poller> real, real_network().make_poller());
    return std::unique_ptr<Poller>(std::make_unique<PausingPoller>(std::move(real), *this));
  }
  std::function<bool()> may_pause = [] { return true; };

 private:
  class PausingPoller : public Poller {
   public:
    PausingPoller(std::unique_ptr<Poller> real, PausingNetwork& network) : real_(std::move(real)), network_(network) {}
    Status add(int handle, std::uint64_t key, Interest interest) override { return real_->add(handle, key, interest); }
    Status modify(int handle, std::uint64_t key, Interest interest) override {
      return real_->modify(handle, key, interest);
    }
    void remove(int handle) override { real_->remove(handle); }
    Status wait(Duration timeout, std::vector<Ready>& ready) override {
      if (network_.may_pause()) return Error{Code::cancelled, "a test looks"};
      return real_->wait(std::min<Duration>(timeout, std::chrono::milliseconds(2)), ready);
    }
    void wake() override { real_->wake(); }

   private:
    const std::unique_ptr<Poller> real_;
    PausingNetwork& network_;
  };
};

// One pawld: its control is in memory, and the test is all that it is connected to.
class OnePawld : public testing::Test {
 protected:
  OnePawld() {
    options.job = "test";
    options.address = "127.0.0.1:100";
    options.run_dir = directory.path();
    options.incarnation = 5;
    spec.version = kProtocolVersion;
    spec.job = "test";
    spec.node_count = 2;  // the other never comes
    spec.deadline_ms = 30'000;
  }
  ~OnePawld() override {
    pawld.reset();
    EXPECT_TRUE(eventually([this] { return tasks.all_ended(); })) << "a task still uses what this test has";
  }
  void make() {
    auto pair = make_packet_pair();
    keeper = std::move(pair->first);
    DaemonLines lines;
    lines.keeper = real_stream(std::move(pair->second));
    auto listening = listen_tcp({"127.0.0.1", 0});
    peers = *local_address(listening->get());
    lines.peers = real_listener(std::move(*listening));
    lines.trainers = real_listener(std::move(*listen_unix(trainers)));
    lines.connect_control = [this](const std::string& token) {
      token_used = token;
      return Result<std::unique_ptr<Control>>(control.connect());
    };
    lines.exit = [this](int code) { exit_code = code; };
    pawld.emplace(options, std::move(lines), environment);
  }
  void start() {
    control.put("/pawl/test/spec", to_json(spec));
    start_unregistered();
    ASSERT_TRUE(until([this] { return !registered().empty(); }));
  }
  void start_unregistered() {
    ASSERT_TRUE(write_file_atomically(directory.path("token"), "secret").has_value());
    make();
    ASSERT_TRUE(pawld->start().has_value());
  }
  template <class Condition>
  bool until(Condition condition) {
    const Deadline deadline = Deadline::in(kTestPatience);
    bool holds = false;
    network.may_pause = [&] { return (holds = condition()) || deadline.passed(); };
    (void)pawld->run();
    return holds;
  }
  void go_on_for(Duration time) {
    const Deadline end = Deadline::in(time);
    (void)until([&] { return end.passed(); });
  }
  // A job of three nodes of which this one, whatever its number below 3, is a member: it runs.
  [[nodiscard]] JobState state_of_three() const {
    JobState state;
    state.generation = Generation(2);
    state.phase = JobPhase::running;
    state.leader = {NodeId(0), Incarnation(options.incarnation)};
    state.arena_bytes = 1;
    for (std::uint32_t node = 0; node < 3; ++node)
      state.seats.push_back({Seat(node), {NodeId(node), Incarnation(options.incarnation)}, "127.0.0.1:101", 0});
    return state;
  }
  [[nodiscard]] std::string registered() const { return control.value(text("/pawl/test:nodes/", options.node)); }

  TemporaryDirectory directory{"/tmp"};
  const std::string trainers = directory.path("socket");
  SkippingClock clock;
  PausingNetwork network;
  TestTasks tasks;
  Environment environment{clock, tasks, network, real_files(), real_processes(), real_shared_memory()};
  MemoryControl control;
  DaemonOptions options;
  JobSpec spec;
  Fd keeper;
  Address peers;
  std::string token_used;
  std::atomic<int> exit_code{-1};  // with which it would have ended its process
  std::optional<Pawld> pawld;
};

// The keeper's end of its line to pawld.
class KeeperEnd {
 public:
  explicit KeeperEnd(Fd fd) : fd_(std::move(fd)) {}
  // The next message of this kind; all before it are passed over. A failure if none comes.
  template <class Message>
  Message next() {
    const Deadline deadline = Deadline::in(kTestPatience);
    std::byte packet[4096];
    for (;;) {
      const auto got = receive_with_fds(fd_.get(), packet, fds, deadline);
      EXPECT_TRUE(got.has_value()) << "pawld did not say it: " << (got ? "" : got.error().what);
      if (!got) return {};
      const auto said = parse_to_keeper({reinterpret_cast<const char*>(packet), *got});
      EXPECT_TRUE(said.has_value());
      if (const Message* message = said ? std::get_if<Message>(&*said) : nullptr) return *message;
    }
  }
  void say(const FromKeeper& message) {
    const std::string packet = packet_of(message);
    EXPECT_TRUE(send_all(fd_.get(), std::as_bytes(std::span(packet)), Deadline::in(kTestPatience)).has_value());
  }
  void hang_up() { fd_.reset(); }
  std::vector<Fd> fds;  // that came along

 private:
  Fd fd_;
};

}  // namespace pawl::job
