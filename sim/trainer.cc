// A simulated trainer: what libpawl does in a training process, over simulated sockets and real shared memory. libpawl
// itself runs threads that copy and wait in the kernel, so it is not in a simulation; the arena, the gate, the page and
// the messages are the shipped ones.
#include <algorithm>
#include <utility>

#include "base/crc32c.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster.h"
#include "job/layout/seat_layout.h"
#include "job/redundancy/progress.h"
#include "job/transport/messages.h"
#include "pawl/pawl.h"

namespace pawl::sim {

using namespace std::chrono_literals;
using job::MessageKind;
using job::SlotState;
using job::SlotWord;

namespace {

constexpr Duration kTick = 20ms;

std::uint64_t word_of(Seat seat, Step step, std::uint64_t index) {
  return (std::uint64_t{seat.value} + 1) << 52 | step.value << 20 | (index & 0xfffff);
}

class Trainer {
 public:
  Trainer(Cluster& cluster, Process& process, World& world, std::string address, std::uint32_t local_index)
      : cluster_(cluster),
        scheduler_(cluster.scheduler),
        wires_(cluster.machines.wires()),
        process_(process),
        world_(world),
        address_(std::move(address)),
        local_index_(local_index),
        nonce_(scheduler_.random(std::uint64_t{1} << 60) + 1) {}

  void run() {
    scheduler_.sleep(scheduler_.between(20ms, 300ms));  // imports
    if (!attach()) return exit("exited 1");
    for (;;) {
      if (!join()) return exit("exited 1");
      if (!arena_ && !declare()) continue;
      if (resume_.value > 0 && !restore()) continue;
      if (!meet()) continue;
      if (!finish_recovery()) continue;
      if (train()) break;
    }
    send(frame_of(job::DetachMessage{}));
    page_->phase = ~std::uint64_t{0};
    exit("exited 0");
  }

 private:
  enum class Outcome { answered, over };  // over: a recovery is pending

  void exit(const std::string& how) {
    if (generation_.value > 0 && how != "exited 0") cluster_.trainer_ended(generation_);
    cluster_.machines.kill(process_, how);
    scheduler_.end_current();
  }

  // --- The line to pawld

  bool connect() {
    const Duration until = scheduler_.now() + 30s;
    while (scheduler_.now() < until) {
      end_ = wires_.start_connect(process_, address_, true);
      stream_ = stream_of(wires_, end_);
      reader_ = job::FrameReader(job::FrameSums::optional);
      while (!end_->ready().writable) scheduler_.wait(end_->waiting, scheduler_.now() + 1s);
      if (stream_->finish_connect()) return true;
      scheduler_.sleep(20ms);
    }
    return false;
  }
  bool send(const job::Frame& frame) {
    const std::string bytes = job::encode_frame(frame);
    return stream_->send_all({std::as_bytes(std::span(bytes))}, Deadline::in(5s, world_.environment.clock)).has_value();
  }
  // The next frame; nullopt: none by then, or the line is broken.
  std::optional<job::Frame> next_frame(Duration until) {
    for (;;) {
      job::Frame frame;
      const auto whole = reader_.next(frame);
      if (whole && *whole) return frame;
      std::byte buffer[16 << 10];
      const auto got = wires_.receive(*end_, buffer);
      if (!got) {
        broken_ = true;
        return std::nullopt;
      }
      if (*got > 0) {
        reader_.append(std::span(buffer, *got));
        continue;
      }
      if (scheduler_.now() >= until) return std::nullopt;
      scheduler_.wait(end_->waiting, until);
    }
  }

