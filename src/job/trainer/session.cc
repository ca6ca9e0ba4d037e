#include "job/trainer/session.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/c_status.h"
#include "base/check.h"
#include "base/text.h"
#include "env/network.h"
#include "env/process.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

constexpr Duration kConnectInterval = milliseconds(10);
// pawld writes the event descriptor for whatever matters; looking at the page by ourselves covers one that was killed
// between the page and the descriptor.
constexpr Duration kTick = milliseconds(20);
constexpr Duration kGoodbyeMax = milliseconds(200);

std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

// Locks the mutex that tells pawld of our death. Someone may hold it for a moment; whoever owned it before is dead.
bool lock_alive(pthread_mutex_t* mutex) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(1));
  for (;;) {
    const int failed = pthread_mutex_trylock(mutex);
    if (failed == EOWNERDEAD) pthread_mutex_consistent(mutex);
    if (failed == 0 || failed == EOWNERDEAD) return true;
    if (failed != EBUSY || deadline.passed()) return false;
    real_clock().sleep(milliseconds(1));
  }
}

void copy_trainer_fields(const TrainerPage& from, TrainerPage& to) {
  constexpr PageWord TrainerPage::*fields[] = {&TrainerPage::reached,
                                               &TrainerPage::step,
                                               &TrainerPage::updates,
                                               &TrainerPage::progress_count,
                                               &TrainerPage::progress_at_ns,
                                               &TrainerPage::phase,
                                               &TrainerPage::samples,
                                               &TrainerPage::fence_count,
                                               &TrainerPage::fence_wait_ns_last,
                                               &TrainerPage::fence_wait_ns_total,
                                               &TrainerPage::fence_wait_ns_max,
                                               &TrainerPage::windows_captured,
                                               &TrainerPage::windows_voided,
                                               &TrainerPage::captured_bytes_total,
                                               &TrainerPage::copy_ns_total};
  for (auto field : fields) (to.*field).store((from.*field).load());
}

void introduce(TrainerPage& page, std::uint64_t nonce) {
  page.start_time.store(process_start_time(getpid()).value_or(0));
  page.nonce.store(nonce);
  page.pid.store(static_cast<std::uint64_t>(getpid()), std::memory_order_release);
}

}  // namespace

Result<std::unique_ptr<Session>> Session::attach(SessionOptions options, Deadline deadline) {
  Result<Fd> socket = connect_unix(options.socket_path, deadline);
  if (!socket) {
    Error error = std::move(socket).error();
    if (error.code == Code::not_found) error.code = Code::unreachable;  // no such path: no pawld
    return error;
  }
  PAWL_ASSIGN(Event wake, Event::make());
  PAWL_ASSIGN(Event user_event, Event::make());
  std::unique_ptr<Session> session(new Session(std::move(options), std::move(wake), std::move(user_event)));
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
  const std::uint64_t id = ++last_id_;
  Pending& pending = pending_[id];
  const std::uint64_t joined = joined_;
  pending.answer = answer;
  frame.id = id;
  pending.frame = encode_frame(frame);
  wake_.raise();
  for (;;) {
    Status ended;
    if (pending.result) {
      Result<Answer> result = std::move(*pending.result);
      pending_.erase(id);
      return result;
    }
    if (broken_) {
      ended = Error{Code::broken, why_broken_};
    } else if (page().stop.load() != 0) {
      ended = Error{Code::cancelled, "the job ends"};
    } else if (options.ends_at_recovery && recovery_pending()) {
      ended = Error{Code::stale, text("a recovery to generation ", page().recover_generation.load(), " is pending")};
    } else if (options.ends_at_recovery && joined_ != joined) {  // another thread has gone through it already
      ended = Error{Code::stale, text("generation ", joined, " is over")};
    } else if (options.deadline.passed()) {
      ended = Error{Code::timeout, "pawld did not answer within the deadline"};
    }
    if (!ended) {
      pending_.erase(id);  // an answer that still comes has an id that nobody waits for
      return std::move(ended).error();
    }
    changed_.wait_for(lock, std::min(options.deadline.left(), kTick));
  }
}

bool Session::recovery_pending() const {
  return page().recover_generation.load(std::memory_order_acquire) > joined_.load(std::memory_order_relaxed);
}

bool Session::interrupted() const {
  return page().stop.load(std::memory_order_acquire) != 0 || recovery_pending();
}

