#include "job/trainer/trainer.h"

#include <sys/random.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/memory_kernel.h"
#include "base/text.h"
#include "job/redundancy/progress.h"
#include "job/trainer/slot_restore.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;

constexpr Duration kAttachMax = std::chrono::seconds(30);
constexpr unsigned kRestoreThreadsMax = 16;                  // nothing trains meanwhile
constexpr unsigned kGpuRestoreThreadsMax = 8;                // a link's rate needs no more, and each pins memory
constexpr Duration kBadSourceMax = std::chrono::seconds(5);  // for the recovery that a corrupt source brings about

// Drawn once: tells this process from any other that ever had its pid. A forked child must not attach with it.
std::uint64_t draw_nonce() {
  std::uint64_t nonce = 0;
  while (nonce == 0) {
    if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce) {
      nonce = static_cast<std::uint64_t>(real_clock().wall().count()) ^ (static_cast<std::uint64_t>(getpid()) << 40);
    }
  }
  return nonce;
}

void count_fence(TrainerPage& page, std::uint64_t waited_ns) {
  page.fence_count.fetch_add(1);
  page.fence_wait_ns_last.store(waited_ns);
  page.fence_wait_ns_total.fetch_add(waited_ns);
  page.fence_wait_ns_max.store(std::max(page.fence_wait_ns_max.load(), waited_ns));
}

// The number in the environment, within [least, most]; `otherwise` where the variable is not set.
Result<std::uint64_t> number_in_environment(const char* name, std::uint64_t least, std::uint64_t most,
                                            std::uint64_t otherwise) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return otherwise;
  std::uint64_t number = 0;
  if (!parse_number(std::string_view(value), number) || number < least || number > most) {
    return Error{Code::invalid, text(name, "=", value, ": must be a number from ", least, " to ", most)};
  }
  return number;
}

// A test's hold: stay in this phase until somebody lets us go, or kills us. In a step also until a recovery is pending:
// the others wait for us there.
void hold_if_asked(TrainerPage& page, std::uint32_t phase, const Session& session) {
  const auto asked = [&] {
    return page.hold_phase.load(std::memory_order_acquire) == phase &&
           (is_of_recovery(phase) || !session.interrupted());
  };
  if (phase == PAWL_PHASE_NONE || !asked() || page.step.load() < page.hold_step.load()) return;
  while (asked()) {
    page.held.store(1);  // each time: who asks for the same hold once more has cleared it
    real_clock().sleep(milliseconds(1));
  }
  page.held.store(0);
}

// A node is being drained: all seats stand before the same step until the one before it is protected, and the recovery
// comes, or the drain is given up. The open window may be sealed meanwhile.
Status wait_while_paused(TrainerPage& page, Session& session, Capture* capture, Step before) {
  const auto paused = [&] {
    const std::uint64_t last = page.pause_step.load(std::memory_order_acquire);
    return last != 0 && before.value > last;
  };
  if (!paused()) return {};
  const bool settles = capture != nullptr && capture->is_open();
  if (settles) capture->settle();
  page.phase.store(PAWL_PHASE_ASIDE);  // however long: it doesn't hang
  page.paused_before.store(before.value, std::memory_order_release);
  session.notify();
  while (paused() && session.interruption()) real_clock().sleep(milliseconds(1));
  page.paused_before.store(0, std::memory_order_release);
  if (settles) capture->unsettle();
  return session.interruption();
}

}  // namespace

