#include "storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/contains.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster.h"
#include "env/files.h"
#include "job/persist/seat_share.h"
#include "tensor/element_type.h"

namespace pawl::sim {

using namespace std::chrono_literals;
using job::PersistPhase;
using job::SlotState;
using job::SlotWord;

namespace {

constexpr std::uint64_t kStateBytes = std::uint64_t{kBuckets} * kBucketBytes;
constexpr Duration kForGood = 1'000'000s;
constexpr Duration kLong = 1s;    // a call that takes more has hung
constexpr int kBeginTries = 100;  // while another process has begun one at that path, each 50 ms
constexpr Duration kUnpinnedWithin = 10s;
constexpr Duration kWorthWaiting = 100s;
constexpr Duration kPublishedWithin = 20s;
constexpr std::uint64_t kStepsWithin = 150;  // and some intervals
constexpr double kManySteps =
    1e6;  // bytes a second with which nearly all steps are captured; else what was ordered seldom is

Error failed(std::uint64_t how) {
  return how % 3 == 0 ? Error{Code::full, "the simulated storage is full"}
                      : Error{Code::io, "the simulated storage has failed"};
}

const StoredBytes* find(const StoredParts& parts, std::uint32_t seat, std::string_view role) {
  const auto part = parts.find(seat);
  if (part == parts.end()) return nullptr;
  const auto found = std::ranges::find_if(part->second, [&](const StoredBytes& one) { return one.role == role; });
  return found == part->second.end() ? nullptr : &*found;
}

std::string text_in(const StoredBytes* stored) {
  return stored == nullptr ? ""
                           : std::string(reinterpret_cast<const char*>(stored->bytes.data()), stored->bytes.size());
}

}  // namespace

const char* name_of(StorageHealth health) {
  static const char* const names[] = {"none", "sound", "slow", "failing", "hanging", "broken", "stuck"};
  return names[static_cast<unsigned>(health)];
}

StorageOptions draw_storage(std::uint64_t seed) {
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15ull + 97);
  using enum StorageHealth;
  static constexpr StorageHealth kDrawn[] = {sound,   sound,   sound,   slow,   slow, failing,
                                             failing, hanging, hanging, broken, stuck};
  StorageOptions options;
  options.health = kDrawn[random() % std::size(kDrawn)];
  if (random() % 4 != 0)
    options.every_steps = 3 + random() % 18;
  else
    options.every_ms = 100 + random() % 2000;
  options.spoiled_after = Duration(static_cast<std::int64_t>(random() % 10'000'000'000));
  if (random() % 2 == 0) options.keep_last = 1 + random() % 3;
  if (options.keep_last > 0 && random() % 2 == 0) options.keep_every = 50;
  if (random() % 4 == 0) options.asks_in = 5 + random() % 100;
  if (options.every_ms > 0 && random() % 3 == 0) options.every_ms = 0, options.every_auto = true;
  return options;
}

Result<std::vector<std::byte>> state_in(const StoredParts& parts, std::uint32_t seat,
                                        const std::set<std::uint32_t>& equal) {
  std::vector<std::byte> state(kStateBytes);
  std::vector<bool> there(kStateBytes);
  const auto take = [&](std::uint32_t from) {
    const auto part = parts.find(from);
    if (part == parts.end()) return;
    for (const StoredBytes& one : part->second)
      for (std::size_t i = 0; one.name == "state" && i < one.bytes.size(); ++i) {
        const std::uint64_t at = one.begin_bytes + i;
        if (at >= kStateBytes || there[at]) continue;
        there[at] = true;
        state[at] = one.bytes[i];
      }
  };
  take(seat);
  for (const std::uint32_t other : equal) take(other);
  const auto missing = std::ranges::find(there, false);
  if (missing != there.end())
    return Error{Code::corrupt, text("nobody has written byte ", missing - there.begin(), " of seat ", seat)};
  return state;
}

namespace {

class Disaster : public std::enable_shared_from_this<Disaster> {
 public:
  Disaster(Cluster& cluster, std::function<void()> on_end)
      : cluster_(cluster), on_end_(std::move(on_end)), random_(cluster.options.seed * 0x9e3779b97f4a7c15ull + 103) {}
  void begin() {
    left_ = 1 + below(2);
    until_ = cluster_.scheduler.now() + kWorthWaiting;
    later(drawn(8s), [this] { next(); });
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  Duration drawn(Duration most) {
    return Duration(static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most.count()))));
  }
  void later(Duration delay, std::function<void()> what) {
    cluster_.scheduler.after(delay, [self = shared_from_this(), what = std::move(what)] { what(); });
  }
  void next() {
    if (cluster_.is_over()) return;
    if (cluster_.storage.known() == Step(0) && cluster_.scheduler.now() > until_) return on_end_();
    if (!cluster_.is_well() || cluster_.storage.known() == Step(0)) return later(20ms, [this] { next(); });
    std::vector<std::uint32_t> nodes;
    for (const job::Member& member : cluster_.state()->seats)
      if (!contains(nodes, member.life.node.value)) nodes.push_back(member.life.node.value);
    std::shuffle(nodes.begin(), nodes.end(), random_);
    nodes.resize(std::min<std::size_t>(nodes.size(), cluster_.options.replicas + 1 + below(nodes.size())));
    for (const std::uint32_t node : nodes) kill(node);
    if (--left_ == 0) return later(15s, [this] { on_end_(); });
    later(drawn(15s), [this] { next(); });
  }
  void kill(std::uint32_t machine) {
    log_warn("sim_disaster", "node", machine);
    cluster_.storage.on_strike();
    cluster_.may_be_evicted_until[machine] = Duration::max();
    Node* const node = cluster_.nodes[machine].get();
    later(below(3) == 0 ? drawn(300ms) : 0ms, [this, node] {
      node->kill(0ms, false);
      later(100ms + drawn(5s), [this, node] { cluster_.replace_node(*node); });
    });
  }

  Cluster& cluster_;
  std::function<void()> on_end_;
  std::mt19937_64 random_;
  std::uint64_t left_ = 0;
  Duration until_{};  // by then something has been published, or nothing is done
};

}  // namespace

