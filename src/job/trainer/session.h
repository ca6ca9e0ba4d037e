// Session: this process's tie to its node's pawld. One service thread, any number of waiting requests.
//
// The service thread owns the connection. It repeats the waiting requests when pawld was restarted, for as long as it
// takes; it locks the page's robust mutex and so must live as long as the process (its end is how pawld learns of a
// death); it turns what pawld raised in the page into events on a descriptor of our own, which a restart of pawld does
// not change. A request ends by its answer, by a recovery or a stop in the page, by its deadline, or because the
// session is broken.
// This class has the thread, and the lock and the condition of those who wait. Its parts: the socket
// (job/trainer/daemon_connection.h), what has no answer yet (job/trainer/pending_requests.h), the page
// (job/trainer/attached_page.h), and what the host hears (job/trainer/host_events.h). What the messages mean is
// job/transport/messages.h; what to do about the answers is job/trainer/trainer.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/ids.h"
#include "base/result.h"
#include "env/clock.h"
#include "env/fd.h"
#include "env/poller.h"
#include "env/thread.h"
#include "job/snapshot/trainer_page.h"
#include "job/trainer/attached_page.h"
#include "job/trainer/daemon_connection.h"
#include "job/trainer/host_events.h"
#include "job/trainer/pending_requests.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::job {

struct SessionOptions {
  std::string socket_path;
  std::uint32_t local_index = 0;
  std::uint64_t nonce = 0;  // of this process
};

struct RequestOptions {
  Deadline deadline = Deadline::never();
  bool ends_at_recovery = true;  // false: only a stop interrupts it (join)
};

class Session {
 public:
  // Fails: `unreachable` when nobody listens; `timeout`; `invalid` when pawld refuses us, with its reason; `io`.
  [[nodiscard]] static Result<std::unique_ptr<Session>> attach(SessionOptions options, Deadline deadline);
  ~Session() { end(); }  // a regular end: says detach, unlocks the mutex, joins the thread
  Session(const Session&) = delete;

  // pawld may be replaced by one that has another page: never keep the reference over a wait. Any thread.
  [[nodiscard]] TrainerPage& page() const { return page_.get(); }

  // Sends `message` and waits for an answer of the kind `answer`. Any thread; of one kind one at a time, requests to the
  // rendezvous store apart (job/transport/messages.h).
  // Fails: `stale`: a recovery is pending; `cancelled`: the job ends; `timeout`; `broken`; or as pawld refused.
  template <class Message>
  [[nodiscard]] Result<Answer> request(const Message& message, MessageKind answer, RequestOptions options = {}) {
    return request_frame(frame_of(message), answer, options);
  }
  // What any call must answer first. Fails: `stale`, `cancelled`, `broken`. Any thread; no system call.
  [[nodiscard]] Status interruption() const;
  [[nodiscard]] bool interrupted() const;

  // Tells pawld that buckets or a seal are new. Any thread.
  void notify();

  // The generation that we are seated in; recoveries up to it are no longer pending.
  [[nodiscard]] Generation joined() const { return events_.joined(std::memory_order_relaxed); }
  void set_joined(Generation generation, Seat seat);

  // Events for the host. The descriptor stays the same for the session's life and is readable while one waits.
  [[nodiscard]] int event_fd() const { return events_.fd(); }
  [[nodiscard]] bool next_event(pawl_event& event);  // any thread
  void clear_events() { events_.clear(); }

  // Every call that waits or comes after fails `broken`; pawld is told that we detach. Any thread.
  void give_up(std::string why);
  // As give_up, and the service thread is joined. Idempotent.
  void end();

 private:
  Session(SessionOptions options, Event wake, Event host_event)
      : options_(std::move(options)),
        wake_(std::move(wake)),
        page_(options_.nonce),
        events_(page_, std::move(host_event)),
        connection_(options_.socket_path) {}

  [[nodiscard]] Result<Answer> request_frame(Frame frame, MessageKind answer, RequestOptions options);

  // The service thread's.
  void serve();
  void wait_for_work();
  void begin_attach(Fd socket);
  void read_socket();
  [[nodiscard]] Status take_frames();
  [[nodiscard]] Status take_frame(Frame& frame);
  [[nodiscard]] Status take_attached(const Frame& frame);
  void collect_events();
  void say_goodbye();

  const SessionOptions options_;
  Event wake_;  // there is something to send, or to end
  AttachedPage page_;
  HostEvents events_;
  std::atomic<bool> broken_{false};

  // The service thread's alone.
  DaemonConnection connection_;
  std::uint64_t attach_id_ = 0;
  Fd daemon_event_;  // pawld writes it when the page has changed

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  PendingRequests requests_;
  bool was_attached_ = false;
  std::string why_broken_;
  Code code_broken_ = Code::broken;  // of a refused first attach: its own

  std::mutex notice_mutex_;
  Fd notice_;  // we write it when the arena has changed

  Thread thread_;
};

}  // namespace pawl::job
