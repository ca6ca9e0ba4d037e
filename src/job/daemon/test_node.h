// For unit tests of the daemon's parts: a node without threads, sockets or a control. Time, timers and the control's
// answers are in the test's hands.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/holds.h"
#include "job/daemon/node_context.h"
#include "job/daemon/state_mover.h"
#include "job/daemon/trainers.h"

namespace pawl::job {

// Stands still but for what the test lets pass. Any thread may read it: a fetch asks for the time, too.
class ManualClock : public Clock {
 public:
  Duration now() override { return Duration(time_ns_.load()); }
  Duration boottime() override { return now(); }
  Duration wall() override { return std::chrono::hours(500'000) + now(); }
  void sleep(Duration duration) override { time_ns_ += std::max(duration, Duration::zero()).count(); }
  void set(Duration time) { time_ns_ = time.count(); }

 private:
  std::atomic<Duration::rep> time_ns_{Duration(std::chrono::seconds(1000)).count()};
};

class FakeControl : public ControlCalls {
 public:
  struct Put {
    std::string key;
    std::string value;
    std::function<void(Status)> then;
  };
  struct Swap {
    std::string key;
    Revision expected;
    std::string value;
    std::vector<KeyChange> beside;
    std::function<void(Result<Swapped>)> then;
  };
  void put(std::string key, std::string value, std::function<void(Status)> then) override {
    puts.push_back({std::move(key), std::move(value), std::move(then)});
  }
  void compare_and_swap(std::string key, Revision expected, std::string value, std::vector<KeyChange> beside,
                        std::function<void(Result<Swapped>)> then) override {
    swaps.push_back({std::move(key), expected, std::move(value), std::move(beside), std::move(then)});
  }
  void tell(std::function<void(Control&)> work) override {
    ++tells;
    told.push_back(std::move(work));
  }

  std::vector<Put> puts;
  std::vector<Swap> swaps;
  std::deque<std::function<void(Control&)>> told;
  int tells = 0;
};

inline NodeLife test_life(std::uint32_t node, std::uint64_t incarnation = 1) {
  return {NodeId(node), Incarnation(incarnation)};
}

// The real world, but an arena is made at once where it is asked for: these tests have no loop that could go on meanwhile.
// (Only a test of seat_arenas.h looks at how that waits.)
inline const Environment& world_with_arenas_at_once() {
  class DoneTask final : public Task {
   public:
    void join() override {}
  };
  class ArenasAtOnce final : public Tasks {
   public:
    std::unique_ptr<Task> start(const std::string& name, std::function<void()> body) override {
      if (name != "pawl-arena") return real_tasks().start(name, std::move(body));
      body();
      return std::make_unique<DoneTask>();
    }
    std::unique_ptr<Condition> make_condition() override { return real_tasks().make_condition(); }
  };
  static ArenasAtOnce tasks;
  static const Environment& real = real_environment();
  static const Environment world{real.clock, tasks, real.network, real.files, real.processes, real.memory};
  return world;
}

// Node 0 of a job of `nodes` members, each with one seat, in generation 1.
struct TestNode {
  explicit TestNode(std::uint32_t nodes = 2, std::uint32_t self = 0,
                    const Environment& world = world_with_arenas_at_once())
      : context(test_life(self), "test", world) {
    JobSpec spec;
    spec.job = "test";
    spec.node_count = nodes;
    context.mirror.set_spec(spec);
    context.deadlines = derive_deadlines(std::chrono::seconds(3));
    context.clock = &clock;  // for what is decided; tasks keep the real time
    context.control = &control;
    context.after = [this](Duration delay, std::function<void()> task) { timers.emplace(clock.now() + delay, task); };
    context.post = [](std::function<void()> task) { task(); };
    context.drive = [this] { ++drives; };
    context.drive_soon = [this](Duration) { ++drives; };
    (void)context.mirror.apply_nodes({}, clock.now());
    for (std::uint32_t node = 0; node < nodes; ++node)
      state.seats.push_back({Seat(node), test_life(node), "host" + std::to_string(node), 0});
    state.generation = Generation(1);
    state.leader = test_life(0);
  }
  // The nodes 0 .. `nodes`-1 are registered, and the control answers.
  void register_nodes(std::uint32_t nodes) {
    for (std::uint32_t id = 0; id < nodes; ++id) {
      NodeRecord record;
      record.life = test_life(id);
      record.address = "host";
      record.healthy = true;
      record.parked = 1;
      const std::string value = to_json(record);
      (void)context.mirror.apply(context.mirror.keys().node(NodeId(id)), &value, ++revision, clock.now());
    }
    be_attentive();
  }
  // Time passes in which this node runs and the control answers it.
  void live(Duration time) {
    for (const Duration end = clock.now() + time; clock.now() < end;) {
      be_attentive();
      pass(std::min<Duration>(std::chrono::milliseconds(100), end - clock.now()));
    }
    be_attentive();
  }
  void be_attentive() {
    context.attention.ticked(clock.now(), context.deadlines);
    context.attention.control_answered(clock.now(), clock.now(), context.deadlines);
  }
  // The state as it now is, as the control would tell it.
  JobMirror::Change learn() {
    context.heard.known = state.generation;
    context.heard.as_of = Duration::max();
    context.watched.keys.as_of = context.watched.nodes.as_of = Duration::max();
    return context.mirror.learn(state, ++revision, clock.now());
  }
  void learn(JobPhase phase) {
    state.phase = phase;
    (void)learn();
  }
  void run_in(JobPhase phase) {  // and this node has followed it
    learn(phase);
    context.followed.was_member = true;
    context.followed.frozen = state.generation;
    if (phase == JobPhase::restoring) context.followed.restoring = state.generation;
    if (phase == JobPhase::running) context.followed.running = state.generation;
  }
  void pass(Duration time) {
    clock.sleep(time);
    while (!timers.empty() && timers.begin()->first <= clock.now()) {
      auto task = timers.extract(timers.begin());
      task.mapped()();
    }
  }

  ManualClock clock;
  FakeControl control;
  NodeContext context;
  JobState state;
  Revision revision = 0;
  std::multimap<Duration, std::function<void()>> timers;
  int drives = 0;
  Holds holds{real_tasks()};
  Events events{context};
  std::vector<JobState> won;
  SpareProbes::Answers probed;
  StateMover mover{context,
                   events,
                   holds,
                   {.on_won = [this](const JobState& next, Revision) { won.push_back(next); },
                    .on_lost = [](const KeyValue&) {},
                    .probe = [this](std::span<const NodeRecord>) { return probed; }}};
};

// A trainer process that has attached: a page, and the other end of its connection.
class TestTrainer {
 public:
  TestTrainer(Loop& loop, TrainerProcess& process) : process_(process) {
    page_ = static_cast<std::byte*>(std::aligned_alloc(4096, kTrainerPageBytes));
    process.shared.page = *initialise_page(std::span(page_, kTrainerPageBytes));
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    process.line.connection =
        Connection::make(loop, real_stream(Fd(ends[0])), {.on_frame = [](Frame&) {}, .on_close = [](const Error&) {}});
    other_end_ = Fd(ends[1]);
    process.pid = 77;
  }
  ~TestTrainer() {
    process_.line.connection.reset();
    process_.shared.page = nullptr;
    std::free(page_);
  }
  TrainerProcess& process() { return process_; }
  [[nodiscard]] TrainerPage* page() const { return reinterpret_cast<TrainerPage*>(page_); }
  // As Trainers does it when a request arrives.
  template <class Message>
  Frame asks(const Message& message, std::uint64_t id = 1) {
    if (Message::kKind == MessageKind::rendezvous)
      process_.line.rendezvous_waiting.insert(id);
    else
      process_.line.waiting[Message::kKind] = id;
    return frame_of(message, id);
  }
  // What it was answered since the last call.
  std::vector<Frame> answers() {
    std::byte buffer[4096];
    for (ssize_t got = 0; (got = recv(other_end_.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
      reader_.append(std::span(buffer, static_cast<std::size_t>(got)));
    std::vector<Frame> frames;
    Frame frame;
    for (auto whole = reader_.next(frame); whole && *whole; whole = reader_.next(frame)) frames.push_back(frame);
    return frames;
  }

 private:
  TrainerProcess& process_;
  std::byte* page_ = nullptr;
  Fd other_end_;
  FrameReader reader_;
};

inline Trainers::Handlers no_handlers() {
  return {.on_request = [](TrainerProcess&, const Frame&) {},
          .on_notice = [](TrainerProcess&) {},
          .on_death = [](TrainerProcess&, const std::string&) {},
          .on_question = [](std::shared_ptr<Connection>, const Frame&) {},
          .hold = [](const std::string&, int) {},
          .on_page = [](TrainerProcess&) {}};
}

}  // namespace pawl::job
