#include "control.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::sim {

using namespace std::chrono_literals;
using job::KeyTally;
using job::KeyValue;
using job::LeaseId;
using job::Listing;
using job::Revision;
using job::Swapped;
using job::WatchEvent;

namespace {

constexpr Duration kCallDeadline = 2s;  // as pawld's (job/daemon/daemon.cc)

KeyValue from_wire(const mvccpb::KeyValue& kv) {
  return {kv.key(), kv.value(), kv.mod_revision(), kv.create_revision(), kv.lease()};
}

std::string end_of_prefix(std::string prefix) {
  prefix.back() = static_cast<char>(prefix.back() + 1);  // of ours none ends in 0xff
  return prefix;
}

Error error_of(const grpc::Status& status, const char* what) {
  const Code code = status.error_code() == grpc::StatusCode::NOT_FOUND            ? Code::not_found
                    : status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED ? Code::full
                                                                                  : Code::invalid;
  return {code, text("control ", what, ": ", status.error_message())};
}

WatchKind kind_of(const std::string& prefix) {
  if (prefix.find(":reports/") != std::string::npos) return WatchKind::reports;
  return prefix.find(":nodes/") != std::string::npos ? WatchKind::nodes : WatchKind::keys;
}

// A watch with a task of its own. It resumes from the next revision after any absence, or from a listing, if what came
// meanwhile was compacted.
class ModelWatch final : public job::Watch {
 public:
  ModelWatch(ControlServerModel& server, Machines& machines, Process& client, std::string prefix, Revision from,
             std::function<void(const WatchEvent&)> on_event)
      : server_(server),
        machines_(machines),
        client_(client),
        kind_(kind_of(prefix)),
        prefix_(std::move(prefix)),
        tasks_(machines.scheduler(), client) {
    task_ = tasks_.start("watch", [this, from, on_event = std::move(on_event)] { run(from, on_event); });
  }
  ~ModelWatch() override {
    ended_ = true;
    machines_.scheduler().notify(server_.watchers[prefix_]);
    task_->join();
  }

 private:
  void run(Revision from, const std::function<void(const WatchEvent&)>& on_event) {
    Scheduler& scheduler = machines_.scheduler();
    Revision next = from == 0 ? server_.keys.revision() + 1 : from;
    while (!ended_) {
      const Revision through = server_.keys.revision();
      if (through < next || !is_served()) {
        // Data may have been lost: then revisions are made anew, and what we wait for never comes.
        if (is_served() && through + 1 < next) {
          next = through + 1;
          on_event({WatchEvent::Kind::resync, {}, next - 1});
        }
        scheduler.wait(server_.watchers[prefix_], scheduler.now() + 1s);
        continue;
      }
      scheduler.sleep(scheduler.between(50us, 400us));
      be_late();
      if (ended_ || !is_served()) continue;
      const job::EventSlice slice = server_.keys.events({prefix_, end_of_prefix(prefix_), next, through}, 1 << 20);
      if (slice.compacted) {
        next = server_.keys.revision() + 1;
        on_event({WatchEvent::Kind::resync, {}, next - 1});
        continue;
      }
      for (const auto& event : slice.events) {
        WatchEvent told;
        told.kind = event.type() == mvccpb::Event::PUT ? WatchEvent::Kind::put : WatchEvent::Kind::erased;
        told.kv = from_wire(event.kv());
        told.revision = event.kv().mod_revision();
        if (!server_.before_told || server_.before_told(told)) on_event(told);
      }
      next = slice.next;
    }
  }
  [[nodiscard]] bool is_served() const {
    return server_.reachable(client_.machine) && server_.stops == 0 &&
           server_.trouble(client_.machine, kind_).losses == 0;
  }
  // Whoever destroys the watch waits for no trouble.
  void be_late() {
    const Duration until = machines_.scheduler().now() + server_.trouble(client_.machine, kind_).late;
    while (!ended_ && machines_.scheduler().wait(server_.watchers[prefix_], until)) {
    }
  }