  bool attach() {
    const Duration until = scheduler_.now() + 60s;
    while (scheduler_.now() < until) {
      broken_ = false;
      if (!connect()) return false;
      if (!send(frame_of(job::AttachMessage{.local_index = local_index_,
                                            .nonce = nonce_,
                                            .generation = generation_,
                                            .seat = seat_ ? seat_->value : job::kNoSeat},
                         ++request_)))
        continue;
      const auto answer = next_frame(until);
      if (!answer) continue;
      if (!job::is<job::AttachedMessage>(*answer) || end_->passed.size() != 3) return false;
      auto mapping = map_segment(end_->passed[0].segment.get(), job::kTrainerPageBytes);
      event_ = end_->passed[1].flag;
      notices_ = end_->passed[2].flag;
      end_->passed.clear();
      if (page_ == nullptr) {
        page_memory_ = std::move(*mapping);
        page_ = *job::open_page(page_memory_.bytes());
        page_->nonce = nonce_;
        page_->pid = process_.pid;
        page_->start_time = process_.pid;
      }
      return true;
    }
    return false;
  }

  [[nodiscard]] bool recovery_pending() const { return page_->recover_generation.load() > generation_.value; }
  void notify() {
    notices_->raised = true;
    wires_.changed(*notices_);
  }
  void progress(std::uint32_t phase) {
    page_->phase = phase;
    page_->progress_at_ns = static_cast<std::uint64_t>(world_.environment.clock.now().count());
    ++page_->progress_count;
  }
  void look_at_progress() { cluster_.committed(generation_, job::Progress::unpack(page_->progress.load()).committed); }

  // Repeats the request over restarts of pawld, with the same id.
  template <class Message>
  std::optional<job::Frame> request(const Message& message, MessageKind wanted, bool ends_at_recovery = true) {
    const std::uint64_t id = ++request_;
    bool sent = false;
    for (;;) {
      if (page_->stop.load() != 0) exit("exited 0");
      if (ends_at_recovery && recovery_pending()) return std::nullopt;
      if (broken_) {
        if (!attach()) exit("exited 1");
        sent = false;
      }
      if (!sent) {
        log_debug("sim_trainer_asks", "for", static_cast<unsigned>(wanted), "id", id, "generation", generation_);
        sent = send(frame_of(message, id));
        broken_ = !sent;
        if (broken_) continue;
      }
      auto frame = next_frame(scheduler_.now() + kTick);
      look_at_progress();
      if (!frame || frame->id != id) continue;
      log_debug("sim_trainer_hears", "kind", static_cast<unsigned>(job::kind_of(*frame)), "id", id);
      if (job::kind_of(*frame) == wanted) return frame;
      if (job::is<job::RefusedMessage>(*frame)) {
        job::RefusedMessage refused;
        (void)decode(frame->payload, refused);
        log_warn("sim_trainer_refused", "why", refused.why);
        // A recovery may be under way that takes care of it; else this process is of no use.
        scheduler_.sleep(100ms);
        if (recovery_pending()) return std::nullopt;
        exit("exited 1");
      }
    }
  }

  // --- Into the job

  bool join() {
    stop_capture();
    if (broken_ && !attach()) return false;
    progress(PAWL_PHASE_JOIN);
    const auto frame = request(job::JoinMessage{generation_}, MessageKind::seated, false);
    job::SeatedMessage seated;
    if (!frame || !decode(frame->payload, seated)) return false;
    if (seat_ && *seat_ != seated.seat)
      cluster_.violate(text("trainer of seat ", *seat_, " was seated at ", seated.seat));
    generation_ = seated.generation;
    seat_ = seated.seat;
    world_size_ = seated.world;
    resume_ = seated.resume;
    page_->reached = resume_.value;
    page_->step = resume_.value;
    progress(PAWL_PHASE_NONE);
    return true;
  }

