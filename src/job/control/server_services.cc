#include "job/control/server_services.h"

#include "base/text.h"
#include "job/control/control.h"

namespace pawl::job {

using grpc::CallbackServerContext;
using grpc::ServerUnaryReactor;
using namespace etcdserverpb;  // NOLINT: the services are written in its words

grpc::Status check_token(const CallbackServerContext& context, const std::string& token) {
  if (token.empty()) return grpc::Status::OK;
  const auto [first, last] = context.client_metadata().equal_range(kControlTokenKey);
  for (auto it = first; it != last; ++it)
    if (std::string_view(it->second.data(), it->second.size()) == token) return grpc::Status::OK;
  return {grpc::StatusCode::UNAUTHENTICATED, "etcdserver: invalid auth token"};
}

void fill_header(const Committer& committer, Revision revision, ResponseHeader* header) {
  header->set_cluster_id(committer.cluster_id());
  header->set_member_id(committer.member_id());
  header->set_revision(revision);
  header->set_raft_term(1);
}

namespace {

constexpr std::size_t kRequestBytesMax = 3 << 19;  // 1.5 MiB, as etcd's default

struct Served {
  Committer* committer;
  std::string token;

  // `work(key_values, now, log)` gives the status; the header is filled here, with the revision that `work` left.
  template <class Request, class Response, class Work>
  ServerUnaryReactor* unary(CallbackServerContext* context, const Request* request, Response* response,
                            Work work) const {
    auto* reactor = context->DefaultReactor();
    grpc::Status allowed = check_token(*context, token);
    if (allowed.ok() && request->ByteSizeLong() > kRequestBytesMax)
      allowed = {grpc::StatusCode::INVALID_ARGUMENT, "etcdserver: request is too large"};
    if (!allowed.ok()) {
      reactor->Finish(allowed);
      return reactor;
    }
    auto status = std::make_shared<grpc::Status>();
    committer->submit(
        [&](KeyValues& key_values, Committer::Time now, KeyValues::Log* log) {
          *status = work(key_values, now, log);
          fill_header(*committer, key_values.revision(), response->mutable_header());
        },
        [reactor, status](const pawl::Status& durable) {
          reactor->Finish(durable ? *status : grpc::Status(grpc::StatusCode::UNAVAILABLE, durable.error().what));
        });
    return reactor;
  }
};

class KvService final : public KV::CallbackService {
 public:
  explicit KvService(Served served) : served_(std::move(served)) {}

  ServerUnaryReactor* Range(CallbackServerContext* c, const RangeRequest* q, RangeResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto*) { return s.range(*q, a); });
  }
  ServerUnaryReactor* Put(CallbackServerContext* c, const PutRequest* q, PutResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto* log) { return s.put(*q, a, log); });
  }
  ServerUnaryReactor* DeleteRange(CallbackServerContext* c, const DeleteRangeRequest* q,
                                  DeleteRangeResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto* log) { return s.delete_range(*q, a, log); });
  }
  ServerUnaryReactor* Txn(CallbackServerContext* c, const TxnRequest* q, TxnResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto* log) { return s.txn(*q, a, log); });
  }
  ServerUnaryReactor* Compact(CallbackServerContext* c, const CompactionRequest* q, CompactionResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto* log) { return s.compact(*q, log); });
  }

 private:
  Served served_;
};

// Renewals touch no disk: a deadline is not part of the log.
class KeepAliveStream final : public grpc::ServerBidiReactor<LeaseKeepAliveRequest, LeaseKeepAliveResponse> {
 public:
  KeepAliveStream(const Served& served, CallbackServerContext* context) : committer_(served.committer) {
    if (auto allowed = check_token(*context, served.token); allowed.ok())
      StartRead(&request_);
    else
      Finish(allowed);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);
    response_.Clear();
    response_.set_id(request_.id());
    // After any pending write: a renewal of a lease whose expiry is being written must say so only when it is true.
    committer_->submit(
        [&](KeyValues& key_values, Committer::Time now, KeyValues::Log*) {
          response_.set_ttl(key_values.lease_keep_alive(request_.id(), now));
          fill_header(*committer_, key_values.revision(), response_.mutable_header());
        },
        [this](const pawl::Status& durable) {
          if (durable)
            StartWrite(&response_);
          else
            Finish(grpc::Status(grpc::StatusCode::UNAVAILABLE, durable.error().what));
        });
  }

  void OnWriteDone(bool ok) override {
    if (ok)
      StartRead(&request_);
    else
      Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone"));
  }

  void OnDone() override { delete this; }

 private:
  Committer* committer_;
  LeaseKeepAliveRequest request_;
  LeaseKeepAliveResponse response_;
};

class LeaseService final : public etcdserverpb::Lease::CallbackService {
 public:
  explicit LeaseService(Served served) : served_(std::move(served)) {}

  ServerUnaryReactor* LeaseGrant(CallbackServerContext* c, const LeaseGrantRequest* q, LeaseGrantResponse* a) override {
    return served_.unary(c, q, a,
                         [=](KeyValues& s, Committer::Time now, auto* log) { return s.lease_grant(*q, now, a, log); });
  }
  ServerUnaryReactor* LeaseRevoke(CallbackServerContext* c, const LeaseRevokeRequest* q,
                                  LeaseRevokeResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto* log) { return s.lease_revoke(q->id(), log); });
  }
  ServerUnaryReactor* LeaseTimeToLive(CallbackServerContext* c, const LeaseTimeToLiveRequest* q,
                                      LeaseTimeToLiveResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, Committer::Time now, auto*) {
      s.lease_time_to_live(*q, now, a);
      return grpc::Status::OK;
    });
  }
  ServerUnaryReactor* LeaseLeases(CallbackServerContext* c, const LeaseLeasesRequest* q,
                                  LeaseLeasesResponse* a) override {
    return served_.unary(c, q, a, [=](KeyValues& s, auto, auto*) {
      s.lease_list(a);
      return grpc::Status::OK;
    });
  }
  grpc::ServerBidiReactor<LeaseKeepAliveRequest, LeaseKeepAliveResponse>* LeaseKeepAlive(
      CallbackServerContext* context) override {
    return new KeepAliveStream(served_, context);
  }

 private:
  Served served_;
};

class MaintenanceService final : public Maintenance::CallbackService {
 public:
  explicit MaintenanceService(Served served) : served_(std::move(served)) {}

  ServerUnaryReactor* Status(CallbackServerContext* c, const StatusRequest* q, StatusResponse* a) override {
    return served_.unary(c, q, a, [this, a](KeyValues& key_values, auto, auto*) {
      a->set_version("3.4.0+pawl");
      a->set_dbsize(static_cast<std::int64_t>(served_.committer->log_bytes()));
      a->set_dbsizeinuse(static_cast<std::int64_t>(key_values.state_bytes()));
      a->set_leader(served_.committer->member_id());
      a->set_raftindex(static_cast<std::uint64_t>(key_values.revision()));
      a->set_raftappliedindex(static_cast<std::uint64_t>(key_values.revision()));
      a->set_raftterm(1);
      return grpc::Status::OK;
    });
  }

 private:
  Served served_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> make_services(Committer* committer, std::string token) {
  const Served served{committer, std::move(token)};
  std::vector<std::unique_ptr<grpc::Service>> services;
  services.push_back(std::make_unique<KvService>(served));
  services.push_back(std::make_unique<LeaseService>(served));
  services.push_back(std::make_unique<MaintenanceService>(served));
  return services;
}

}  // namespace pawl::job
