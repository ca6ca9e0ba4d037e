#include "env/network.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <thread>

#include "base/text.h"
#include "env/high_listener.h"
#include "env/memory_network.h"
#include "env/network_conformance.h"
#include "env/temporary_directory.h"

namespace pawl {
namespace {

using namespace std::chrono_literals;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Pair {
  Fd a;
  Fd b;
};

Pair unix_pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
  return {Fd(ends[0]), Fd(ends[1])};
}

Pair tcp_pair() {
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
  EXPECT_TRUE(listener);
  Result<Fd> client = connect_tcp(*local_address(listener->get()), Deadline::in(5s));
  EXPECT_TRUE(client);
  Result<Fd> server = accept_connection(listener->get(), Deadline::in(5s));
  EXPECT_TRUE(server);
  return {std::move(*client), std::move(*server)};
}

TEST(Fd, OwnsWhatItHoldsAndNothingElse) {
  Fd event(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int number = event.get();
  Fd moved = std::move(event);
  EXPECT_FALSE(event.valid());  // NOLINT: what a moved-from Fd is, is part of its contract
  EXPECT_EQ(moved.get(), number);
  moved.reset();
  EXPECT_EQ(fcntl(number, F_GETFD), -1);
}

TEST(Address, ParsesHostAndPort) {
  EXPECT_EQ(*Address::parse("127.0.0.1:80"), (Address{"127.0.0.1", 80}));
  EXPECT_EQ(*Address::parse("node-7.cluster:65535"), (Address{"node-7.cluster", 65535}));
  EXPECT_EQ(*Address::parse("[::1]:9"), (Address{"::1", 9}));
  EXPECT_EQ(text(Address{"::1", 9}), "[::1]:9");
  EXPECT_EQ(text(Address{"a", 9}), "a:9");
}

TEST(Address, RefusesWhatIsNone) {
  for (const char* wrong : {"", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:8x", "::1:9", "[]:9"}) {
    const Result<Address> parsed = Address::parse(wrong);
    ASSERT_FALSE(parsed) << wrong;
    EXPECT_EQ(parsed.error().code, Code::invalid) << wrong;
  }
}

TEST(Tcp, MovesBytesBothWays) {
  const Pair pair = tcp_pair();
  std::vector<std::byte> large(3 << 20);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 7 + (i >> 11));
  std::vector<std::byte> received(large.size());
  std::thread sender([&] { EXPECT_TRUE(send_all(pair.a.get(), {bytes_of("head"), {}, large}, Deadline::in(20s))); });
  std::byte head[4];
  EXPECT_TRUE(receive_all(pair.b.get(), head, Deadline::in(20s)));
  EXPECT_TRUE(receive_all(pair.b.get(), received, Deadline::in(20s)));
  sender.join();
  EXPECT_EQ(std::memcmp(head, "head", 4), 0);
  EXPECT_TRUE(large == received);
  EXPECT_TRUE(send_all(pair.b.get(), bytes_of("back"), Deadline::in(5s)));
  EXPECT_TRUE(receive_all(pair.a.get(), head, Deadline::in(5s)));
}

TEST(Tcp, TellsWhoIsAtEachEnd) {
  const Pair pair = tcp_pair();
  EXPECT_EQ(*local_address(pair.a.get()), *peer_address(pair.b.get()));
  EXPECT_EQ(local_address(pair.a.get())->host, "127.0.0.1");
}

TEST(Tcp, RefusedIsToldFromAllElse) {
  Address address;
  {
    Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
    address = *local_address(listener->get());
  }  // nobody listens there now
  const Result<Fd> refused = connect_tcp(address, Deadline::in(5s));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unreachable);
  EXPECT_TRUE(is_refused(refused.error()));
  EXPECT_TRUE(is_refused(Error(refused.error()).within("outer")));
  EXPECT_NE(refused.error().what.find(text(address)), std::string::npos);
  EXPECT_FALSE(is_refused(Error{Code::unreachable, "closed by the other side (EOF)"}));
}

TEST(Tcp, ConnectsWithoutWaiting) {
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
  Result<Fd> client = start_connect_tcp(*local_address(listener->get()));
  ASSERT_TRUE(client);
  ASSERT_TRUE(wait_writable(client->get(), Deadline::in(5s)));
  EXPECT_TRUE(finish_connect(client->get()));
}

TEST(Tcp, AnAddressInUseIsRefusedInASentence) {
  Result<Fd> first = listen_tcp({"127.0.0.1", 0});
  const Result<Fd> second = listen_tcp(*local_address(first->get()));
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  EXPECT_NE(second.error().what.find("EADDRINUSE"), std::string::npos);
}

TEST(Tcp, NobodyWaitingIsNoError) {
  Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
  Result<Fd> none = try_accept(listener->get());
  ASSERT_TRUE(none);
  EXPECT_FALSE(none->valid());
  EXPECT_EQ(accept_connection(listener->get(), Deadline::in(1ms)).error().code, Code::timeout);
}

// A process that dies closes its highest descriptors first: these, and not the memory that it opens later.
TEST(Tcp, AHighListenerAcceptsAboveWhatIsOpenedLater) {
  const auto listener = real_high_listener(*listen_tcp({"127.0.0.1", 0}));
  const Address address = *local_address(listener->handle());
  const Fd first = *connect_tcp(address, Deadline::in(5s));
  const Fd second = *connect_tcp(address, Deadline::in(5s));
  const auto accept = [&] {
    std::unique_ptr<Stream> stream;
    while (stream == nullptr) stream = *listener->try_accept();
    return stream;
  };
  const auto stream = accept();
  const auto other = accept();
  EXPECT_NE(stream->handle(), other->handle());
  std::vector<Fd> later;
  for (int i = 0; i < 100; ++i) later.emplace_back(dup(first.get()));
  for (const Fd& fd : later) EXPECT_LT(fd.get(), std::min(stream->handle(), other->handle()));
  EXPECT_NE(fcntl(stream->handle(), F_GETFD) & FD_CLOEXEC, 0);
  const char byte = 7;
  ASSERT_TRUE(send_all(first.get(), std::as_bytes(std::span(&byte, 1)), Deadline::in(5s)));
  char got = 0;
  ASSERT_TRUE(stream->receive_all(std::as_writable_bytes(std::span(&got, 1)), Deadline::in(5s)));
  EXPECT_EQ(got, byte);
}

TEST(Stream, ASilentPeerIsATimeout) {
  const Pair pair = unix_pair();
  std::byte byte[1];
  EXPECT_EQ(receive_all(pair.a.get(), byte, Deadline::in(2ms)).error().code, Code::timeout);
  EXPECT_EQ(*try_receive(pair.a.get(), byte), 0U);
}

TEST(Stream, APeerThatDoesNotReadIsATimeout) {
  const Pair pair = unix_pair();
  const std::vector<std::byte> large(8 << 20);
  EXPECT_EQ(send_all(pair.a.get(), large, Deadline::in(5ms)).error().code, Code::timeout);
  EXPECT_EQ(*try_send(pair.a.get(), large), 0U);
}

TEST(Stream, AClosedPeerIsUnreachableAndRaisesNoSignal) {
  Pair pair = tcp_pair();
  pair.b.reset();
  std::byte byte[1];
  const Status read = receive_all(pair.a.get(), byte, Deadline::in(5s));
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::unreachable);
  EXPECT_TRUE(is_end_of_stream(read.error()));
  Status sent;
  for (int i = 0; i < 100 && sent; ++i) {
    sent = send_all(pair.a.get(), bytes_of("x"), Deadline::in(5s));
    real_clock().sleep(1ms);
  }
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().code, Code::unreachable);
  EXPECT_FALSE(is_end_of_stream(sent.error()));
}

