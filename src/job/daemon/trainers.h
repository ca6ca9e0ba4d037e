// Trainers: this node's trainer processes, as places 0..seats_per_node-1. On the loop's thread.
//
// Owns what lies between pawld and one process: the connection, its page, the two event descriptors, the watch on the
// robust mutex (which tells of a death at once, long before its memory is gone; the keeper's `exited` confirms it).
// What a request means is decided by whoever gets on_request (job/daemon/pawld.h). Requests that cannot be answered yet
// are remembered here by kind, since a trainer has at most one of each (of rendezvous requests any number, by id).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "env/shared_memory.h"
#include "job/daemon/acceptor.h"
#include "job/daemon/connection.h"
#include "job/daemon/loop.h"
#include "job/recovery/local_trainer.h"
#include "job/snapshot/trainer_page.h"
#include "job/transport/messages.h"

namespace pawl::job {

// As a pid: the keeper was asked to start the process and has not said its pid yet.
inline constexpr std::uint64_t kPidNotKnownYet = ~std::uint64_t{0};

// The connection that a trainer has attached on, and the requests on it that have no answer yet.
struct TrainerLine {
  std::shared_ptr<Connection> connection;        // nullptr: not attached
  std::map<MessageKind, std::uint64_t> waiting;  // kind -> request id
  std::set<std::uint64_t> rendezvous_waiting;    // ids of rendezvous requests: any number may wait
  bool restores_as_it_fills = false;             // its restore request takes a slot that is being filled

  [[nodiscard]] bool waits_for(MessageKind kind) const { return waiting.count(kind) > 0; }
  [[nodiscard]] bool waits() const { return !waiting.empty() || !rendezvous_waiting.empty(); }
  void forget_requests() {
    waiting.clear();
    rendezvous_waiting.clear();
  }
};

// What a page says that the pawld before this one wrote.
struct TrainerPageNotes {
  Generation generation;
  Step committed;
};
[[nodiscard]] TrainerPageNotes notes_of(const TrainerPage& page);

// What a trainer shares with pawld besides: its page, and one event in each direction.
struct TrainerShared {
  Fd page_fd;
  std::shared_ptr<Mapping> mapping;
  TrainerPage* page = nullptr;
  TrainerPageNotes adopted;              // stays when another page comes
  std::unique_ptr<SharedEvent> event;    // we raise it
  std::unique_ptr<SharedEvent> notices;  // the trainer raises it
  std::uint64_t notice_watch = 0;
};

// What a trainer has asked for the end of the job, while it waits in finish or stop_after.
struct TrainerLastSteps {
  Step commit_first;  // finish: to be committed before it may leave
  Step last;          // finish: the last that it has begun
  Step stop_wanted;   // stop_after: what it proposes
};

struct ProcessIdentity {
  std::uint64_t pid = 0;  // 0: there is none
  std::uint64_t start_time = 0;
};

// This very process, and not only what is left of it. False if there is none.
[[nodiscard]] bool lives(Processes& processes, const ProcessIdentity& process);

// Between the first sign of a process's death and the keeper's word, and what that word was.
struct TrainerDeath {
  Duration since{};
  bool killed = false;               // the keeper was asked to, with all that it was started by
  std::uint64_t resident_bytes = 0;  // before that
  std::string said;                  // the end of its output
  std::string unseen;                // how the process ended that ran before this pawld
  bool behind = false;               // a command that was not the process that trained
};

// One trainer process of this node, or the place for it while none runs.
struct TrainerProcess {
  std::uint32_t index = 0;
  std::optional<Seat> seat;
  Generation seated;  // in which it was last told its seat
  Generation done;    // in which it last said done