  ControlServerModel& server_;
  Machines& machines_;
  Process& client_;
  const WatchKind kind_;
  const std::string prefix_;
  ProcessTasks tasks_;
  bool ended_ = false;
  std::unique_ptr<Task> task_;
};

class ModelControl final : public job::Control {
 public:
  ModelControl(ControlServerModel& server, Machines& machines, Process& client)
      : server_(server), machines_(machines), client_(client) {}

  Result<KeyValue> get(std::string_view key) override {
    etcdserverpb::RangeRequest request;
    etcdserverpb::RangeResponse response;
    request.set_key(std::string(key));
    PAWL_TRY(reach(false));
    PAWL_TRY(done(server_.keys.range(request, &response), "get"));
    PAWL_TRY(answer());
    if (response.kvs_size() == 0) return Error{Code::not_found, text("control get: no key ", key)};
    return from_wire(response.kvs(0));
  }
  Result<Listing> list(std::string_view prefix) override {
    etcdserverpb::RangeRequest request;
    etcdserverpb::RangeResponse response;
    request.set_key(std::string(prefix));
    request.set_range_end(end_of_prefix(std::string(prefix)));
    PAWL_TRY(reach(false));
    PAWL_TRY(done(server_.keys.range(request, &response), "list"));
    Listing listing;
    listing.revision = server_.keys.revision();
    for (const auto& kv : response.kvs()) listing.kvs.push_back(from_wire(kv));
    PAWL_TRY(answer());
    return listing;
  }
  Result<KeyTally> tally(std::string_view prefix) override {
    etcdserverpb::RangeRequest request;
    etcdserverpb::RangeResponse response;
    request.set_key(std::string(prefix));
    request.set_range_end(end_of_prefix(std::string(prefix)));
    request.set_sort_target(etcdserverpb::RangeRequest::MOD);
    request.set_sort_order(etcdserverpb::RangeRequest::DESCEND);
    request.set_limit(1);
    request.set_keys_only(true);
    PAWL_TRY(reach(false));
    PAWL_TRY(done(server_.keys.range(request, &response), "tally"));
    PAWL_TRY(answer());
    const Revision newest = response.kvs_size() > 0 ? response.kvs(0).mod_revision() : 0;
    return KeyTally{static_cast<std::uint64_t>(response.count()), newest, response.header().revision()};
  }
  Result<Revision> put(std::string_view key, std::string_view value, LeaseId lease) override {
    etcdserverpb::PutRequest request;
    etcdserverpb::PutResponse response;
    request.set_key(std::string(key));
    request.set_value(std::string(value));
    request.set_lease(lease);
    PAWL_TRY(reach(true));
    const PutFault fault =
        server_.before_put ? server_.before_put(client_, request.key(), *request.mutable_value()) : PutFault::none;
    if (fault == PutFault::dies_before) die();
    if (fault == PutFault::late) machines_.scheduler().sleep(machines_.scheduler().between(100ms, 1200ms));
    if (fault == PutFault::never) return server_.keys.revision();
    PAWL_TRY(done(server_.keys.put(request, &response, &log_), "put"));
    told(request.key(), request.value());
    if (fault == PutFault::dies_after) die();
    const Revision revision = server_.keys.revision();
    PAWL_TRY(answer());
    return revision;
  }
  Result<std::int64_t> erase(std::string_view key) override { return erase_range(std::string(key), ""); }
  Result<std::int64_t> erase_prefix(std::string_view prefix) override {
    return erase_range(std::string(prefix), end_of_prefix(std::string(prefix)));
  }
  Result<Swapped> compare_and_swap(std::string_view key, Revision expected, std::string_view value,
                                   LeaseId lease) override {
    etcdserverpb::TxnRequest request;
    etcdserverpb::TxnResponse response;
    auto* compare = request.add_compare();
    compare->set_key(std::string(key));
    compare->set_target(etcdserverpb::Compare::MOD);
    compare->set_result(etcdserverpb::Compare::EQUAL);
    compare->set_mod_revision(expected);
    auto* put = request.add_success()->mutable_request_put();
    put->set_key(std::string(key));
    put->set_value(std::string(value));
    put->set_lease(lease);
    request.add_failure()->mutable_request_range()->set_key(std::string(key));
    PAWL_TRY(reach(true));
    PAWL_TRY(done(server_.keys.txn(request, &response, &log_), "transaction"));
    if (response.succeeded()) told(std::string(key), std::string(value));
    Swapped swapped{response.succeeded(), server_.keys.revision(), std::nullopt};
    if (!swapped.won) {
      const auto& range = response.responses(0).response_range();
      if (range.kvs_size() > 0) swapped.current = from_wire(range.kvs(0));
    }
    PAWL_TRY(answer());
    return swapped;
  }
  // As the daemon asks for it: puts and erasures, if keys are as they were.
  Result<job::Transacted> transact(const std::vector<job::KeyCompare>& compares,
                                   const std::vector<job::KeyChange>& changes) override {
    etcdserverpb::TxnRequest request;
    etcdserverpb::TxnResponse response;
    for (const job::KeyCompare& asked : compares) {
      auto* compare = request.add_compare();
      compare->set_key(asked.key);
      compare->set_target(etcdserverpb::Compare::MOD);
      compare->set_result(etcdserverpb::Compare::EQUAL);
      compare->set_mod_revision(asked.revision);
      request.add_failure()->mutable_request_range()->set_key(asked.key);
    }
    for (const job::KeyChange& change : changes) {
      if (change.kind == job::KeyChange::Kind::put) {
        auto* put = request.add_success()->mutable_request_put();
        put->set_key(change.key);
        put->set_value(change.value);
        put->set_lease(change.lease);
      } else {
        request.add_success()->mutable_request_delete_range()->set_key(change.key);
      }
    }
    PAWL_TRY(reach(true));
    PAWL_TRY(done(server_.keys.txn(request, &response, &log_), "transaction"));
    job::Transacted transacted{response.succeeded(), server_.keys.revision(), {}};
    for (const job::KeyChange& change : changes)
      if (transacted.won && change.kind == job::KeyChange::Kind::put)
        told(change.key, change.value);
      else if (transacted.won)
        server_.touch(change.key);
    for (int i = 0; !transacted.won && i < response.responses_size(); ++i) {
      const auto& range = response.responses(i).response_range();
      transacted.current.push_back(range.kvs_size() > 0 ? std::optional(from_wire(range.kvs(0))) : std::nullopt);
    }
    PAWL_TRY(answer());
    return transacted;
  }
  Result<LeaseId> lease_grant(std::chrono::seconds time_to_live) override {
    etcdserverpb::LeaseGrantRequest request;
    etcdserverpb::LeaseGrantResponse response;
    request.set_ttl(time_to_live.count());
    request.set_id(static_cast<std::int64_t>(machines_.scheduler().random(std::uint64_t{1} << 60) + 1));
    PAWL_TRY(reach(true));
    PAWL_TRY(done(server_.keys.lease_grant(request, server_.time(), &response, &log_), "lease grant"));
    PAWL_TRY(answer());
    return response.id();
  }
  Result<std::chrono::seconds> lease_keep_alive_once(LeaseId lease) override {
    PAWL_TRY(reach(false));
    server_.expire();
    const std::int64_t left = server_.keys.lease_keep_alive(lease, server_.time());
    PAWL_TRY(answer());
    if (left <= 0) return Error{Code::not_found, text("control lease renewal: lease ", lease, " is gone")};
    return std::chrono::seconds(left);
  }
  Status lease_revoke(LeaseId lease) override {
    PAWL_TRY(reach(true));
    PAWL_TRY(done(server_.keys.lease_revoke(lease, &log_), "lease end"));
    server_.touch();
    return answer();
  }
  std::unique_ptr<job::Watch> watch(std::string_view prefix, job::WatchOptions options,
                                    std::function<void(const WatchEvent&)> on_event) override {
    return std::make_unique<ModelWatch>(server_, machines_, client_, std::string(prefix), options.from_revision,
                                        std::move(on_event));
  }