  bool declare() {
    const std::uint32_t world = cluster_.first_world();  // as if it didn't matter: no state is cut for another world
    job::LayoutBuilder builder(world);
    job::LayoutEntry state;
    state.name = "state";
    state.role = "weight";
    state.shape = {std::uint64_t{kBuckets} * kBucketBytes / 4};
    state.box = whole_box(state.shape);
    const std::uint32_t stride = cluster_.options.equal_stride;
    state.mesh = stride > 1 ? *builder.add_mesh({"mesh", {{"dp", world / stride}, {"tp", stride}}})
                            : *builder.add_mesh({"mesh", {{"dp", world}}});
    state.equal_axes = stride > 0 ? 1 : 0;
    if (cluster_.storage.is_on()) state.placement = job::TensorPlacement::unique;  // under one name each has its own
    (void)builder.add(state);
    const job::SeatLayout built = *builder.build();
    job::LayoutMessage layout;
    layout.payload_bytes = built.payload_bytes;
    layout.stable_bytes = built.stable_bytes;
    layout.bucket_bytes = kBucketBytes;
    layout.layout = text_of(built);
    layout.layout_digest = digest_of(layout.layout);
    const auto frame = request(layout, MessageKind::arena);
    if (!frame) return false;
    job::ArenaMessage message;
    if (!decode(frame->payload, message) || end_->passed.size() != 1) exit("exited 1");
    auto mapping = map_segment(end_->passed[0].segment.get(), message.size_bytes);
    end_->passed.clear();
    arena_memory_ = std::move(*mapping);
    arena_ = *job::Arena::open(arena_memory_.bytes());
    return true;
  }

  bool restore() {
    progress(PAWL_PHASE_RESTORE);
    std::vector<std::byte> live;
    auto source = restore_source(true);
    if (!source) return false;
    if (source->slot.word().state != job::SlotState::sealed) {
      copy_what_comes(source->slot, source->named, live);
      source = restore_source(false);
      if (!source) return false;
    }
    const job::Slot& slot = source->slot;
    scheduler_.sleep(scheduler_.between(100us, 5ms));
    if (Status sound = slot.verify(); !sound) {
      job::RestoreBadMessage bad{source->named.index, sound.error().what};
      (void)send(frame_of(bad, ++request_));
      for (const Duration until = scheduler_.now() + 5s; !recovery_pending() && scheduler_.now() < until;)
        scheduler_.sleep(kTick);
      return false;
    }
    const auto payload = slot.payload();
    live.insert(live.end(), payload.begin() + static_cast<std::ptrdiff_t>(live.size()), payload.end());
    cluster_.restored(generation_, *seat_, resume_, live);
    return true;
  }

  struct RestoreSource {
    job::SlotMessage named;
    job::Slot slot;
  };
  std::optional<RestoreSource> restore_source(bool as_it_fills) {
    const auto frame = request(job::RestoreMessage{generation_, as_it_fills}, MessageKind::slot);
    if (!frame) return std::nullopt;
    job::SlotMessage named;
    if (!decode(frame->payload, named) || named.index >= arena_->slot_count() || named.step != resume_) {
      cluster_.violate("pawld named a slot that makes no sense");
      return std::nullopt;
    }
    return RestoreSource{named, arena_->slot(named.index)};
  }

  // As libpawl's SlotRestore: bucket after bucket while the fetch runs, each with the sum of what was copied.
  void copy_what_comes(const job::Slot& slot, const job::SlotMessage& named, std::vector<std::byte>& live) {
    Duration news_at = scheduler_.now();
    for (std::uint32_t i = 0; i < kBuckets && !recovery_pending() && scheduler_.now() - news_at < 1s;) {
      if (!slot.bucket_ready(i, named.generation, named.step)) {
        scheduler_.sleep(scheduler_.between(100us, 2ms));
        look_at_progress();
        continue;
      }
      const auto bytes = slot.bucket(i);
      if (crc32c(bytes) != slot.buckets()[i].crc32c.load()) return;
      live.insert(live.end(), bytes.begin(), bytes.end());
      news_at = scheduler_.now();
      ++i;
    }
  }

  // As the groups of a training do: each says where it is, and waits until its neighbour has.
  bool meet() {
    job::RendezvousMessage here{generation_, {}};
    here.request.op = job::RendezvousOp::set;
    here.request.key = text("g", generation_, "/", *seat_);
    here.request.value = text(process_.pid);
    if (!request(here, MessageKind::value)) return false;
    job::RendezvousMessage there{generation_, {}};
    there.request.op = job::RendezvousOp::get;
    there.request.key = text("g", generation_, "/", (seat_->value + 1) % world_size_);
    return request(there, MessageKind::value).has_value();
  }

