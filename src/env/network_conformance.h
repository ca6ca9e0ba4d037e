// What every implementation of Network, and of what it makes, must do. For tests.
//
// Whoever has one says how to make it, and instantiates the suite:
//   INSTANTIATE_TEST_SUITE_P(Real, NetworkConformance, ::testing::Values(&make_real));
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "env/clock.h"
#include "env/network.h"
#include "env/tasks.h"

namespace pawl {

// A network under test, and what Network itself does not make: sockets that a process is given.
class TestedNetwork {
 public:
  using StreamPair = std::pair<std::unique_ptr<Stream>, std::unique_ptr<Stream>>;
  virtual ~TestedNetwork() = default;
  virtual Network& network() = 0;
  virtual Clock& clock() = 0;  // its deadlines' and its pollers'
  virtual Tasks& tasks() = 0;
  virtual std::pair<std::unique_ptr<Listener>, Address> listen() = 0;  // at an address of its own
  virtual StreamPair local_pair() = 0;                                 // connected, on one machine
  virtual StreamPair packet_pair() = 0;
};

class NetworkConformance : public ::testing::TestWithParam<std::unique_ptr<TestedNetwork> (*)()> {
 protected:
  static constexpr Duration kPatience = std::chrono::seconds(20);
  static constexpr Duration kMoment = std::chrono::milliseconds(5);

  [[nodiscard]] Deadline soon() { return Deadline::in(kPatience, clock()); }
  [[nodiscard]] Deadline in_a_moment() { return Deadline::in(kMoment, clock()); }
  Network& network() { return tested_->network(); }
  Clock& clock() { return tested_->clock(); }

  static std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

  // Waits until it is ready, at most as long as patience lasts.
  Ready wait_ready(int handle, Interest interest) {
    auto poller = network().make_poller();
    EXPECT_TRUE(poller && (*poller)->add(handle, 1, interest));
    std::vector<Ready> ready;
    for (const Deadline deadline = soon(); ready.empty() && !deadline.passed();)
      EXPECT_TRUE((*poller)->wait(deadline.left(), ready));
    (*poller)->remove(handle);
    return ready.empty() ? Ready() : ready.front();
  }
  std::unique_ptr<Stream> accept(Listener& listener) {
    EXPECT_TRUE(wait_ready(listener.handle(), kRead).readable);
    auto accepted = listener.try_accept();
    EXPECT_TRUE(accepted.has_value());
    return accepted ? std::move(*accepted) : nullptr;
  }
  TestedNetwork::StreamPair remote_pair() {
    auto [listener, address] = tested_->listen();
    auto client = network().connect(address, soon());
    EXPECT_TRUE(client) << client.error().what;
    return {std::move(*client), accept(*listener)};
  }

  std::unique_ptr<TestedNetwork> tested_ = GetParam()();
};

TEST_P(NetworkConformance, MovesBytesBothWaysAtOnce) {
  auto [a, b] = remote_pair();
  std::vector<std::byte> large(3 << 20);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7 + (i >> 11));
  const auto send = [&](Stream& stream) {
    return [&] { EXPECT_TRUE(stream.send_all({bytes_of("head"), {}, large}, soon())); };
  };
  const auto receive = [&](Stream& stream) {
    return [&] {
      std::byte head[4];
      std::vector<std::byte> received(large.size());
      EXPECT_TRUE(stream.receive_all(head, soon()));
      EXPECT_TRUE(stream.receive_all(received, soon()));
      EXPECT_EQ(std::memcmp(head, "head", 4), 0);
      EXPECT_TRUE(large == received);
    };
  };
  std::unique_ptr<Task> tasks[] = {
      tested_->tasks().start("a sends", send(*a)), tested_->tasks().start("b sends", send(*b)),
      tested_->tasks().start("a receives", receive(*a)), tested_->tasks().start("b receives", receive(*b))};
  for (auto& task : tasks) task->join();
}

