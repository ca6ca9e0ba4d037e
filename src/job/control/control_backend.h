// What the conformance suites run against: the embedded server in this process, the same as a process of its own, a
// real etcd of one member, and one of three. For tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/text.h"
#include "env/process.h"
#include "env/temporary_directory.h"
#include "job/control/control.h"
#include "job/control/server.h"

namespace pawl::job {

inline int free_port() {
  const Fd probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof name;
  EXPECT_EQ(0, ::bind(probe.get(), reinterpret_cast<sockaddr*>(&name), size));
  EXPECT_EQ(0, ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&name), &size));
  return ntohs(name.sin_port);
}

// Collects what a watch says, in order, and waits for it. Its waits end after a long time, too, for the test to fail on.
class Heard {
 public:
  std::function<void(const WatchEvent&)> ear() {
    return [this](const WatchEvent& event) {
      std::lock_guard lock(mutex_);
      events_.push_back(event);
      changed_.notify_all();
    };
  }
  std::vector<WatchEvent> events() {
    std::lock_guard lock(mutex_);
    return events_;
  }
  // The events, once there are `count` of them.
  std::vector<WatchEvent> wait_for(std::size_t count) {
    wait([&] { return events_.size() >= count; });
    return events();
  }
  // Whether the watch has told of this revision, or of a later one.
  bool wait_for_revision(Revision revision) {
    return wait([&] { return !events_.empty() && events_.back().revision >= revision; });
  }

 private:
  template <class Predicate>
  bool wait(Predicate is_so) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), is_so);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WatchEvent> events_;
};

class ControlBackend {
 public:
  virtual ~ControlBackend() = default;
  virtual void start() = 0;  // again on the same data and address
  virtual void kill() = 0;
  [[nodiscard]] const std::string& address() const { return address_; }  // all endpoints, with commas between them
  [[nodiscard]] std::string first_address() const { return address_.substr(0, address_.find(',')); }
  [[nodiscard]] std::string data_directory() const { return directory_.path() + "/data"; }

  // Until it answers: a test begins with a server that serves.
  void wait_ready() {
    auto control = connect_control(address_, {.deadline = std::chrono::seconds(60)});
    ASSERT_TRUE(control);
    const auto listed = (*control)->list("/");
    ASSERT_TRUE(listed) << listed.error().what;
  }

 protected:
  TemporaryDirectory directory_;
  std::string address_;
};

class EmbeddedBackend final : public ControlBackend {
 public:
  void start() override {
    ControlServerOptions options;
    options.data_directory = data_directory();
    if (!address_.empty()) options.addresses = {address_};
    auto server = ControlServer::start(options);
    ASSERT_TRUE(server) << server.error().what;
    server_ = std::move(*server);
    address_ = server_->addresses()[0];
  }
  void kill() override { server_.reset(); }

 private:
  std::unique_ptr<ControlServer> server_;
};

// A server process that ends with the test.
class ServerProcess {
 public:
  ServerProcess() {
    int ends[2];
    EXPECT_EQ(0, ::pipe2(ends, O_CLOEXEC));
    read_end_.reset(ends[0]);
    write_end_.reset(ends[1]);
  }
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { kill(); }

  void start(std::vector<std::string> arguments) {
    SpawnOptions options;
    options.argv = std::move(arguments);
    options.stdin_fd = read_end_.get();
    options.parent_death_signal = SIGKILL;
    auto process = spawn(options);
    ASSERT_TRUE(process) << process.error().what;
    process_ = std::move(*process);
  }
  void kill() {
    if (!runs()) return;
    send(SIGKILL);
    (void)wait_exit(process_.pidfd.get(), Deadline::in(std::chrono::seconds(10)));
    process_ = Process();
  }
  void send(int signal) { (void)send_signal(process_.pidfd.get(), signal); }
  [[nodiscard]] bool runs() const { return process_.pid != 0; }

 private:
  Fd read_end_, write_end_;
  Process process_;
};

class EmbeddedProcessBackend final : public ControlBackend {
 public:
  EmbeddedProcessBackend() { address_ = text("127.0.0.1:", free_port()); }
  void start() override {
    process_.start({CONTROL_SERVER_MAIN, data_directory(), address_});
    wait_ready();
  }
  void kill() override { process_.kill(); }

