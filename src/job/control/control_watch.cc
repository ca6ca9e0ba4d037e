#include "job/control/control_watch.h"

#include <algorithm>
#include <mutex>

#include "base/check.h"
#include "env/tasks.h"

namespace pawl::job {

using etcdserverpb::WatchRequest;
using etcdserverpb::WatchResponse;

namespace {

constexpr auto kReopenPause = std::chrono::milliseconds(20);    // before the stream is opened again
constexpr auto kConnectSlice = std::chrono::milliseconds(100);  // the longest that the end of a watch waits for
constexpr auto kLookMax = std::chrono::seconds(2);
constexpr Duration kPulse = std::chrono::milliseconds(500);  // nothing was heard for so long: the server is asked
// So long a question may stay unanswered. Together with the pulse well below the deadline within which a node must have
// noticed a recovery. After each silence it is doubled, for a server that is only slow.
constexpr Duration kPatience = std::chrono::seconds(1);
constexpr Duration kPatienceMax = std::chrono::seconds(8);

// Whose callbacks run on this thread, if any's: one that a callback destroys would wait for itself.
thread_local const Watch* current_watch = nullptr;

// One stream, by gRPC's asynchronous face: the other one can't wait for an answer for a bounded time.
// All in one task. `context` outlives it, and may be cancelled from elsewhere.
class WatchCall {
 public:
  enum class Got : unsigned char { answer, nothing, end };

  WatchCall(etcdserverpb::Watch::Stub& stub, grpc::ClientContext* context)
      : context_(context), stream_(stub.AsyncWatch(context, &queue_, &starting_)) {}

  ~WatchCall() {
    context_->TryCancel();
    while (starting_ || writing_ || reading_) (void)turn(kForever);
    grpc::Status status;
    finishing_ = true;
    stream_->Finish(&status, &finishing_);
    while (finishing_) (void)turn(kForever);
    queue_.Shutdown();
    void* left = nullptr;
    bool ok = false;
    while (queue_.Next(&left, &ok)) {
    }
  }

  [[nodiscard]] bool can_write() const { return !starting_ && !writing_; }
  void write(const WatchRequest& request) {  // only if it can
    writing_ = true;
    stream_->Write(request, &writing_);
  }

  // Waits for an answer, at most so long; for nothing also until can_write() has changed.
  Got wait(WatchResponse* response, Duration at_most) {
    if (!starting_ && !reading_) {
      reading_ = true;
      stream_->Read(&response_, &reading_);
    }
    const Got got = turn(SystemClock::now() + std::chrono::ceil<SystemClock::duration>(at_most));
    if (got == Got::answer) response->Swap(&response_);
    return got;
  }

 private:
  using SystemClock = ControlChannel::Clock;
  static constexpr auto kForever = SystemClock::time_point::max();

  Got turn(SystemClock::time_point until) {
    void* done = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&done, &ok, until) != grpc::CompletionQueue::GOT_EVENT) return Got::nothing;
    *static_cast<bool*>(done) = false;
    if (!ok) return Got::end;
    return done == &reading_ ? Got::answer : Got::nothing;
  }

  grpc::ClientContext* context_;
  grpc::CompletionQueue queue_;
  WatchResponse response_;                                                        // of the read under way
  bool starting_ = true, writing_ = false, reading_ = false, finishing_ = false;  // and the tags of what is under way
  std::unique_ptr<grpc::ClientAsyncReaderWriter<WatchRequest, WatchResponse>> stream_;
};

class EtcdWatch final : public Watch {
 public:
  EtcdWatch(std::shared_ptr<ControlChannel> channel, std::string prefix, WatchOptions options,
            std::function<void(const WatchEvent&)> on_event)
      : channel_(std::move(channel)),
        prefix_(std::move(prefix)),
        options_(std::move(options)),
        on_event_(std::move(on_event)),
        next_(options_.from_revision),
        stop_(channel_->tasks().make_condition()),
        task_(channel_->tasks().start("pawl-watch", [this] { run(); })) {}

