#include "job/control/control_watch.h"

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

// Whose callbacks run on this thread, if any's: one that a callback destroys would wait for itself.
thread_local const Watch* current_watch = nullptr;

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
    const auto stream = endpoint.watch->Watch(&context);
    WatchRequest request;
    auto* create = request.mutable_create_request();
    create->set_key(prefix_begin(prefix_));
    create->set_range_end(prefix_end(prefix_));
    create->set_start_revision(next_);
    WatchResponse response;
    if (stream->Write(request))
      while (stream->Read(&response) && take(endpoint, response)) {
      }
    context.TryCancel();
    (void)stream->Finish();
    std::lock_guard lock(mutex_);
    stream_context_ = nullptr;
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
    if (!endpoint.kv->Range(&context, request, &response).ok()) return 0;
    return response.header().revision();
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
  Revision next_;  // the task's own, as are the next two
  std::uint64_t cluster_id_ = 0;
  bool connected_ = false;

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
