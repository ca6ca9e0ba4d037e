// TestDaemon: the pawld of libpawl's tests. A peer that speaks job/transport/messages.h over a real socket with real segments,
// and does what it is told: it answers at once or withholds, dies without a word, and comes back with what a keeper
// kept.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "env/network.h"
#include "env/shared_memory.h"
#include "job/redundancy/progress.h"
#include "job/rendezvous/rendezvous_store.h"
#include "job/snapshot/arena.h"
#include "job/snapshot/trainer_page.h"
#include "job/transport/frame.h"
#include "job/transport/messages.h"

namespace pawl::job {

struct Segment {
  Fd fd;
  Mapping memory;
  [[nodiscard]] static Segment make(const std::string& name, std::uint64_t size) {
    Segment segment;
    segment.fd = std::move(*create_segment(name, size));
    segment.memory = std::move(*map_segment(segment.fd.get(), size));
    return segment;
  }
};

// What outlives a TestDaemon.
struct Kept {
  Segment page_segment;
  TrainerPage* page = nullptr;
  Segment arena_segment;
  std::optional<Arena> arena;
  RendezvousStore store;

  Kept() { new_page(); }
  void set(std::string key, std::string value) {
    RendezvousRequest request;
    request.op = RendezvousOp::set;
    request.key = std::move(key);
    request.value = std::move(value);
    (void)store.apply(request);
  }
  [[nodiscard]] std::string value(std::string key) {
    RendezvousRequest request;
    request.op = RendezvousOp::try_get;
    request.key = std::move(key);
    return store.apply(request)->value;
  }
  void new_page() {
    page_segment = Segment::make("page", kTrainerPageBytes);
    page = *initialise_page(page_segment.memory.bytes());
  }
};

struct Seating {
  std::uint64_t generation = 1;
  std::uint32_t seat = 0;
  std::uint32_t world = 1;
  std::uint64_t resume_step = 0;
};

class TestDaemon {
 public:
  TestDaemon(std::string path, Kept& kept) : path_(std::move(path)), kept_(kept) { start(); }
  ~TestDaemon() { kill(); }

  void start() {
    listener_ = std::move(*listen_unix(path_));
    ending_ = false;
    thread_ = std::thread([this] { serve(); });
  }
  // As SIGKILL would: no word to anyone; the path stays, and nobody listens.
  void kill() {
    if (!thread_.joinable()) return;
    ending_ = true;
    thread_.join();
    connection_.reset();
    listener_.reset();
  }

  void set_seating(Seating seating) {
    std::lock_guard lock(mutex_);
    seating_ = seating;
  }
  void withhold(MessageKind kind) {
    std::lock_guard lock(mutex_);
    withheld_.insert(kind);
  }
  void allow(MessageKind kind) {
    std::lock_guard lock(mutex_);
    withheld_.erase(kind);
  }
  void refuse(MessageKind kind, std::uint32_t status, std::string why) {
    std::lock_guard lock(mutex_);
    refusals_[kind] = {status, std::move(why)};
  }
  void answer_nonsense() { nonsense_ = true; }
  // Ends each wait for a key before the trainer does, as pawld may where the trainer's thread gets no processor.
  void end_waits() { ends_waits_ = true; }
  int count(MessageKind kind) {
    std::lock_guard lock(mutex_);
    return static_cast<int>(std::count(heard_.begin(), heard_.end(), kind));
  }
  void wait_for(MessageKind kind, int times = 1) {
    while (count(kind) < times) real_clock().sleep(std::chrono::milliseconds(1));
  }
  std::string last_text() {
    std::lock_guard lock(mutex_);
    return last_text_;
  }

  void commit(std::uint64_t step) {
    kept_.page->progress.store(Progress{Step(step), 0}.pack());
    ring();
  }
  // Freezes, and tells the trainer. Slots in the lineage come back when it says done.
  void recover(std::uint64_t generation, std::uint64_t resume_step) {
    Seating next;
    {
      std::lock_guard lock(mutex_);
      next = seating_;
    }
    next.generation = generation;
    next.resume_step = resume_step;
    set_seating(next);
    if (kept_.arena) {
      for (std::uint32_t i = 0; i < kept_.arena->slot_count(); ++i) kept_.arena->slot(i).freeze();
    }
    kept_.page->recover_generation.store(generation);
    ring();
  }
  void stop_job() {
    kept_.page->stop = 1;
    ring();
  }

