#include "job/daemon/spare_memory.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/contains.h"
#include "base/log.h"
#include "env/memory_margin.h"
#include "job/daemon/memory.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {
constexpr Duration kAgain = 5s;  // until a spare asks for room again
}

SpareMemory::SpareMemory(NodeContext& context, Hooks hooks)
    : context_(context), hooks_(std::move(hooks)), changed_(context.environment->tasks.make_condition()) {}

// Members alone know how large an arena is: nobody else has been told a layout. Any of them may die next, and
// a spare may get the seats of the node that has most: so it plans for these, and for the largest arena. One that has room for smaller ones only is
// refused as a whole, for a seat that nobody can take over is worse than one spare less that was never sure.
MemoryPlan SpareMemory::plan() {
  const JobMirror& mirror = context_.mirror;
  MemoryPlan plan{.slot_count = own_slot_count(mirror.spec()),
                  .seats_per_node = mirror.ring().seats_per_node_max(),
                  .replica_count = mirror.ring().replica_count(),
                  .wards_per_node = mirror.ring().wards_per_node_max(),
                  .of_spare = true,
                  .budget_bytes = mirror.spec().memory_bytes};
  plan.arena_bytes = mirror.has_state() ? mirror.state().arena_bytes : 0;
  for (const auto& [node, record] : mirror.registrations().nodes)
    plan.arena_bytes = std::max(plan.arena_bytes, record.arena_bytes);
  if (plan.arena_bytes == 0) plan.arena_bytes = arena_bytes_;
  arena_bytes_ = plan.arena_bytes;
  return plan;
}

// While the job runs: what members allocate in a recovery, or at the start, must not wait for this.
bool SpareMemory::is_spare() const {
  const JobMirror& mirror = context_.mirror;
  return mirror.is_in(JobPhase::running) && !mirror.is_member() && !context_.ending &&
         context_.clock->now() - mirror.state_since() >= context_.deadlines.silence;
}

std::uint64_t SpareMemory::ready_bytes() const {
  std::lock_guard lock(mutex_);
  std::uint64_t sum = 0;
  for (const ReadySegment& segment : ready_) sum += segment.mapping.size_bytes();
  return sum;
}

bool SpareMemory::is_making() const {
  std::lock_guard lock(mutex_);
  return making_ != nullptr;
}

std::uint32_t SpareMemory::ready_count() const {
  std::lock_guard lock(mutex_);
  return static_cast<std::uint32_t>(ready_.size());
}

void SpareMemory::consider(const Held& held) {
  const JobMirror& mirror = context_.mirror;
  if (context_.clock->now() < next_look_ || !mirror.has_state()) return;
  next_look_ = context_.clock->now() + context_.deadlines.silence / 4;
  if (std::exchange(told_bytes_, held.own_bytes_max) != held.own_bytes_max) hooks_.on_record_changed();
  const ReadyView view{is_spare(), mirror.is_member(), held.arenas, ready_count()};
  const bool busy = is_making();
  const bool waits = !view.is_spare && !view.is_member && !mirror.is_over();  // for the job to run
  // A recovery may wait for a spare, and memory have become free since this one was refused: by the deaths, for example.
  if (waits && !fits_ && !mirror.is_in(JobPhase::running)) ask_for_room(plan());
  if (waits || (!view.is_spare && view.ready == 0 && !busy)) return;
  const MemoryPlan wanted = plan();
  if (view.is_spare && !busy) ask_for_room(wanted);  // what is being made is neither available nor ready
  const bool none = view.is_spare && !has_room_;
  const std::vector<std::uint64_t> missing =
      let_go(none ? std::vector<std::uint64_t>{} : segments_wanted(wanted, view));
  if (view.is_spare && !busy && !missing.empty()) make_one(missing.front());
}

void SpareMemory::ask_for_room(const MemoryPlan& plan) {
  if (plan.arena_bytes == 0) return;
  AvailableMemory available = context_.environment->memory.available();
  available.small_bytes -= memory_margin_bytes(available.small_bytes);
  const Status room = check_memory(plan, bytes_for_segments(available, plan.arena_bytes) + ready_bytes());
  has_room_ = room.has_value();
  if (ready_count() >= arenas_needed(plan)) why_not_made_.clear();
  judge(room ? why_not_made_ : room.error().what);
  if (!room) next_look_ = context_.clock->now() + kAgain;
}

