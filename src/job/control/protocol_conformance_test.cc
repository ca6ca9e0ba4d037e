// The wire protocol itself: the embedded server answers what etcd answers.
//
// Random requests go to both and every answer is compared, field by field; the streams are played by hand.
#include <google/protobuf/util/message_differencer.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "job/control/control_backend.h"
#include "job/control/key_values.h"
#include "rpc.grpc.pb.h"

namespace pawl::job {
namespace {

using namespace etcdserverpb;  // NOLINT: its words are what is tested

struct Client {
  explicit Client(const std::string& address)
      : channel(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())),
        kv(KV::NewStub(channel)),
        lease(etcdserverpb::Lease::NewStub(channel)),
        watch(etcdserverpb::Watch::NewStub(channel)),
        maintenance(Maintenance::NewStub(channel)) {}
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<KV::Stub> kv;
  std::unique_ptr<etcdserverpb::Lease::Stub> lease;
  std::unique_ptr<etcdserverpb::Watch::Stub> watch;
  std::unique_ptr<Maintenance::Stub> maintenance;
};

// Who answered is no part of the comparison, nor is the header inside a transaction's parts, which etcd fills loosely.
void forget_who(TxnResponse* response, bool inner);
void forget_who(ResponseHeader* header, bool inner) {
  header->clear_cluster_id();
  header->clear_member_id();
  header->clear_raft_term();
  if (inner) header->clear_revision();
}
template <class Response>
void forget_who(Response* response, bool inner) {
  forget_who(response->mutable_header(), inner);
}
void forget_who(TxnResponse* response, bool inner) {
  forget_who(response->mutable_header(), inner);
  for (auto& part : *response->mutable_responses()) {
    if (part.has_response_range()) forget_who(part.mutable_response_range(), true);
    if (part.has_response_put()) forget_who(part.mutable_response_put(), true);
    if (part.has_response_delete_range()) forget_who(part.mutable_response_delete_range(), true);
    if (part.has_response_txn()) forget_who(part.mutable_response_txn(), true);
  }
}

// Requests over few keys, so that they meet; some are wrong on purpose.
class RandomRequests {
 public:
  explicit RandomRequests(unsigned seed) : random_(seed) {}
  unsigned below(unsigned n) { return std::uniform_int_distribution<unsigned>(0, n - 1)(random_); }
  bool one_in(unsigned n) { return below(n) == 0; }
  std::string key() { return one_in(60) ? "" : std::string("k") + static_cast<char>('a' + below(6)); }
  std::string end() {
    if (one_in(2)) return "";
    return one_in(4) ? std::string(1, '\0') : key();
  }
  std::int64_t number() { return below(12); }
  void saw(std::int64_t revision) { revision_ = revision; }
  std::int64_t near_revision() { return std::max<std::int64_t>(revision_ - below(6) + 1, 1); }

  RangeRequest range() {
    RangeRequest out;
    out.set_key(key());
    out.set_range_end(end());
    if (one_in(3)) out.set_limit(below(4));
    if (one_in(5)) out.set_revision(near_revision());
    if (one_in(3)) out.set_sort_order(static_cast<RangeRequest::SortOrder>(below(3)));
    if (one_in(3)) out.set_sort_target(static_cast<RangeRequest::SortTarget>(below(4)));
    // Without an order etcd cuts before it sorts, and so answers with keys that are not the least; we sort first.
    if (out.limit() > 0 && out.sort_order() == RangeRequest::NONE) out.clear_sort_target();
    out.set_keys_only(one_in(5));
    out.set_count_only(one_in(6));
    if (one_in(8)) out.set_min_mod_revision(near_revision());
    if (one_in(8)) out.set_max_create_revision(near_revision());
    return out;
  }
  PutRequest put() {
    PutRequest out;
    out.set_key(key());
    if (!one_in(8)) out.set_value(std::to_string(below(4)));
    out.set_prev_kv(one_in(2));
    out.set_ignore_value(one_in(10));
    out.set_ignore_lease(one_in(10));
    if (one_in(12)) out.set_lease(77);
    if (one_in(6)) out.set_lease(7);
    return out;
  }
  DeleteRangeRequest erase() {
    DeleteRangeRequest out;
    out.set_key(key());
    if (one_in(3)) out.set_range_end(end());
    out.set_prev_kv(one_in(2));
    return out;
  }
  TxnRequest txn(int depth) {
    TxnRequest out;
    for (unsigned n = below(3); n > 0; --n) fill(out.add_compare());
    for (unsigned n = below(3); n > 0; --n) fill(out.add_success(), depth);
    for (unsigned n = below(3); n > 0; --n) fill(out.add_failure(), depth);
    return out;
  }

