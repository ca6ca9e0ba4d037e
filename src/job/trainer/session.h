// Session: this process's line to its node's pawld. One service thread, any number of waiting requests.
//
// The service thread owns the socket. It repeats the waiting requests when pawld was restarted, for as long as it
// takes; it locks the page's robust mutex and so must live as long as the process (its end is how pawld learns of a
// death); it turns what pawld raised in the page into events on a descriptor of our own, which a restart of pawld does
// not change. A request ends by its answer, by a recovery or a stop in the page, by its deadline, or because the
// session is broken. What the messages mean is job/transport/messages.h; what to do about the answers is job/trainer/trainer.h.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "env/clock.h"
#include "env/fd.h"
#include "env/poller.h"
#include "env/shared_memory.h"
#include "job/snapshot/trainer_page.h"
#include "job/trainer/thread.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::job {

struct SessionOptions {
  std::string socket_path;
  std::uint32_t local_index = 0;
  std::uint64_t nonce = 0;  // of this process
};

struct Answer {
  std::string payload;
  std::vector<Fd> fds;
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
  [[nodiscard]] TrainerPage& page() const { return *page_.load(std::memory_order_acquire); }

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
  [[nodiscard]] Generation joined() const { return Generation(joined_.load(std::memory_order_relaxed)); }
  void set_joined(Generation generation, Seat seat);

  // Events for the host. The descriptor stays the same for the session's life and is readable while one waits.
  [[nodiscard]] int event_fd() const { return user_event_.fd(); }
  [[nodiscard]] bool next_event(pawl_event& event);  // any thread
  void clear_events();

  // Every call that waits or comes after fails `broken`; pawld is told that we detach. Any thread.
  void give_up(std::string why);
  // As give_up, and the service thread is joined. Idempotent.
  void end();

 private:
  [[nodiscard]] Result<Answer> request_frame(Frame frame, MessageKind answer, RequestOptions options);
  struct Pending {
    MessageKind answer{};
    std::string frame;
    bool sent = false;
    std::optional<Result<Answer>> result;
  };
  enum class Line { down, attaching, up };

  Session(SessionOptions options, Event wake, Event user_event)
      : options_(std::move(options)), wake_(std::move(wake)), user_event_(std::move(user_event)) {}

  // The service thread's.
  void serve();
  void wait_for_work();
  void connect();
  void begin_attach(Fd socket);
  void disconnect();
  void read_socket();
  [[nodiscard]] Status take_frames();
  [[nodiscard]] Status take_frame(Frame& frame);
  [[nodiscard]] Status take_attached(const Frame& frame);
  [[nodiscard]] Status adopt_page(const Fd& page_fd);
  void write_socket();
  void collect_events();
  void say_goodbye();

  [[nodiscard]] bool recovery_pending() const;

  const SessionOptions options_;
  Event wake_;
  Event user_event_;
  std::atomic<TrainerPage*> page_{nullptr};
  std::atomic<std::uint64_t> joined_{0};
  std::atomic<std::uint32_t> seat_{kNoSeat};
  std::atomic<bool> broken_{false};

  // The service thread's alone.
  Fd socket_;
  Line line_ = Line::down;
  FrameReader reader_;
  std::deque<Fd> received_fds_;
  std::string out_;
  std::uint64_t attach_id_ = 0;
  Duration connect_again_at_{};
  Fd daemon_event_;
  std::vector<Mapping> mappings_;         // all pages we had; kept, since others may still look
  std::vector<pthread_mutex_t*> locked_;  // by the service thread

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::map<std::uint64_t, Pending> pending_;  // by id
  std::uint64_t last_id_ = 0;
  bool was_attached_ = false;
  std::string why_broken_;
  Code code_broken_ = Code::broken;  // of a refused first attach: its own

  std::mutex notice_mutex_;
  Fd notice_;

  std::mutex events_mutex_;  // guards what follows
  std::uint64_t recovery_ = 0, recovery_told_ = 0;
  bool stop_ = false, stop_told_ = false;
  std::uint64_t committed_ = 0, committed_told_ = 0;

  Thread thread_;
};

}  // namespace pawl::job