void lose_too_much(Cluster& cluster, std::function<void()> on_end) {
  std::make_shared<Disaster>(cluster, std::move(on_end))->begin();
}

// --- As a process sees it

class SimulatedOpen final : public job::OpenCheckpoint {
 public:
  SimulatedOpen(Storage& storage, std::string folder) : storage_(storage), folder_(std::move(folder)) {}
  ~SimulatedOpen() override { storage_.remove(folder_); }
  const std::string& folder() const override { return folder_; }
  Status publish(std::uint32_t seat_count) override { return storage_.publish(folder_, seat_count); }

 private:
  Storage& storage_;
  const std::string folder_;
};

class SimulatedStored final : public job::StoredCheckpoint {
 public:
  SimulatedStored(Cluster& cluster, std::shared_ptr<const StoredParts> parts)
      : cluster_(cluster), parts_(std::move(parts)) {}

  Result<job::StoredSeat> seat(Seat seat) override {
    const StoredBytes* layout = find(*parts_, seat.value, job::kSeatLayoutRole);
    if (layout == nullptr) return Error{Code::not_found, text("there was no seat ", seat)};
    PAWL_ASSIGN(const job::SeatInfo info, job::parse_seat_info(text_in(find(*parts_, seat.value, job::kSeatInfoRole))));
    return job::StoredSeat{seat, text_in(layout), info};
  }

  Status read(Seat seat, const job::SeatLayout&, std::span<std::byte> payload, job::PartProgress& progress) override {
    PAWL_ASSIGN(const auto state, state_in(*parts_, seat.value, cluster_.storage.equal_to(seat)));
    for (std::uint32_t i = 0; i < kBuckets; ++i) {
      cluster_.scheduler.sleep(cluster_.scheduler.between(100us, 20ms));
      if (progress.cancel) return Error{Code::cancelled, "the recovery is over"};
      std::memcpy(payload.data() + std::size_t{i} * kBucketBytes, state.data() + std::size_t{i} * kBucketBytes,
                  kBucketBytes);
      progress.bytes += kBucketBytes;
    }
    return {};
  }