TEST(Stream, ShutDownFreesAWaitingThread) {
  const Pair pair = unix_pair();
  std::thread waiter([&] {
    std::byte byte[1];
    EXPECT_EQ(receive_all(pair.a.get(), byte, Deadline::never()).error().code, Code::unreachable);
  });
  real_clock().sleep(2ms);
  shut_down(pair.a.get());
  waiter.join();
}

TEST(Unix, ListensForItsOwnerOnlyAndKnowsWhoConnects) {
  const TemporaryDirectory directory("/tmp");
  const std::string path = directory.path("socket");
  Result<Fd> listener = listen_unix(path);
  ASSERT_TRUE(listener) << listener.error().what;
  struct stat found {};
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600U);
  Result<Fd> client = connect_unix(path, Deadline::in(5s));
  ASSERT_TRUE(client);
  Result<Fd> server = accept_connection(listener->get(), Deadline::in(5s));
  ASSERT_TRUE(server);
  EXPECT_EQ(peer_credentials(server->get())->pid, getpid());
  EXPECT_EQ(peer_credentials(server->get())->uid, geteuid());
}

TEST(Unix, ReplacesAStaleSocketAndRefusesALiveOne) {
  const TemporaryDirectory directory("/tmp");
  const std::string path = directory.path("socket");
  { ASSERT_TRUE(listen_unix(path)); }  // the file stays, nobody listens
  EXPECT_TRUE(is_refused(connect_unix(path, Deadline::in(1s)).error()));
  Result<Fd> alive = listen_unix(path);
  ASSERT_TRUE(alive) << alive.error().what;
  const Result<Fd> second = listen_unix(path);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, Code::invalid);
  EXPECT_TRUE(connect_unix(path, Deadline::in(1s)));  // the live one was left alone
}

