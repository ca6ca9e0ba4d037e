#include "job/daemon/node_keeper.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "job/recovery/deadlines.h"

namespace pawl::job {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kShortLivesMax = 5;
constexpr Duration kShortLife = seconds(1);
constexpr Duration kRestartPause = milliseconds(200);
constexpr Duration kDaemonGrace = seconds(1);
constexpr Duration kSameRequest = std::chrono::seconds(2);  // in which a second signal is the first one again
constexpr Duration kLookAgain = milliseconds(20);           // whether memory has been given back
constexpr Duration kKillWait = seconds(10);  // for a killed process to end, and more where it has much memory

}  // namespace

Duration time_to_end(std::uint64_t memory_bytes) {
  return kKillWait + 4 * time_to_give_back(memory_bytes);
}

// --- Lives

void NodeKeeper::begin(Duration now) {
  begin_life(now);
}

// Nothing of the last life is kept.
void NodeKeeper::begin_life(Duration now) {
  if (asked_.signal != 0) return end(128 + asked_.signal, now);
  if (!held_.empty()) node_.let_go(std::exchange(held_, {}));
  trainers_.clear();
  asked_.new_life = false;
  if (node_.is_giving_back())
    log_info("memory_is_given_back", "incarnation", incarnation_, "then", "a new life begins");
  phase_ = Phase::giving_back;
  try_life(now);
}

// Which needs the memory that the last one had: its daemon asks for it first, and is no spare without.
void NodeKeeper::try_life(Duration now) {
  if (node_.is_giving_back()) return;
  // Greater than any before it.
  const Result<std::uint64_t> incarnation = node_.next_incarnation(incarnation_);
  if (!incarnation) return fail(incarnation.error(), now);
  incarnation_ = *incarnation;
  begin_again(now);
}

void NodeKeeper::begin_again(Duration now) {
  short_lives_ = 0;
  lease_renewed_ = {};
  last_call_ = now;
  phase_ = Phase::serving;
  start_daemon(now);
}

void NodeKeeper::start_daemon(Duration now) {
  std::vector<FromKeeper> news;
  for (const auto& [local_index, trainer] : trainers_) news.push_back(news_of(local_index));
  if (asked_.signal != 0) news.push_back(stop_asked(now));
  const Result<std::uint64_t> pid = node_.start_daemon(incarnation_, held_, news);
  if (!pid) return fail(pid.error(), now);
  daemon_pid_ = *pid;
  daemon_running_ = true;
  daemon_spoke_ = false;
  daemon_gone_by_.reset();
  daemon_started_ = now;
  daemon_alive_until_ = now + 3 * options_.daemon_silence;  // its first word: it scans its segments before
  log_info("pawld_started", "pid", daemon_pid_, "held", held_.size());
}

// The others may have gone on without this node: nobody here goes on before a pawld has seen the state.
void NodeKeeper::fence(std::string_view why, Duration now) {
  log_warn("node_fenced", "why", why, "incarnation", incarnation_, "held", held_.size());
  kill_all(now);
}

// They have gone on: nothing it holds may be used again.
void NodeKeeper::reset(std::string_view why, Duration now) {
  log_warn("node_reset", "why", why, "incarnation", incarnation_);
  asked_.new_life = true;
  kill_all(now);
}

void NodeKeeper::fail(Error error, Duration now) {
  log_error("node_ends", "why", error.what);
  wanted_ = std::move(error);
  kill_all(now);
}

void NodeKeeper::end(int code, Duration now) {
  note_time(now);
  if (phase_ == Phase::over || wanted_) return;
  log_info("node_ends", "code", code);
  wanted_ = code;
  if (phase_ == Phase::killed) return;  // for a new life, which it will not have
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running) node_.terminate_trainer(local_index);
  phase_ = Phase::ending_trainers;
  until_ = now + options_.trainer_grace;
  go_on(now);
}

