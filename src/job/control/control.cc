#include "job/control/control.h"

#include <algorithm>
#include <mutex>
#include <random>

#include "base/text.h"
#include "job/control/control_channel.h"
#include "job/control/control_watch.h"

namespace pawl::job {

using namespace etcdserverpb;  // NOLINT: its messages are what this file writes

namespace {

void fill_put(PutRequest* put, std::string_view key, std::string_view value, LeaseId lease) {
  put->set_key(std::string(key));
  put->set_value(std::string(value));
  put->set_lease(lease);
}

void fill_prefix(std::string_view prefix, auto* request) {
  request->set_key(prefix_begin(prefix));
  request->set_range_end(prefix_end(prefix));
}

void fill_compare(const KeyCompare& wanted, etcdserverpb::Compare* compare) {
  compare->set_key(wanted.key);
  switch (wanted.is) {
    case KeyCompare::Is::equal:
      compare->set_result(etcdserverpb::Compare::EQUAL);
      break;
    case KeyCompare::Is::not_equal:
      compare->set_result(etcdserverpb::Compare::NOT_EQUAL);
      break;
    case KeyCompare::Is::less:
      compare->set_result(etcdserverpb::Compare::LESS);
      break;
    case KeyCompare::Is::greater:
      compare->set_result(etcdserverpb::Compare::GREATER);
      break;
  }
  if (wanted.field == KeyCompare::Field::mod_revision) {
    compare->set_target(etcdserverpb::Compare::MOD);
    compare->set_mod_revision(wanted.revision);
  } else {
    compare->set_target(etcdserverpb::Compare::CREATE);
    compare->set_create_revision(wanted.revision);
  }
}

void fill_change(const KeyChange& change, RequestOp* op) {
  switch (change.kind) {
    case KeyChange::Kind::put:
      return fill_put(op->mutable_request_put(), change.key, change.value, change.lease);
    case KeyChange::Kind::erase:
      return op->mutable_request_delete_range()->set_key(change.key);
    case KeyChange::Kind::erase_prefix:
      return fill_prefix(change.key, op->mutable_request_delete_range());
  }
}

constexpr int kListingDeadlines = 5;  // for as much as comes with list_many

class EtcdControl final : public Control {
 public:
  explicit EtcdControl(std::shared_ptr<ControlChannel> channel) : channel_(std::move(channel)) {}

  Result<KeyValue> get(std::string_view key) override {
    RangeRequest request;
    RangeResponse response;
    request.set_key(std::string(key));
    PAWL_TRY(call("get", &KV::Stub::Range, request, &response));
    if (response.kvs_size() == 0) return Error{Code::not_found, text("control get: no key ", key)};
    return from_wire(response.kvs(0));
  }

  Result<Listing> list(std::string_view prefix) override { return list_within(prefix, 1); }
  Result<Listing> list_many(std::string_view prefix) override { return list_within(prefix, kListingDeadlines); }

  Result<KeyTally> tally(std::string_view prefix) override {
    RangeRequest request;
    RangeResponse response;
    fill_prefix(prefix, &request);
    request.set_sort_target(RangeRequest::MOD);
    request.set_sort_order(RangeRequest::DESCEND);
    request.set_limit(1);
    request.set_keys_only(true);
    PAWL_TRY(call("tally", &KV::Stub::Range, request, &response));
    const Revision newest = response.kvs_size() > 0 ? response.kvs(0).mod_revision() : 0;
    return KeyTally{static_cast<std::uint64_t>(response.count()), newest, response.header().revision()};
  }

  Result<Revision> put(std::string_view key, std::string_view value, LeaseId lease) override {
    PutRequest request;
    PutResponse response;
    fill_put(&request, key, value, lease);
    PAWL_TRY(call("put", &KV::Stub::Put, request, &response));
    return response.header().revision();
  }

  Result<std::int64_t> erase(std::string_view key) override {
    DeleteRangeRequest request;
    request.set_key(std::string(key));
    return erase_range(request);
  }

  Result<std::int64_t> erase_prefix(std::string_view prefix) override {
    DeleteRangeRequest request;
    fill_prefix(prefix, &request);
    return erase_range(request);
  }

  Result<Swapped> compare_and_swap(std::string_view key, Revision expected, std::string_view value,
                                   LeaseId lease) override {
    std::vector<KeyCompare> compares(1);
    std::vector<KeyChange> changes(1);
    compares[0].key = changes[0].key = key;
    compares[0].revision = expected;
    changes[0].value = value;
    changes[0].lease = lease;
    PAWL_ASSIGN(Transacted done, transact(compares, changes));
    Swapped swapped{done.won, done.revision, std::nullopt};
    if (!done.won) swapped.current = std::move(done.current[0]);
    return swapped;
  }

  Result<Transacted> transact(const std::vector<KeyCompare>& compares, const std::vector<KeyChange>& changes) override {
    TxnRequest request;
    TxnResponse response;
    for (const auto& compare : compares) {
      fill_compare(compare, request.add_compare());
      request.add_failure()->mutable_request_range()->set_key(compare.key);
    }
    for (const auto& change : changes) fill_change(change, request.add_success());
    const CallOutcome outcome = send(&KV::Stub::Txn, request, &response);
    if (!outcome.status.ok()) return error_of(outcome.status, "transaction", outcome.address);
    // Lost, but perhaps to our own first attempt, whose answer got lost: we can't tell, so we don't.
    if (!response.succeeded() && outcome.uncertain)
      return Error{Code::unreachable, text("control transaction at ", outcome.address,
                                           ": the connection broke and the outcome is unknown; read and decide again")};
    Transacted done;
    done.won = response.succeeded();
    done.revision = response.header().revision();
    if (done.won) return done;
    for (std::size_t i = 0; i < compares.size(); ++i) {
      auto& current = done.current.emplace_back();
      if (response.responses_size() <= static_cast<int>(i)) continue;
      const auto& range = response.responses(static_cast<int>(i)).response_range();
      if (range.kvs_size() > 0) current = from_wire(range.kvs(0));
    }
    return done;
  }