TEST(Unix, NeverReplacesAnythingButASocket) {
  const TemporaryDirectory directory("/tmp");
  const std::string path = directory.path("socket");
  const Fd file(open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
  EXPECT_EQ(listen_unix(path).error().code, Code::invalid);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  EXPECT_EQ(listen_unix(std::string(200, 'x')).error().code, Code::invalid);
  EXPECT_EQ(connect_unix(directory.path("none"), Deadline::in(1s)).error().code, Code::not_found);
}

TEST(PassedFds, ArriveWithTheirBytesAndCloseOnExec) {
  const Pair pair = unix_pair();
  int pipe_ends[2];
  ASSERT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  const Fd read_end(pipe_ends[0]);
  Fd write_end(pipe_ends[1]);
  const int passed[] = {write_end.get(), write_end.get()};
  ASSERT_TRUE(send_with_fds(pair.a.get(), bytes_of("take"), passed, Deadline::in(5s)));
  ASSERT_TRUE(send_all(pair.a.get(), bytes_of("next"), Deadline::in(5s)));
  std::byte buffer[64];
  std::vector<Fd> fds;
  const Result<std::size_t> count = receive_with_fds(pair.b.get(), buffer, fds, Deadline::in(5s));
  ASSERT_TRUE(count);
  ASSERT_EQ(fds.size(), 2U);
  EXPECT_EQ(std::memcmp(buffer, "take", 4), 0);
  EXPECT_NE(fcntl(fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  write_end.reset();
  EXPECT_EQ(write(fds[1].get(), "!", 1), 1);  // it is the same pipe
  char got = 0;
  EXPECT_EQ(read(read_end.get(), &got, 1), 1);
  EXPECT_EQ(got, '!');
}

TEST(PassedFds, TwoMessagesStayApart) {
  const Pair pair = unix_pair();
  const int passed[] = {pair.a.get()};
  ASSERT_TRUE(send_with_fds(pair.a.get(), bytes_of("one"), passed, Deadline::in(5s)));
  ASSERT_TRUE(send_with_fds(pair.a.get(), bytes_of("three"), passed, Deadline::in(5s)));
  std::byte buffer[64];
  std::vector<Fd> fds;
  EXPECT_EQ(*receive_with_fds(pair.b.get(), buffer, fds, Deadline::in(5s)), 3U);
  EXPECT_EQ(fds.size(), 1U);
  EXPECT_EQ(*receive_with_fds(pair.b.get(), buffer, fds, Deadline::in(5s)), 5U);
  EXPECT_EQ(fds.size(), 2U);
}

TEST(Packets, ArriveOneByOneAndWhole) {
  Result<PacketPair> pair = make_packet_pair();
  ASSERT_TRUE(pair);
  ASSERT_TRUE(send_all(pair->first.get(), bytes_of("one"), Deadline::in(5s)));
  const int passed[] = {pair->first.get()};
  ASSERT_TRUE(send_with_fds(pair->first.get(), bytes_of("second"), passed, Deadline::in(5s)));
  ASSERT_TRUE(send_with_fds(pair->first.get(), bytes_of("too long"), passed, Deadline::in(5s)));
  std::byte buffer[6];
  std::vector<Fd> fds;
  EXPECT_EQ(*receive_with_fds(pair->second.get(), buffer, fds, Deadline::in(5s)), 3U);
  EXPECT_EQ(*receive_with_fds(pair->second.get(), buffer, fds, Deadline::in(5s)), 6U);
  EXPECT_EQ(fds.size(), 1U);
  EXPECT_EQ(receive_with_fds(pair->second.get(), buffer, fds, Deadline::in(5s)).error().code, Code::corrupt);
  EXPECT_EQ(fds.size(), 1U);
  fds.clear();  // among them a copy of the first end
  pair->first.reset();
  EXPECT_TRUE(is_end_of_stream(receive_with_fds(pair->second.get(), buffer, fds, Deadline::in(5s)).error()));
}

TEST(PassedFds, NeedAByteAndHaveALimit) {
  const Pair pair = unix_pair();
  const std::vector<int> many(kPassedFdsMax + 1, pair.a.get());
  EXPECT_EQ(send_with_fds(pair.a.get(), {}, std::span(many).first(1), Deadline::in(1s)).error().code, Code::invalid);
  EXPECT_EQ(send_with_fds(pair.a.get(), bytes_of("x"), many, Deadline::in(1s)).error().code, Code::invalid);
  ASSERT_TRUE(send_with_fds(pair.a.get(), bytes_of("x"), std::span(many).first(kPassedFdsMax), Deadline::in(1s)));
  std::byte buffer[8];
  std::vector<Fd> fds;
  EXPECT_TRUE(receive_with_fds(pair.b.get(), buffer, fds, Deadline::in(1s)));
  EXPECT_EQ(fds.size(), kPassedFdsMax);
}

TEST(PassedFds, ThoseThatDoNotFitAreAnErrorAndNotALeak) {
  const Pair pair = unix_pair();
  const int passed[] = {pair.a.get(), pair.a.get()};
  ASSERT_TRUE(send_with_fds(pair.a.get(), bytes_of("x"), passed, Deadline::in(1s)));
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  const Fd next(dup(0));  // the lowest free number: one more may be opened above it
  rlimit tight = before;
  tight.rlim_cur = static_cast<rlim_t>(next.get()) + 2;
  setrlimit(RLIMIT_NOFILE, &tight);
  std::byte buffer[8];
  std::vector<Fd> fds;
  const Result<std::size_t> count = receive_with_fds(pair.b.get(), buffer, fds, Deadline::in(1s));
  setrlimit(RLIMIT_NOFILE, &before);
  ASSERT_FALSE(count);
  EXPECT_EQ(count.error().code, Code::corrupt);
  EXPECT_TRUE(fds.empty());
}

TEST(Timer, IsReadableFromItsMomentOn) {
  Result<std::unique_ptr<Poller>> poller = real_network().make_poller();
  Result<Timer> timer = Timer::make();
  ASSERT_TRUE(poller && timer);
  ASSERT_TRUE((*poller)->add(timer->fd(), 8, kRead));
  std::vector<Ready> ready;
  ASSERT_TRUE((*poller)->wait(0s, ready));
  EXPECT_TRUE(ready.empty());
  timer->arm_in(1ms);
  ASSERT_TRUE((*poller)->wait(-1s, ready));
  ASSERT_EQ(ready.size(), 1U);
  EXPECT_EQ(ready[0].key, 8U);
  EXPECT_TRUE(timer->lower());
  timer->arm_at(Duration(0));  // in the past: at once
  ASSERT_TRUE((*poller)->wait(5s, ready));
  EXPECT_EQ(ready.size(), 1U);
  timer->disarm();
  ASSERT_TRUE((*poller)->wait(0s, ready));
  EXPECT_TRUE(ready.empty());
}

// --- The seam: the sockets of this machine, and those within this process.

class RealTestedNetwork final : public TestedNetwork {
 public:
  Network& network() override { return real_network(); }
  Clock& clock() override { return real_clock(); }
  Tasks& tasks() override { return real_tasks(); }
  std::pair<std::unique_ptr<Listener>, Address> listen() override {
    Result<Fd> listener = listen_tcp({"127.0.0.1", 0});
    EXPECT_TRUE(listener);
    const Address address = *local_address(listener->get());
    return {real_listener(std::move(*listener)), address};
  }
  StreamPair local_pair() override {
    Pair pair = unix_pair();
    return {real_stream(std::move(pair.a)), real_stream(std::move(pair.b))};
  }
  StreamPair packet_pair() override {
    Result<PacketPair> pair = make_packet_pair();
    EXPECT_TRUE(pair);
    return {real_stream(std::move(pair->first)), real_stream(std::move(pair->second))};
  }
};

class MemoryTestedNetwork final : public TestedNetwork {
 public:
  Network& network() override { return network_; }
  Clock& clock() override { return real_clock(); }
  Tasks& tasks() override { return real_tasks(); }
  std::pair<std::unique_ptr<Listener>, Address> listen() override {
    const Address address{"somewhere", next_port_++};
    return {network_.listen(address), address};
  }
  StreamPair local_pair() override { return network_.local_pair(); }
  StreamPair packet_pair() override { return network_.packet_pair(); }

 private:
  MemoryNetwork network_{real_tasks(), real_clock()};
  std::uint16_t next_port_ = 1;
};

template <class Tested>
std::unique_ptr<TestedNetwork> make() {
  return std::make_unique<Tested>();
}
INSTANTIATE_TEST_SUITE_P(Real, NetworkConformance, ::testing::Values(&make<RealTestedNetwork>));
INSTANTIATE_TEST_SUITE_P(Memory, NetworkConformance, ::testing::Values(&make<MemoryTestedNetwork>));

}  // namespace
}  // namespace pawl
