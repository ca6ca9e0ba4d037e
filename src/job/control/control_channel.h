// ControlChannel: the connections to the control's endpoints, and the one loop that tries a call until its deadline.
//
// Shared by a Control and its watches. Thread-safe.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "job/control/control.h"
#include "rpc.grpc.pb.h"

namespace pawl::job {

struct ControlEndpoint {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<etcdserverpb::KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
};

// What a call came to. `uncertain`: an attempt before the last one was sent and may have been carried out.
struct CallOutcome {
  grpc::Status status;
  bool uncertain = false;
  std::string address;  // of the last attempt; all of them if several endpoints were tried in vain
};

class ControlChannel {
 public:
  using Clock = std::chrono::system_clock;  // gRPC's deadlines
  using Attempt = std::function<grpc::Status(ControlEndpoint& endpoint, grpc::ClientContext* context)>;

  static Result<std::shared_ptr<ControlChannel>> make(std::string_view endpoints, ControlOptions options);

  // Tries one endpoint after the other while they are away and time is left; any other status ends it. What is sent may take so many
  // deadlines.
  CallOutcome call(const Attempt& attempt, int deadlines = 1);

  [[nodiscard]] ControlEndpoint& current() { return *endpoints_[current_.load() % endpoints_.size()]; }
  void pass_over(const ControlEndpoint& endpoint);   // the next call begins with another one, if there is one
  void prepare(grpc::ClientContext* context) const;  // the token
  [[nodiscard]] Tasks& tasks() const { return options_.environment->tasks; }
  [[nodiscard]] pawl::Clock& steady_clock() const { return options_.environment->clock; }
  // Connected before `until`? Gives up earlier if the attempt failed and there is another endpoint to try.
  bool wait_connected(ControlEndpoint& endpoint, Clock::time_point until, bool in_a_hurry);

 private:
  explicit ControlChannel(ControlOptions options) : options_(std::move(options)) {}
  ControlOptions options_;
  std::vector<std::unique_ptr<ControlEndpoint>> endpoints_;
  std::atomic<std::size_t> current_ = 0;
};

[[nodiscard]] Error error_of(const grpc::Status& status, std::string_view what, std::string_view address);
// Of the range of keys that begin with `prefix`; an empty prefix means all keys, which the wire calls ["\0", "\0").
[[nodiscard]] std::string prefix_begin(std::string_view prefix);
[[nodiscard]] std::string prefix_end(std::string_view prefix);
[[nodiscard]] KeyValue from_wire(const mvccpb::KeyValue& kv);

}  // namespace pawl::job