 private:
  void fill(etcdserverpb::Compare* compare) {
    compare->set_key(key());
    if (one_in(4)) compare->set_range_end(end());
    compare->set_result(static_cast<etcdserverpb::Compare::CompareResult>(below(4)));
    switch (below(5)) {
      case 0:
        compare->set_target(etcdserverpb::Compare::VERSION);
        return compare->set_version(below(4));
      case 1:
        compare->set_target(etcdserverpb::Compare::CREATE);
        return compare->set_create_revision(near_revision());
      case 2:
        compare->set_target(etcdserverpb::Compare::MOD);
        return compare->set_mod_revision(near_revision());
      case 3:
        compare->set_target(etcdserverpb::Compare::VALUE);
        return compare->set_value(std::to_string(below(4)));
      default:
        compare->set_target(etcdserverpb::Compare::LEASE);
        return compare->set_lease(one_in(2) ? 7 : 0);
    }
  }
  void fill(RequestOp* op, int depth) {
    switch (below(depth > 0 ? 4 : 3)) {
      case 0:
        *op->mutable_request_range() = range();
        break;
      case 1:
        *op->mutable_request_put() = put();
        break;
      case 2: {
        *op->mutable_request_delete_range() = erase();
        // etcd does not see that an open end covers a put of the same transaction; we refuse that too.
        if (op->request_delete_range().range_end() == std::string(1, '\0'))
          op->mutable_request_delete_range()->set_range_end("kz");
        break;
      }
      default:
        *op->mutable_request_txn() = txn(depth - 1);
        break;
    }
  }
  std::mt19937 random_;
  std::int64_t revision_ = 1;
};

class Comparison {
 public:
  explicit Comparison(const std::string& address) : etcd_(address) {}

  // The real answer and ours; equal codes, and if both are well, equal answers.
  template <class Request, class Response, class Theirs, class Ours>
  void ask(const Request& request, Response* theirs, Theirs theirs_call, Ours ours_call) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    const grpc::Status their_status = theirs_call(etcd_, &context, request, theirs);
    Response ours;
    KeyValues::Log log;
    const grpc::Status our_status = ours_call(store_, request, &ours, &log);
    ours.mutable_header()->set_revision(store_.revision());
    for (const auto& change : log.changes()) ASSERT_TRUE(replica_.apply(change, {}));
    // Of several faults in one transaction either may be named.
    if (std::is_same_v<Request, TxnRequest> && !their_status.ok() && !our_status.ok()) return;
    ASSERT_EQ(their_status.error_code(), our_status.error_code())
        << their_status.error_message() << " | " << our_status.error_message() << "\n"
        << request.DebugString();
    if (!our_status.ok()) {
      EXPECT_EQ(their_status.error_message(), our_status.error_message()) << request.DebugString();
      return;
    }
    forget_who(theirs, false);
    forget_who(&ours, false);
    ASSERT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*theirs, ours)) << "request:\n"
                                                                                   << request.DebugString() << "etcd:\n"
                                                                                   << theirs->DebugString() << "ours:\n"
                                                                                   << ours.DebugString();
  }

  KeyValues& store() { return store_; }
  KeyValues& replica() { return replica_; }  // made of nothing but what the first one logged

 private:
  Client etcd_;
  KeyValues store_;
  KeyValues replica_;
};

