// TestDaemon: the pawld of libpawl's tests. A peer that speaks job/trainer/wire.h over a real socket with real segments,
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
#include "job/trainer/wire.h"
#include "job/transport/frame.h"

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
  Store store;

  Kept() { new_page(); }
  void set(std::string key, std::string value) {
    StoreRequest request;
    request.op = StoreOp::set;
    request.key = std::move(key);
    request.value = std::move(value);
    (void)store.apply(request);
  }
  [[nodiscard]] std::string value(std::string key) {
    StoreRequest request;
    request.op = StoreOp::try_get;
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
  void withhold(TrainerWire kind) {
    std::lock_guard lock(mutex_);
    withheld_.insert(kind);
  }
  void allow(TrainerWire kind) {
    std::lock_guard lock(mutex_);
    withheld_.erase(kind);
  }
  void refuse(TrainerWire kind, std::uint32_t status, std::string why) {
    std::lock_guard lock(mutex_);
    refusals_[kind] = {status, std::move(why)};
  }
  void answer_nonsense() { nonsense_ = true; }
  int count(TrainerWire kind) {
    std::lock_guard lock(mutex_);
    return static_cast<int>(std::count(heard_.begin(), heard_.end(), kind));
  }
  void wait_for(TrainerWire kind, int times = 1) {
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
    heard_.push_back(static_cast<TrainerWire>(frame->kind));
    waiting_.push_back(std::move(*frame));
  }
  void answer_what_waits() {
    std::vector<Frame> now;
    {
      std::lock_guard lock(mutex_);
      for (auto it = waiting_.begin(); it != waiting_.end();) {
        const auto kind = static_cast<TrainerWire>(it->kind);
        if (withheld_.count(kind) > 0 || (kind == TrainerWire::store && !try_store(*it))) {
          ++it;
        } else {
          now.push_back(std::move(*it));
          it = waiting_.erase(it);
        }
      }
    }
    for (const Frame& frame : now) answer(frame);
  }
  void say(const Frame& request, TrainerWire kind, std::string payload, std::vector<int> fds = {}) {
    const std::string bytes = encode_frame({static_cast<std::uint16_t>(kind), request.id, std::move(payload)});
    (void)send_with_fds(connection_.get(), std::as_bytes(std::span(bytes)), fds, Deadline::in(std::chrono::seconds(5)));
  }
  void answer(const Frame& frame) {
    const auto kind = static_cast<TrainerWire>(frame.kind);
    Reader in(frame.payload);
    Seating seating;
    std::optional<std::pair<std::uint32_t, std::string>> refusal;
    {
      std::lock_guard lock(mutex_);
      seating = seating_;
      if (auto found = refusals_.find(kind); found != refusals_.end()) refusal = found->second;
    }
    if (refusal) return say(frame, TrainerWire::refused, Writer().u32(refusal->first).str(refusal->second).take());
    if (nonsense_ && kind != TrainerWire::attach) return say(frame, TrainerWire::attached, "?");
    switch (kind) {
      case TrainerWire::attach:
        return attach(frame);
      case TrainerWire::join:
        return say(frame, TrainerWire::seated,
                   Writer()
                       .u64(seating.generation)
                       .u32(seating.seat)
                       .u32(seating.world)
                       .u32(0)
                       .u64(seating.resume_step)
                       .str("g" + std::to_string(seating.generation))
                       .take());
      case TrainerWire::layout:
        return layout(frame, seating);
      case TrainerWire::restore:
        return restore(frame, seating);
      case TrainerWire::restore_bad: {
        (void)in.u32();
        std::lock_guard lock(mutex_);
        last_text_ = in.str();
        break;
      }
      case TrainerWire::done:
        run(seating);
        return say(frame, TrainerWire::running, Writer().u64(seating.generation).take());
      case TrainerWire::fault: {
        (void)in.u64();
        std::lock_guard lock(mutex_);
        last_text_ = in.str();
        return say(frame, TrainerWire::noted, {});
      }
      case TrainerWire::store: {
        Writer payload;
        write_store_answer(payload, store_answers_.at(frame.id));
        return say(frame, TrainerWire::value, payload.take());
      }
      case TrainerWire::stop_after: {
        (void)in.u64();
        const std::uint64_t asked = in.u64();
        std::uint64_t none = 0;
        kept_.page->stop_step.compare_exchange_strong(none, asked);
        return say(frame, TrainerWire::stopping, Writer().u64(kept_.page->stop_step).take());
      }
      case TrainerWire::finish:
        return say(frame, TrainerWire::finished, {});
      default:
        return;
    }
  }
  // Carried out as pawld does: once, however often it is repeated.
  bool try_store(const Frame& frame) {
    Reader in(frame.payload);
    (void)in.u64();
    StoreRequest request;
    if (!read_store_request(in, request)) return true;  // no answer will come of it
    request.client = kept_.page->nonce;
    request.number = frame.id;
    std::optional<StoreAnswer> answer = kept_.store.apply(request);
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
    say(frame, TrainerWire::attached, Writer().u32(kTrainerWireVersion).u32(kNoSeat).take(),
        {kept_.page_segment.fd.get(), event_->fd(), notice_->fd()});
  }
  void layout(const Frame& frame, const Seating& seating) {
    Reader in(frame.payload);
    ArenaSpec spec;
    spec.job = "test";
    spec.seat = Seat(seating.seat);
    spec.payload_bytes = in.u64();
    spec.stable_bytes = in.u64();
    spec.bucket_bytes = in.u32();
    spec.layout_digest = in.u64();
    spec.layout = in.str();
    if (!kept_.arena) {
      kept_.arena_segment = Segment::make("own", Arena::size_bytes(spec));
      kept_.arena = *Arena::format(kept_.arena_segment.memory.bytes(), spec);
    }
    say(frame, TrainerWire::arena, Writer().u64(kept_.arena_segment.memory.size_bytes()).take(),
        {kept_.arena_segment.fd.get()});
  }
  void restore(const Frame& frame, const Seating& seating) {
    for (std::uint32_t i = 0; i < kept_.arena->slot_count(); ++i) {
      const SlotWord word = kept_.arena->slot(i).word();
      if (word.state != SlotState::sealed || word.step != Step(seating.resume_step)) continue;
      return say(frame, TrainerWire::slot, Writer().u32(i).u64(word.generation.value).u64(word.step.value).take());
    }
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
  std::atomic<bool> ending_{false}, nonsense_{false};
  std::thread thread_;

  std::mutex mutex_;  // guards what follows
  std::unique_ptr<Event> event_, notice_;
  Seating seating_;
  std::vector<Frame> waiting_;
  std::vector<TrainerWire> heard_;
  std::set<TrainerWire> withheld_;
  std::map<std::uint64_t, StoreAnswer> store_answers_;
  std::map<TrainerWire, std::pair<std::uint32_t, std::string>> refusals_;
  std::string last_text_;
};

}  // namespace pawl::job