TEST_P(NetworkConformance, WhereNobodyListensConnectsAreRefused) {
  auto [listener, address] = tested_->listen();
  EXPECT_TRUE(network().connect(address, soon()));
  listener.reset();
  const auto refused = network().connect(address, soon());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unreachable);
  EXPECT_TRUE(is_refused(refused.error()));
  auto started = network().start_connect(address);  // told now, or when it is asked
  Status finished;
  if (started) {
    (void)wait_ready((*started)->handle(), kWrite);
    finished = (*started)->finish_connect();
  } else {
    finished = started.error();
  }
  ASSERT_FALSE(finished);
  EXPECT_TRUE(is_refused(finished.error()));
}

TEST_P(NetworkConformance, ConnectsWithoutWaiting) {
  auto [listener, address] = tested_->listen();
  auto nobody = listener->try_accept();
  ASSERT_TRUE(nobody);
  EXPECT_EQ(*nobody, nullptr);
  auto client = network().start_connect(address);
  ASSERT_TRUE(client);
  EXPECT_TRUE(wait_ready((*client)->handle(), kWrite).writable);
  EXPECT_TRUE((*client)->finish_connect());
  auto server = accept(*listener);
  ASSERT_NE(server, nullptr);
  EXPECT_TRUE((*client)->send_all({bytes_of("hi")}, soon()));
  std::byte buffer[8];
  EXPECT_TRUE(wait_ready(server->handle(), kRead).readable);
  EXPECT_EQ(*server->try_receive(buffer), 2U);
}

TEST_P(NetworkConformance, AConnectionThatNobodyAcceptsEndsWithItsListener) {
  auto [listener, address] = tested_->listen();
  auto client = network().connect(address, soon());
  ASSERT_TRUE(client);
  listener.reset();
  std::byte byte[1];
  EXPECT_EQ((*client)->receive_all(byte, soon()).error().code, Code::unreachable);
}

TEST_P(NetworkConformance, ASilentPeerIsATimeout) {
  auto [a, b] = remote_pair();
  std::byte byte[1];
  const Duration before = clock().now();
  EXPECT_EQ(a->receive_all(byte, in_a_moment()).error().code, Code::timeout);
  EXPECT_GE(clock().now() - before, kMoment);
  EXPECT_EQ(*a->try_receive(byte), 0U);
}

TEST_P(NetworkConformance, APeerThatDoesNotReadIsATimeoutAndLosesNothing) {
  auto [a, b] = remote_pair();
  const std::vector<std::byte> piece(64 << 10, std::byte{7});
  std::size_t sent = 0;
  do {  // the other side's buffer may take some more meanwhile
    for (auto once = a->try_send(piece); once && *once > 0; once = a->try_send(piece)) sent += *once;
  } while (a->wait_writable(Deadline::in(10 * kMoment, clock())));
  EXPECT_GT(sent, 0U);
  const std::vector<std::byte> large(16 << 20, std::byte{7});
  EXPECT_EQ(a->send_all({large}, in_a_moment()).error().code, Code::timeout);
  std::vector<std::byte> all(sent);
  EXPECT_TRUE(b->receive_all(all, soon()));
  EXPECT_TRUE(std::ranges::all_of(all, [](std::byte byte) { return byte == std::byte{7}; }));
  bool writable = false;
  for (const Deadline deadline = soon(); !writable && !deadline.passed();) {
    (void)b->try_receive(all);
    writable = a->wait_writable(in_a_moment()).has_value();
  }
  EXPECT_TRUE(writable);
}

