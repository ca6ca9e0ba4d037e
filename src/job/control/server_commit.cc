#include "job/control/server_commit.h"

#include <algorithm>
#include <random>

#include "base/log.h"
#include "base/text.h"

namespace pawl::job {
namespace {

constexpr auto kTick = std::chrono::milliseconds(250);        // the longest sleep while leases run
constexpr auto kStoodStill = std::chrono::milliseconds(500);  // waking later than this is no mere scheduling delay

constexpr auto kNever = Committer::Time::max() - std::chrono::hours(1);

std::vector<std::string> serialized(const std::vector<KeyValues::Log>& logs) {
  std::vector<std::string> payloads;
  for (const auto& log : logs) payloads.push_back(log.SerializeAsString());
  return payloads;
}

}  // namespace

Committer::Committer(CommitterOptions options) : options_(std::move(options)), key_values_(options_.key_values) {}

Result<std::unique_ptr<Committer>> Committer::open(CommitterOptions options) {
  std::unique_ptr<Committer> committer(new Committer(std::move(options)));
  PAWL_TRY(committer->replay());
  PAWL_ASSIGN(committer->thread_, Thread::start("commit", [raw = committer.get()] { raw->run(); }));
  return committer;
}

Status Committer::replay() {
  const Time now = std::chrono::steady_clock::now();
  bool begun = false;
  PAWL_ASSIGN(wal_, Wal::open(options_.wal, [&](std::string_view payload) -> Status {
                KeyValues::Log batch;
                if (!batch.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
                  return Error{Code::corrupt, "a sound frame that is no batch of ours"};
                for (const auto& change : batch.changes()) {
                  if (change.has_begin() == begun)
                    return Error{Code::corrupt, begun ? "a second beginning" : "the log has no beginning"};
                  if (!begun) {
                    cluster_id_ = change.begin().cluster_id();
                    member_id_ = change.begin().member_id();
                    begun = true;
                  }
                  PAWL_TRY(key_values_.apply(change, now));
                }
                return {};
              }));
  if (wal_->is_new()) {
    std::random_device random;
    cluster_id_ = (std::uint64_t{random()} << 32 | random()) | 1;
    member_id_ = (std::uint64_t{random()} << 32 | random()) | 1;
    PAWL_TRY(wal_->replace(serialized(key_values_.snapshot(cluster_id_, member_id_))));
  }
  log_bytes_ = wal_->size_bytes();
  durable_revision_ = key_values_.revision();
  return {};
}

Committer::~Committer() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  work_ready_.notify_all();
  thread_.join();
}

void Committer::submit(const Work& work, Done done) {
  std::unique_lock lock(mutex_);
  if (failed_) {
    work(key_values_, std::chrono::steady_clock::now(), &queued_);
    if (writing_ || !waiting_.empty() || queued_.changes_size() > 0) {
      waiting_.push_back(std::move(done));
      work_ready_.notify_all();
      return;
    }
  }
  const Status durable = failed_;
  lock.unlock();
  done(durable);
}

EventSlice Committer::events(EventQuery query, std::size_t bytes_max) {
  std::lock_guard lock(mutex_);
  query.through = durable_revision_;
  return key_values_.events(query, bytes_max);
}

Revision Committer::durable_revision() {
  std::lock_guard lock(mutex_);
  return durable_revision_;
}

Revision Committer::compacted() {
  std::lock_guard lock(mutex_);
  return key_values_.compacted();
}

void Committer::wait_for_work(std::unique_lock<std::mutex>& lock) {
  const auto ready = [&] { return stopping_ || !waiting_.empty() || queued_.changes_size() > 0; };
  expire_leases();  // however busy we are
  while (!ready()) {
    if (const auto deadline = key_values_.next_deadline()) {
      awake_by_ = std::min(*deadline, awake_at_ + kTick);
      work_ready_.wait_until(lock, awake_by_);
    } else {
      awake_by_ = kNever;
      work_ready_.wait(lock);
    }
    expire_leases();
  }
}

void Committer::expire_leases() {
  const Time now = std::chrono::steady_clock::now();
  if (now > awake_by_ + kStoodStill && key_values_.next_deadline()) {
    const auto late = std::chrono::duration_cast<std::chrono::milliseconds>(now - awake_at_);
    log_warn("leases_postponed", "cause", "this process or its disk stood still", "ms", late.count());
    key_values_.postpone_leases(now - awake_at_, now);
  }
  awake_at_ = awake_by_ = now;
  if (failed_) key_values_.expire_leases(now, &queued_);
}

Status Committer::write(const KeyValues::Log& batch, const std::vector<KeyValues::Log>& snapshot) {
  if (snapshot.empty()) return batch.changes_size() > 0 ? wal_->append(batch.SerializeAsString()) : Status();
  Status replaced = wal_->replace(serialized(snapshot));
  if (!replaced && replaced.error().code != Code::full) return replaced;
  shrunk_bytes_ = wal_->size_bytes();
  if (replaced) return {};
  log_warn("log_not_shortened", "why", replaced.error().what);  // tried again when it has doubled
  return write(batch, {});
}

void Committer::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wait_for_work(lock);
    if (stopping_ && waiting_.empty() && queued_.changes_size() == 0) return;
    // Here the key values are exactly the log and the batch: either the batch is appended, or they replace the log.
    KeyValues::Log batch;
    batch.Swap(&queued_);
    std::vector<Done> dones;
    dones.swap(waiting_);
    std::vector<KeyValues::Log> snapshot;
    if (wal_->size_bytes() > std::max(options_.log_bytes_max, 2 * shrunk_bytes_))
      snapshot = key_values_.snapshot(cluster_id_, member_id_);
    const Revision revision = key_values_.revision();
    Status durable = failed_;
    writing_ = true;
    lock.unlock();

    if (durable) durable = write(batch, snapshot);
    log_bytes_ = wal_->size_bytes();

    lock.lock();
    writing_ = false;
    const bool failed_now = failed_ && !durable;
    const bool moved = durable && revision > durable_revision_;
    if (durable)
      durable_revision_ = revision;
    else
      failed_ = durable;
    lock.unlock();
    for (const Done& done : dones) done(durable);
    if (moved) options_.on_durable(revision);
    if (failed_now) options_.on_failure(durable.error());
    lock.lock();
  }
}

}  // namespace pawl::job