 private:
  void ring() {
    std::lock_guard lock(mutex_);
    if (event_) event_->raise();
  }
  void serve() {
    while (!ending_) {
      pollfd fds[2] = {{listener_.get(), POLLIN, 0}, {connection_.get(), POLLIN, 0}};
      (void)::poll(fds, 2, 2);
      if (fds[0].revents != 0) accept();
      if (fds[1].revents != 0 && connection_.valid()) read();
      answer_what_waits();
    }
  }
  void accept() {
    Result<Fd> accepted = try_accept(listener_.get());
    if (!accepted || !accepted->valid()) return;
    connection_ = std::move(*accepted);
    waiting_.clear();
  }
  void read() {
    Result<Frame> frame = receive_frame(connection_.get(), Deadline::in(std::chrono::seconds(5)));
    if (!frame) return connection_.reset();
    std::lock_guard lock(mutex_);
    heard_.push_back(kind_of(*frame));
    waiting_.push_back(std::move(*frame));
  }
  void answer_what_waits() {
    std::vector<Frame> now;
    {
      std::lock_guard lock(mutex_);
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto kind = kind_of(*it);
        if (withheld_.count(kind) > 0 || (kind == MessageKind::rendezvous && !try_store(*it)) ||
            (kind == MessageKind::restore && !named_slot(*it))) {
          ++it;
        } else {
          now.push_back(std::move(*it));
          it = waiting_.erase(it);
        }
      }
    }
    for (const Frame& frame : now) answer(frame);
  }
  template <class Message>
  void say(const Frame& request, const Message& message, std::vector<int> fds = {}) {
    const std::string bytes = encode_frame(frame_of(message, request.id));
    (void)send_with_fds(connection_.get(), std::as_bytes(std::span(bytes)), fds, Deadline::in(std::chrono::seconds(5)));
  }
  void answer(const Frame& frame) {
    const MessageKind kind = kind_of(frame);
    Seating seating;
    std::optional<std::pair<std::uint32_t, std::string>> refusal;
    {
      std::lock_guard lock(mutex_);
      seating = seating_;
      if (auto found = refusals_.find(kind); found != refusals_.end()) refusal = found->second;
    }
    if (refusal) return say(frame, RefusedMessage{refusal->first, refusal->second});
    if (nonsense_ && kind != MessageKind::attach) return say(frame, AttachedMessage{});
    switch (kind) {
      case MessageKind::attach:
        return attach(frame);
      case MessageKind::join:
        return say(frame, SeatedMessage{Generation(seating.generation), Seat(seating.seat), seating.world, 0,
                                        Step(seating.resume_step), "g" + std::to_string(seating.generation)});
      case MessageKind::layout:
        return layout(frame, seating);
      case MessageKind::restore:
        return say(frame, named_slot_.value_or(SlotMessage{}));
      case MessageKind::restore_bad: {
        RestoreBadMessage bad;
        EXPECT_TRUE(decode(frame.payload, bad));
        std::lock_guard lock(mutex_);
        last_text_ = bad.why;
        break;
      }
      case MessageKind::done:
        run(seating);
        return say(frame, RunningMessage{Generation(seating.generation)});
      case MessageKind::fault: {
        FaultMessage fault;
        EXPECT_TRUE(decode(frame.payload, fault));
        std::lock_guard lock(mutex_);
        last_text_ = fault.what;
        return say(frame, NotedMessage{});
      }
      case MessageKind::rendezvous:
        return say(frame, ValueMessage{store_answers_.at(frame.id)});
      case MessageKind::stop_after: {
        StopAfterMessage asked;
        EXPECT_TRUE(decode(frame.payload, asked));
        std::uint64_t none = 0;
        kept_.page->stop_step.compare_exchange_strong(none, asked.step.value);
        return say(frame, StoppingMessage{Step(kept_.page->stop_step)});
      }
      case MessageKind::finish:
        return say(frame, FinishedMessage{});
      default:
        return;
    }
  }
  // Carried out as pawld does: once, however often it is repeated.
  bool try_store(const Frame& frame) {
    RendezvousMessage message;
    if (!decode(frame.payload, message)) return true;  // no answer will come of it
    RendezvousRequest& request = message.request;
    request.client = kept_.page->nonce;
    request.number = frame.id;
    std::optional<RendezvousAnswer> answer = kept_.store.apply(request);
    if (!answer && ends_waits_) answer = RendezvousAnswer{false, {}, std::string(kWaitIsOver)};
    if (!answer) return false;
    store_answers_[frame.id] = std::move(*answer);
    return true;
  }
  void attach(const Frame& frame) {
    {
      std::lock_guard lock(mutex_);
      event_ = std::make_unique<Event>(std::move(*Event::make()));
      notice_ = std::make_unique<Event>(std::move(*Event::make()));
    }
    say(frame, AttachedMessage{}, {kept_.page_segment.fd.get(), event_->fd(), notice_->fd()});
  }
  void layout(const Frame& frame, const Seating& seating) {
    LayoutMessage declared;
    EXPECT_TRUE(decode(frame.payload, declared));
    ArenaSpec spec;
    spec.job = "test";
    spec.seat = Seat(seating.seat);
    spec.payload_bytes = declared.payload_bytes;
    spec.stable_bytes = declared.stable_bytes;
    spec.bucket_bytes = declared.bucket_bytes;
    spec.layout_digest = declared.layout_digest;
    spec.layout = declared.layout;
    if (!kept_.arena) {
      kept_.arena_segment = Segment::make("own", Arena::size_bytes(spec));
      kept_.arena = *Arena::format(kept_.arena_segment.memory.bytes(), spec);
    }
    say(frame, ArenaMessage{kept_.arena_segment.memory.size_bytes()}, {kept_.arena_segment.fd.get()});
  }
  // Under mutex_. What a restore is answered; false: not yet. A frozen dirty slot counts as one that a fetch fills.
  bool named_slot(const Frame& frame) {
    RestoreMessage asked;
    EXPECT_TRUE(decode(frame.payload, asked));
    for (std::uint32_t i = 0; kept_.arena && i < kept_.arena->slot_count(); ++i) {
      const SlotWord word = kept_.arena->slot(i).word();
      const bool fills = asked.as_it_fills && word.state == SlotState::dirty && word.frozen;
      if (!(fills || word.state == SlotState::sealed) || word.step != Step(seating_.resume_step)) continue;
      named_slot_ = SlotMessage{i, word.generation, word.step};
      return true;
    }
    return false;
  }
  void run(const Seating& seating) {
    kept_.page->generation = seating.generation;
    kept_.page->resume_step = seating.resume_step;
    if (seating.resume_step > 0) kept_.page->progress.store(Progress{Step(seating.resume_step), 0}.pack());
    for (std::uint32_t i = 0; kept_.arena && i < kept_.arena->slot_count(); ++i) {
      const SlotWord word = kept_.arena->slot(i).word();
      kept_.arena->slot(i).unfreeze(word.state == SlotState::sealed && word.step.value <= seating.resume_step);
    }
  }

  const std::string path_;
  Kept& kept_;
  Fd listener_, connection_;
  std::atomic<bool> ending_{false}, nonsense_{false}, ends_waits_{false};
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  std::unique_ptr<Event> event_, notice_;
  Seating seating_;
  std::vector<Frame> waiting_;
  std::vector<MessageKind> heard_;
  std::set<MessageKind> withheld_;
  std::map<std::uint64_t, RendezvousAnswer> store_answers_;
  std::map<MessageKind, std::pair<std::uint32_t, std::string>> refusals_;
  std::string last_text_;
  std::optional<SlotMessage> named_slot_;  // to the restore that is being answered
};

}  // namespace pawl::job