 private:
  [[noreturn]] void die() {
    machines_.kill(client_, "killed by SIGKILL");
    machines_.scheduler().end_current();
  }
  // Until the request lies at the server; the deadline of the call begins here.
  Status reach(bool changes) {
    Scheduler& scheduler = machines_.scheduler();
    until_ = scheduler.now() + kCallDeadline;
    log_.Clear();
    for (;;) {
      scheduler.sleep(scheduler.between(60us, 300us) + (changes ? server_.disk : Duration::zero()));
      if (server_.reachable(client_.machine) && server_.stops == 0) {
        server_.expire();
        return {};
      }
      if (scheduler.now() >= until_) return Error{Code::unreachable, "control: no server answered (simulated)"};
      scheduler.wait(server_.changed, std::min(until_, scheduler.now() + 200ms));
    }
  }
  // Until its answer is here. It has happened, whatever this says.
  Status answer() {
    Scheduler& scheduler = machines_.scheduler();
    for (;;) {
      scheduler.sleep(scheduler.between(60us, 300us));
      if (server_.reachable(client_.machine) && server_.stops == 0) return {};
      if (scheduler.now() >= until_)
        return Error{Code::unreachable, "control: the connection broke and the outcome is unknown (simulated)"};
      scheduler.wait(server_.changed, std::min(until_, scheduler.now() + 200ms));
      if (server_.stops == 0)
        return Error{Code::unreachable, "control: the connection broke and the outcome is unknown (simulated)"};
    }
  }
  Status done(const grpc::Status& status, const char* what) {
    if (status.ok()) return {};
    return error_of(status, what);
  }
  void told(const std::string& key, const std::string& value) {
    server_.touch(key);
    if (server_.on_put) server_.on_put(key, value);
  }
  Result<std::int64_t> erase_range(std::string key, std::string end) {
    etcdserverpb::DeleteRangeRequest request;
    etcdserverpb::DeleteRangeResponse response;
    request.set_key(std::move(key));
    request.set_range_end(std::move(end));
    PAWL_TRY(reach(true));
    PAWL_TRY(done(server_.keys.delete_range(request, &response, &log_), "erase"));
    if (request.range_end().empty())
      server_.touch(request.key());
    else
      server_.touch();
    PAWL_TRY(answer());
    return response.deleted();
  }