Status Session::interruption() const {
  if (broken_.load(std::memory_order_acquire)) {
    std::lock_guard lock(mutex_);
    return Error{Code::broken, why_broken_};
  }
  if (page().stop.load(std::memory_order_acquire) != 0) return Error{Code::cancelled, "the job ends"};
  if (recovery_pending()) {
    return Error{Code::stale, text("a recovery to generation ", page().recover_generation.load(), " is pending")};
  }
  return {};
}

void Session::set_joined(Generation generation, Seat seat) {
  {
    std::lock_guard lock(events_mutex_);
    joined_ = generation.value;
    seat_ = seat.value;
    if (recovery_ <= generation.value) recovery_ = 0;
  }
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
  bool wake_waiting = false;
  {
    std::lock_guard lock(events_mutex_);
    const TrainerPage& now = page();
    const std::uint64_t recovery = now.recover_generation.load(std::memory_order_acquire);
    if (recovery > joined_ && recovery > recovery_told_) {
      recovery_ = recovery_told_ = recovery;
      wake_waiting = true;
    }
    if (now.stop.load(std::memory_order_acquire) != 0 && !stop_told_) wake_waiting = stop_ = stop_told_ = true;
    const std::uint64_t committed = Progress::unpack(now.progress.load(std::memory_order_acquire)).committed.value;
    if (committed > committed_told_) committed_ = committed_told_ = committed;
    if (recovery_ != 0 || stop_ || committed_ != 0) {
      user_event_.raise();
    } else {
      user_event_.lower();
    }
  }
  if (!wake_waiting) return;
  std::lock_guard lock(mutex_);  // who waits has either seen the page as it is now, or is asleep by now
  changed_.notify_all();
}

bool Session::next_event(pawl_event& event) {
  collect_events();
  std::lock_guard lock(events_mutex_);
  if (recovery_ != 0) {
    event.kind = PAWL_EVENT_RECOVERY;
    event.value = std::exchange(recovery_, 0);
  } else if (stop_) {
    stop_ = false;
    event.kind = PAWL_EVENT_STOP;
    event.value = 0;
  } else if (committed_ != 0) {
    event.kind = PAWL_EVENT_COMMITTED;
    event.value = std::exchange(committed_, 0);
  } else {
    return false;
  }
  if (recovery_ == 0 && !stop_ && committed_ == 0) user_event_.lower();
  return true;
}

void Session::clear_events() {
  std::lock_guard lock(events_mutex_);
  recovery_ = committed_ = 0;
  if (!stop_) user_event_.lower();
}

// --- The service thread.

void Session::serve() {
  while (!broken_) {
    if (line_ == Line::down && real_clock().now() >= connect_again_at_) connect();
    wait_for_work();
    if (page_.load() != nullptr) collect_events();
    if (line_ == Line::up) {
      std::lock_guard lock(mutex_);
      for (auto& [id, pending] : pending_) {
        if (!pending.sent) out_ += pending.frame;
        pending.sent = true;
      }
    }
    if (line_ != Line::down) write_socket();
  }
  say_goodbye();
}