std::string whole(const KeyValues& store) {
  std::string all;
  for (const auto& log : store.snapshot(1, 1)) all += log.DebugString();
  return all;
}

TEST(Protocol, RandomRequestsAreAnsweredAsByEtcd) {
  if (!has_etcd()) GTEST_SKIP() << "no etcd here; install etcd-server";
  EtcdBackend backend;  // a fresh one: both count from revision 1
  backend.start();
  Comparison both(backend.address());
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(text("seed ", seed));
  RandomRequests random(seed);

  LeaseGrantRequest grant;
  grant.set_id(7);
  grant.set_ttl(600);
  LeaseGrantResponse granted;
  both.ask(
      grant, &granted, [](Client& c, auto* x, auto& q, auto* a) { return c.lease->LeaseGrant(x, q, a); },
      [](KeyValues& s, auto& q, auto* a, auto* log) { return s.lease_grant(q, {}, a, log); });
  for (int i = 0; i < 2000 && !testing::Test::HasFatalFailure(); ++i) {
    random.saw(both.store().revision());
    switch (random.below(8)) {
      case 0: {
        RangeResponse answer;
        both.ask(
            random.range(), &answer, [](Client& c, auto* x, auto& q, auto* a) { return c.kv->Range(x, q, a); },
            [](KeyValues& s, auto& q, auto* a, auto*) { return s.range(q, a); });
        break;
      }
      case 1:
      case 2: {
        PutResponse answer;
        both.ask(
            random.put(), &answer, [](Client& c, auto* x, auto& q, auto* a) { return c.kv->Put(x, q, a); },
            [](KeyValues& s, auto& q, auto* a, auto* log) { return s.put(q, a, log); });
        break;
      }
      case 3: {
        DeleteRangeResponse answer;
        both.ask(
            random.erase(), &answer, [](Client& c, auto* x, auto& q, auto* a) { return c.kv->DeleteRange(x, q, a); },
            [](KeyValues& s, auto& q, auto* a, auto* log) { return s.delete_range(q, a, log); });
        break;
      }
      default: {
        TxnResponse answer;
        both.ask(
            random.txn(2), &answer, [](Client& c, auto* x, auto& q, auto* a) { return c.kv->Txn(x, q, a); },
            [](KeyValues& s, auto& q, auto* a, auto* log) { return s.txn(q, a, log); });
      }
    }
  }
  EXPECT_GT(both.store().revision(), 300);
  EXPECT_EQ(whole(both.store()), whole(both.replica())) << "what was logged does not give the same store";
}

class ProtocolStreams : public ControlConformance {
 protected:
  void SetUp() override {
    ControlConformance::SetUp();
    if (!IsSkipped() && !HasFatalFailure()) client_ = std::make_unique<Client>(backend_->first_address());
  }
  std::unique_ptr<Client> client_;
};

WatchRequest watch_request(const std::string& key, const std::string& end, Revision from) {
  WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_range_end(end);
  request.mutable_create_request()->set_start_revision(from);
  return request;
}