 private:
  Cluster& cluster_;
  std::shared_ptr<const StoredParts> parts_;
};

class StorageClient final : public job::CheckpointStore {
 public:
  StorageClient(Storage& storage, Process& process) : storage_(storage), process_(process) {}
  Result<std::unique_ptr<job::OpenCheckpoint>> begin(const job::CheckpointOrder& order) override {
    std::string folder;
    PAWL_TRY(storage_.begin(process_, order, folder));
    return std::unique_ptr<job::OpenCheckpoint>(std::make_unique<SimulatedOpen>(storage_, folder));
  }
  Result<std::unique_ptr<job::StoredCheckpoint>> open(const std::string& path) override { return storage_.open(path); }
  Status write(const std::string& folder, const job::SeatPart& part, job::PartProgress& progress) override {
    return storage_.write(folder, part, progress);
  }
  Result<std::vector<checkpoint::ListedCheckpoint>> list(const std::string& folder) override {
    return storage_.list(folder);
  }
  Status remove(const checkpoint::ListedCheckpoint& one, const std::string&) override { return storage_.remove(one); }
  Status finish_removals(const std::string&, const std::string&) override { return {}; }

 private:
  Storage& storage_;
  Process& process_;
};

Storage::Storage(Cluster& cluster) : cluster_(cluster), random_(cluster.options.seed * 0x9e3779b97f4a7c15ull + 101) {}

bool Storage::is_on() const {
  return cluster_.options.storage.health != StorageHealth::none;
}

std::unique_ptr<job::CheckpointStore> Storage::client(Process& process) {
  return std::make_unique<StorageClient>(*this, process);
}

void Storage::calm() {
  is_calm_ = true;
}

// --- Calls

bool Storage::is_spoiled() const {
  return cluster_.scheduler.now() >= cluster_.began + cluster_.options.storage.spoiled_after;
}

Storage::Call Storage::drawn() {
  const auto between = [this](Duration least, Duration most) {
    return least + Duration(static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>((most - least).count())));
  };
  Call call{between(100us, 10ms), false, random_() % 2 == 0};
  switch (cluster_.options.storage.health) {
    case StorageHealth::slow:
      call.takes = random_() % 2 == 0 ? between(10ms, 200ms) : between(10ms, 3s);
      break;
    case StorageHealth::failing:
      call.fails = !is_calm_ && random_() % 6 == 0;
      break;
    case StorageHealth::hanging:
      if (!is_calm_ && random_() % 8 == 0) call.takes = random_() % 2 == 0 ? between(1s, 20s) : between(20s, 400s);
      break;
    case StorageHealth::broken:
      call.fails = is_spoiled();
      call.fails_after = false;
      break;
    case StorageHealth::stuck:
      if (is_spoiled()) call.takes = kForGood;
      break;
    default:
      break;
  }
  return call;
}

Status Storage::enter(const Call& call) {
  if (call.takes > kLong) hung_until_ = std::max(hung_until_, cluster_.scheduler.now() + call.takes);
  cluster_.scheduler.sleep(call.takes);
  if (call.fails && !call.fails_after) return failed(random_());
  return {};
}

// As a store does that reads what is there.
checkpoint::StoreIdentity Storage::identity_after(const job::CheckpointOrder& order) const {
  checkpoint::StoreIdentity identity{text("attempt-", order.attempt), {}, 0};
  const auto last = identities_.find(order.before);
  if (last == identities_.end()) return identity;
  identity.before.push_back({*checkpoint::parse_checkpoint_name(last_name(order.before)), last->second.id});
  for (const checkpoint::StoreName& name : last->second.before)
    if (published_.contains(job::checkpoint_path(parent_path(order.before), Step(name.step))))
      identity.before.push_back(name);
  return identity;
}

