#include "job/control/server_watch.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>

#include "job/control/server_services.h"

namespace pawl::job {

using etcdserverpb::WatchCreateRequest;
using etcdserverpb::WatchRequest;
using etcdserverpb::WatchResponse;

namespace {
constexpr std::size_t kResponseBytesMax = 1 << 20;  // of events in one message; a revision is never split
constexpr std::int64_t kNoWatch = -1;               // the id in an answer that is for the whole stream
}  // namespace

// One bidirectional stream. At most one read and one write are under way; who finds nothing being written writes.
class WatchStream final : public grpc::ServerBidiReactor<WatchRequest, WatchResponse>,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  WatchStream(WatchHub* hub, Committer* committer) : hub_(hub), committer_(committer) {}

  void begin() { StartRead(&request_); }

  // Writes the next thing there is to say, or ends the stream if it should end and nothing is being written.
  void pump() {
    {
      std::lock_guard lock(mutex_);
      if (writing_ || finished_) return;
      if (end_) {
        finished_ = true;
      } else if (next_response()) {
        writing_ = true;
      } else {
        return;
      }
    }
    if (finished_)
      Finish(*end_);  // set once, before this; nobody writes it any more
    else
      StartWrite(&response_);
  }

  void end(grpc::Status status) {
    {
      std::lock_guard lock(mutex_);
      if (!end_) end_ = std::move(status);
    }
    pump();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // the client says no more, but it may still listen, as etcd lets it; OnCancel tells its end
    {
      std::lock_guard lock(mutex_);
      take(request_);
    }
    pump();
    StartRead(&request_);
  }

  void OnWriteDone(bool ok) override {
    {
      std::lock_guard lock(mutex_);
      writing_ = false;
      if (!ok && !end_) end_ = grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone");
    }
    pump();
  }

  void OnCancel() override { end(grpc::Status(grpc::StatusCode::CANCELLED, "the client is gone")); }
  void OnDone() override { hub_->forget(shared_from_this()); }

 private:
  void take(const WatchRequest& request) {
    if (request.has_create_request()) create(request.create_request());
    if (request.has_cancel_request() && watches_.erase(request.cancel_request().watch_id()) > 0)
      answer(request.cancel_request().watch_id()).set_canceled(true);
    if (request.has_progress_request()) progress_asked_ = true;
  }

  void create(const WatchCreateRequest& request) {
    std::int64_t id = request.watch_id();
    if (id == 0)
      while (watches_.contains(next_id_)) ++next_id_;
    if (id == 0) id = next_id_++;
    auto& created = answer(id);
    created.set_created(true);
    if (request.watch_id() != 0 && watches_.contains(id)) {
      created.set_canceled(true);
      created.set_cancel_reason("mvcc: duplicate watch ID provided on the WatchStream");
      return;
    }
    EventQuery watch;
    watch.key = request.key().empty() ? std::string(1, '\0') : request.key();
    watch.range_end = request.range_end();
    watch.from = request.start_revision() > 0 ? request.start_revision() : created.header().revision() + 1;
    watch.prev_kv = request.prev_kv();
    for (int filter : request.filters()) {
      if (filter == WatchCreateRequest::NOPUT) watch.puts = false;
      if (filter == WatchCreateRequest::NODELETE) watch.deletes = false;
    }
    watches_[id] = watch;
  }

  WatchResponse& answer(std::int64_t id) {
    auto& response = answers_.emplace_back();
    response.set_watch_id(id);
    fill_header(*committer_, committer_->durable_revision(), response.mutable_header());
    return response;
  }

  // Fills response_; false if there is nothing to say now. Answers first: a watch is created before its events come.
  bool next_response() {
    if (next_answer()) return true;
    const Revision durable = committer_->durable_revision();
    // After the watch that wrote last, so that a busy one does not starve the others.
    auto it = watches_.upper_bound(last_written_);
    for (std::size_t left = watches_.size(); left > 0; --left, ++it) {
      if (it == watches_.end()) it = watches_.begin();
      EventSlice slice = committer_->events(it->second, kResponseBytesMax);
      if (slice.compacted) return cancel_compacted(it);
      it->second.from = slice.next;
      if (slice.events.empty()) continue;
      last_written_ = it->first;
      response_.Clear();
      response_.set_watch_id(it->first);
      fill_header(*committer_, std::max(durable, slice.events.back().kv().mod_revision()), response_.mutable_header());
      for (auto& event : slice.events) *response_.add_events() = std::move(event);
      return true;
    }
    if (!progress_asked_) return false;
    progress_asked_ = false;  // every watch has all up to `durable`, and nothing later was said
    response_.Clear();
    response_.set_watch_id(kNoWatch);
    fill_header(*committer_, durable, response_.mutable_header());
    return true;
  }

  bool next_answer() {
    if (answers_.empty()) return false;
    response_ = std::move(answers_.front());
    answers_.pop_front();
    return true;
  }

  bool cancel_compacted(std::map<std::int64_t, EventQuery>::iterator watch) {
    auto& response = answer(watch->first);
    response.set_canceled(true);
    response.set_compact_revision(committer_->compacted());
    response.set_cancel_reason("etcdserver: mvcc: required revision has been compacted");
    watches_.erase(watch);
    return next_answer();
  }

  WatchHub* hub_;
  Committer* committer_;
  WatchRequest request_;    // the read under way's
  std::mutex mutex_;        // before the committer's own
  WatchResponse response_;  // the write under way's, while writing_
  std::map<std::int64_t, EventQuery> watches_;
  std::deque<WatchResponse> answers_;
  std::int64_t next_id_ = 0;
  std::int64_t last_written_ = kNoWatch;
  bool progress_asked_ = false;
  bool writing_ = false;
  bool finished_ = false;
  std::optional<grpc::Status> end_;
};

grpc::ServerBidiReactor<WatchRequest, WatchResponse>* WatchHub::Watch(grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<WatchStream>(this, committer_);
  std::optional<grpc::Status> refused;
  if (auto allowed = check_token(*context, token_); !allowed.ok()) refused = allowed;
  {
    std::lock_guard lock(mutex_);
    if (closed_) refused = grpc::Status(grpc::StatusCode::UNAVAILABLE, "pawl control is stopping");
    streams_.insert(stream);
  }
  if (refused)
    stream->end(*refused);
  else
    stream->begin();
  return stream.get();
}

std::set<std::shared_ptr<WatchStream>> WatchHub::streams() {
  std::lock_guard lock(mutex_);
  return streams_;
}

void WatchHub::announce() {
  for (const auto& stream : streams()) stream->pump();
}

void WatchHub::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  for (const auto& stream : streams())
    stream->end(grpc::Status(grpc::StatusCode::UNAVAILABLE, "pawl control is stopping"));
}

void WatchHub::forget(const std::shared_ptr<WatchStream>& stream) {
  std::lock_guard lock(mutex_);
  streams_.erase(stream);
}

}  // namespace pawl::job