TEST_P(ProtocolStreams, SeveralWatchesShareAStream) {
  const Revision before = control_->list(root_)->revision;
  for (const char* value : {"1", "2"}) ASSERT_TRUE(control_->put(key("a"), value));
  ASSERT_TRUE(control_->erase(key("a")));

  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto stream = client_->watch->Watch(&context);
  WatchResponse response;
  const auto next = [&]() -> WatchResponse& {
    EXPECT_TRUE(stream->Read(&response)) << "the stream ended";
    return response;
  };

  WatchRequest all = watch_request(key("a"), "", before + 1);
  all.mutable_create_request()->set_prev_kv(true);
  ASSERT_TRUE(stream->Write(all));
  EXPECT_TRUE(next().created());
  const std::int64_t all_id = response.watch_id();
  std::vector<mvccpb::Event> events;
  while (events.size() < 3) {
    for (const auto& event : next().events()) events.push_back(event);
    EXPECT_EQ(response.watch_id(), all_id);
  }
  EXPECT_FALSE(events[0].has_prev_kv());
  EXPECT_EQ(events[1].prev_kv().value(), "1");
  EXPECT_EQ(events[1].kv().version(), 2);
  EXPECT_EQ(events[2].type(), mvccpb::Event::DELETE);
  EXPECT_EQ(events[2].prev_kv().value(), "2");
  EXPECT_EQ(events[2].kv().mod_revision(), before + 3);
  EXPECT_EQ(events[2].kv().version(), 0);

  WatchRequest erasures = watch_request(root_, root_ + "\xff", before + 1);
  erasures.mutable_create_request()->add_filters(WatchCreateRequest::NOPUT);
  erasures.mutable_create_request()->set_watch_id(42);
  ASSERT_TRUE(stream->Write(erasures));
  EXPECT_TRUE(next().created());
  EXPECT_EQ(response.watch_id(), 42);
  ASSERT_EQ(next().events_size(), 1);
  EXPECT_EQ(response.watch_id(), 42);
  EXPECT_EQ(response.events(0).type(), mvccpb::Event::DELETE);
  EXPECT_FALSE(response.events(0).has_prev_kv());

  WatchRequest cancel;
  cancel.mutable_cancel_request()->set_watch_id(all_id);
  ASSERT_TRUE(stream->Write(cancel));
  EXPECT_TRUE(next().canceled());
  EXPECT_EQ(response.watch_id(), all_id);

  WatchRequest progress;
  progress.mutable_progress_request();
  ASSERT_TRUE(stream->Write(progress));
  EXPECT_EQ(next().watch_id(), -1);
  EXPECT_EQ(response.header().revision(), before + 3);
  EXPECT_EQ(response.events_size(), 0);

  ASSERT_TRUE(control_->put(key("a"), "3"));
  ASSERT_TRUE(control_->erase(key("a")));
  ASSERT_EQ(next().events_size(), 1);
  EXPECT_EQ(response.watch_id(), 42) << "the other watch is cancelled";
  EXPECT_EQ(response.events(0).kv().mod_revision(), before + 5);

  stream->WritesDone();  // having no more to say is not the end of listening
  ASSERT_TRUE(control_->put(key("a"), "4"));
  ASSERT_TRUE(control_->erase(key("a")));
  ASSERT_EQ(next().events_size(), 1);
  EXPECT_EQ(response.events(0).kv().mod_revision(), before + 7);
  context.TryCancel();
  (void)stream->Finish();
}

