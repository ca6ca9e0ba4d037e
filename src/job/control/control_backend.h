// What the conformance suites run against: the embedded server in this process, the same as a process of its own, and
// a real one-member etcd. For tests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

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

class ControlBackend {
 public:
  virtual ~ControlBackend() = default;
  virtual void start() = 0;  // again on the same data and address
  virtual void kill() = 0;
  [[nodiscard]] const std::string& address() const { return address_; }
  [[nodiscard]] std::string data_directory() const { return directory_.path() + "/data"; }

  // Until it answers: a test begins with a server that serves.
  void wait_ready() {
    auto control = connect_control(address_, {.deadline = std::chrono::seconds(20)});
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

class ProcessBackend : public ControlBackend {
 public:
  ~ProcessBackend() override { end(); }
  void start() override {
    SpawnOptions options;
    options.argv = arguments();
    options.stdin_fd = stdin_.read_end.get();
    options.parent_death_signal = SIGKILL;
    auto process = spawn(options);
    ASSERT_TRUE(process) << process.error().what;
    process_ = std::move(*process);
    wait_ready();
  }
  void kill() override { end(); }

 protected:
  virtual std::vector<std::string> arguments() = 0;

 private:
  struct Pipe {
    Pipe() {
      int ends[2];
      EXPECT_EQ(0, ::pipe2(ends, O_CLOEXEC));
      read_end.reset(ends[0]);
      write_end.reset(ends[1]);
    }
    Fd read_end, write_end;
  };
  void end() {
    if (process_.pid == 0) return;
    (void)send_signal(process_.pidfd.get(), SIGKILL);
    (void)wait_exit(process_.pidfd.get(), Deadline::in(std::chrono::seconds(10)));
    process_ = Process();
  }
  Pipe stdin_;
  Process process_;
};

class EmbeddedProcessBackend final : public ProcessBackend {
 public:
  EmbeddedProcessBackend() { address_ = text("127.0.0.1:", free_port()); }

 protected:
  std::vector<std::string> arguments() override { return {CONTROL_SERVER_MAIN, data_directory(), address_}; }
};

class EtcdBackend final : public ProcessBackend {
 public:
  EtcdBackend() : peer_(text("http://127.0.0.1:", free_port())) { address_ = text("127.0.0.1:", free_port()); }

 protected:
  std::vector<std::string> arguments() override {
    const std::string client = "http://" + address_;
    return {"etcd",
            "--data-dir",
            data_directory(),
            "--listen-client-urls",
            client,
            "--advertise-client-urls",
            client,
            "--listen-peer-urls",
            peer_,
            "--initial-advertise-peer-urls",
            peer_,
            "--initial-cluster",
            "default=" + peer_,
            "--logger",
            "zap",
            "--log-level",
            "fatal",
            "--log-outputs",
            "stderr"};
  }

 private:
  std::string peer_;
};

inline std::unique_ptr<ControlBackend> make_backend(const std::string& kind) {
  if (kind == "embedded") return std::make_unique<EmbeddedBackend>();
  if (kind == "embedded_process") return std::make_unique<EmbeddedProcessBackend>();
  return std::make_unique<EtcdBackend>();
}

// One server of each kind for the whole run; every test has keys of its own.
class ControlConformance : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "etcd" && !find_program("etcd")) {
      const char* ci = std::getenv("CI");
      if (ci != nullptr && std::string(ci) == "true") FAIL() << "no etcd here; install etcd-server";
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

inline auto all_backends() {
  return testing::Values("embedded", "embedded_process", "etcd");
}
inline std::string backend_name(const testing::TestParamInfo<const char*>& info) {
  return info.param;
}

}  // namespace pawl::job