  ~EtcdWatch() override {
    PAWL_CHECK(current_watch != this, "a watch may not be destroyed by its own callback");
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      if (stream_context_ != nullptr) stream_context_->TryCancel();
    }
    stop_->notify_all();
    task_->join();
  }

 private:
  void run() {
    current_watch = this;
    while (!stopping()) {
      ControlEndpoint& endpoint = channel_->current();
      if (channel_->wait_connected(endpoint, ControlChannel::Clock::now() + kConnectSlice, false)) follow(endpoint);
      tell_connection(false);
      channel_->pass_over(endpoint);
      std::unique_lock lock(mutex_);
      if (!stopping_) stop_->wait_for(lock, kReopenPause);
    }
  }

  // One stream, until it breaks or has to be opened anew.
  void follow(ControlEndpoint& endpoint) {
    grpc::ClientContext context;
    channel_->prepare(&context);
    context.AddMetadata("hasleader", "true");  // an etcd member that lost its leader ends the stream instead of sulking
    {
      std::lock_guard lock(mutex_);
      if (stopping_) return;
      stream_context_ = &context;
    }
    WatchCall call(*endpoint.watch, &context);
    read(endpoint, call);
    std::lock_guard lock(mutex_);
    stream_context_ = nullptr;
  }

  // A server that was stopped, or whose connection was cut without a word, ends no stream. So it is asked now and then,
  // and has to say something.
  void read(ControlEndpoint& endpoint, WatchCall& call) {
    Clock& clock = channel_->steady_clock();
    WatchRequest request;
    auto* create = request.mutable_create_request();
    create->set_key(prefix_begin(prefix_));
    create->set_range_end(prefix_end(prefix_));
    create->set_start_revision(next_);
    bool to_ask = true, asked = true;  // `request` is to be sent; an answer is due
    for (Duration since = clock.now();;) {
      if (to_ask && call.can_write()) {
        call.write(request);
        to_ask = false;
      }
      const Duration due = since + (asked ? patience_ : kPulse);
      WatchResponse response;
      const WatchCall::Got got = call.wait(&response, due - clock.now());
      if (got == WatchCall::Got::end) return;
      if (got == WatchCall::Got::answer) {
        if (asked) patience_ = std::clamp(2 * (clock.now() - since), kPatience, kPatienceMax);
        if (!take(endpoint, response)) return;
        asked = false;
        since = clock.now();
      } else if (clock.now() >= due) {
        if (asked) {
          patience_ = std::min(2 * patience_, kPatienceMax);
          return;
        }
        request.mutable_progress_request();
        to_ask = asked = true;
        since = clock.now();
      }
    }
  }

  // False: the stream is of no more use.
  bool take(ControlEndpoint& endpoint, const WatchResponse& response) {
    if (response.compact_revision() > 0) {
      // The header need not be of now; whoever lists after this sees at least what we ask for here.
      if (const Revision newest = ask_revision(endpoint); newest > 0) resync(newest + 1);
      return false;
    }
    if (response.canceled()) return false;
    if (response.created()) return created(endpoint, response);
    for (const auto& event : response.events()) {
      if (event.kv().mod_revision() < next_) continue;
      if (stopping()) return false;
      WatchEvent out;
      out.kind = event.type() == mvccpb::Event::PUT ? WatchEvent::Kind::put : WatchEvent::Kind::erased;
      out.kv = from_wire(event.kv());
      out.revision = event.kv().mod_revision();
      on_event_(out);
    }
    // A revision is never split over two answers, so the next one begins behind the last event.
    if (response.events_size() > 0)
      next_ = std::max(next_, response.events(response.events_size() - 1).kv().mod_revision() + 1);
    return true;
  }

  bool created(ControlEndpoint& endpoint, const WatchResponse& response) {
    const Revision now = response.header().revision();
    const bool other_store = cluster_id_ != 0 && cluster_id_ != response.header().cluster_id();
    cluster_id_ = response.header().cluster_id();
    if (next_ == 0) next_ = now + 1;
    if (other_store || now + 1 < next_) {
      // Behind what we saw: a member that lags, or a store that lost its data. The leader knows; ask it.
      const Revision newest = ask_revision(endpoint);
      if (newest == 0) return false;
      if (other_store || newest + 1 < next_) {
        resync(newest + 1);
        return false;
      }
    }
    tell_connection(true);
    return true;
  }

  Revision ask_revision(ControlEndpoint& endpoint) {
    grpc::ClientContext context;
    context.set_deadline(ControlChannel::Clock::now() + kLookMax);
    channel_->prepare(&context);
    etcdserverpb::RangeRequest request;
    etcdserverpb::RangeResponse response;
    request.set_key(prefix_begin(prefix_));
    request.set_count_only(true);
    const auto may_cancel = [this](grpc::ClientContext* call) {
      std::lock_guard lock(mutex_);
      return stopping_ ? nullptr : std::exchange(stream_context_, call);
    };
    grpc::ClientContext* const stream = may_cancel(&context);
    const bool answered = stream != nullptr && endpoint.kv->Range(&context, request, &response).ok();
    std::lock_guard lock(mutex_);
    if (stream != nullptr) stream_context_ = stream;
    return answered ? response.header().revision() : 0;
  }

  void resync(Revision next) {
    next_ = next;
    WatchEvent event;
    event.kind = WatchEvent::Kind::resync;
    event.revision = next - 1;
    if (!stopping()) on_event_(event);
  }

  void tell_connection(bool connected) {
    if (connected == connected_) return;
    connected_ = connected;
    if (options_.on_connection && !stopping()) options_.on_connection(connected);
  }

  bool stopping() {
    std::lock_guard lock(mutex_);
    return stopping_;
  }

  std::shared_ptr<ControlChannel> channel_;
  const std::string prefix_;
  const WatchOptions options_;
  const std::function<void(const WatchEvent&)> on_event_;
  Revision next_;  // the task's own, as are the next three
  std::uint64_t cluster_id_ = 0;
  bool connected_ = false;
  Duration patience_ = kPatience;

  std::mutex mutex_;
  std::unique_ptr<Condition> stop_;
  bool stopping_ = false;
  grpc::ClientContext* stream_context_ = nullptr;  // while a stream stands
  std::unique_ptr<Task> task_;                     // last: it uses all of the above
};

}  // namespace

std::unique_ptr<Watch> start_watch(std::shared_ptr<ControlChannel> channel, std::string prefix, WatchOptions options,
                                   std::function<void(const WatchEvent&)> on_event) {
  return std::make_unique<EtcdWatch>(std::move(channel), std::move(prefix), std::move(options), std::move(on_event));
}

}  // namespace pawl::job