TEST_P(ProtocolStreams, AWatchThatComesTooLateIsToldSo) {
  const Revision first = *control_->put(key("a"), "1");
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(control_->put(key("a"), "2"));
  const auto compact = [&](Revision revision) {
    grpc::ClientContext context;
    CompactionRequest request;
    CompactionResponse response;
    request.set_revision(revision);
    return client_->kv->Compact(&context, request, &response).error_code();
  };
  EXPECT_EQ(compact(first + 4), grpc::StatusCode::OK);
  EXPECT_EQ(compact(first + 4), grpc::StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(compact(first + 400), grpc::StatusCode::OUT_OF_RANGE);

  for (const auto& [revision, code] :
       {std::pair(first + 3, grpc::StatusCode::OUT_OF_RANGE), std::pair(first + 4, grpc::StatusCode::OK),
        std::pair(first + 6, grpc::StatusCode::OUT_OF_RANGE)}) {
    grpc::ClientContext context;
    RangeRequest request;
    RangeResponse response;
    request.set_key(key("a"));
    request.set_revision(revision);
    EXPECT_EQ(client_->kv->Range(&context, request, &response).error_code(), code) << revision - first;
  }

  grpc::ClientContext context;
  const auto stream = client_->watch->Watch(&context);
  ASSERT_TRUE(stream->Write(watch_request(key("a"), "", first)));
  WatchResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.created());
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_TRUE(response.canceled());
  EXPECT_EQ(response.compact_revision(), first + 4);
  context.TryCancel();
  (void)stream->Finish();

  // The client makes of it one resync, and then what comes.
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<WatchEvent> events;
  const auto watch = control_->watch(root_, {.from_revision = first}, [&](const WatchEvent& event) {
    std::lock_guard lock(mutex);
    events.push_back(event);
    changed.notify_all();
  });
  const auto wait_for = [&](std::size_t count) {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, std::chrono::seconds(10), [&] { return events.size() >= count; });
  };
  ASSERT_TRUE(wait_for(1));
  ASSERT_TRUE(control_->put(key("a"), "3"));
  ASSERT_TRUE(wait_for(2));
  std::lock_guard lock(mutex);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, WatchEvent::Kind::resync);
  EXPECT_EQ(events[0].revision, first + 5);
  EXPECT_EQ(events[1].kv.value, "3");
}

TEST_P(ProtocolStreams, LeasesTellTheirTime) {
  LeaseGrantRequest grant;
  LeaseGrantResponse granted;
  grant.set_ttl(100);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(client_->lease->LeaseGrant(&context, grant, &granted).ok());
    EXPECT_NE(granted.id(), 0);
    EXPECT_EQ(granted.ttl(), 100);
  }
  grant.set_id(granted.id());
  {
    grpc::ClientContext context;
    LeaseGrantResponse again;
    EXPECT_EQ(client_->lease->LeaseGrant(&context, grant, &again).error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  ASSERT_TRUE(control_->put(key("a"), "1", granted.id()));
  const auto ask = [&](LeaseId id) {
    grpc::ClientContext context;
    LeaseTimeToLiveRequest request;
    LeaseTimeToLiveResponse response;
    request.set_id(id);
    request.set_keys(true);
    EXPECT_TRUE(client_->lease->LeaseTimeToLive(&context, request, &response).ok());
    return response;
  };
  const auto known = ask(granted.id());
  EXPECT_GE(known.ttl(), 95);
  EXPECT_EQ(known.grantedttl(), 100);
  ASSERT_EQ(known.keys_size(), 1);
  EXPECT_EQ(known.keys(0), key("a"));
  EXPECT_EQ(ask(granted.id() ^ 1).ttl(), -1);

  grpc::ClientContext context;  // one renewal after the other on one stream
  const auto stream = client_->lease->LeaseKeepAlive(&context);
  LeaseKeepAliveRequest request;
  LeaseKeepAliveResponse response;
  for (const auto& [id, ttl] : {std::pair(granted.id(), 100), std::pair(granted.id() ^ 1, 0)}) {
    request.set_id(id);
    ASSERT_TRUE(stream->Write(request) && stream->Read(&response));
    EXPECT_EQ(response.ttl(), ttl);
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  ASSERT_TRUE(control_->lease_revoke(granted.id()));
}

TEST_P(ProtocolStreams, StatusNamesAVersion) {
  grpc::ClientContext context;
  StatusRequest request;
  StatusResponse response;
  ASSERT_TRUE(client_->maintenance->Status(&context, request, &response).ok());
  EXPECT_EQ(response.version().substr(0, 2), "3.");
  EXPECT_NE(response.leader(), 0u);
  const bool alone = backend_->address() == backend_->first_address();
  EXPECT_TRUE(!alone || response.leader() == response.header().member_id());
}

INSTANTIATE_TEST_SUITE_P(Control, ProtocolStreams, testing::Values("embedded", "etcd", "etcd_cluster"), backend_name);

}  // namespace
}  // namespace pawl::job