  bool finish_recovery() {
    progress(PAWL_PHASE_RESTORE);
    const auto frame = request(job::DoneMessage{generation_}, MessageKind::running);
    if (!frame) return false;
    progress(PAWL_PHASE_NONE);
    return true;
  }

  // --- Steps

  bool train() {  // true: the job has ended
    for (Step step = resume_.next();; step = step.next()) {
      if (!wait_while_paused(step)) return false;
      page_->step = step.value;
      const auto asks_in = static_cast<std::int64_t>(cluster_.options.storage.asks_in);
      if (asks_in > 0 && scheduler_.between(0ns, Duration(asks_in)) == 0ns) (void)job::ask_to_persist(*page_);
      cluster_.step_begun(generation_, step);
      progress(PAWL_PHASE_COMPUTE);
      scheduler_.sleep(scheduler_.between(cluster_.options.step / 2, cluster_.options.step));
      look_at_progress();
      if (recovery_pending()) return false;
      progress(PAWL_PHASE_ALLREDUCE);
      std::uint64_t last_step = 0;
      switch (cluster_.exchange(
          generation_, step, *seat_, process_.machine, process_.pid,
          [this] { return recovery_pending() || page_->stop.load() != 0; }, last_step)) {
        case Cluster::Exchanged::interrupted:
          if (page_->stop.load() != 0) exit("exited 0");
          return false;
        case Cluster::Exchanged::failed:
          report_fault("the connection was closed");
          return false;
        case Cluster::Exchanged::done:
          break;
      }
      progress(PAWL_PHASE_FENCE);
      fence();
      if (recovery_pending()) return false;
      progress(PAWL_PHASE_UPDATE);
      open_window(step);
      if (step.value == last_step) {
        progress(PAWL_PHASE_FINISH);
        fence(true);
        if (recovery_pending()) return false;
        if (!captured_) {
          report_fault("the last step's window is void");
          return false;
        }
        const auto frame = request(job::FinishMessage{step, step}, MessageKind::finished);
        if (!frame) return false;
        return true;
      }
    }
  }

  // As libpawl's step_begin does while a node is drained. false: a recovery is pending.
  bool wait_while_paused(Step before) {
    const auto paused = [&] { return page_->pause_step.load() != 0 && before.value > page_->pause_step.load(); };
    if (!paused()) return true;
    page_->phase = PAWL_PHASE_ASIDE;
    page_->paused_before = before.value;
    notify();
    while (paused() && !recovery_pending()) {
      if (page_->stop.load() != 0) exit("exited 0");
      scheduler_.sleep(1ms);
      look_at_progress();
      if (broken_ && !attach()) exit("exited 1");
    }
    page_->paused_before = 0;
    return !recovery_pending();
  }

  // Until the recovery that follows is pending.
  void report_fault(const std::string& what) {
    (void)request(job::FaultMessage{generation_, what}, MessageKind::noted);
    while (!recovery_pending()) {
      if (page_->stop.load() != 0) exit("exited 0");
      (void)next_frame(scheduler_.now() + kTick);
      if (broken_ && !attach()) exit("exited 1");
    }
  }

  // The window of `step`: copied by a task of its own until the next fence.
  void open_window(Step step) {
    window_open_ = true;
    cancelled_ = captured_ = false;
    last_chance_ = last_step_ = false;
    turns_.open();
    world_.tasks.start("capture", [this, step, generation = generation_] {
      capture(generation, step);
      window_open_ = false;
      scheduler_.notify(window_);
    });
  }
  void fence(bool waits_for_slot = false) {
    last_chance_ = !waits_for_slot;
    last_step_ = waits_for_slot;
    while (window_open_) {
      scheduler_.wait(window_, scheduler_.now() + kTick);
      if (broken_) (void)attach();
      if (recovery_pending()) cancelled_ = true;
    }
  }
  void stop_capture() {
    cancelled_ = true;
    while (window_open_) scheduler_.wait(window_, scheduler_.now() + kTick);
  }