void SpareMemory::judge(const std::string& why) {
  const bool fitted = fits_;
  if (fitted && !why.empty()) {
    log_error("spare_refused", "why", why);
    hooks_.on_refused(why);
  }
  if (!fitted && why.empty()) log_info("spare_accepted", "why", "it has memory enough now");
  why_refused_ = why;
  fits_ = why.empty();
  if (fits_ != fitted) hooks_.on_record_changed();
}

// Giving memory back takes time by its bytes as well.
std::vector<std::uint64_t> SpareMemory::let_go(const std::vector<std::uint64_t>& wanted) {
  auto gone = std::make_shared<std::vector<ReadySegment>>();
  SegmentsKept found;
  {
    std::lock_guard lock(mutex_);
    std::vector<std::uint64_t> sizes;
    for (const ReadySegment& segment : ready_) sizes.push_back(segment.mapping.size_bytes());
    found = keep_segments(sizes, wanted);
    std::vector<ReadySegment> kept;
    for (const std::size_t index : found.kept) kept.push_back(std::move(ready_[index]));
    for (std::size_t i = 0; i < ready_.size(); ++i)
      if (!contains(found.kept, i)) gone->push_back(std::move(ready_[i]));
    ready_ = std::move(kept);
    if (making_ && wanted.empty()) making_->given_up = true;
  }
  if (gone->empty()) return std::move(found.missing);
  log_info("spare_memory_let_go", "segments", gone->size());
  (void)context_.environment->tasks.start("pawl-spare", [gone] { gone->clear(); });
  return std::move(found.missing);
}

void SpareMemory::make_one(std::uint64_t size_bytes) {
  auto making = std::make_shared<Making>();
  {
    std::lock_guard lock(mutex_);
    making_ = making;
  }
  (void)context_.environment->tasks.start("pawl-spare", [this, making, size_bytes] {
    SharedMemory& memory = context_.environment->memory;
    const std::uint64_t margin = memory_margin_bytes(memory.available().small_bytes);
    Result<ReadySegment> segment = [&]() -> Result<ReadySegment> {
      PAWL_ASSIGN(Fd fd, memory.create_slowly("pawl." + context_.job + ".spare", size_bytes, making->given_up, margin));
      PAWL_ASSIGN(const std::uint64_t whole, memory.size_bytes(fd.get()));
      PAWL_ASSIGN(Mapping mapping, memory.map(fd.get(), whole, {.populate = true}));
      return ReadySegment{std::move(fd), std::move(mapping)};
    }();
    const Status how = segment ? Status() : Status(segment.error());
    if (segment) {
      std::lock_guard lock(mutex_);
      ready_.push_back(std::move(*segment));
    }
    context_.post([this, how] { made(how); });
    std::lock_guard lock(mutex_);
    making->ended = true;
    making_.reset();
    changed_->notify_all();
  });
}

void SpareMemory::made(const Status& how) {
  if (how) {
    log_info("spare_memory_made", "bytes", ready_bytes());
    why_not_made_.clear();
  }
  if (how || how.error().code == Code::cancelled) {
    next_look_ = Duration{};
    return;
  }
  // There is less than the machine says, so a seat here would fail as well. Another try may tell otherwise.
  log_warn("spare_memory_refused", "why", how.error().what);
  why_not_made_ = how.error().what;
  judge(why_not_made_);
  next_look_ = context_.clock->now() + kAgain;
}

std::optional<ReadySegment> SpareMemory::take(std::uint64_t size_bytes) {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto fits = ready_.end();
    for (auto each = ready_.begin(); each != ready_.end(); ++each)
      if (const std::uint64_t size = each->mapping.size_bytes();
          size >= size_bytes && (fits == ready_.end() || size < fits->mapping.size_bytes()))
        fits = each;
    if (fits != ready_.end()) {
      ReadySegment taken = std::move(*fits);
      ready_.erase(fits);
      return taken;
    }
    if (!making_) return std::nullopt;
    const std::shared_ptr<Making> making = making_;
    making->given_up = true;
    while (!making->ended) changed_->wait(lock);
  }
}

}  // namespace pawl::job
