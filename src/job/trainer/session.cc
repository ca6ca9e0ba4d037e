#include "job/trainer/session.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <vector>

#include "base/c_status.h"
#include "base/text.h"
#include "env/network.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

// pawld writes the event descriptor for whatever matters; looking at the page by ourselves covers one that was killed
// between the page and the descriptor.
constexpr Duration kTick = milliseconds(20);
constexpr Duration kGoodbyeMax = milliseconds(200);

}  // namespace

Result<std::unique_ptr<Session>> Session::attach(SessionOptions options, Deadline deadline) {
  Result<Fd> socket = connect_unix(options.socket_path, deadline);
  if (!socket) {
    Error error = std::move(socket).error();
    if (error.code == Code::not_found) error.code = Code::unreachable;  // no such path: no pawld
    return error;
  }
  PAWL_ASSIGN(Event wake, Event::make());
  PAWL_ASSIGN(Event host_event, Event::make());
  std::unique_ptr<Session> session(new Session(std::move(options), std::move(wake), std::move(host_event)));
  session->begin_attach(std::move(*socket));
  PAWL_ASSIGN(session->thread_, Thread::start("pawl-service", [raw = session.get()] { raw->serve(); }));
  {
    std::unique_lock lock(session->mutex_);
    const auto decided = [&] { return session->was_attached_ || session->broken_.load(); };
    while (!decided() && !deadline.passed()) session->changed_.wait_for(lock, std::min(deadline.left(), kTick));
    if (session->was_attached_) return session;
    if (session->broken_) return Error{session->code_broken_, session->why_broken_};
  }
  return Error{Code::timeout, text("pawld at ", session->options_.socket_path, " does not answer")};
}

void Session::end() {
  give_up("detached");
  wake_.raise();
  thread_.join();
}

void Session::give_up(std::string why) {
  std::lock_guard lock(mutex_);
  if (!broken_) why_broken_ = std::move(why);
  broken_ = true;
  changed_.notify_all();
}

// --- Who waits.

Result<Answer> Session::request_frame(Frame frame, MessageKind answer, RequestOptions options) {
  std::unique_lock lock(mutex_);
  const Generation joined = events_.joined();
  const std::uint64_t id = requests_.add(std::move(frame), answer);
  wake_.raise();
  for (;;) {
    Status ended;
    if (std::optional<Result<Answer>> result = requests_.take_result(id)) return std::move(*result);
    if (broken_) {
      ended = Error{Code::broken, why_broken_};
    } else if (page().stop.load() != 0) {
      ended = Error{Code::cancelled, "the job ends"};
    } else if (options.ends_at_recovery && events_.recovery_pending()) {
      ended = Error{Code::stale, text("a recovery to generation ", page().recover_generation.load(), " is pending")};
    } else if (options.ends_at_recovery && events_.joined() != joined) {  // another thread has gone through it already
      ended = Error{Code::stale, text("generation ", joined, " is over")};
    } else if (options.deadline.passed()) {
      ended = Error{Code::timeout, "pawld did not answer within the deadline"};
    }
    if (!ended) {
      requests_.drop(id);  // an answer that still comes has an id that nobody waits for
      return std::move(ended).error();
    }
    changed_.wait_for(lock, std::min(options.deadline.left(), kTick));
  }
}

bool Session::interrupted() const {
  return page().stop.load(std::memory_order_acquire) != 0 || events_.recovery_pending();
}

Status Session::interruption() const {
  if (broken_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    return Error{Code::broken, why_broken_};
  }
  if (page().stop.load(std::memory_order_acquire) != 0) return Error{Code::cancelled, "the job ends"};
  if (events_.recovery_pending()) {
    return Error{Code::stale, text("a recovery to generation ", page().recover_generation.load(), " is pending")};
  }
  return {};
}

void Session::set_joined(Generation generation, Seat seat) {
  events_.set_joined(generation, seat);
  collect_events();
}

void Session::notify() {
  const std::uint64_t one = 1;
  std::lock_guard lock(notice_mutex_);
  if (notice_.valid()) [[maybe_unused]]
    ssize_t written = ::write(notice_.get(), &one, sizeof one);
}

// --- Events.

void Session::collect_events() {
  if (!events_.collect()) return;
  std::lock_guard lock(mutex_);  // who waits has either seen the page as it is now, or is asleep by now
  changed_.notify_all();
}

bool Session::next_event(pawl_event& event) {
  collect_events();
  return events_.next(event);
}

// --- The service thread.

