#include "job/daemon/acceptor.h"

#include <gtest/gtest.h>

#include <deque>

#include "env/environment.h"

namespace pawl::job {
namespace {

// A real socket, so that it is readable as long as somebody waits; what accepting gives is the test's.
class FailingListener final : public Listener {
 public:
  explicit FailingListener(std::unique_ptr<Listener> real) : real_(std::move(real)) {}
  [[nodiscard]] int handle() const override { return real_->handle(); }
  [[nodiscard]] Result<std::unique_ptr<Stream>> try_accept() override {
    ++asked;
    if (failures > 0 && failures-- > 0) return Error{Code::full, "accept: too many open files"};
    return real_->try_accept();
  }
  int failures = 0;
  int asked = 0;

 private:
  std::unique_ptr<Listener> real_;
};

class Accepts : public testing::Test {
 protected:
  Accepts() {
    Fd socket = std::move(*listen_tcp({"127.0.0.1", 0}));
    address = *local_address(socket.get());
    auto made = std::make_unique<FailingListener>(real_listener(std::move(socket)));
    listener = made.get();
    acceptor.emplace(*loop, std::move(made), [this](std::unique_ptr<Stream> stream) {
      taken.push_back(std::move(stream));
      if (taken.size() == most) acceptor->stop();
    });
  }
  void run(Duration duration) {
    loop->after(duration, [this] { loop->stop(); });
    loop->run();
  }
  void connect() { connected.push_back(*real_network().connect(address, Deadline::in(std::chrono::seconds(10)))); }

  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Address address;
  FailingListener* listener = nullptr;
  std::optional<Acceptor> acceptor;
  std::deque<std::unique_ptr<Stream>> connected;
  std::vector<std::unique_ptr<Stream>> taken;
  std::size_t most = ~std::size_t{0};
};

TEST_F(Accepts, WhoConnectsIsTakenAndAfterAFailureALittleLater) {
  listener->failures = 3;
  acceptor->start();
  connect();
  connect();
  run(kAcceptRest * 6);
  EXPECT_EQ(taken.size(), 2u);
  EXPECT_LE(listener->asked, 8) << "it rests after each failure";
}

TEST_F(Accepts, NobodyIsTakenWhileItIsStopped) {
  most = 1;
  acceptor->start();
  connect();
  connect();
  loop->after(kAcceptRest, [this] {
    EXPECT_EQ(taken.size(), 1u) << "it was stopped by whom it told";
    most = 2;
    acceptor->start();
  });
  run(kAcceptRest * 3);
  EXPECT_EQ(taken.size(), 2u);
}

TEST_F(Accepts, StoppedWhileItRestsItStaysSo) {
  listener->failures = 1;
  acceptor->start();
  connect();
  loop->after(kAcceptRest / 2, [this] { acceptor->stop(); });
  run(kAcceptRest * 3);
  EXPECT_TRUE(taken.empty());
}

TEST_F(Accepts, ItMayGoWhileItRests) {
  listener->failures = 1;
  acceptor->start();
  connect();
  loop->after(kAcceptRest / 2, [this] { acceptor.reset(); });
  run(kAcceptRest * 3);
  EXPECT_TRUE(taken.empty());
}

}  // namespace
}  // namespace pawl::job