Status Storage::begin(Process& process, const job::CheckpointOrder& order, std::string& folder) {
  const std::string& path = order.path;
  const std::uint64_t attempt = order.attempt;
  const Call call = drawn();
  PAWL_TRY(enter(call));
  const auto is_taken = [&] {
    return std::ranges::any_of(folders_, [&](const auto& one) {
      return one.second.path == path && !one.second.is_gone && one.second.owner->alive;
    });
  };
  for (int i = 0; is_taken(); ++i) {
    if (i == kBeginTries) return Error{Code::stale, text("somebody else writes ", path)};
    cluster_.scheduler.sleep(50ms);
  }
  for (auto& [name, other] : folders_) other.is_gone = other.is_gone || !other.owner->alive;
  folder = text(path, ".pawl-partial/attempt-", attempt);
  if (folders_.contains(folder) && !folders_[folder].is_gone)
    cluster_.violate(text("attempt ", attempt, " was begun twice"));
  folders_[folder] = {path, attempt, &process, false, {}, identity_after(order), {}};
  const auto known = identities_.find(job::checkpoint_path(cluster_.spec.checkpoints.path, record_.published));
  if (known != identities_.end()) folders_[folder].after = known->second.id;
  if (call.fails) {
    folders_[folder].is_gone = true;
    return failed(random_());
  }
  return {};
}

Status Storage::write(const std::string& folder, const job::SeatPart& part, job::PartProgress& progress) {
  const Call call = drawn();
  PAWL_TRY(enter(call));
  const auto is_gone = [&] { return !folders_.contains(folder) || folders_[folder].is_gone; };
  const Error gone{Code::not_found, text(folder, " is not there")};
  std::vector<StoredBytes> stored;
  for (const checkpoint::StorePiece& piece : part.pieces) {
    const std::uint64_t unit = size_bits(piece.type) / 8;
    StoredBytes& copy = stored.emplace_back(StoredBytes{piece.name, piece.role, piece.box.begin[0] * unit, {}});
    const std::uint64_t size = piece.memory == nullptr ? 0 : piece.box.size[0] * unit;
    for (const std::uint64_t end : {size / 2, size}) {
      if (progress.cancel) return Error{Code::cancelled, "the attempt has ended"};
      if (is_gone()) return gone;
      const std::size_t before = copy.bytes.size();
      copy.bytes.insert(copy.bytes.end(), piece.memory + before, piece.memory + end);
      progress.bytes += end - before;
      cluster_.scheduler.sleep(cluster_.scheduler.between(50us, 10ms));
    }
  }
  if (part.proof != nullptr) PAWL_TRY(checkpoint::prove(*part.proof));
  if (is_gone()) return gone;
  folders_[folder].parts[part.seat.value] = std::move(stored);  // again, if that pawld was restarted
  return call.fails ? Status(failed(random_())) : Status();
}

Status Storage::publish(const std::string& folder, std::uint32_t seat_count) {
  const Call call = drawn();
  ++publishing_;
  Status entered = enter(call);
  --publishing_;
  PAWL_TRY(entered);
  Folder& open = folders_[folder];
  if (open.is_gone) return Error{Code::not_found, text(folder, " is not there")};
  for (std::uint32_t seat = 0; seat < seat_count; ++seat)
    if (!open.parts.contains(seat))
      return Error{Code::not_found, text("the part of seat ", seat, " is not in ", folder)};
  check_published(open, seat_count);
  published_[open.path] = std::make_shared<const StoredParts>(std::move(open.parts));
  identities_[open.path] = open.identity;
  history_.insert(open.identity.id);
  newest_ = std::max(newest_, attempts_[open.attempt].second);
  published_at_ = cluster_.scheduler.now();
  committed_then_ = cluster_.greatest_committed();
  ++publications_;
  open.is_gone = true;
  cluster_.scheduler.sleep(cluster_.scheduler.between(0us, 20ms));
  return call.fails ? Status(failed(random_())) : Status();
}