  Result<LeaseId> lease_grant(std::chrono::seconds time_to_live) override {
    LeaseGrantRequest request;
    LeaseGrantResponse response;
    request.set_ttl(time_to_live.count());
    // The id is ours, so that a repeated grant finds its first attempt instead of leaving it behind.
    for (int attempt = 0; attempt < 3; ++attempt) {
      request.set_id(random_id());
      const CallOutcome outcome = lease_call(&etcdserverpb::Lease::Stub::LeaseGrant, request, &response);
      const bool exists = outcome.status.error_code() == grpc::StatusCode::FAILED_PRECONDITION;
      if (outcome.status.ok() || (exists && outcome.uncertain)) return request.id();
      if (!exists) return error_of(outcome.status, "lease grant", outcome.address);
    }
    return Error{Code::broken, "control lease grant: three random ids were all taken"};
  }

  Result<std::chrono::seconds> lease_keep_alive_once(LeaseId lease) override {
    LeaseKeepAliveRequest request;
    LeaseKeepAliveResponse response;
    request.set_id(lease);
    const CallOutcome outcome = channel_->call([&](ControlEndpoint& endpoint, grpc::ClientContext* context) {
      const auto stream = endpoint.lease->LeaseKeepAlive(context);
      const bool answered = stream->Write(request) && stream->Read(&response);
      stream->WritesDone();
      if (!answered) {
        auto status = stream->Finish();
        return status.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the stream ended") : status;
      }
      context->TryCancel();  // all is said; nothing to wait for
      (void)stream->Finish();
      return grpc::Status::OK;
    });
    if (!outcome.status.ok()) return error_of(outcome.status, "lease renewal", outcome.address);
    if (response.ttl() <= 0) return Error{Code::not_found, text("control lease renewal: lease ", lease, " is gone")};
    return std::chrono::seconds(response.ttl());
  }

  Status lease_revoke(LeaseId lease) override {
    LeaseRevokeRequest request;
    LeaseRevokeResponse response;
    request.set_id(lease);
    const CallOutcome outcome = lease_call(&etcdserverpb::Lease::Stub::LeaseRevoke, request, &response);
    const bool gone = outcome.status.error_code() == grpc::StatusCode::NOT_FOUND;
    if (outcome.status.ok() || (gone && outcome.uncertain)) return {};
    return error_of(outcome.status, "lease end", outcome.address);
  }

  std::unique_ptr<pawl::job::Watch> watch(std::string_view prefix, WatchOptions options,
                                          std::function<void(const WatchEvent&)> on_event) override {
    return start_watch(channel_, std::string(prefix), std::move(options), std::move(on_event));
  }

 private:
  Result<Listing> list_within(std::string_view prefix, int deadlines) {
    RangeRequest request;
    RangeResponse response;
    fill_prefix(prefix, &request);
    const CallOutcome outcome = send(&KV::Stub::Range, request, &response, deadlines);
    if (!outcome.status.ok()) return error_of(outcome.status, "list", outcome.address);
    Listing listing;
    listing.revision = response.header().revision();
    for (const auto& kv : response.kvs()) listing.kvs.push_back(from_wire(kv));
    return listing;
  }

  template <class Method, class Request, class Response>
  CallOutcome send(Method method, const Request& request, Response* response, int deadlines = 1) {
    const auto attempt = [&](ControlEndpoint& endpoint, grpc::ClientContext* context) {
      return (endpoint.kv.get()->*method)(context, request, response);
    };
    return channel_->call(attempt, deadlines);
  }

  template <class Method, class Request, class Response>
  CallOutcome lease_call(Method method, const Request& request, Response* response) {
    return channel_->call([&](ControlEndpoint& endpoint, grpc::ClientContext* context) {
      return (endpoint.lease.get()->*method)(context, request, response);
    });
  }

  template <class Method, class Request, class Response>
  pawl::Status call(std::string_view what, Method method, const Request& request, Response* response) {
    const CallOutcome outcome = send(method, request, response);
    if (!outcome.status.ok()) return error_of(outcome.status, what, outcome.address);
    return {};
  }

  Result<std::int64_t> erase_range(const DeleteRangeRequest& request) {
    DeleteRangeResponse response;
    PAWL_TRY(call("erase", &KV::Stub::DeleteRange, request, &response));
    return response.deleted();
  }

  LeaseId random_id() {
    std::lock_guard lock(random_mutex_);
    return static_cast<LeaseId>(random_() >> 1 | 1);
  }

  std::shared_ptr<ControlChannel> channel_;
  std::mutex random_mutex_;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace

Result<std::unique_ptr<Control>> connect_control(std::string_view endpoints, ControlOptions options) {
  PAWL_ASSIGN(auto channel, ControlChannel::make(endpoints, std::move(options)));
  return std::unique_ptr<Control>(std::make_unique<EtcdControl>(std::move(channel)));
}

}  // namespace pawl::job
