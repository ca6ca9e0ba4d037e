// KeyValues: leases, history, and the way to and from the log. Requests are in key_values.cc.
#include <algorithm>

#include "base/text.h"
#include "job/control/key_range.h"
#include "job/control/key_values.h"

namespace pawl::job {

using grpc::StatusCode;
using pawl::control::Begin;
using pawl::control::Change;
using pawl::control::Commit;

namespace {

constexpr std::int64_t kTtlMax = 9'000'000'000;  // etcd's, seconds
constexpr std::uint32_t kLogFormat = 1;
constexpr int kChangesPerBatch = 1000;

std::size_t size_of(const mvccpb::KeyValue& kv) {
  return kv.key().size() + kv.value().size() + 64;
}
std::size_t size_of(const mvccpb::Event& event) {
  return size_of(event.kv()) + size_of(event.prev_kv());
}

Error does_not_follow(std::string what) {
  return Error{Code::corrupt, text("the log contradicts itself: ", what)};
}

}  // namespace

// The one place where keys change, live and in replay.
void KeyValues::record(const mvccpb::Event& event) {
  const mvccpb::KeyValue& kv = event.kv();
  mvccpb::Event remembered = event;
  if (const auto old = kvs_.find(kv.key()); old != kvs_.end()) {
    if (const auto lease = leases_.find(old->second.lease()); lease != leases_.end())
      lease->second.keys.erase(kv.key());
    state_bytes_ -= size_of(old->second);
    *remembered.mutable_prev_kv() = std::move(old->second);
    kvs_.erase(old);
  }
  if (event.type() == mvccpb::Event::PUT) {
    if (const auto lease = leases_.find(kv.lease()); lease != leases_.end()) lease->second.keys.insert(kv.key());
    state_bytes_ += size_of(kv);
    kvs_.emplace(kv.key(), kv);
  }
  history_bytes_ += size_of(remembered);
  history_.push_back(std::move(remembered));
}

void KeyValues::finish(Commit commit, Log* log) {
  if (commit.events_size() > 0) ++revision_;
  if (commit.events_size() == 0 && commit.lease_revoked() == 0) return;
  commit.set_revision(revision_);
  *log->add_changes()->mutable_commit() = std::move(commit);
  trim_history();
}

// Forgets the oldest revisions, each as a whole, never the newest one.
void KeyValues::trim_history() {
  while (history_.size() > options_.history_events_max || history_bytes_ > options_.history_bytes_max) {
    const Revision oldest = history_.front().kv().mod_revision();
    if (oldest == revision_) return;
    while (!history_.empty() && history_.front().kv().mod_revision() == oldest) {
      history_bytes_ -= size_of(history_.front());
      history_.pop_front();
    }
    compacted_ = std::max(compacted_, oldest + 1);
  }
}

grpc::Status KeyValues::compact(const etcdserverpb::CompactionRequest& request, Log* log) {
  if (request.revision() > revision_)
    return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision"};
  if (request.revision() <= compacted_)
    return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"};
  Change change;
  change.set_compacted(request.revision());
  (void)apply(change, {});
  *log->add_changes() = std::move(change);
  return grpc::Status::OK;
}

void KeyValues::set_deadline(LeaseId id, Lease& lease, Time deadline) {
  deadlines_.erase({lease.deadline, id});
  lease.deadline = deadline;
  deadlines_.emplace(deadline, id);
}

grpc::Status KeyValues::lease_grant(const etcdserverpb::LeaseGrantRequest& request, Time now,
                                    etcdserverpb::LeaseGrantResponse* response, Log* log) {
  if (request.ttl() > kTtlMax) return {StatusCode::OUT_OF_RANGE, "etcdserver: too large lease TTL"};
  if (leases_.contains(request.id())) return {StatusCode::FAILED_PRECONDITION, "etcdserver: lease already exists"};
  LeaseId id = request.id();
  while (id == 0 || leases_.contains(id)) id = static_cast<LeaseId>(random_() >> 1);
  Change change;
  change.mutable_lease_granted()->set_id(id);
  change.mutable_lease_granted()->set_ttl_s(std::max<std::int64_t>(request.ttl(), 1));
  (void)apply(change, now);
  response->set_id(id);
  response->set_ttl(change.lease_granted().ttl_s());
  *log->add_changes() = std::move(change);
  return grpc::Status::OK;
}

void KeyValues::revoke(LeaseId id, Commit* commit) {
  const std::set<std::string> keys = leases_[id].keys;
  for (const std::string& key : keys) {
    auto* event = commit->add_events();
    event->set_type(mvccpb::Event::DELETE);
    event->mutable_kv()->set_key(key);
    event->mutable_kv()->set_mod_revision(revision_ + 1);
    record(*event);
  }
  commit->set_lease_revoked(id);
  deadlines_.erase({leases_[id].deadline, id});
  leases_.erase(id);
}

grpc::Status KeyValues::lease_revoke(LeaseId id, Log* log) {
  if (!leases_.contains(id)) return {StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
  Commit commit;
  revoke(id, &commit);
  finish(std::move(commit), log);
  return grpc::Status::OK;
}

std::int64_t KeyValues::lease_keep_alive(LeaseId id, Time now) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return 0;
  set_deadline(id, found->second, now + std::chrono::seconds(found->second.ttl_s));
  return found->second.ttl_s;
}

void KeyValues::lease_time_to_live(const etcdserverpb::LeaseTimeToLiveRequest& request, Time now,
                                   etcdserverpb::LeaseTimeToLiveResponse* response) const {
  response->set_id(request.id());
  const auto found = leases_.find(request.id());
  if (found == leases_.end()) return response->set_ttl(-1);
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(found->second.deadline - now).count();
  response->set_ttl(std::max<std::int64_t>(left, 0));
  response->set_grantedttl(found->second.ttl_s);
  if (request.keys())
    for (const std::string& key : found->second.keys) response->add_keys(key);
}

void KeyValues::lease_list(etcdserverpb::LeaseLeasesResponse* response) const {
  for (const auto& [id, lease] : leases_) response->add_leases()->set_id(id);
}

void KeyValues::expire_leases(Time now, Log* log) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) (void)lease_revoke(deadlines_.begin()->second, log);
}