  ControlServerModel& server_;
  Machines& machines_;
  Process& client_;
  Duration until_{};
  job::KeyValues::Log log_;
};

}  // namespace

ControlServerModel::ControlServerModel(Machines& machines)
    : cuts(machines.count(), 0), watches(machines.count()), machines_(machines) {}

void ControlServerModel::compact() {
  etcdserverpb::CompactionRequest request;
  job::KeyValues::Log log;
  request.set_revision(keys.revision());
  (void)keys.compact(request, &log);
}

void ControlServerModel::touch() {
  machines_.scheduler().notify(changed);
  for (auto& [prefix, waiting] : watchers) machines_.scheduler().notify(waiting);
}

void ControlServerModel::touch(const std::string& key) {
  machines_.scheduler().notify(changed);
  for (auto& [prefix, waiting] : watchers)
    if (key.starts_with(prefix)) machines_.scheduler().notify(waiting);
}

void ControlServerModel::expire() {
  if (downs > 0 || stops > 0) return;
  job::KeyValues::Log log;
  const Revision before = keys.revision();
  keys.expire_leases(time(), &log);
  if (keys.revision() != before) touch();
}

std::unique_ptr<job::Control> ControlServerModel::connect(Process& client) {
  return std::make_unique<ModelControl>(*this, machines_, client);
}

}  // namespace pawl::sim