void Session::serve() {
  while (!broken_) {
    if (connection_.should_connect()) {
      if (Result<Fd> socket = connection_.try_connect()) begin_attach(std::move(*socket));
    }
    wait_for_work();
    if (page_.is_there()) collect_events();
    if (connection_.is_up()) {
      std::lock_guard lock(mutex_);
      requests_.send_new([this](const std::string& frame) { connection_.queue(frame); });
    }
    if (!connection_.is_down()) connection_.write();
  }
  say_goodbye();
}

// Returns when a request is new, pawld speaks or is gone, or some time has passed.
void Session::wait_for_work() {
  pollfd fds[3] = {{wake_.fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  Duration timeout = kTick;
  if (connection_.is_down()) {
    timeout = DaemonConnection::kConnectInterval;
  } else {
    fds[1].fd = connection_.fd();
    if (connection_.has_unsent()) fds[1].events |= POLLOUT;
  }
  fds[2].fd = daemon_event_.get();
  const auto timeout_ms = static_cast<int>(std::chrono::ceil<milliseconds>(timeout).count());
  if (::poll(fds, 3, timeout_ms) <= 0) return;
  if (fds[0].revents != 0) wake_.lower();
  if (fds[2].revents != 0) {
    std::uint64_t count = 0;
    if (::read(fds[2].fd, &count, sizeof count) < 0 && errno != EAGAIN) daemon_event_.reset();
  }
  if ((fds[1].revents & ~POLLOUT) != 0) read_socket();
}

void Session::begin_attach(Fd socket) {
  connection_.begin(std::move(socket));
  {
    std::lock_guard lock(mutex_);
    attach_id_ = requests_.next_id();
    requests_.repeat_all();
  }
  connection_.queue(encode_frame(frame_of(AttachMessage{.local_index = options_.local_index,
                                                        .nonce = options_.nonce,
                                                        .generation = events_.joined(),
                                                        .seat = events_.seat()},
                                          attach_id_)));
}

void Session::read_socket() {
  if (!connection_.read()) return;
  if (Status taken = take_frames(); !taken) {
    if (taken.error().code == Code::broken) give_up(std::move(taken).error().what);
    connection_.drop();  // `corrupt`: another connection may do better
  }
}

Status Session::take_frames() {
  for (;;) {
    Frame frame;
    PAWL_ASSIGN(const bool whole, connection_.next(frame));
    if (!whole) return {};
    PAWL_TRY(take_frame(frame));
  }
}

Status Session::take_frame(Frame& frame) {
  if (connection_.is_attaching()) {
    if (frame.id != attach_id_) return Error{Code::corrupt, "an answer to nothing"};
    return take_attached(frame);
  }
  std::vector<Fd> fds;
  if (kind_of(frame) == MessageKind::arena && connection_.fd_count() > 0) fds.push_back(connection_.take_fd());
  std::lock_guard lock(mutex_);
  if (requests_.take(frame, std::move(fds))) changed_.notify_all();
  return {};
}

Status Session::take_attached(const Frame& frame) {
  if (is<RefusedMessage>(frame)) {
    RefusedMessage refused;
    (void)decode(frame.payload, refused);
    std::lock_guard lock(mutex_);
    if (!was_attached_) code_broken_ = code_of(refused.status);
    return Error{Code::broken, text("pawld refused us: ", refused.why)};
  }
  AttachedMessage attached;
  if (!decode(frame.payload, attached) || !is<AttachedMessage>(frame) || attached.version != kTrainerWireVersion) {
    return Error{Code::broken, text("pawld speaks version ", attached.version, " of the trainer's protocol, libpawl ",
                                    kTrainerWireVersion, ": install the same release of both")};
  }
  if (connection_.fd_count() < 3) return Error{Code::corrupt, "descriptors are missing"};
  const Fd page_segment = connection_.take_fd();
  daemon_event_ = connection_.take_fd();
  Fd notice = connection_.take_fd();
  PAWL_TRY(page_.adopt(page_segment));  // locks the mutex: pawld watches it from our next message on
  {
    std::lock_guard lock(notice_mutex_);
    notice_ = std::move(notice);
  }
  connection_.set_up();
  std::lock_guard lock(mutex_);
  was_attached_ = true;
  changed_.notify_all();
  return {};
}

void Session::say_goodbye() {
  if (connection_.is_up()) connection_.write_last(encode_frame(frame_of(DetachMessage{})), kGoodbyeMax);
  page_.unlock();
  connection_.drop();
}

}  // namespace pawl::job