std::optional<KeyValues::Time> KeyValues::next_deadline() const {
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void KeyValues::postpone_leases(std::chrono::nanoseconds by, Time now) {
  for (auto& [id, lease] : leases_)
    set_deadline(id, lease,
                 std::min(lease.deadline + std::chrono::duration_cast<Time::duration>(by),
                          now + std::chrono::seconds(lease.ttl_s)));
}

EventSlice KeyValues::events(const EventQuery& query, std::size_t bytes_max) const {
  EventSlice slice;
  if (query.from < compacted_) {
    slice.compacted = true;
    return slice;
  }
  std::size_t bytes = 0;
  slice.next = std::max(query.from, query.through + 1);
  auto event = std::lower_bound(history_.begin(), history_.end(), query.from,
                                [](const auto& e, Revision revision) { return e.kv().mod_revision() < revision; });
  Revision previous = 0;
  for (; event != history_.end() && event->kv().mod_revision() <= query.through; ++event) {
    const Revision revision = event->kv().mod_revision();
    if (revision != previous && bytes > bytes_max) {
      slice.next = revision;
      return slice;
    }
    previous = revision;
    const bool wanted = event->type() == mvccpb::Event::PUT ? query.puts : query.deletes;
    if (!wanted || !key_in_range(event->kv().key(), query.key, query.range_end)) continue;
    bytes += size_of(*event);
    slice.events.push_back(*event);
    if (!query.prev_kv) slice.events.back().clear_prev_kv();
  }
  return slice;
}

Status KeyValues::begin(const Begin& begin, Time now) {
  if (begin.format() != kLogFormat)
    return Error{Code::corrupt, text("log format ", begin.format(), "; this version reads ", kLogFormat)};
  revision_ = begin.revision();
  compacted_ = begin.compacted();
  for (const auto& lease : begin.leases()) {
    Change granted;
    *granted.mutable_lease_granted() = lease;
    PAWL_TRY(apply(granted, now));
  }
  for (const auto& kv : begin.kvs()) {
    kvs_[kv.key()] = kv;
    state_bytes_ += size_of(kv);
    if (const auto lease = leases_.find(kv.lease()); lease != leases_.end()) lease->second.keys.insert(kv.key());
  }
  return {};
}

Status KeyValues::apply(const Change& change, Time now) {
  switch (change.what_case()) {
    case Change::kBegin:
      return begin(change.begin(), now);
    case Change::kLeaseGranted: {
      const auto& granted = change.lease_granted();
      const auto [lease, is_new] = leases_.try_emplace(granted.id());
      if (!is_new) return does_not_follow(text("lease ", granted.id(), " granted twice"));
      lease->second.ttl_s = granted.ttl_s();
      set_deadline(granted.id(), lease->second, now + std::chrono::seconds(granted.ttl_s()));
      return {};
    }
    case Change::kCompacted: {
      compacted_ = change.compacted();
      while (!history_.empty() && history_.front().kv().mod_revision() < compacted_) {
        history_bytes_ -= size_of(history_.front());
        history_.pop_front();
      }
      return {};
    }
    case Change::kCommit: {
      const Commit& commit = change.commit();
      const Revision expected = revision_ + (commit.events_size() > 0 ? 1 : 0);
      if (commit.revision() != expected)
        return does_not_follow(text("revision ", commit.revision(), " where ", expected, " belongs"));
      for (const auto& event : commit.events()) {
        if (event.kv().mod_revision() != expected) return does_not_follow(text("an event outside revision ", expected));
        record(event);
      }
      revision_ = expected;
      if (const auto lease = leases_.find(commit.lease_revoked()); lease != leases_.end()) {
        deadlines_.erase({lease->second.deadline, lease->first});
        leases_.erase(lease);
      }
      trim_history();
      return {};
    }
    default:
      return does_not_follow("a change of an unknown kind");
  }
}

std::vector<KeyValues::Log> KeyValues::snapshot(std::uint64_t cluster_id, std::uint64_t member_id) const {
  const Revision base = history_.empty() ? revision_ : history_.front().kv().mod_revision() - 1;
  std::vector<Log> logs(1);
  Begin* begin = logs[0].add_changes()->mutable_begin();
  begin->set_format(kLogFormat);
  begin->set_cluster_id(cluster_id);
  begin->set_member_id(member_id);
  begin->set_revision(base);
  begin->set_compacted(compacted_);
  for (const auto& [id, lease] : leases_) {
    auto* out = begin->add_leases();
    out->set_id(id);
    out->set_ttl_s(lease.ttl_s);
  }
  for (auto& [key, kv] : view_at(base, std::string(1, '\0'), std::string(kNoEnd))) *begin->add_kvs() = kv;

  Commit* commit = nullptr;
  for (const auto& event : history_) {
    const Revision revision = event.kv().mod_revision();
    if (commit == nullptr || commit->revision() != revision) {
      if (logs.size() == 1 || logs.back().changes_size() >= kChangesPerBatch) logs.emplace_back();
      commit = logs.back().add_changes()->mutable_commit();
      commit->set_revision(revision);
    }
    auto* out = commit->add_events();
    *out = event;
    out->clear_prev_kv();
  }
  return logs;
}

}  // namespace pawl::job