// On a task of its own, or with a process that ends.
void Storage::remove(const std::string& folder) {
  folders_[folder].is_gone = true;
}

Result<std::vector<checkpoint::ListedCheckpoint>> Storage::list(const std::string& folder) {
  PAWL_TRY(enter(drawn()));
  std::vector<checkpoint::ListedCheckpoint> listed;
  for (const auto& [path, parts] : published_) {
    const auto step = checkpoint::parse_checkpoint_name(last_name(path));
    if (parent_path(path) != folder || !step) continue;
    checkpoint::ListedCheckpoint& one = listed.emplace_back();
    one.step = *step;
    one.path = path;
    one.finished = true;
    one.identity = identities_[path];
  }
  return listed;
}

// What is removed, nobody who follows the record may go back to.
Status Storage::remove(const checkpoint::ListedCheckpoint& one) {
  const Call call = drawn();
  PAWL_TRY(enter(call));
  const Step step(one.step);
  if (record_.published == step || contains(record_.older, step))
    cluster_.violate(
        text("step ", step, " is removed from storage, and the record names it: published ", record_.published));
  if (!published_.contains(one.path)) return Error{Code::not_found, text("step ", step, " is not there")};
  if (identities_[one.path].id != one.identity.id) return Error{Code::stale, text("another step ", step, " is there")};
  if (!history_.contains(one.identity.id))
    cluster_.violate(text("step ", step, " is removed from storage, and is of a history that was left"));
  published_.erase(one.path);
  identities_.erase(one.path);
  ++removals_;
  return call.fails ? Status(failed(random_())) : Status();
}

Result<std::unique_ptr<job::StoredCheckpoint>> Storage::open(const std::string& path) {
  PAWL_TRY(enter(drawn()));
  const auto found = published_.find(path);
  if (found == published_.end()) return Error{Code::not_found, text(path, " is not there")};
  return std::unique_ptr<job::StoredCheckpoint>(std::make_unique<SimulatedStored>(cluster_, found->second));
}

// --- What must be true

std::set<std::uint32_t> Storage::equal_to(Seat seat) const {
  std::set<std::uint32_t> equal;
  for (std::uint32_t other = 0; other < cluster_.first_world(); ++other)
    if (cluster_.content_of(Seat(other)) == cluster_.content_of(seat)) equal.insert(other);
  return equal;
}

// Other worlds are not stored: a seat is the seat before it.
void Storage::check_published(const Folder& folder, std::uint32_t seat_count) {
  const auto known = attempts_.find(folder.attempt);
  if (known == attempts_.end()) return cluster_.violate("a checkpoint was published that nobody has ordered");
  const Step step = known->second.second;
  const std::string what = text("the checkpoint of step ", step, ", attempt ", folder.attempt, ",");
  if (folder.path != job::checkpoint_path(cluster_.spec.checkpoints.path, step))
    return cluster_.violate(text(what, " lies at ", folder.path));
  if (seat_count != cluster_.first_world() || folder.parts.size() != seat_count)
    return cluster_.violate(text(what, " has parts of ", folder.parts.size(), " seats, of ", seat_count));
  for (const checkpoint::StoreName& name : folder.identity.before)
    if (!history_.contains(name.id) || name.step > step.value)
      return cluster_.violate(text(what, " says that step ", name.step, " was before it, which was left"));
  // Who writes the last one may not have heard of what was published just now.
  if (folder.identity.before.empty() && !folder.after.empty() && history_.contains(folder.after) &&
      folder.attempt < job::kLastAttempts)
    return cluster_.violate(text(what, " does not say that ", folder.after, " was before it"));
  cluster_.look();
  for (std::uint32_t seat = 0; seat < seat_count; ++seat) {
    if (step > Step(cluster_.greatest_committed()) && !sealed_[step.value].contains(seat))
      return cluster_.violate(text(what, " is of a step that was not committed, and seat ", seat, " never held it"));
    const auto state = state_in(folder.parts, seat, equal_to(Seat(seat)));
    if (!state) return cluster_.violate(text(what, " is not whole: ", state.error().what));
    if (!flipped_.contains(step.value) && !is_state(*state, cluster_.content_of(Seat(seat)), step, 0))
      return cluster_.violate(text(what, " has other bytes of seat ", seat));
  }
}

