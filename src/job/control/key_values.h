// KeyValues: the keys of the embedded control server, each with its versions. Every request means what it means in etcd.
//
// A request that modifies anything makes exactly one revision; all its events carry it, in order. An error changes
// nothing. Whatever changed is also appended to `log` (never read here); replaying those changes through apply() into
// an empty one gives an equal one, history included. The recent history is kept, bounded: it answers reads of old
// revisions and lets watches resume; what it has forgotten is below compacted().
// Pure but for lease ids: no thread, file or clock; `now` is an argument. Not thread-safe.
// When a change is durable and who may see it then: server_commit.h. Wire: proto/rpc.proto.
#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "control_log.pb.h"
#include "rpc.pb.h"

namespace pawl::job {

using Revision = std::int64_t;
using LeaseId = std::int64_t;

struct KeyValuesOptions {
  std::size_t history_events_max = 20'000;  // more: watches may be away for longer
  std::size_t history_bytes_max = 16ull << 20;
  std::size_t state_bytes_max = 256ull << 20;  // puts beyond it are refused
};

// Which events a watch wants: [key, range_end) from revision `from` on, up to `through`.
struct EventQuery {
  std::string key;
  std::string range_end;
  Revision from = 0;
  Revision through = 0;
  bool puts = true;
  bool deletes = true;
  bool prev_kv = false;
};

struct EventSlice {
  bool compacted = false;             // `from` is below compacted(): nothing is returned
  Revision next = 0;                  // ask from here next
  std::vector<mvccpb::Event> events;  // whole revisions only
};

class KeyValues {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Log = pawl::control::Batch;
  explicit KeyValues(KeyValuesOptions options = {});

  grpc::Status range(const etcdserverpb::RangeRequest& request, etcdserverpb::RangeResponse* response) const;
  grpc::Status put(const etcdserverpb::PutRequest& request, etcdserverpb::PutResponse* response, Log* log);
  grpc::Status delete_range(const etcdserverpb::DeleteRangeRequest& request,
                            etcdserverpb::DeleteRangeResponse* response, Log* log);
  grpc::Status txn(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse* response, Log* log);
  grpc::Status compact(const etcdserverpb::CompactionRequest& request, Log* log);

  grpc::Status lease_grant(const etcdserverpb::LeaseGrantRequest& request, Time now,
                           etcdserverpb::LeaseGrantResponse* response, Log* log);
  grpc::Status lease_revoke(LeaseId id, Log* log);
  std::int64_t lease_keep_alive(LeaseId id, Time now);  // the granted seconds; 0: no such lease
  void lease_time_to_live(const etcdserverpb::LeaseTimeToLiveRequest& request, Time now,
                          etcdserverpb::LeaseTimeToLiveResponse* response) const;
  void lease_list(etcdserverpb::LeaseLeasesResponse* response) const;

  void expire_leases(Time now, Log* log);  // revokes those whose deadline is past, one revision each
  [[nodiscard]] std::optional<Time> next_deadline() const;
  // For time in which nobody could renew. Never beyond the full time from now.
  void postpone_leases(std::chrono::nanoseconds by, Time now);

  [[nodiscard]] EventSlice events(const EventQuery& query, std::size_t bytes_max) const;

  [[nodiscard]] Revision revision() const { return revision_; }
  [[nodiscard]] Revision compacted() const { return compacted_; }  // the least revision that is fully known
  [[nodiscard]] std::size_t state_bytes() const { return state_bytes_; }

  // A change as it was logged. Fails: `corrupt` if it does not follow from what came before.
  Status apply(const pawl::control::Change& change, Time now);
  // The batches from which an equal store can be made: a beginning, then the history.
  [[nodiscard]] std::vector<Log> snapshot(std::uint64_t cluster_id, std::uint64_t member_id) const;

 private:
  using KvMap = std::map<std::string, mvccpb::KeyValue, std::less<>>;
  struct Lease {
    std::int64_t ttl_s = 0;
    Time deadline;
    std::set<std::string> keys;
  };

  template <class Map>
  static auto bounds(Map& map, const std::string& key, const std::string& range_end);
  KvMap view_at(Revision revision, const std::string& key, const std::string& range_end) const;
  grpc::Status check_range(const etcdserverpb::RangeRequest& request) const;
  grpc::Status check_lease(const etcdserverpb::PutRequest& request) const;
  grpc::Status check_put(const etcdserverpb::PutRequest& request) const;
  // The branches that a transaction takes, its own first and then those nested in it, in order. All compares are
  // decided by the store as it is before the transaction, as etcd does.
  using Path = std::vector<bool>;
  grpc::Status take_path(const etcdserverpb::TxnRequest& request, Path* path) const;
  bool holds(const etcdserverpb::Compare& compare) const;

  // These can't fail: they run after the checks, and write into one commit of the revision after the present one.
  void do_put(const etcdserverpb::PutRequest& request, etcdserverpb::PutResponse* response,
              pawl::control::Commit* commit);
  void do_delete(const etcdserverpb::DeleteRangeRequest& request, etcdserverpb::DeleteRangeResponse* response,
                 pawl::control::Commit* commit);
  void do_txn(const etcdserverpb::TxnRequest& request, etcdserverpb::TxnResponse* response, Path::const_iterator* path,
              pawl::control::Commit* commit);
  void record(const mvccpb::Event& event);
  void finish(pawl::control::Commit commit, Log* log);
  void revoke(LeaseId id, pawl::control::Commit* commit);
  void trim_history();
  void set_deadline(LeaseId id, Lease& lease, Time deadline);
  Status begin(const pawl::control::Begin& begin, Time now);

  KeyValuesOptions options_;
  KvMap kvs_;
  std::map<LeaseId, Lease> leases_;
  std::set<std::pair<Time, LeaseId>> deadlines_;
  std::deque<mvccpb::Event> history_;  // with prev_kv; revisions ascend
  std::size_t history_bytes_ = 0;
  std::size_t state_bytes_ = 0;
  Revision revision_ = 1;  // as etcd counts: the first write makes 2
  Revision compacted_ = 0;
  std::mt19937_64 random_{std::random_device{}()};
};

}  // namespace pawl::job