void NodeKeeper::stop(int signal, Duration now) {
  if (asked_.signal != 0 && now - asked_.at < kSameRequest) return;  // from whoever told `pawl run` and all others
  const bool waits = options_.stop_grace > Duration::zero() && asked_.signal == 0 && phase_ == Phase::serving;
  if (!waits) return end(128 + signal, now);
  note_time(now);
  asked_.signal = signal;
  asked_.at = now;
  asked_.ends_by = now + options_.stop_grace;
  log_info("node_stops", "signal", signal, "within_ms", options_.stop_grace / milliseconds(1));
  if (daemon_running_) tell(stop_asked(now));
}

FromKeeper NodeKeeper::stop_asked(Duration now) const {
  const Duration left = std::max(asked_.ends_by - now, Duration::zero());
  return StopAsked{static_cast<std::uint32_t>(asked_.signal), static_cast<std::uint64_t>(left / milliseconds(1))};
}

void NodeKeeper::kill_all(Duration now) {
  const Duration patience = time_to_end(node_.memory_bytes());  // asked while they still show it
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running) node_.kill_trainer(local_index);
  if (daemon_running_) node_.kill_daemon();
  phase_ = Phase::killed;
  until_ = now + patience;
  go_on(now);
}

// Where all are to end: what comes next, once they have or the time for it has passed.
void NodeKeeper::go_on(Duration now) {
  if (phase_ == Phase::giving_back) return try_life(now);
  if (phase_ == Phase::ending_trainers && (now >= until_ || !any_trainer_runs())) {
    for (const auto& [local_index, trainer] : trainers_)
      if (trainer.running) node_.kill_trainer(local_index);
    if (daemon_running_) node_.terminate_daemon();
    phase_ = Phase::ending_daemon;
    until_ = now + kDaemonGrace;
  }
  if (phase_ == Phase::ending_daemon && (now >= until_ || !daemon_running_)) return kill_all(now);
  if (phase_ == Phase::killed && (now >= until_ || (!any_trainer_runs() && !daemon_running_))) all_have_ended(now);
}

// Or so we wait no longer. What was killed and lives on, within a call of the kernel, may still write there, whatever
// else does: a new life beside it would be a second writer.
void NodeKeeper::all_have_ended(Duration now) {
  const std::string left = what_runs();
  if (!left.empty()) log_error("processes_not_ended", "which", left);
  if (left.empty() && !wanted_) return asked_.new_life ? begin_life(now) : begin_again(now);
  if (!wanted_) wanted_ = not_ended();
  phase_ = Phase::over;
  outcome_ = std::move(*wanted_);
}

Error NodeKeeper::not_ended() const {
  return {Code::timeout,
          text("node ", options_.node, " can't come back: ", what_runs(),
               " was killed and did not end, so it may still write. What waits for a device or a disk ends when that "
               "answers; if it never does, restart the machine, then start the node again")};
}

std::string NodeKeeper::what_runs() const {
  std::string list;
  if (daemon_running_) list = text("pawld (process ", daemon_pid_, ")");
  for (const auto& [local_index, trainer] : trainers_)
    if (trainer.running)
      list += text(list.empty() ? "" : ", ", "trainer ", local_index, " (process ", trainer.started.pid, ")");
  return list;
}

bool NodeKeeper::any_trainer_runs() const {
  return std::any_of(trainers_.begin(), trainers_.end(), [](const auto& entry) { return entry.second.running; });
}

// --- Time

void NodeKeeper::note_time(Duration now) {
  const Duration last = last_call_.value_or(now);
  const Duration stalled = now - last;
  last_call_ = std::max(last, now);
  if (phase_ == Phase::serving && stalled > options_.silence)
    fence(text("the keeper did not run for ", stalled / milliseconds(1), " ms"), now);
  // A machine that was suspended: pawld may not have run either, and what it said waits to be read.
  if (stalled > options_.daemon_silence / 2) daemon_alive_until_ += stalled;
}

void NodeKeeper::was_busy(Duration spent) {
  if (last_call_) *last_call_ += spent;
}