void Storage::on_record(const std::string& json) {
  const auto record = job::parse_persist_record(json);
  if (!record) return cluster_.violate("a record that can't be read was written: " + record.error().what);
  log_info("sim_persist", "attempt", record->attempt, "generation", record->generation, "phase", name_of(record->phase),
           "step", record->step, "published", record->published, "tries", record->tries, "why", record->why);
  if (record->attempt < record_.attempt) return cluster_.violate("attempts of checkpoints count down");
  if (record->published < record_.published && !may_decrease_)
    return cluster_.violate(text("step ", record->published, " is published, and ", record_.published, " was"));
  if (record->published > Step(0) &&
      !published_.contains(job::checkpoint_path(cluster_.spec.checkpoints.path, record->published)))
    return cluster_.violate(text("step ", record->published, " is said to be published, and is not there"));
  may_decrease_ = false;
  attempts_[record->attempt] = {record->generation, record->step};
  record_ = *record;
}

void Storage::on_last_record(const std::string& json) {
  const auto record = job::parse_last_record(json);
  if (!record) return cluster_.violate("a record that can't be read was written: " + record.error().what);
  log_info("sim_last_checkpoint", "attempt", record->attempt, "generation", record->generation, "step", record->step,
           "phase", static_cast<int>(record->phase), "why", record->why);
  if (!cluster_.options.is_stopped) return cluster_.violate("a job writes its last checkpoint that nobody has stopped");
  attempts_[record->attempt] = {record->generation, record->step};
}

// Whatever was written of later steps is left behind.
void Storage::goes_on_from(Step resume) {
  for (const auto& [path, identity] : identities_)
    if (*checkpoint::parse_checkpoint_name(last_name(path)) > resume.value) history_.erase(identity.id);
}

void Storage::went_back(Step resume) {
  if (!published_.contains(job::checkpoint_path(cluster_.spec.checkpoints.path, resume)))
    return cluster_.violate(text("the job goes back to step ", resume, " in storage, of which there is no checkpoint"));
  may_decrease_ = true;
  newest_ = std::min(newest_, resume);
}

Storage::Phase Storage::phase() const {
  if (publishing_ > 0) return Phase::publishing;
  if (record_.phase == PersistPhase::writing) return Phase::writing;
  if (record_.phase == PersistPhase::idle) return Phase::idle;
  return cluster_.greatest_committed() + 1 < record_.step.value ? Phase::ordered : Phase::pinning;
}

void Storage::on_strike() {
  ++strikes_[static_cast<unsigned>(phase())];
}

bool Storage::is_untroubled(std::uint32_t machine) const {
  const auto& node = cluster_.nodes[machine];
  const ControlServerModel& control = cluster_.control;
  if (node == nullptr || node->pawld() == nullptr || node->pawld()->stops > 0) return false;
  if (control.downs > 0 || control.stops > 0 || control.cuts[machine] > 0) return false;
  return std::ranges::all_of(control.watches[machine], [](const WatchTrouble& watch) {
    return watch.late == Duration::zero() && watch.losses == 0;
  });
}

void Storage::look() {
  if (!is_on()) return;
  for (KeptArena& kept : cluster_.arenas())
    if (kept.name.starts_with("own.")) look_at_pins(kept);
  look_at_pace();
}

