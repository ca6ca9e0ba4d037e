// Requests: checks first, then the part that cannot fail. Leases, history and the log are in key_values_log.cc.
#include "job/control/key_values.h"

#include <algorithm>

#include "job/control/key_range.h"

namespace pawl::job {

using etcdserverpb::Compare;
using etcdserverpb::DeleteRangeRequest;
using etcdserverpb::DeleteRangeResponse;
using etcdserverpb::PutRequest;
using etcdserverpb::PutResponse;
using etcdserverpb::RangeRequest;
using etcdserverpb::RangeResponse;
using etcdserverpb::RequestOp;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;
using grpc::StatusCode;
using pawl::control::Commit;

namespace {

constexpr int kTxnOpsMax = 128;  // etcd's own default, so that what works here works there
const mvccpb::KeyValue kAbsent;

grpc::Status no_key() {
  return {StatusCode::INVALID_ARGUMENT, "etcdserver: key is not provided"};
}

grpc::Status check_form(const PutRequest& request) {
  if (request.key().empty()) return no_key();
  if (request.ignore_value() && !request.value().empty())
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: value is provided"};
  if (request.ignore_lease() && request.lease() != 0)
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: lease is provided"};
  return grpc::Status::OK;
}

// What the operations of one branch may touch. No put may meet another put or a delete of the same branch.
struct Touched {
  std::set<std::string> puts;
  std::vector<std::pair<std::string, std::string>> deletes;
};

using Ops = google::protobuf::RepeatedPtrField<RequestOp>;

bool is_free(const Touched& touched, const std::string& key) {
  return !touched.puts.contains(key) &&
         std::none_of(touched.deletes.begin(), touched.deletes.end(),
                      [&](const auto& range) { return key_in_range(key, range.first, range.second); });
}

bool collect(const Ops& ops, Touched* touched);

// Of the two branches of a nested transaction only one will run, so they may meet each other.
bool collect_nested(const TxnRequest& txn, Touched* touched) {
  Touched won, lost;
  if (!collect(txn.success(), &won) || !collect(txn.failure(), &lost)) return false;
  for (const auto* puts : {&won.puts, &lost.puts})
    for (const std::string& key : *puts)
      if (!is_free(*touched, key)) return false;
  for (auto* branch : {&won, &lost}) {
    touched->puts.merge(branch->puts);
    touched->deletes.insert(touched->deletes.end(), branch->deletes.begin(), branch->deletes.end());
  }
  return true;
}

// In etcd's order, which lets a nested delete pass that meets only a put of an earlier nested transaction.
bool collect(const Ops& ops, Touched* touched) {
  for (const RequestOp& op : ops)
    if (op.has_request_delete_range())
      touched->deletes.emplace_back(op.request_delete_range().key(), op.request_delete_range().range_end());
  for (const RequestOp& op : ops)
    if (op.has_request_txn() && !collect_nested(op.request_txn(), touched)) return false;
  for (const RequestOp& op : ops) {
    if (!op.has_request_put()) continue;
    if (!is_free(*touched, op.request_put().key())) return false;
    touched->puts.insert(op.request_put().key());
  }
  return true;
}

// What is wrong with a transaction whatever the store holds, in either branch.
grpc::Status check_form(const TxnRequest& request) {
  for (int count : {request.compare_size(), request.success_size(), request.failure_size()})
    if (count > kTxnOpsMax) return {StatusCode::INVALID_ARGUMENT, "etcdserver: too many operations in txn request"};
  for (const Compare& compare : request.compare())
    if (compare.key().empty()) return no_key();
  for (const auto* branch : {&request.success(), &request.failure()})
    for (const RequestOp& op : *branch) {
      grpc::Status checked = grpc::Status::OK;
      if (op.has_request_range() && op.request_range().key().empty()) checked = no_key();
      if (op.has_request_put()) checked = check_form(op.request_put());
      if (op.has_request_delete_range() && op.request_delete_range().key().empty()) checked = no_key();
      if (op.has_request_txn()) checked = check_form(op.request_txn());
      if (!checked.ok()) return checked;
    }
  return grpc::Status::OK;
}

template <class Value>
bool compare_values(const Value& left, const Value& right, Compare::CompareResult result) {
  switch (result) {
    case Compare::EQUAL:
      return left == right;
    case Compare::GREATER:
      return left > right;
    case Compare::LESS:
      return left < right;
    case Compare::NOT_EQUAL:
      return left != right;
    default:
      return false;
  }
}

bool holds_of(const Compare& compare, const mvccpb::KeyValue& kv) {
  switch (compare.target()) {
    case Compare::VERSION:
      return compare_values(kv.version(), compare.version(), compare.result());
    case Compare::CREATE:
      return compare_values(kv.create_revision(), compare.create_revision(), compare.result());
    case Compare::MOD:
      return compare_values(kv.mod_revision(), compare.mod_revision(), compare.result());
    case Compare::VALUE:
      return compare_values(kv.value(), compare.value(), compare.result());
    case Compare::LEASE:
      return compare_values(kv.lease(), compare.lease(), compare.result());
    default:
      return false;
  }
}

bool less_by(RangeRequest::SortTarget target, const mvccpb::KeyValue& a, const mvccpb::KeyValue& b) {
  switch (target) {
    case RangeRequest::VERSION:
      return a.version() < b.version();
    case RangeRequest::CREATE:
      return a.create_revision() < b.create_revision();
    case RangeRequest::MOD:
      return a.mod_revision() < b.mod_revision();
    case RangeRequest::VALUE:
      return a.value() < b.value();
    default:
      return a.key() < b.key();
  }
}

void sort_as_asked(const RangeRequest& request, std::vector<const mvccpb::KeyValue*>* kvs) {
  const auto less = [&](const auto* a, const auto* b) { return less_by(request.sort_target(), *a, *b); };
  const auto more = [&](const auto* a, const auto* b) { return less(b, a); };
  if (request.sort_order() == RangeRequest::DESCEND)
    std::stable_sort(kvs->begin(), kvs->end(), more);
  else if (request.sort_target() != RangeRequest::KEY)
    std::stable_sort(kvs->begin(), kvs->end(), less);
}

bool passes_filters(const RangeRequest& request, const mvccpb::KeyValue& kv) {
  return (request.min_mod_revision() == 0 || kv.mod_revision() >= request.min_mod_revision()) &&
         (request.max_mod_revision() == 0 || kv.mod_revision() <= request.max_mod_revision()) &&
         (request.min_create_revision() == 0 || kv.create_revision() >= request.min_create_revision()) &&
         (request.max_create_revision() == 0 || kv.create_revision() <= request.max_create_revision());
}

}  // namespace

KeyValues::KeyValues(KeyValuesOptions options) : options_(options) {}

template <class Map>
auto KeyValues::bounds(Map& map, const std::string& key, const std::string& range_end) {
  const auto first = map.lower_bound(key);
  if (range_end == kNoEnd) return std::pair(first, map.end());
  if (range_end.empty()) return std::pair(first, map.upper_bound(key));
  return range_end <= key ? std::pair(first, first) : std::pair(first, map.lower_bound(range_end));
}

// The store as it was: today's keys with the events since then undone.
KeyValues::KvMap KeyValues::view_at(Revision revision, const std::string& key, const std::string& range_end) const {
  const auto [first, last] = bounds(kvs_, key, range_end);
  KvMap view(first, last);
  for (auto event = history_.rbegin(); event != history_.rend() && event->kv().mod_revision() > revision; ++event) {
    if (!key_in_range(event->kv().key(), key, range_end)) continue;
    if (event->has_prev_kv())
      view[event->kv().key()] = event->prev_kv();
    else
      view.erase(event->kv().key());
  }
  return view;
}

grpc::Status KeyValues::check_range(const RangeRequest& request) const {
  if (request.key().empty()) return no_key();
  if (request.revision() > revision_)
    return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision"};
  if (request.revision() > 0 && request.revision() < compacted_)
    return {StatusCode::OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted"};
  return grpc::Status::OK;
}

grpc::Status KeyValues::range(const RangeRequest& request, RangeResponse* response) const {
  if (auto checked = check_range(request); !checked.ok()) return checked;
  KvMap old;
  // Inside a transaction that has written, even the newest finished revision is the past.
  const bool of_past =
      request.revision() > 0 && !history_.empty() && history_.back().kv().mod_revision() > request.revision();
  if (of_past) old = view_at(request.revision(), request.key(), request.range_end());
  const KvMap& kvs = of_past ? old : kvs_;
  const auto [first, last] = bounds(kvs, request.key(), request.range_end());

  std::vector<const mvccpb::KeyValue*> found;
  response->mutable_header()->set_revision(revision_);
  response->set_count(std::distance(first, last));
  if (request.count_only()) return grpc::Status::OK;
  for (auto it = first; it != last; ++it)
    if (passes_filters(request, it->second)) found.push_back(&it->second);
  sort_as_asked(request, &found);
  if (request.limit() > 0 && found.size() > static_cast<std::size_t>(request.limit())) {
    found.resize(static_cast<std::size_t>(request.limit()));
    response->set_more(true);
  }
  for (const auto* kv : found) {
    auto* out = response->add_kvs();
    *out = *kv;
    if (request.keys_only()) out->clear_value();
  }
  return grpc::Status::OK;
}

grpc::Status KeyValues::check_lease(const PutRequest& request) const {
  if (request.lease() != 0 && !leases_.contains(request.lease()))
    return {StatusCode::NOT_FOUND, "etcdserver: requested lease not found"};
  return grpc::Status::OK;
}

grpc::Status KeyValues::check_put(const PutRequest& request) const {
  if ((request.ignore_value() || request.ignore_lease()) && !kvs_.contains(request.key()))
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: key not found"};
  if (auto checked = check_lease(request); !checked.ok()) return checked;
  if (state_bytes_ + request.key().size() + request.value().size() > options_.state_bytes_max)
    return {StatusCode::RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded"};
  return grpc::Status::OK;
}

// Decides each branch, and whether the operations on it can be done.
grpc::Status KeyValues::take_path(const TxnRequest& request, Path* path) const {
  const bool won = std::all_of(request.compare().begin(), request.compare().end(),
                               [&](const Compare& compare) { return holds(compare); });
  path->push_back(won);
  for (const RequestOp& op : won ? request.success() : request.failure()) {
    grpc::Status checked = grpc::Status::OK;
    if (op.has_request_range()) checked = check_range(op.request_range());
    if (op.has_request_put()) checked = check_put(op.request_put());
    if (op.has_request_txn()) checked = take_path(op.request_txn(), path);
    if (!checked.ok()) return checked;
  }
  return grpc::Status::OK;
}

bool KeyValues::holds(const Compare& compare) const {
  const auto [first, last] = bounds(kvs_, compare.key(), compare.range_end());
  // A missing key has every number 0, but no value at all, not even an empty one.
  if (first == last) return compare.target() != Compare::VALUE && holds_of(compare, kAbsent);
  return std::all_of(first, last, [&](const auto& entry) { return holds_of(compare, entry.second); });
}

void KeyValues::do_put(const PutRequest& request, PutResponse* response, Commit* commit) {
  const auto found = kvs_.find(request.key());
  const mvccpb::KeyValue& old = found == kvs_.end() ? kAbsent : found->second;
  mvccpb::Event event;
  auto* kv = event.mutable_kv();
  kv->set_key(request.key());
  kv->set_value(request.ignore_value() ? old.value() : request.value());
  kv->set_lease(request.ignore_lease() ? old.lease() : request.lease());
  kv->set_version(old.version() + 1);
  kv->set_mod_revision(revision_ + 1);
  kv->set_create_revision(old.version() == 0 ? revision_ + 1 : old.create_revision());
  if (request.prev_kv() && old.version() > 0) *response->mutable_prev_kv() = old;
  response->mutable_header()->set_revision(revision_ + 1);
  record(event);
  *commit->add_events() = std::move(event);
}

void KeyValues::do_delete(const DeleteRangeRequest& request, DeleteRangeResponse* response, Commit* commit) {
  const auto [first, last] = bounds(kvs_, request.key(), request.range_end());
  std::vector<mvccpb::Event> events;
  for (auto it = first; it != last; ++it) {
    if (request.prev_kv()) *response->add_prev_kvs() = it->second;
    auto& event = events.emplace_back();
    event.set_type(mvccpb::Event::DELETE);
    event.mutable_kv()->set_key(it->first);
    event.mutable_kv()->set_mod_revision(revision_ + 1);
  }
  response->set_deleted(static_cast<std::int64_t>(events.size()));
  for (auto& event : events) {
    record(event);
    *commit->add_events() = std::move(event);
  }
  response->mutable_header()->set_revision(revision_ + (commit->events_size() > 0 ? 1 : 0));
}

void KeyValues::do_txn(const TxnRequest& request, TxnResponse* response, Path::const_iterator* path, Commit* commit) {
  const bool won = *(*path)++;
  response->set_succeeded(won);
  for (const RequestOp& op : won ? request.success() : request.failure()) {
    auto* out = response->add_responses();
    if (op.has_request_range()) (void)range(op.request_range(), out->mutable_response_range());
    if (op.has_request_put()) do_put(op.request_put(), out->mutable_response_put(), commit);
    if (op.has_request_delete_range())
      do_delete(op.request_delete_range(), out->mutable_response_delete_range(), commit);
    if (op.has_request_txn()) do_txn(op.request_txn(), out->mutable_response_txn(), path, commit);
  }
  response->mutable_header()->set_revision(revision_ + (commit->events_size() > 0 ? 1 : 0));
}

grpc::Status KeyValues::put(const PutRequest& request, PutResponse* response, Log* log) {
  if (auto checked = check_form(request); !checked.ok()) return checked;
  if (auto checked = check_lease(request); !checked.ok()) return checked;  // first here, last in a transaction, as etcd
  if (auto checked = check_put(request); !checked.ok()) return checked;
  Commit commit;
  do_put(request, response, &commit);
  finish(std::move(commit), log);
  return grpc::Status::OK;
}

grpc::Status KeyValues::delete_range(const DeleteRangeRequest& request, DeleteRangeResponse* response, Log* log) {
  if (request.key().empty()) return no_key();
  Commit commit;
  do_delete(request, response, &commit);
  finish(std::move(commit), log);
  return grpc::Status::OK;
}

grpc::Status KeyValues::txn(const TxnRequest& request, TxnResponse* response, Log* log) {
  if (auto checked = check_form(request); !checked.ok()) return checked;
  Touched touched[2];
  if (!collect(request.success(), &touched[0]) || !collect(request.failure(), &touched[1]))
    return {StatusCode::INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request"};
  Path path;
  if (auto checked = take_path(request, &path); !checked.ok()) return checked;
  Commit commit;
  Path::const_iterator taken = path.begin();
  do_txn(request, response, &taken, &commit);
  finish(std::move(commit), log);
  return grpc::Status::OK;
}

}  // namespace pawl::job
