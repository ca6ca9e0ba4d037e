#include "job/control/control_channel.h"

#include <algorithm>
#include <map>

#include "base/text.h"
#include "job/control/grpc_log.h"
#include "job/control/key_range.h"

namespace pawl::job {
namespace {

constexpr auto kPause = std::chrono::milliseconds(20);       // between two attempts
constexpr auto kStateSlice = std::chrono::milliseconds(50);  // how often a failed connection is tried anew by a call
// Of each attempt, while that much is left: one that is shorter than the answer of a busy member only makes the outcome
// uncertain.
constexpr auto kShareMin = std::chrono::milliseconds(250);

grpc::ChannelArguments arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);  // etcd answers more frequent ones with GOAWAY
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 2'000);  // despite its name: how long one attempt may take
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);     // two Controls share no fate
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);             // the environment's proxy is not for the control plane
  arguments.SetMaxReceiveMessageSize(-1);                      // a listing may be long
  return arguments;
}

bool is_away(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
}

// An etcd that waits for its cluster in vain tells its own deadline as an error of no known kind.
grpc::Status known(grpc::Status status) {
  const bool late = status.error_code() == grpc::StatusCode::UNKNOWN &&
                    status.error_message().find("context deadline exceeded") != std::string::npos;
  return late ? grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, status.error_message()) : status;
}

// The last word of each endpoint, for an error that is of none alone.
class LastWords {
 public:
  explicit LastWords(std::size_t endpoints) : endpoints_(endpoints) {}

  void note(const CallOutcome& outcome) {
    const bool silent = outcome.status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    words_[outcome.address] = silent ? "it did not answer in time" : outcome.status.error_message();
  }

  CallOutcome error(CallOutcome outcome) const {
    if (endpoints_ == 1) return outcome;
    std::string all;
    for (const auto& [address, word] : words_) all += text(all.empty() ? "" : "; ", address, ": ", word);
    outcome.status = {outcome.status.error_code(), all};
    outcome.address = text(words_.size(), " of ", endpoints_, " endpoints");
    return outcome;
  }

 private:
  std::size_t endpoints_;
  std::map<std::string, std::string> words_;
};

Code code_of(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::UNAVAILABLE:
      return Code::unreachable;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Code::timeout;
    case grpc::StatusCode::CANCELLED:
      return Code::cancelled;
    case grpc::StatusCode::NOT_FOUND:
      return Code::not_found;
    case grpc::StatusCode::OUT_OF_RANGE:
      return Code::stale;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Code::full;
    case grpc::StatusCode::DATA_LOSS:
      return Code::corrupt;
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::FAILED_PRECONDITION:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNIMPLEMENTED:
      return Code::invalid;
    default:
      return Code::io;
  }
}

Status check_endpoint(std::string_view address) {
  if (address.starts_with("unix:") && address.size() > 5) return {};
  const std::size_t colon = address.rfind(':');
  unsigned port = 0;
  if (colon != std::string_view::npos && colon > 0 && parse_number(address.substr(colon + 1), port) && port > 0 &&
      port < 65536)
    return {};
  return Error{Code::invalid, text("control endpoint \"", address, "\" is neither host:port nor unix:/path")};
}

}  // namespace

Error error_of(const grpc::Status& status, std::string_view what, std::string_view address) {
  return Error{code_of(status.error_code()),
               text("control ", what, " at ", address, ": ", std::string_view(status.error_message()))};
}

std::string prefix_begin(std::string_view prefix) {
  return prefix.empty() ? std::string(1, '\0') : std::string(prefix);
}

std::string prefix_end(std::string_view prefix) {
  std::string end(prefix);
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (end.empty()) return std::string(kNoEnd);
  end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return end;
}

KeyValue from_wire(const mvccpb::KeyValue& kv) {
  return {kv.key(), kv.value(), kv.mod_revision(), kv.create_revision(), kv.lease()};
}

Result<std::shared_ptr<ControlChannel>> ControlChannel::make(std::string_view endpoints, ControlOptions options) {
  take_grpc_log();
  std::shared_ptr<ControlChannel> made(new ControlChannel(std::move(options)));
  while (true) {
    const std::size_t comma = endpoints.find(',');
    const std::string address(endpoints.substr(0, comma));
    PAWL_TRY(check_endpoint(address));
    auto endpoint = std::make_unique<ControlEndpoint>();
    endpoint->address = address;
    endpoint->channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments());
    endpoint->kv = etcdserverpb::KV::NewStub(endpoint->channel);
    endpoint->lease = etcdserverpb::Lease::NewStub(endpoint->channel);
    endpoint->watch = etcdserverpb::Watch::NewStub(endpoint->channel);
    made->endpoints_.push_back(std::move(endpoint));
    if (comma == std::string_view::npos) return made;
    endpoints.remove_prefix(comma + 1);
  }
}

void ControlChannel::pass_over(const ControlEndpoint& endpoint) {
  std::size_t seen = current_.load();
  if (endpoints_[seen % endpoints_.size()].get() == &endpoint) current_.compare_exchange_strong(seen, seen + 1);
}

void ControlChannel::prepare(grpc::ClientContext* context) const {
  if (!options_.token.empty()) context->AddMetadata(kControlTokenKey, options_.token);
}

bool ControlChannel::wait_connected(ControlEndpoint& endpoint, Clock::time_point until, bool in_a_hurry) {
  for (bool failed = false;;) {
    const auto state = endpoint.channel->GetState(true);
    if (state == GRPC_CHANNEL_READY) return true;
    const auto now = Clock::now();
    if (now >= until) return false;
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE) {
      // Once it is waited for all the same: only who waits makes gRPC read what the other side says. Without that no
      // connection to a server that came late is ever complete.
      if (failed && endpoints_.size() > 1) return false;
      failed = true;
      if (in_a_hurry) grpc::experimental::ChannelResetConnectionBackoff(endpoint.channel.get());
    }
    endpoint.channel->WaitForStateChange(state, std::min(until, now + kStateSlice));
  }
}

CallOutcome ControlChannel::call(const Attempt& attempt, int deadlines) {
  const auto deadline = Clock::now() + options_.deadline;
  CallOutcome outcome;
  LastWords words(endpoints_.size());
  while (true) {
    ControlEndpoint& endpoint = current();
    outcome.address = endpoint.address;
    // A silent endpoint may not eat the time of those behind it.
    const auto now = Clock::now();
    const auto share = std::max<Clock::duration>((deadline - now) / static_cast<long>(endpoints_.size()), kShareMin);
    const auto until = std::min(deadline, now + share);
    // Sent only over a standing connection: then a failure to connect is known to have changed nothing.
    if (wait_connected(endpoint, until, true)) {
      grpc::ClientContext context;
      context.set_deadline(until + (deadlines - 1) * options_.deadline);
      prepare(&context);
      outcome.status = known(attempt(endpoint, &context));
      if (!is_away(outcome.status)) return outcome;
      outcome.uncertain = true;
    } else {
      outcome.status = {grpc::StatusCode::UNAVAILABLE, "cannot connect; is the control server running there?"};
    }
    words.note(outcome);
    if (Clock::now() + kPause >= deadline) return words.error(std::move(outcome));
    pass_over(endpoint);
    options_.environment->clock.sleep(kPause);
  }
}

}  // namespace pawl::job