void NodeKeeper::turn(Duration now) {
  note_time(now);
  if (phase_ != Phase::serving) return go_on(now);
  if (asked_.signal != 0 && now >= asked_.ends_by) return end(128 + asked_.signal, now);
  if (lease_has_ended(now)) return fence("no pawld lives, and the node's lease has ended", now);
  if (!daemon_running_) {
    if (now >= daemon_restart_at_) start_daemon(now);
  } else if (daemon_gone_by_) {
    if (now >= *daemon_gone_by_) fail(not_ended(), now);
  } else if (now > daemon_alive_until_) {
    log_warn("pawld_silent", "pid", daemon_pid_);
    daemon_gone_by_ = now + time_to_end(node_.memory_bytes());
    node_.kill_daemon();  // its exit comes as an event
    note_last_renewal(now);
  }
}

bool NodeKeeper::lease_has_ended(Duration now) const {
  const bool pawld_judges = daemon_running_ && !daemon_gone_by_;
  return !pawld_judges && lease_renewed_ > Duration::zero() && now - lease_renewed_ > options_.lease;
}

// A pawld ends now that may have renewed the lease until now, and has told of it only once a heartbeat, if its loop
// went round. One that never said a word has not come as far as to register.
void NodeKeeper::note_last_renewal(Duration now) {
  if (daemon_spoke_ && lease_renewed_ > Duration::zero()) lease_renewed_ = now;
}

Duration NodeKeeper::wait(Duration now) const {
  const Duration longest = std::clamp<Duration>(options_.silence / 4, milliseconds(10), milliseconds(250));
  Duration left = longest;
  if (phase_ == Phase::giving_back)
    left = kLookAgain;
  else if (phase_ != Phase::serving)
    left = until_ - now;
  else if (!daemon_running_)
    left = daemon_restart_at_ - now;
  return std::clamp<Duration>(left, Duration::zero(), longest);
}

// --- Events

// Its memory may take the kernel seconds to take back. Until its exit no other begins: it holds its sockets, by which the
// others and the trainers know it, and one of its threads may be in the middle of its last write. But it judges nothing
// any more, and renews no lease.
void NodeKeeper::on_daemon_dying(Duration now) {
  note_time(now);
  if (!daemon_running_ || phase_ != Phase::serving || daemon_gone_by_) return;
  log_warn("pawld_died", "pid", daemon_pid_);
  note_last_renewal(now);
  daemon_gone_by_ = now + time_to_end(node_.memory_bytes());
  node_.kill_daemon();  // of all its threads only the first is known to be gone
}

void NodeKeeper::on_daemon_exit(std::string_view how, Duration now) {
  note_time(now);
  if (!daemon_gone_by_) note_last_renewal(now);
  daemon_running_ = false;
  if (phase_ != Phase::serving) return go_on(now);
  const bool short_life = now - daemon_started_ < kShortLife;
  short_lives_ = short_life ? short_lives_ + 1 : 0;
  log_warn("pawld_exited", "pid", daemon_pid_, "how", how, "short_lives", short_lives_);
  if (short_lives_ >= kShortLivesMax)
    return fail(
        Error{Code::unreachable, text("pawld of node ", options_.node, " died ", short_lives_,
                                      " times within a second of its start (", how, "); see ", options_.log_path)},
        now);
  daemon_restart_at_ = now + (short_life ? kRestartPause : Duration::zero());
}

void NodeKeeper::on_trainer_exit(std::uint32_t local_index, std::string_view how, Duration now, std::string_view said) {
  note_time(now);
  const auto found = trainers_.find(local_index);
  if (found == trainers_.end()) return;
  Trainer& trainer = found->second;
  trainer.how_it_ended = how;
  trainer.said = said;
  trainer.running = false;
  log_info("trainer_exited", "local_index", local_index, "pid", trainer.started.pid, "how", how);
  tell_about(local_index);
  if (phase_ != Phase::serving) go_on(now);
}