 private:
  ServerProcess process_;
};

// Members "0", "1", ... of one etcd, on loopback ports.
class EtcdBackend : public ControlBackend {
 public:
  explicit EtcdBackend(std::size_t count = 1) {
    for (std::size_t i = 0; i < count; ++i) {
      auto& member = *members_.emplace_back(std::make_unique<Member>());
      member.address = text("127.0.0.1:", free_port());
      member.peer = text("http://127.0.0.1:", free_port());
      address_ += (i > 0 ? "," : "") + member.address;
      initial_cluster_ += text(i > 0 ? "," : "", i, "=", member.peer);
    }
  }

  void start() override {
    for (std::size_t i = 0; i < members_.size(); ++i)
      if (!members_[i]->process.runs()) start_member(i);
    wait_ready();
  }
  void kill() override {
    for (auto& member : members_) member->process.kill();
  }

  [[nodiscard]] std::size_t count() const { return members_.size(); }
  [[nodiscard]] const std::string& address_of(std::size_t member) const { return members_[member]->address; }
  [[nodiscard]] ServerProcess& process(std::size_t member) { return members_[member]->process; }
  void start_member(std::size_t member) {
    const std::string client = "http://" + members_[member]->address;
    const std::string& peer = members_[member]->peer;
    members_[member]->process.start({"etcd",
                                     "--name",
                                     text(member),
                                     "--data-dir",
                                     text(data_directory(), member),
                                     "--listen-client-urls",
                                     client,
                                     "--advertise-client-urls",
                                     client,
                                     "--listen-peer-urls",
                                     peer,
                                     "--initial-advertise-peer-urls",
                                     peer,
                                     "--initial-cluster",
                                     initial_cluster_,
                                     "--heartbeat-interval",
                                     "50",
                                     "--election-timeout",
                                     "500",
                                     "--logger",
                                     "zap",
                                     "--log-level",
                                     "fatal",
                                     "--log-outputs",
                                     "stderr"});
  }

 private:
  struct Member {
    std::string address;
    std::string peer;
    ServerProcess process;
  };
  std::vector<std::unique_ptr<Member>> members_;
  std::string initial_cluster_;
};

inline std::unique_ptr<ControlBackend> make_backend(const std::string& kind) {
  if (kind == "embedded") return std::make_unique<EmbeddedBackend>();
  if (kind == "embedded_process") return std::make_unique<EmbeddedProcessBackend>();
  return std::make_unique<EtcdBackend>(kind == "etcd_cluster" ? 3 : 1);
}

// False where there is no etcd; CI must have one.
inline bool has_etcd() {
  if (find_program("etcd")) return true;
  const char* ci = std::getenv("CI");
  EXPECT_FALSE(ci != nullptr && std::string(ci) == "true") << "no etcd here; install etcd-server";
  return false;
}

// One server of each kind for the whole run; every test has keys of its own.
class ControlConformance : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()).starts_with("etcd") && !has_etcd()) {
      if (HasFailure()) return;
      GTEST_SKIP() << "no etcd here; install etcd-server";
    }
    auto& backend = backends()[GetParam()];
    if (!backend) {
      backend = make_backend(GetParam());
      backend->start();
    }
    backend_ = backend.get();
    root_ = text("/", testing::UnitTest::GetInstance()->current_test_info()->name(), "/");
    control_ = connect();
  }

  static void TearDownTestSuite() { backends().clear(); }

  std::unique_ptr<Control> connect(ControlOptions options = {.deadline = std::chrono::seconds(10)}) {
    auto control = connect_control(backend_->address(), options);
    EXPECT_TRUE(control);
    return std::move(*control);
  }

  [[nodiscard]] std::string key(std::string_view name) const { return root_ + std::string(name); }

  ControlBackend* backend_ = nullptr;
  std::string root_;
  std::unique_ptr<Control> control_;

 private:
  static std::map<std::string, std::unique_ptr<ControlBackend>>& backends() {
    static std::map<std::string, std::unique_ptr<ControlBackend>> all;
    return all;
  }
};

inline std::string backend_name(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace pawl::job