  void capture(Generation generation, Step step) {
    std::optional<job::Slot> slot;
    while (!slot && !cancelled_) {
      const auto known = job::Progress::unpack(page_->progress.load());
      std::vector<SlotWord> words;
      for (std::uint32_t i = 0; i < arena_->slot_count(); ++i) words.push_back(arena_->slot(i).word_for_gate());
      if (page_->gate_off.load() != 0)
        for (SlotWord& word : words)
          if (!word.frozen && word.state == SlotState::sealed && word.step < step) word.state = SlotState::empty;
      const bool takes = turns_.takes(generation, step, known) || last_step_ || page_->paused_before != 0 ||
                         page_->gate_off.load() != 0;
      const auto chosen = takes ? job::choose_slot(words, known, generation, step) : std::nullopt;
      if (chosen) {
        const job::Slot free = arena_->slot(*chosen);
        const SlotWord word = free.word();
        if (cluster_.storage.is_on()) scheduler_.sleep(scheduler_.between(0us, 300us));  // a pin may come here
        if (free.try_open(word, generation, step, step.value)) slot = free;
        if (slot && word.state == SlotState::sealed && slot->pinned(word))
          cluster_.violate(
              text("seat ", *seat_, " overwrites step ", word.step, ", which is pinned, with step ", step));
      }
      if (!slot && last_chance_) break;
      if (!slot) scheduler_.sleep(1ms);
    }
    page_->reached = step.value;
    if (!slot) return notify();
    for (std::uint32_t i = 0; i < kBuckets; ++i) {
      scheduler_.sleep(scheduler_.between(10us, 2ms));
      if (cancelled_) {
        (void)slot->try_abandon(generation, step);
        return notify();
      }
      const auto bytes = slot->bucket(i);
      fill_state(bytes, cluster_.content_in(generation, *seat_), step, std::uint64_t{i} * kBucketBytes / 8);
      slot->bucket_done(i, crc32c(bytes), generation, step);
      notify();
    }
    scheduler_.sleep(scheduler_.between(5us, 300us));
    captured_ = slot->try_seal(generation, step);
    notify();
  }

  Cluster& cluster_;
  Scheduler& scheduler_;
  Wires& wires_;
  Process& process_;
  World& world_;
  const std::string address_;
  const std::uint32_t local_index_;
  const std::uint64_t nonce_;

  std::shared_ptr<End> end_;
  std::unique_ptr<Stream> stream_;
  job::FrameReader reader_{job::FrameSums::optional};
  bool broken_ = false;
  std::uint64_t request_ = 0;
  Mapping page_memory_;
  job::TrainerPage* page_ = nullptr;
  std::shared_ptr<Flag> event_, notices_;

  Generation generation_;
  std::optional<Seat> seat_;
  std::uint32_t world_size_ = 0;
  Step resume_;
  Mapping arena_memory_;
  std::optional<job::Arena> arena_;

  bool window_open_ = false;
  bool cancelled_ = false;
  bool last_chance_ = false;
  bool last_step_ = false;
  job::Turns turns_;
  bool captured_ = false;
  WaitQueue window_;
};

}  // namespace

void fill_state(std::span<std::byte> bytes, Seat seat, Step step, std::uint64_t first_word) {
  auto* words = reinterpret_cast<std::uint64_t*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / 8; ++i) words[i] = word_of(seat, step, first_word + i);
}

bool is_state(std::span<const std::byte> bytes, Seat seat, Step step, std::uint64_t first_word) {
  const auto* words = reinterpret_cast<const std::uint64_t*>(bytes.data());
  for (std::size_t i = 0; i < bytes.size() / 8; ++i)
    if (words[i] != word_of(seat, step, first_word + i)) return false;
  return true;
}

void run_trainer(Cluster& cluster, Process& process, World& world, const std::string& local_address,
                 std::uint32_t local_index) {
  auto* trainer = new Trainer(cluster, process, world, local_address, local_index);
  trainer->run();
}

}  // namespace pawl::sim