void NodeKeeper::on_message(std::string_view packet, std::vector<Fd> fds, Duration now) {
  note_time(now);
  const std::optional<ToKeeper> message = parse_to_keeper(packet);
  const auto* hold = message ? std::get_if<HoldSegment>(&*message) : nullptr;
  // Of a pawld that is being killed. What it has handed over counts if this life goes on: steps were acknowledged on it.
  const bool is_about_memory = hold != nullptr || (message && std::holds_alternative<DropSegment>(*message));
  if (phase_ != Phase::serving && (!is_about_memory || asked_.new_life || wanted_)) return;
  if (!message || (hold != nullptr && fds.size() != 1)) {
    log_warn("message_not_understood", "message", packet.substr(0, 200), "fds", fds.size());
  } else if (hold != nullptr) {
    drop(hold->name);
    held_.push_back({hold->name, std::move(fds.front())});
  } else if (const auto* dropped = std::get_if<DropSegment>(&*message)) {
    drop(dropped->name);
  } else if (const auto* spawn = std::get_if<SpawnTrainer>(&*message)) {
    on_spawn(*spawn);
  } else if (const auto* kill = std::get_if<KillTrainer>(&*message)) {
    on_kill(kill->local_index);
  } else if (const auto* show = std::get_if<ShowTrainer>(&*message)) {
    node_.show_trainer(show->local_index, show->shown);
  } else if (const auto* alive = std::get_if<PawldAlive>(&*message)) {
    daemon_spoke_ = true;
    daemon_alive_until_ = now + options_.daemon_silence;
    lease_renewed_ = std::max(lease_renewed_, alive->lease_renewed);
  } else if (const auto* cut_off = std::get_if<FenceNode>(&*message)) {
    fence(text("pawld asked: ", cut_off->reason), now);
  } else if (const auto* evicted = std::get_if<ResetNode>(&*message)) {
    reset(text("pawld asked: ", evicted->reason), now);
  } else if (const auto* job_end = std::get_if<EndNode>(&*message)) {
    log_info("job_ended", "code", job_end->code);
    end(asked_.signal != 0 && job_end->code != 0 ? 128 + asked_.signal : static_cast<int>(job_end->code), now);
  }
}

void NodeKeeper::drop(const std::string& name) {
  const auto found =
      std::find_if(held_.begin(), held_.end(), [&](const HeldSegment& held) { return held.name == name; });
  if (found == held_.end()) return;
  std::vector<HeldSegment> dropped;
  dropped.push_back(std::move(*found));
  held_.erase(found);
  node_.let_go(std::move(dropped));
}

void NodeKeeper::on_spawn(const SpawnTrainer& asked) {
  const std::uint32_t local_index = asked.local_index;
  if (local_index >= options_.seats_per_node) {
    log_warn("spawn_refused", "local_index", local_index);
    return;
  }
  if (trainers_.contains(local_index) && trainers_[local_index].running) {
    log_warn("spawn_refused", "local_index", local_index, "why", "it runs");
    return tell_about(local_index);
  }
  Trainer& trainer = trainers_[local_index] = Trainer{};
  if (Result<StartedTrainer> started = node_.start_trainer(local_index, asked.environment); started) {
    trainer.started = std::move(started).value();
    trainer.running = true;
    log_info("trainer_started", "local_index", local_index, "pid", trainer.started.pid);
  } else {
    trainer.how_it_ended = started.error().what;
    log_error("trainer_not_started", "local_index", local_index, "why", trainer.how_it_ended);
  }
  tell_about(local_index);
}

void NodeKeeper::on_kill(std::uint32_t local_index) {
  const auto found = trainers_.find(local_index);
  if (found == trainers_.end()) {
    TrainerExited news;
    news.local_index = local_index;
    news.how = "was not running";
    return tell(news);
  }
  if (!found->second.running) return tell_about(local_index);
  log_info("trainer_killed", "local_index", local_index, "pid", found->second.started.pid);
  node_.kill_trainer(local_index);
}

// --- To pawld

void NodeKeeper::tell(const FromKeeper& news) {
  if (phase_ == Phase::serving && daemon_running_) node_.tell(news);  // the next one is told all that still counts
}

FromKeeper NodeKeeper::news_of(std::uint32_t local_index) const {
  const Trainer& trainer = trainers_.at(local_index);
  const StartedTrainer& started = trainer.started;
  if (trainer.running) return TrainerSpawned{local_index, started.pid, started.start_time};
  const std::string where = started.output_path.empty() ? "" : text(", its output is in ", started.output_path);
  TrainerExited news;
  news.local_index = local_index;
  news.pid = started.pid;
  news.how = text(trainer.how_it_ended, where);
  news.said = trainer.said;
  return news;
}

}  // namespace pawl::job