Result<TrainerOptions> options_from_environment(const char* socket_path) {
  TrainerOptions options;
  if (socket_path == nullptr) socket_path = std::getenv("PAWL_SOCKET");
  if (socket_path == nullptr || *socket_path == '\0') {
    return Error{Code::unreachable, "PAWL_SOCKET is not set: start the trainer with `pawl run`, or set PAWL=off"};
  }
  options.session.socket_path = socket_path;
  const std::uint64_t cores = std::thread::hardware_concurrency();
  PAWL_ASSIGN(const std::uint64_t index, number_in_environment("PAWL_LOCAL_INDEX", 0, kNoSeat - 1, 0));
  PAWL_ASSIGN(const std::uint64_t deadline_ms, number_in_environment("PAWL_FENCE_DEADLINE_MS", 1, 86'400'000, 10'000));
  PAWL_ASSIGN(const std::uint64_t threads, number_in_environment("PAWL_COPY_THREADS", 1, 64, 0));
  PAWL_ASSIGN(const std::uint64_t bucket, number_in_environment("PAWL_BUCKET_BYTES", 4 << 10, 16 << 20, 256 << 10));
  PAWL_ASSIGN(const std::uint64_t compared,
              number_in_environment("PAWL_COMPARED_WINDOWS", 0, UINT32_MAX, options.compared_window_count));
  if (const char* kernel = std::getenv("PAWL_KERNEL");
      kernel != nullptr && *kernel != '\0' && find_memory_kernel(kernel) == nullptr)
    return Error{Code::invalid, text("PAWL_KERNEL=", kernel, ": must be one of ", memory_kernel_names())};
  if (bucket % 4096 != 0)
    return Error{Code::invalid, text("PAWL_BUCKET_BYTES=", bucket, ": must be a multiple of 4096")};
  options.session.local_index = static_cast<std::uint32_t>(index);
  options.fence_deadline = milliseconds(deadline_ms);
  const char* share = std::getenv("PAWL_FENCE_SHARE");
  if (share != nullptr && std::string_view(share) == "strict") {
    options.fence_deadline.reset();
  } else if (share != nullptr && *share != '\0') {
    PAWL_ASSIGN(const std::uint64_t percent, number_in_environment("PAWL_FENCE_SHARE", 1, 100, 100));
    options.fence_share_percent = static_cast<std::uint32_t>(percent);
  }
  PAWL_ASSIGN(const std::uint64_t paranoid, number_in_environment("PAWL_PARANOID", 0, 1, 0));
  options.paranoid = paranoid == 1;
  options.copy_thread_count =
      static_cast<std::uint32_t>(threads != 0 ? threads : std::clamp<std::uint64_t>(cores / 4, 1, 8));
  options.copy_thread_count_min = threads != 0 ? 0 : 1;
  options.bucket_bytes = static_cast<std::uint32_t>(bucket);
  options.compared_window_count = static_cast<std::uint32_t>(compared);
  return options;
}

Result<std::unique_ptr<Trainer>> Trainer::attach(TrainerOptions options) {
  options.session.nonce = draw_nonce();
  std::unique_ptr<Trainer> trainer(new Trainer(std::move(options)));
  PAWL_ASSIGN(trainer->session_, Session::attach(trainer->options_.session, Deadline::in(kAttachMax)));
  return trainer;
}

void Trainer::end() {
  if (capture_) capture_->stop("detached");
  if (session_) session_->end();
}

Status Trainer::require_joined() const {
  if (!seat_) return Error{Code::invalid, "no seat yet: pawl_recover_join comes first"};
  return session_->interruption();
}

Status Trainer::require_running() const {
  PAWL_TRY(require_joined());
  if (running_ != session_->joined()) return Error{Code::invalid, "not running: pawl_recover_done comes first"};
  return {};
}

Result<pawl_seat> Trainer::identity() const {
  if (!seat_) return Error{Code::invalid, "no seat yet: pawl_recover_join comes first"};
  return *seat_;
}

// --- Declarations.

Result<std::uint32_t> Trainer::add_mesh(Mesh mesh) {
  if (!declared_) return Error{Code::invalid, "the world is not known yet: pawl_recover_join comes first"};
  return declared_->add_mesh(std::move(mesh));
}

Result<std::uint32_t> Trainer::add_tensor(LayoutEntry entry, void* data) {
  if (!declared_) return Error{Code::invalid, "the world is not known yet: pawl_recover_join comes first"};
  return declared_->add_tensor(std::move(entry), data);
}

Result<std::uint32_t> Trainer::add_blob(std::string name, std::uint64_t capacity, BlobCallbacks callbacks) {
  if (!declared_) return Error{Code::invalid, "the world is not known yet: pawl_recover_join comes first"};
  return declared_->add_blob(std::move(name), capacity, callbacks);
}

Status Trainer::rebind(std::uint32_t index, void* data) {
  if (!declared_) return Error{Code::invalid, "nothing is declared yet"};
  if (capture_ && capture_->is_open()) return Error{Code::invalid, "a window is open: pawl_fence comes first"};
  return declared_->rebind(index, data);
}

Status Trainer::use_stream(void* stream) {
  if (!declared_) return Error{Code::invalid, "nothing can be declared yet: pawl_recover_join comes first"};
  declared_->use_stream(static_cast<CudaStream>(stream));
  return {};
}

Status Trainer::seal_layout() {
  PAWL_TRY(require_joined());
  if (capture_) return Error{Code::invalid, "the layout is sealed already"};
  // Sealed in here by a call that a recovery ended: only the arena is still missing.
  if (!declared_->sealed()) PAWL_TRY(declared_->seal(options_.bucket_bytes));
  return map_arena();
}

Status Trainer::map_arena() {
  const SeatLayout& layout = declared_->layout();
  const LayoutMessage declared{.payload_bytes = layout.payload_bytes,
                               .stable_bytes = layout.stable_bytes,
                               .bucket_bytes = options_.bucket_bytes,
                               .layout_digest = digest_of(declared_->layout_text()),
                               .layout = declared_->layout_text()};
  PAWL_ASSIGN(Answer answer, session_->request(declared, MessageKind::arena));
  ArenaMessage arena;
  PAWL_ENSURE(decode(answer.payload, arena) && answer.fds.size() == 1, "pawld's answer has no arena");
  capture_.reset();
  PAWL_ASSIGN(arena_memory_, map_segment(answer.fds[0].get(), arena.size_bytes, {.populate = true}));
  PAWL_ASSIGN(arena_, Arena::open(arena_memory_.bytes()));
  if (arena_.spec().layout != declared_->layout_text()) {  // a snapshot lies there, and its layout counts
    PAWL_ASSIGN(SeatLayout held, parse_layout(arena_.spec().layout));
    PAWL_TRY(declared_->take_layout(std::move(held), options_.bucket_bytes));
  }
  PAWL_TRY(check_arena(arena_.spec()));
  CaptureSource source;
  source.plan = &declared_->plan();
  source.bases = declared_->bases();
  source.gpu = declared_->gpu();
  source.page = [this]() -> TrainerPage& { return page(); };
  source.notify = [this] { session_->notify(); };
  source.interrupted = [this] { return session_->interrupted(); };
  CaptureOptions options;
  options.thread_count = options_.copy_thread_count;
  options.compared_window_count = options_.compared_window_count;
  options.seed = options_.session.nonce;
  options.thread_count_min = options_.copy_thread_count_min;
  options.paranoid = options_.paranoid;
  capture_.emplace(arena_, std::move(source), options);
  return {};
}

Status Trainer::check_arena(const ArenaSpec& found) const {
  const SeatLayout& layout = declared_->layout();
  PAWL_ENSURE(found.kind == ArenaKind::own && found.seat == Seat(seat_->seat), "the arena is another seat's");
  PAWL_ENSURE(found.layout_digest == digest_of(declared_->layout_text()) && found.layout == declared_->layout_text(),
              "the arena is of another layout");
  PAWL_ENSURE(found.payload_bytes == layout.payload_bytes && found.stable_bytes == layout.stable_bytes &&
                  found.bucket_bytes == options_.bucket_bytes,
              "the arena is of another size");
  return {};
}

// --- A step.

void Trainer::progress(std::uint32_t phase) {
  TrainerPage& now = page();
  now.phase.store(phase, std::memory_order_relaxed);
  now.progress_at_ns.store(static_cast<std::uint64_t>(real_clock().now().count()), std::memory_order_relaxed);
  now.progress_count.fetch_add(1, std::memory_order_release);
  hold_if_asked(now, phase, *session_);
}

Step Trainer::committed_step() const {
  return Progress::unpack(page().progress.load(std::memory_order_acquire)).committed;
}

void Trainer::stage_volatile() {
  if (!capture_ || !capture_->is_open() || capture_->staged()) return;
  if (Status staged = declared_->stage(); !staged) {
    capture_->fail(std::move(staged).error().what);
  } else {
    capture_->stage_done();
  }
}

Status Trainer::step_begin(Step step) {
  PAWL_TRY(require_running());
  stage_volatile();
  PAWL_TRY(wait_while_paused(page(), *session_, capture_ ? &*capture_ : nullptr, step));
  page().step.store(step.value);
  progress(PAWL_PHASE_COMPUTE);
  return session_->interruption();
}

Status Trainer::open_window(Step step, std::uint64_t samples) {
  TrainerPage& now = page();
  now.updates.fetch_add(1);  // it has happened, whatever we answer
  PAWL_TRY(require_running());
  if (!capture_) return Error{Code::invalid, "the layout is not sealed: pawl_layout_seal comes first"};
  if (step.value > kStepMax || step <= last_window_) {
    return Error{Code::invalid, text("step ", step, " is not after step ", last_window_)};
  }
  if (capture_->is_open()) {
    // Whether stable state has changed under the open window, nobody can know: what it copies is not to be used.
    capture_->fail("the next window was opened without a fence");
    const WindowResult open = capture_->fence({});
    return Error{Code::invalid,
                 text("the window of step ", open.step, " was open: pawl_fence comes before the update")};
  }
  now.step.store(step.value);
  now.samples.store(samples);
  fence_budget_.window_opened(real_clock().now());
  PAWL_TRY(capture_->open(session_->joined(), step, samples));
  last_window_ = step;
  return {};
}

Status Trainer::void_window(std::string why) {
  PAWL_TRY(require_joined());
  if (capture_ && capture_->is_open()) capture_->fail(std::move(why));
  return {};
}

Result<pawl_fence_report> Trainer::fence() {
  PAWL_TRY(require_running());
  progress(PAWL_PHASE_FENCE);
  pawl_fence_report report{};
  if (capture_ && capture_->is_open()) {
    const Duration begin = real_clock().now();
    stage_volatile();
    const WindowResult window = capture_->fence(
        {.deadline = options_.fence_deadline ? Deadline::in(*options_.fence_deadline) : Deadline::never(),
         .wait_max = options_.fence_share_percent ? fence_budget_.allowed() : Duration::max()});
    const Duration waited = real_clock().now() - begin;
    fence_budget_.waited(waited);
    report.waited_ns = static_cast<std::uint64_t>(waited.count());
    report.step = window.step.value;
    report.captured = window.captured ? 1 : 0;
    report.captured_bytes = window.captured_bytes;
    std::strncpy(report.why_void, window.why_void.c_str(), sizeof report.why_void - 1);
    report.was_written = window.written ? 1 : 0;
    report.written_tensor = window.written.value_or(0);
    count_fence(page(), report.waited_ns);
  }
  PAWL_TRY(session_->interruption());
  return report;
}

// --- Recovery.

Status Trainer::report_fault(std::string what, std::string lost) {
  PAWL_TRY(require_joined());
  const Generation joined = session_->joined();
  Result<Answer> answer = session_->request(FaultMessage{joined, std::move(what), std::move(lost)}, MessageKind::noted);
  if (!answer) return std::move(answer).error();
  return {};
}

Result<pawl_seat> Trainer::join() {
  if (capture_) capture_->stop("a recovery is pending");
  session_->clear_events();
  progress(PAWL_PHASE_JOIN);
  RequestOptions options;
  options.ends_at_recovery = false;  // it is what we wait for
  PAWL_ASSIGN(const Answer answer, session_->request(JoinMessage{session_->joined()}, MessageKind::seated, options));
  SeatedMessage seated;
  const bool whole = decode(answer.payload, seated);
  pawl_seat seat{};
  seat.generation = seated.generation.value;
  seat.rank = seat.seat = seated.seat.value;
  seat.world = seated.world;
  seat.local_rank = seated.local_rank;
  seat.resume_step = seated.resume.value;
  const std::string& prefix = seated.rendezvous_prefix;
  PAWL_ENSURE(whole && seat.seat < seat.world && seat.generation > 0 && prefix.size() < sizeof seat.rendezvous_prefix,
              "pawld seats us in a way that makes no sense");
  std::memcpy(seat.rendezvous_prefix, prefix.c_str(), prefix.size());
  PAWL_ENSURE(!seat_ || (seat_->world == seat.world && seat_->seat == seat.seat), "seated elsewhere than before");
  running_ = Generation(0);
  last_window_ = Step(seat.resume_step);
  page().reached.store(seat.resume_step, std::memory_order_release);
  page().step.store(seat.resume_step);
  {
    std::lock_guard lock(seat_mutex_);
    seat_ = seat;
    session_->set_joined(Generation(seat.generation), Seat(seat.seat));
  }
  if (!declared_) declared_.emplace(seat.world);
  progress(PAWL_PHASE_NONE);
  return seat;
}

// Sealed; or, if `as_it_fills`, perhaps one that a fetch is filling.
Result<Slot> Trainer::restore_source(bool as_it_fills) {
  PAWL_ASSIGN(const Answer answer,
              session_->request(RestoreMessage{session_->joined(), as_it_fills}, MessageKind::slot));
  SlotMessage named;
  const bool whole = decode(answer.payload, named);
  restore_slot_ = named.index;
  const Generation generation = named.generation;
  const Step step = named.step;
  PAWL_ENSURE(whole && restore_slot_ < arena_.slot_count() && step.value == seat_->resume_step,
              "pawld names a slot that makes no sense");
  const Slot slot = arena_.slot(restore_slot_);
  const SlotWord word = slot.word();
  const bool there = word.state == SlotState::sealed || (as_it_fills && word.state == SlotState::dirty && word.frozen);
  if (there && word.generation == generation && word.step == step) return slot;
  return report_bad_source(restore_slot_, Error{Code::corrupt, text("slot ", restore_slot_, " holds something else")});
}

Status Trainer::restore() {
  PAWL_TRY(require_joined());
  if (running_ == session_->joined()) return Error{Code::invalid, "running: there is nothing to restore"};
  progress(PAWL_PHASE_RESTORE);
  if (seat_->resume_step == 0) return {};  // the initial state is the trainer's own
  if (!capture_) return Error{Code::invalid, "the layout is not sealed: pawl_layout_seal comes first"};
  PAWL_ASSIGN(Slot slot, restore_source(true));
  if (slot.torn(slot.word()))
    return Error{Code::invalid,
                 text("step ", seat_->resume_step, " can't be restored: stable state of seat ", seat_->seat,
                      " was written while it was copied, which was found only when the copy was sealed")};
  Gpu* gpu = declared_->gpu();
  if (gpu != nullptr) PAWL_TRY(gpu->wait_until_idle());  // what it still does belongs to the step that is lost
  SlotRestore copy(
      declared_->plan(), declared_->bases(), [this] { progress(PAWL_PHASE_RESTORE); },
      std::clamp(std::thread::hardware_concurrency(), 1u,
                 gpu != nullptr && gpu->holds_some() ? kGpuRestoreThreadsMax : kRestoreThreadsMax),
      gpu);
  if (const SlotWord word = slot.word(); word.state == SlotState::sealed) {
    // The table that the sums of the copied bytes are compared with.
    if (Status verified = slot.verify_header(); !verified)
      return report_bad_source(restore_slot_, std::move(verified).error());
  } else {
    copy.copy_what_comes(slot, word, [this] { return session_->interrupted(); });
    PAWL_ASSIGN(slot, restore_source(false));
  }
  if (Status copied = copy.copy_rest(slot); !copied) {
    if (copied.error().code != Code::corrupt) return copied;  // the GPU's fault, not the source's
    return report_bad_source(restore_slot_, std::move(copied).error());
  }
  return declared_->unstage();
}

Error Trainer::report_bad_source(std::uint32_t slot, Error found) {
  Error bad = std::move(found).within(text("restore step ", seat_->resume_step, ": seat ", seat_->seat));
  Result<Answer> never = session_->request(RestoreBadMessage{slot, bad.what}, MessageKind::restore_bad,
                                           {.deadline = Deadline::in(kBadSourceMax)});
  const bool stops = !never && (never.error().code == Code::cancelled || never.error().code == Code::broken);
  if (stops) return std::move(never).error();
  bad.code = Code::stale;  // another source is sought
  return bad;
}

Status Trainer::finish_recovery() {
  PAWL_TRY(require_joined());
  // From the initial state there is nothing to restore: the layout may be sealed later, while the job runs.
  if (!capture_ && seat_->resume_step > 0)
    return Error{Code::invalid, text("step ", seat_->resume_step,
                                     " is to be restored and the layout is not sealed: "
                                     "pawl_layout_seal and pawl_restore come first")};
  progress(PAWL_PHASE_RESTORE);
  const Generation joined = session_->joined();
  PAWL_ASSIGN(const Answer answer, session_->request(DoneMessage{joined}, MessageKind::running));
  RunningMessage running;
  PAWL_ENSURE(decode(answer.payload, running) && running.generation == joined, "pawld runs another generation");
  running_ = joined;
  progress(PAWL_PHASE_NONE);
  return {};
}

Status Trainer::finish() {
  PAWL_TRY(require_running());
  progress(PAWL_PHASE_FINISH);
  if (capture_ && capture_->is_open()) {
    stage_volatile();
    const WindowResult window = capture_->fence({.deadline = Deadline::never(), .waits_for_slot = true});
    PAWL_TRY(session_->interruption());
    if (!window.captured) {
      // A void step can never be committed: its steps have to be done again.
      PAWL_TRY(report_fault(text("the last step's window is void: ", window.why_void)));
      return Error{Code::stale, text("step ", window.step, " is void: ", window.why_void)};
    }
  }
  const Step last_step(std::max(page().step.load(), last_window_.value));
  Result<Answer> answer = session_->request(FinishMessage{last_window_, last_step}, MessageKind::finished);
  if (!answer) return std::move(answer).error();
  return {};
}

// --- Rendezvous and status.

Result<RendezvousAnswer> Trainer::rendezvous(RendezvousRequest request, Deadline deadline) {
  PAWL_TRY(session_->interruption());
  RendezvousMessage message;
  {
    std::lock_guard lock(seat_mutex_);
    if (!seat_) return Error{Code::invalid, "no seat yet: pawl_recover_join comes first"};
    message.generation = Generation(seat_->generation);
    request.key = text(seat_->rendezvous_prefix, '/', request.key);
    if (request.op == RendezvousOp::get_all) {
      std::vector<std::string> keys;
      PAWL_ENSURE(unpack(request.value, keys), "keys that can't be read");
      for (std::string& each : keys) each = text(seat_->rendezvous_prefix, '/', each);
      request.value = pack(keys);
    }
  }
  const std::string key = request.key;
  if (request.op == RendezvousOp::get || request.op == RendezvousOp::get_all) {
    const auto left = std::chrono::ceil<milliseconds>(deadline.left()).count();
    request.wait_ms = static_cast<std::uint32_t>(std::clamp<std::int64_t>(left, 1, UINT32_MAX));
  }
  std::unique_lock<std::mutex> alone(change_mutex_, std::defer_lock);
  if (changes_something(request.op)) alone.lock();
  message.request = std::move(request);
  Result<Answer> answer = session_->request(message, MessageKind::value, {.deadline = deadline});
  if (!answer) return std::move(answer).error().within(text("key ", key));
  ValueMessage value;
  PAWL_ENSURE(decode(answer->payload, value), "pawld's answer makes no sense");
  if (value.answer.refused == kWaitIsOver) return Error{Code::timeout, text("key ", key, ": not there in time")};
  if (!value.answer.refused.empty()) return Error{Code::invalid, value.answer.refused};
  return value.answer;
}

Result<Step> Trainer::stop_after(Step step) {
  PAWL_TRY(require_joined());
  // Others may be in the step after ours, and none can be further: so that one ends the job at the earliest.
  const Step earliest(page().step.load() + 1);
  PAWL_ASSIGN(const Answer answer,
              session_->request(StopAfterMessage{session_->joined(), std::max(step, earliest)}, MessageKind::stopping));
  StoppingMessage stopping;
  PAWL_ENSURE(decode(answer.payload, stopping) && stopping.step.value > 0, "pawld's answer names no step");
  return stopping.step;
}

std::string Trainer::status_json() const {
  const TrainerPage& now = page();
  const auto ms = [](const PageWord& ns) { return static_cast<double>(ns.load()) * 1e-6; };
  std::string out = "{";
  if (seat_) {
    out += text("\"seat\":", seat_->seat, ",\"world\":", seat_->world, ",\"resume_step\":", seat_->resume_step, ",");
  }
  out +=
      text("\"generation\":", session_->joined(), ",\"step\":", now.step.load(), ",\"committed\":", committed_step());
  out += text(",\"fence_wait_ms\":{\"count\":", now.fence_count.load(), ",\"last\":", ms(now.fence_wait_ns_last),
              ",\"total\":", ms(now.fence_wait_ns_total), ",\"max\":", ms(now.fence_wait_ns_max), "}");
  out +=
      text(",\"windows\":{\"captured\":", now.windows_captured.load(), ",\"voided\":", now.windows_voided.load(), "}");
  out +=
      text(",\"captured_bytes\":", now.captured_bytes_total.load(), ",\"copy_ms_total\":", ms(now.copy_ns_total), "}");
  return out;
}

}  // namespace pawl::job
