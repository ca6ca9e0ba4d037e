#include "job/daemon/health_gate.h"

#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "env/files.h"
#include "job/recovery/members.h"
#include "job/transport/messages.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;
using Json = nlohmann::json;

constexpr Duration kAnswerWithin = 2s;
constexpr std::byte kPattern{0xa5};

Status write_a_file(Files& files, const std::string& path) {
  const auto tried = [&]() -> Status {
    PAWL_ASSIGN(const std::unique_ptr<File> file, files.open(path, {.write = true, .create = true, .truncate = true}));
    const std::string said = "pawl: does this disk still take a write?\n";
    PAWL_TRY(file->write_at(0, std::as_bytes(std::span(said))));
    PAWL_TRY(file->sync());
    return file->close();
  };
  Status status = tried();
  (void)files.remove(path);
  return status;
}

}  // namespace

struct HealthGate::DiskTrial {
  explicit DiskTrial(std::unique_ptr<Condition> condition) : changed(std::move(condition)) {}
  std::mutex mutex;
  const std::unique_ptr<Condition> changed;
  std::optional<Status> how;  // under the mutex
};

HealthGate::~HealthGate() {
  if (task_) task_->join();
}

bool HealthGate::healthy() const {
  std::lock_guard lock(mutex_);
  return why_not_.empty();
}

std::string HealthGate::why_not() const {
  std::lock_guard lock(mutex_);
  return why_not_;
}

void HealthGate::begin() {
  if (!context_.mirror.is_member()) return look();
  {
    std::lock_guard lock(mutex_);
    why_not_.clear();
  }
  hooks_.on_changed();
}

void HealthGate::look() {
  if (context_.ending) return;
  if (task_) task_->join();  // it has posted its end
  task_ = context_.environment->tasks.start("pawl-health", [this, peers = peers()] {
    auto facts = std::make_shared<HealthFacts>();
    facts->arena = try_arena();
    facts->disk = try_disk();
    for (const Peer& peer : peers) facts->peers.push_back(ask(peer));
    if (hooks_.probe) facts->probe = hooks_.probe();
    context_.post([this, facts] { judge(*facts); });
  });
}

void HealthGate::judge(const HealthFacts& facts) {
  if (context_.ending) return;
  if (!facts.disk && facts.disk.error().code == Code::full)
    log_warn("run_directory_full", "why", facts.disk.error().what);
  const std::optional<Unfit> unfit = judge_health(facts, context_.deadlines);
  const std::string now = unfit ? unfit->why : "";
  std::string before;
  {
    std::lock_guard lock(mutex_);
    before = std::exchange(why_not_, now);
  }
  if (unfit) {
    context_.after(unfit->again, [this] { look(); });
    if (now != before) log_warn("node_unhealthy", "why", now);
    if (now != before) events_.tell("node_unhealthy", Json{{"why", now}}.dump());
  } else {
    log_info("node_healthy");
  }
  if (now != before) hooks_.on_changed();
}

std::vector<HealthGate::Peer> HealthGate::peers() const {
  std::vector<Peer> some;
  if (!context_.mirror.has_state() || context_.mirror.is_over()) return some;
  const JobState& state = context_.mirror.state();
  for (const Member& member : state.seats) {
    const bool known = std::ranges::any_of(some, [&](const Peer& peer) { return peer.node == member.life.node; });
    if (known || !is_survivor(state, member.life) || member.life.node == context_.self.node) continue;
    some.push_back({member.life.node, member.address});
    if (some.size() == kHealthPeersMax) break;
  }
  return some;
}

HealthPeer HealthGate::ask(const Peer& peer) const {
  HealthPeer found;
  found.node = peer.node;
  Clock& clock = context_.environment->clock;
  const Deadline deadline = Deadline::in(kAnswerWithin, clock);
  const Duration began = clock.now();
  const auto asked = [&]() -> Result<Json> {
    PAWL_ASSIGN(const Address address, Address::parse(peer.address));
    PAWL_ASSIGN(const std::unique_ptr<Stream> stream, context_.environment->network.connect(address, deadline));
    const Json question{{"ask", "status"}, {"token", token_}};
    PAWL_TRY(send_frame(*stream, frame_of(QuestionMessage{question.dump()}, 1), deadline));
    PAWL_ASSIGN(const Frame frame, receive_frame(*stream, deadline));
    Json answer = Json::parse(frame.payload, nullptr, false);
    if (!is<AnswerMessage>(frame) || !answer.is_object() || answer.contains("error"))
      return Error{Code::corrupt, "its answer is not understood"};
    return answer;
  };
  const Result<Json> answer = asked();
  found.took = clock.now() - began;
  if (!answer) {
    found.answered = answer.error();
    return found;
  }
  const auto wall = answer->find("wall_ms");
  if (wall != answer->end() && wall->is_number_unsigned())
    found.clock_ahead = std::chrono::milliseconds(wall->get<std::uint64_t>()) - clock.wall();
  return found;
}

Status HealthGate::try_arena() const {
  SharedMemory& memory = context_.environment->memory;
  PAWL_ASSIGN(const Fd segment, memory.create(text("pawl.", context_.job, ".health"), kHealthArenaBytes));
  PAWL_ASSIGN(const Mapping mapping, memory.map(segment.get(), kHealthArenaBytes, {}));
  std::memset(mapping.data(), static_cast<int>(kPattern), mapping.size_bytes());
  for (const std::byte byte : mapping.bytes())
    if (byte != kPattern) return Error{Code::corrupt, "it gave other bytes back than were written"};
  return {};
}

// What waits for a disk that does not answer can't be ended: it is left to itself, and no other is begun beside it.
Status HealthGate::try_disk() {
  if (directory_.empty()) return {};
  const Environment& world = *context_.environment;
  if (!disk_) {
    disk_ = std::make_shared<DiskTrial>(world.tasks.make_condition());
    (void)world.tasks.start("pawl-disk", [trial = disk_, &files = world.files,
                                          path = join_path(directory_, text("health-", context_.self.node))] {
      const Status how = write_a_file(files, path);
      const std::lock_guard lock(trial->mutex);
      trial->how = how;
      trial->changed->notify_all();
    });
  }
  const std::shared_ptr<DiskTrial> trial = disk_;
  std::unique_lock lock(trial->mutex);
  const Duration until = world.clock.now() + hooks_.disk_within;
  while (!trial->how) {
    const Duration left = until - world.clock.now();
    if (left <= Duration::zero())
      return Error{Code::timeout, text("the disk did not answer within ", hooks_.disk_within / 1s, " s")};
    trial->changed->wait_for(lock, left);
  }
  disk_.reset();
  return *trial->how;
}

}  // namespace pawl::job