TEST_P(NetworkConformance, WhatWasSentBeforeTheEndArrives) {
  auto [a, b] = remote_pair();
  EXPECT_TRUE(b->send_all({bytes_of("last words")}, soon()));
  b.reset();
  const Ready ready = wait_ready(a->handle(), kRead);
  EXPECT_TRUE(ready.readable);
  std::byte words[10];
  EXPECT_TRUE(a->receive_all(words, soon()));
  const Status end = a->receive_all(words, soon());
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, Code::unreachable);
  EXPECT_TRUE(is_end_of_stream(end.error()));
  EXPECT_TRUE(is_end_of_stream(a->try_receive(words).error()));
  EXPECT_TRUE(wait_ready(a->handle(), kRead).hung_up);
  Status sent;
  for (int i = 0; i < 100 && sent; ++i) {
    sent = a->send_all({bytes_of("x")}, soon());
    clock().sleep(std::chrono::milliseconds(1));
  }
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::unreachable);
}

TEST_P(NetworkConformance, ShutDownFreesAWaitingTask) {
  auto [a, b] = remote_pair();
  auto waiter = tested_->tasks().start("waits", [&stream = *a] {
    std::byte byte[1];
    EXPECT_EQ(stream.receive_all(byte, Deadline::never()).error().code, Code::unreachable);
  });
  clock().sleep(std::chrono::milliseconds(2));
  a->shut_down();
  waiter->join();
  std::byte byte[1];
  EXPECT_TRUE(is_end_of_stream(b->receive_all(byte, soon()).error()));
}

TEST_P(NetworkConformance, KnowsWhichStreamsAreLocalAndWhoseTheyAre) {
  auto [a, b] = tested_->local_pair();
  EXPECT_TRUE(a->is_local() && b->is_local());
  ASSERT_TRUE(a->peer_credentials());
  EXPECT_GT(a->peer_credentials()->pid, 0);
  auto [c, d] = remote_pair();
  EXPECT_FALSE(c->is_local() || d->is_local());
  EXPECT_TRUE(a->send_with_fds(bytes_of("none"), {}, soon()));  // no descriptors: bytes as any
  std::byte word[4];
  EXPECT_TRUE(b->receive_all(word, soon()));
}

TEST_P(NetworkConformance, PacketsStayApart) {
  auto [a, b] = tested_->packet_pair();
  EXPECT_TRUE(a->send_with_fds(bytes_of("one"), {}, soon()));
  EXPECT_TRUE(a->send_with_fds(bytes_of("second"), {}, soon()));
  std::byte buffer[64];
  EXPECT_EQ(*b->try_receive(buffer), 3U);
  EXPECT_EQ(*b->try_receive(buffer), 6U);
  EXPECT_EQ(*b->try_receive(buffer), 0U);
  a.reset();
  EXPECT_TRUE(is_end_of_stream(b->try_receive(buffer).error()));
}

TEST_P(NetworkConformance, APollerReportsWhatIsReadyUntilItIsDrained) {
  auto [a, b] = remote_pair();
  auto made = network().make_poller();
  ASSERT_TRUE(made);
  Poller& poller = **made;
  std::vector<Ready> ready;
  ASSERT_TRUE(poller.add(a->handle(), 7, kRead));
  EXPECT_FALSE(poller.add(a->handle(), 8, kRead));
  ASSERT_TRUE(poller.wait(Duration::zero(), ready));
  EXPECT_TRUE(ready.empty());
  EXPECT_TRUE(b->send_all({bytes_of("word")}, soon()));
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE(poller.wait(kPatience, ready));
    ASSERT_EQ(ready.size(), 1U);
    EXPECT_EQ(ready[0].key, 7U);
    EXPECT_TRUE(ready[0].readable && !ready[0].hung_up);
  }
  std::byte word[4];
  EXPECT_TRUE(a->receive_all(word, soon()));
  ASSERT_TRUE(poller.modify(a->handle(), 9, kReadWrite));
  ASSERT_TRUE(poller.wait(kPatience, ready));
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].key, 9U);
  EXPECT_TRUE(ready[0].writable && !ready[0].readable);
  poller.remove(a->handle());
  poller.remove(a->handle());
  EXPECT_FALSE(poller.modify(a->handle(), 9, kRead));
  ASSERT_TRUE(poller.wait(Duration::zero(), ready));
  EXPECT_TRUE(ready.empty());
}