void Storage::look_at_pins(KeptArena& kept) {
  const Duration now = cluster_.scheduler.now();
  for (std::uint32_t i = 0; i < kept.arena.slot_count(); ++i) {
    const SlotName name{kept.machine, kept.name, i};
    const job::Slot slot = kept.arena.slot(i);
    const SlotWord word = slot.word();
    if (word.state == SlotState::sealed && slot.pinned(word)) {
      pinned_[name] = word;
      const auto bytes = slot.payload().first(kStateBytes);
      if (!flipped_.contains(word.step.value) &&
          !is_state(bytes, cluster_.content_of(kept.arena.spec().seat), word.step, 0))
        return cluster_.violate(text("machine ", kept.machine, " ", kept.name, " slot ", i, " is pinned as step ",
                                     word.step, " and holds other bytes"));
    } else if (const auto before = pinned_.find(name); before != pinned_.end()) {
      if (slot.pinned(before->second) && !word.frozen && word.state != SlotState::empty)
        return cluster_.violate(text("machine ", kept.machine, " ", kept.name, " slot ", i, " was pinned as step ",
                                     before->second.step, " and is ", name_of(word.state), " as step ", word.step));
      pinned_.erase(before);
    }
    const bool is_idle = record_.phase == PersistPhase::idle || record_.generation != cluster_.state()->generation;
    if (!pinned_.contains(name) || !is_idle || !cluster_.is_well() || !is_untroubled(kept.machine))
      idle_pinned_since_.erase(name);
    else if (now - idle_pinned_since_.try_emplace(name, now).first->second > kUnpinnedWithin)
      return cluster_.violate(text("machine ", kept.machine, " ", kept.name, " slot ", i, " is pinned as step ",
                                   word.step, ", and nothing is being written"));
  }
}

// While nothing is wrong checkpoints are published.
void Storage::look_at_pace() {
  const Duration now = cluster_.scheduler.now();
  bool is_troubled = !cluster_.is_well() || cluster_.options.storage.health != StorageHealth::sound ||
                     cluster_.options.bytes_a_second < kManySteps;
  for (std::uint32_t i = 0; i < cluster_.machines.count(); ++i) is_troubled = is_troubled || !is_untroubled(i);
  if (is_troubled) {
    published_at_ = now;
    committed_then_ = cluster_.greatest_committed();
  }
  const StorageOptions& options = cluster_.options.storage;
  if (now - published_at_ >
          kPublishedWithin + 2 * (options.every_auto ? job::kAutoPause : std::chrono::milliseconds(options.every_ms)) &&
      cluster_.greatest_committed() > committed_then_ + kStepsWithin + 4 * options.every_steps)
    cluster_.violate(text("nothing was published for ", (now - published_at_) / 1s, " s, in which steps ",
                          committed_then_, " to ", cluster_.greatest_committed(), " were committed: ", describe()));
}

void Storage::check_end() {
  const StorageHealth health = cluster_.options.storage.health;
  const bool is_lost = (health == StorageHealth::broken || health == StorageHealth::stuck) && is_spoiled();
  if (!is_on() || is_lost || (health == StorageHealth::hanging && hung_until_ > cluster_.end_began)) return;
  const bool gave_up = health == StorageHealth::slow && cluster_.options.is_stopped &&
                       cluster_.state()->verdict.find("within") != std::string::npos;
  // A flipped bit, and then a death.
  const bool was_flipped = cluster_.options.is_stopped && flipped_.contains(cluster_.greatest_committed());
  if (newest_.value < cluster_.greatest_committed() && !gave_up && !was_flipped)
    cluster_.violate(text("the job has ended with step ", cluster_.greatest_committed(), ", and only ", newest_,
                          " is stored: ", describe()));
}

std::string Storage::describe() const {
  if (!is_on()) return "none";
  return text(name_of(cluster_.options.storage.health), ", ", publications_, " published, ", removals_,
              " removed, attempt ", record_.attempt, " ", name_of(record_.phase), " step ", record_.step, ", failures ",
              record_.failures, record_.why.empty() ? "" : ", " + record_.why, "; faults idle ", strikes_[0],
              " ordered ", strikes_[1], " pinning ", strikes_[2], " writing ", strikes_[3], " publishing ",
              strikes_[4]);
}

}  // namespace pawl::sim