// Returns when a request is new, pawld speaks or is gone, or some time has passed.
void Session::wait_for_work() {
  pollfd fds[3] = {{wake_.fd(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
  Duration timeout = kTick;
  if (line_ == Line::down) {
    timeout = kConnectInterval;
  } else {
    fds[1].fd = socket_.get();
    if (!out_.empty()) fds[1].events |= POLLOUT;
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

void Session::connect() {
  connect_again_at_ = real_clock().now() + kConnectInterval;
  if (Result<Fd> socket = connect_unix(options_.socket_path, Deadline::in(milliseconds(5))))
    begin_attach(std::move(*socket));
}

void Session::begin_attach(Fd socket) {
  socket_ = std::move(socket);
  reader_ = FrameReader();
  received_fds_.clear();
  line_ = Line::attaching;
  {
    std::lock_guard lock(mutex_);
    attach_id_ = ++last_id_;
    for (auto& [id, pending] : pending_) pending.sent = false;
  }
  out_ = encode_frame(frame_of(AttachMessage{.local_index = options_.local_index,
                                             .nonce = options_.nonce,
                                             .generation = Generation(joined_),
                                             .seat = seat_},
                               attach_id_));
}

void Session::disconnect() {
  socket_.reset();
  out_.clear();
  line_ = Line::down;
  connect_again_at_ = real_clock().now() + kConnectInterval;
}

void Session::write_socket() {
  if (out_.empty()) return;
  const Result<std::size_t> sent = try_send(socket_.get(), bytes_of(out_));
  if (!sent) return disconnect();
  out_.erase(0, *sent);
}

void Session::read_socket() {
  std::byte buffer[16 << 10];
  std::vector<Fd> fds;
  const Result<std::size_t> received = receive_with_fds(socket_.get(), buffer, fds, Deadline::at(Duration::zero()));
  if (!received && received.error().code == Code::timeout) return;
  if (!received) return disconnect();
  for (Fd& fd : fds) received_fds_.push_back(std::move(fd));
  reader_.append(std::span(buffer).first(*received));
  if (Status taken = take_frames(); !taken) {
    if (taken.error().code == Code::broken) give_up(std::move(taken).error().what);
    disconnect();  // `corrupt`: another connection may do better
  }
}

Status Session::take_frames() {
  for (;;) {
    Frame frame;
    PAWL_ASSIGN(const bool whole, reader_.next(frame));
    if (!whole) return {};
    PAWL_TRY(take_frame(frame));
  }
}

Status Session::take_frame(Frame& frame) {
  const MessageKind kind = kind_of(frame);
  if (line_ == Line::attaching) {
    if (frame.id != attach_id_) return Error{Code::corrupt, "an answer to nothing"};
    return take_attached(frame);
  }
  Answer answer;
  if (kind == MessageKind::arena && !received_fds_.empty()) {
    answer.fds.push_back(std::move(received_fds_.front()));
    received_fds_.pop_front();
  }
  std::lock_guard lock(mutex_);
  const auto found = pending_.find(frame.id);
  if (found == pending_.end() || found->second.result) return {};  // its request was dropped
  Pending& pending = found->second;
  if (kind == MessageKind::refused) {
    RefusedMessage refused;
    (void)decode(frame.payload, refused);  // what is missing in it is empty: it is a refusal all the same
    pending.result = Error{code_of(refused.status), refused.why};
  } else if (kind != pending.answer) {
    pending.result = Error{Code::broken, text("pawld answered with a message of kind ", frame.kind)};
  } else {
    answer.payload = std::move(frame.payload);
    pending.result = std::move(answer);
  }
  changed_.notify_all();
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
  if (received_fds_.size() < 3) return Error{Code::corrupt, "descriptors are missing"};
  const Fd page_fd = std::move(received_fds_[0]);
  daemon_event_ = std::move(received_fds_[1]);
  Fd notice = std::move(received_fds_[2]);
  received_fds_.erase(received_fds_.begin(), received_fds_.begin() + 3);
  PAWL_TRY(adopt_page(page_fd));  // locks the mutex: pawld watches it from our next message on
  {
    std::lock_guard lock(notice_mutex_);
    notice_ = std::move(notice);
  }
  line_ = Line::up;
  std::lock_guard lock(mutex_);
  was_attached_ = true;
  changed_.notify_all();
  return {};
}

Status Session::adopt_page(const Fd& page_fd) {
  Result<Mapping> mapping = map_segment(page_fd.get(), kTrainerPageBytes, {.populate = true});
  if (!mapping) return Error{Code::broken, mapping.error().what};
  Result<TrainerPage*> opened = open_page(mapping->bytes());
  if (!opened) return Error{Code::broken, opened.error().what};
  TrainerPage* page = *opened;
  TrainerPage* before = page_.load();
  // The same memory again (the keeper kept it over pawld's restart): we go on with our first mapping, which is where
  // the kernel knows our lock to be.
  if (before != nullptr && page->nonce.load() == options_.nonce) return {};
  if (lock_alive(&page->alive)) locked_.push_back(&page->alive);  // else pawld has only the pidfd to go by
  if (before != nullptr) copy_trainer_fields(*before, *page);
  introduce(*page, options_.nonce);
  mappings_.push_back(std::move(*mapping));
  page_.store(page, std::memory_order_release);
  return {};
}

void Session::say_goodbye() {
  if (line_ == Line::up) {
    out_ += encode_frame(frame_of(DetachMessage{}));
    (void)send_all(socket_.get(), bytes_of(out_), Deadline::in(kGoodbyeMax));
  }
  for (pthread_mutex_t* mutex : locked_) pthread_mutex_unlock(mutex);
  disconnect();
}

}  // namespace pawl::job