TEST_P(NetworkConformance, APollerWaitsAsLongAsItIsTold) {
  auto poller = network().make_poller();
  ASSERT_TRUE(poller);
  std::vector<Ready> ready(3);
  const Duration before = clock().now();
  ASSERT_TRUE((*poller)->wait(kMoment, ready));
  EXPECT_GE(clock().now() - before, kMoment);
  EXPECT_TRUE(ready.empty());
}

TEST_P(NetworkConformance, WakingEndsOneWaitAndReportsNothing) {
  auto made = network().make_poller();
  ASSERT_TRUE(made);
  Poller& poller = **made;
  std::vector<Ready> ready;
  poller.wake();
  poller.wake();
  ASSERT_TRUE(poller.wait(Duration(-1), ready));  // woken before it began
  EXPECT_TRUE(ready.empty());
  auto waker = tested_->tasks().start("wakes", [&] {
    clock().sleep(std::chrono::milliseconds(2));
    poller.wake();
  });
  ASSERT_TRUE(poller.wait(Duration(-1), ready));
  EXPECT_TRUE(ready.empty());
  waker->join();
  const Duration before = clock().now();
  ASSERT_TRUE(poller.wait(kMoment, ready));  // it is over
  EXPECT_GE(clock().now() - before, kMoment);
}

TEST_P(NetworkConformance, AnEventStaysRaisedUntilItIsLowered) {
  auto made = network().make_event();
  auto poller = network().make_poller();
  ASSERT_TRUE(made && poller);
  SharedEvent& event = **made;
  ASSERT_TRUE((*poller)->add(event.handle(), 4, kRead));
  std::vector<Ready> ready;
  ASSERT_TRUE((*poller)->wait(Duration::zero(), ready));
  EXPECT_TRUE(ready.empty());
  event.raise();
  event.raise();
  for (int round = 0; round < 2; ++round) {
    ASSERT_TRUE((*poller)->wait(kPatience, ready));
    ASSERT_EQ(ready.size(), 1U);
    EXPECT_TRUE(ready[0].key == 4 && ready[0].readable);
  }
  EXPECT_TRUE(event.lower());
  EXPECT_FALSE(event.lower());
  ASSERT_TRUE((*poller)->wait(Duration::zero(), ready));
  EXPECT_TRUE(ready.empty());
}

TEST_P(NetworkConformance, WhatHappensEndsAWaitThatHasBegun) {
  auto event = network().make_event();
  auto poller = network().make_poller();
  auto listening = tested_->listen();
  const std::unique_ptr<Listener>& listener = listening.first;
  const Address& address = listening.second;
  ASSERT_TRUE(event && poller);
  ASSERT_TRUE((*poller)->add((*event)->handle(), 1, kRead));
  ASSERT_TRUE((*poller)->add(listener->handle(), 2, kRead));
  const auto told_after = [&](auto happen) {
    auto other = tested_->tasks().start("happens", [&] {
      clock().sleep(kMoment);
      happen();
    });
    std::vector<Ready> ready;
    EXPECT_TRUE((*poller)->wait(kPatience, ready));
    other->join();
    return ready.empty() ? 0 : ready.front().key;
  };
  EXPECT_EQ(told_after([&] { (*event)->raise(); }), 1U);
  EXPECT_TRUE((*event)->lower());

  std::unique_ptr<Stream> from;
  EXPECT_EQ(told_after([&] { from = std::move(*network().connect(address, soon())); }), 2U);
  auto to = accept(*listener);
  ASSERT_TRUE(from && to);
  ASSERT_TRUE((*poller)->add(to->handle(), 3, kRead));
  EXPECT_EQ(told_after([&] { (void)from->try_send(bytes_of("late")); }), 3U);
}

}  // namespace pawl