  std::uint64_t pid = 0;  // that the keeper has started; 0: none runs
  std::uint64_t start_time = 0;
  ProcessIdentity attached;  // the one that trains: another where a wrapper starts it (bash -c, uv run, srun)
  Duration spawned_at{};
  bool inherited = false;  // started under the pawld before us, and has not attached to us: who knows what it does
  bool watched = false;    // its death is watched through the mutex
  bool dying = false;      // known dead (robust mutex) or being killed; the keeper has not confirmed it yet
  TrainerDeath death;
  bool finished = false;     // detached in good order
  std::string killed_why;    // by us
  std::string ended;         // how the process before this one ended, for people
  ReturningNotes returning;  // what looks at it found while it came back

  TrainerLine line;
  TrainerShared shared;
  TrainerLastSteps last_steps;

  [[nodiscard]] ProcessIdentity trainer() const {
    return attached.pid != 0 ? attached : ProcessIdentity{pid, start_time};
  }
  void begin_dying(Duration now) {
    dying = true;
    death.since = now;
  }
};

// The process counts for nothing any more, and a new one takes its place: it has trained from a step that was not committed, or its
// seat is to be restarted, or nobody's.
[[nodiscard]] bool must_begin_anew(const TrainerProcess& trainer, const JobState& state);

class Trainers {
 public:
  struct Handlers {
    std::function<void(TrainerProcess&, const Frame&)> on_request;
    std::function<void(TrainerProcess&)> on_notice;
    std::function<void(TrainerProcess&, const std::string& how)> on_death;
    std::function<void(std::shared_ptr<Connection>, const Frame&)> on_question;
    std::function<void(const std::string& name, int fd)> hold;  // for the keeper
    std::function<void(TrainerProcess&)> on_page;               // a new one, that nobody has seen yet
  };
  Trainers(Loop& loop, std::uint32_t place_count, std::string job, std::unique_ptr<Listener> listener,
           Handlers handlers);
  // From now on who connects is heard: once the job's state is known, or a request would be judged without it.
  void open();
  ~Trainers();

  [[nodiscard]] std::vector<TrainerProcess>& places() { return places_; }
  [[nodiscard]] TrainerProcess* at_seat(Seat seat);
  [[nodiscard]] Status adopt_page(std::uint32_t index, Fd fd);  // from the keeper

  // The keeper's news.
  void spawned(std::uint32_t index, std::uint64_t pid, std::uint64_t start_time);
  // pid 0: it could not be started. `said`: the end of its output.
  void exited(std::uint32_t index, std::uint64_t pid, const std::string& how, const std::string& said = {});

  // Answers the request of that kind, if the process waits in one.
  template <class Message>
  void answer(TrainerProcess& place, MessageKind waiting_kind, const Message& message, std::span<const int> fds = {}) {
    answer_frame(place, waiting_kind, frame_of(message), fds);
  }
  // Answers the rendezvous request with this id, if it still waits.
  template <class Message>
  void answer_rendezvous(TrainerProcess& place, std::uint64_t id, const Message& message) {
    answer_rendezvous_frame(place, frame_of(message, id));
  }
  // Wakes the trainer: a recovery to `generation` is pending.
  void interrupt(TrainerProcess& place, Generation generation);
  void stop(TrainerProcess& place);

 private:
  void answer_frame(TrainerProcess& place, MessageKind waiting_kind, Frame answer, std::span<const int> fds);
  void answer_rendezvous_frame(TrainerProcess& place, const Frame& answer);
  void accept(std::unique_ptr<Stream> stream);
  void on_first_frame(const std::shared_ptr<Connection>& connection, Frame& frame);
  void attach(const std::shared_ptr<Connection>& connection, Frame& frame);
  [[nodiscard]] Status make_page(TrainerProcess& place);
  void on_frame(std::uint32_t index, Frame& frame);
  void watch_death(TrainerProcess& place);
  [[nodiscard]] ProcessIdentity identity_of(std::int64_t pid) const;

  Loop& loop_;
  std::string job_;
  Handlers handlers_;
  std::vector<TrainerProcess> places_;
  std::map<Connection*, std::shared_ptr<Connection>> strangers_;  // have not said who they are
  Acceptor acceptor_;
  std::shared_ptr<std::atomic<bool>> ended_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace pawl::job
