// A whole pawld in a job: what its parts do together for the keeper, a trainer and the other nodes, which the test plays.
#include "job/daemon/pawld.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/json_access.h"
#include "job/daemon/test_layout.h"
#include "job/daemon/test_pawld.h"
#include "job/snapshot/arena.h"
#include "job/snapshot/trainer_page.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

// It runs on a thread of its own, as it does in its process.
class PawldInAJob : public OnePawld {
 protected:
  PawldInAJob() { spec.replica_count = 0; }  // no replica streams: those are tested in streams_test.cc
  ~PawldInAJob() override {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
  }
  void begin() {
    start();
    run();
  }
  void run() {
    keeper_end.emplace(std::move(keeper));
    network.may_pause = [this] { return ended_.load(); };
    thread_ = std::thread([this] { (void)pawld->run(); });
  }
  // A process that the keeper has started is attached, and waits for its seat.
  void start_trainer() {
    EXPECT_EQ(keeper_end->next<SpawnTrainer>().local_index, 0u);
    const pid_t self = getpid();
    keeper_end->say(TrainerSpawned{0, static_cast<std::uint64_t>(self), *real_processes().start_time(self)});
    trainer.emplace(trainers);
    AttachMessage attach;
    attach.nonce = 55;
    trainer->say(attach, 1);
    (void)trainer->next_as<AttachedMessage>();
    ASSERT_EQ(trainer->fds.size(), 3u);
    page_mapping_ = *map_segment(trainer->fds[0].get(), kTrainerPageBytes);
    page = *open_page(page_mapping_.bytes());
    page->nonce = 55;
    trainer->say(JoinMessage{}, 2);
  }
  void declare(std::uint32_t world) { trainer->say(declaration_of(test_layout(5, 0, world)), 3); }
  void take_arena() {
    const auto granted = trainer->next_as<ArenaMessage>();
    ASSERT_EQ(trainer->fds.size(), 4u);
    arena_mapping_ = *map_segment(trainer->fds[3].get(), granted.size_bytes);
    arena = *Arena::open(arena_mapping_.bytes());
  }
  void capture(Generation generation, Step step) {
    page->step = step.value;
    page->progress_at_ns = static_cast<std::uint64_t>(clock.now().count());
    const Slot slot = arena.slot(0);
    // Who runs may be told so before this node has thawed its slots.
    ASSERT_TRUE(eventually([&] { return static_cast<bool>(slot.try_open(slot.word(), generation, step, 0)); }));
    for (std::uint32_t i = 0; i < Arena::bucket_count(arena.spec()); ++i) capture_bucket(slot, i);
    page->reached = step.value;
    ASSERT_TRUE(slot.try_seal(generation, step));
    const std::uint64_t one = 1;
    ASSERT_EQ(write(trainer->fds[2].get(), &one, sizeof one), 8);
  }
  [[nodiscard]] Step committed() const { return Progress::unpack(page->progress.load()).committed; }

  // Of a job of two nodes, this one at `options.node`, in its first generation.
  [[nodiscard]] JobState two_nodes(JobPhase phase) const {
    JobState state;
    state.generation = Generation(1);
    state.phase = phase;
    for (std::uint32_t node = 0; node < 2; ++node)
      state.seats.push_back({Seat(node), life_of(node), text("127.0.0.1:10", node), 0});
    state.leader = life_of(1 - options.node);
    state.lineage = {{Generation(1), Step(0)}};
    return state;
  }
  [[nodiscard]] NodeLife life_of(std::uint32_t node) const {
    return {NodeId(node), Incarnation(node == options.node ? options.incarnation : 7)};
  }
  void put_state(const JobState& state) { control.put("/pawl/test/state", to_json(state)); }
  [[nodiscard]] JobState state() const {
    const auto found = parse_job_state(control.value("/pawl/test/state"));
    return found ? *found : JobState{};
  }
  void register_other() {
    NodeRecord record;
    record.life = life_of(1 - options.node);
    record.healthy = true;
    control.put(text("/pawl/test:nodes/", record.life.node), to_json(record));
  }
  // The other node accepts pawld's link.
  PeerEnd accept_link() {
    PeerEnd link = network.accept();
    const Hello hello = link.next<Hello>();
    EXPECT_EQ(hello.token, "secret");
    EXPECT_EQ(hello.purpose, Purpose::link);
    EXPECT_EQ(hello.expected, Incarnation(7));
    link.say(WelcomeMessage{NodeId(1 - options.node), Incarnation(7)});
    return link;
  }
  // What the other node says comes over a link of its own.
  PeerEnd connect_link() {
    PeerEnd link(*connect_tcp(peers, Deadline::in(kTestPatience)));
    Hello hello;
    hello.job = "test";
    hello.token = "secret";
    hello.node = NodeId(1 - options.node);
    hello.incarnation = Incarnation(7);
    hello.generation = Generation(1);
    link.say(hello);
    (void)link.next<WelcomeMessage>();
    return link;
  }
  // The first generation of a job of this node alone runs, after all that goes before that.
  void run_alone() {
    spec.node_count = 1;
    begin();
    start_trainer();
    const auto seated = trainer->next_as<SeatedMessage>();
    EXPECT_EQ(seated.generation, Generation(1));
    EXPECT_EQ(seated.world, 1u);
    EXPECT_EQ(seated.resume, Step(0));
    declare(1);
    take_arena();
    trainer->say(DoneMessage{Generation(1)}, 4);
    EXPECT_EQ(trainer->next_as<RunningMessage>().generation, Generation(1));
  }
  // The same of two nodes, of which the test plays the other.
  void run_with_other() {
    put_state(two_nodes(JobPhase::restoring));
    register_other();
    begin();
    to_other.emplace(accept_link());
    start_trainer();
    const auto seated = trainer->next_as<SeatedMessage>();
    EXPECT_EQ(seated.seat, Seat(options.node));
    EXPECT_EQ(seated.world, 2u);
    declare(2);
    if (options.node != 0) {  // it is compared with what seat 0 has declared, which the root knows
      const auto [asked, id] = said_to<PeerRendezvousMessage>(*to_other);
      EXPECT_EQ(asked.request.op, RendezvousOp::get);
      answer(*to_other, PeerValueMessage{{true, text_of(test_layout(5)), ""}}, id);
    }
    take_arena();
    trainer->say(DoneMessage{Generation(1)}, 4);
    EXPECT_TRUE(eventually([this] { return control.count("/pawl/test:reports/1/ready/") == 1; }));
    put_state(two_nodes(JobPhase::running));
    (void)trainer->next_as<RunningMessage>();
  }
  // The next message of this kind and its id; beats and what else is said meanwhile are passed over.
  template <class Message>
  static std::pair<Message, std::uint64_t> said_to(PeerEnd& link) {
    const Deadline deadline = Deadline::in(kTestPatience);
    for (;;) {
      const auto frame = receive_frame(link.fd(), deadline);
      EXPECT_TRUE(frame.has_value()) << "nothing came: " << (frame ? "" : frame.error().what);
      if (!frame) return {};
      if (const auto message = message_in<Message>(*frame)) return {*message, frame->id};
    }
  }
  template <class Message>
  static void answer(PeerEnd& link, const Message& message, std::uint64_t id) {
    EXPECT_TRUE(send_frame(link.fd(), frame_of(message, id), Deadline::in(kTestPatience)).has_value());
  }
  static RendezvousRequest about(RendezvousOp op, const std::string& value = "") {
    RendezvousRequest request;
    request.op = op;
    request.client = 9;
    request.number = 1;
    request.key = "g1/port";
    request.value = value;
    return request;
  }
  [[nodiscard]] bool has_told(const std::string& kind) {
    return eventually([&] {
      const auto events = control.connect()->list("/pawl/test:events/");
      return std::ranges::any_of(events->kvs, [&](const KeyValue& kv) {
        return string_in(json::parse(kv.value, nullptr, false), "kind") == kind;
      });
    });
  }

  std::optional<KeeperEnd> keeper_end;
  std::optional<TrainerSide> trainer;
  std::optional<PeerEnd> to_other;  // pawld's link
  TrainerPage* page = nullptr;
  Arena arena;

 private:
  Mapping page_mapping_, arena_mapping_;
  std::atomic<bool> ended_ = false;
  std::thread thread_;
};

TEST_F(PawldInAJob, OfOneNodeGoesFromItsFirstTrainerToItsEnd) {
  run_alone();
  EXPECT_EQ(state().phase, JobPhase::running);

  capture(Generation(1), Step(1));
  EXPECT_TRUE(eventually([this] { return committed() == Step(1); }));

  trainer->say(RendezvousMessage{Generation(1), about(RendezvousOp::set, "4242")}, 5);
  EXPECT_EQ(trainer->next_as<ValueMessage>().answer.refused, "");
  trainer->say(RendezvousMessage{Generation(1), about(RendezvousOp::get)}, 6);
  EXPECT_EQ(trainer->next_as<ValueMessage>().answer.value, "4242");

  TrainerSide asking(trainers);
  asking.say(QuestionMessage{R"({"ask":"status"})"}, 7);
  const json status = json::parse(asking.next_as<AnswerMessage>().json, nullptr, false);
  EXPECT_EQ(string_in(status, "phase"), "running");
  EXPECT_EQ(number_in(status, "committed"), 1u);
  ASSERT_EQ(array_in(status, "trainers").size(), 1u);
  EXPECT_EQ(number_in(status["trainers"][0], "pid"), static_cast<std::uint64_t>(getpid()));
  ASSERT_EQ(array_in(status, "seats").size(), 1u);
  EXPECT_EQ(number_in(status["seats"][0], "sealed"), 1u);
  EXPECT_EQ(number_in(status["seats"][0], "held"), 1u);
  EXPECT_EQ(array_in(status, "exposed"), json::array({"seat 0: no replica (--replicas 0)"}));

  trainer->say(FinishMessage{Step(1), Step(1)}, 8);
  (void)trainer->next_as<FinishedMessage>();
  trainer->say(DetachMessage{});
  EXPECT_EQ(keeper_end->next<EndNode>().code, 0u);
  EXPECT_EQ(state().phase, JobPhase::finished);
}

// Whoever asks over the network needs the token; on the node itself the socket's owner is enough.
TEST_F(PawldInAJob, AnswersQuestionsOfOtherMachinesWithTheTokenOnly) {
  begin();
  PeerEnd asking(*connect_tcp(peers, Deadline::in(kTestPatience)));
  asking.say(QuestionMessage{R"({"ask":"status"})"});
  EXPECT_EQ(asking.next<AnswerMessage>().json, R"({"error":"wrong token"})");
  asking.say(QuestionMessage{R"({"ask":"status","token":"secret"})"});
  EXPECT_EQ(string_in(json::parse(asking.next<AnswerMessage>().json, nullptr, false), "phase"), "forming");
}

TEST_F(PawldInAJob, ATrainersDeathIsAFaultWithItsLastWords) {
  run_alone();
  keeper_end->say(TrainerExited{0, static_cast<std::uint64_t>(getpid()), "exited 1", "ValueError: a bad batch"});
  EXPECT_TRUE(eventually([this] { return state().generation == Generation(2); }));
  EXPECT_EQ(state().causes.at(0).kind, FaultKind::trainer_exit);
  const json end = json::parse(control.value("/pawl/test/exit/0"), nullptr, false);
  EXPECT_NE(string_in(end, "detail").find("exited 1"), std::string::npos) << end.dump();
  EXPECT_NE(end.dump().find("ValueError: a bad batch"), std::string::npos) << end.dump();
}

TEST_F(PawldInAJob, ATrainerWithoutProgressHangs) {
  run_alone();
  capture(Generation(1), Step(1));
  clock.skip(std::chrono::milliseconds(spec.hang_ms) + 1s);
  EXPECT_TRUE(eventually([this] { return state().generation == Generation(2); }));
  EXPECT_EQ(state().causes.at(0).kind, FaultKind::trainer_hang);
  EXPECT_EQ(keeper_end->next<KillTrainer>().local_index, 0u);
}

TEST_F(PawldInAJob, AnotherLayoutGetsAnotherArenaInPlaceOfTheFirst) {
  run_alone();
  trainer->say(declaration_of(test_layout(6, 0, 1)), 5);
  (void)trainer->next_as<ArenaMessage>();
  EXPECT_EQ(keeper_end->next<DropSegment>().name, "own.0");
  EXPECT_EQ(keeper_end->next<HoldSegment>().name, "own.0");
}

TEST_F(PawldInAJob, AProcessThatEndsBeforeItHasASeatIsStartedAgain) {
  begin();
  (void)keeper_end->next<SpawnTrainer>();
  keeper_end->say(TrainerSpawned{0, 1 << 30, 1});
  keeper_end->say(TrainerExited{0, 1 << 30, "exited 2"});
  EXPECT_EQ(keeper_end->next<SpawnTrainer>().local_index, 0u);
}

// --- With another node

TEST_F(PawldInAJob, TheRootOfTheTreeCommitsWhatAllHoldAndServesTheRendezvous) {
  run_with_other();
  PeerEnd from_other = connect_link();
  capture(Generation(1), Step(1));
  std::this_thread::sleep_for(kTestQuiet);
  EXPECT_EQ(committed(), Step(0));  // the other seat may not have it
  from_other.say(ReportMessage{Generation(1), {Progress{}, 1, 0}});
  EXPECT_TRUE(eventually([this] { return committed() == Step(1); }));
  for (Progress told; told.committed != Step(1);) {
    const auto [message, id] = said_to<ProgressMessage>(*to_other);
    ASSERT_FALSE(HasFailure());
    if (message.generation == Generation(1)) told = message.progress;
  }

  // What the other's trainer asks for is answered, also when this node's trainer sets it only later.
  answer(from_other, PeerRendezvousMessage{Generation(1), about(RendezvousOp::get)}, 21);
  trainer->say(RendezvousMessage{Generation(1), about(RendezvousOp::set, "4242")}, 5);
  const auto [value, id] = said_to<PeerValueMessage>(from_other);
  EXPECT_EQ(value.answer.value, "4242");
  EXPECT_EQ(id, 21u);
}

TEST_F(PawldInAJob, SendsWhatIsCapturedToItsHolderBeforeItCounts) {
  spec.replica_count = 1;
  run_with_other();
  PeerEnd from_other = connect_link();
  from_other.say(ReportMessage{Generation(1), {Progress{}, 1, 0}});

  capture(Generation(1), Step(1));
  PeerEnd stream = network.accept();
  const Hello hello = stream.next<Hello>();
  EXPECT_EQ(hello.purpose, Purpose::data);
  EXPECT_EQ(hello.seat, Seat(0));
  EXPECT_EQ(hello.token, "secret");
  stream.say(WelcomeMessage{NodeId(1), Incarnation(7)});
  EXPECT_EQ(stream.next<OpenMessage>().step, Step(1));
  std::this_thread::sleep_for(kTestQuiet);
  EXPECT_EQ(committed(), Step(0));
  stream.say(HeldMessage{Step(1)});
  EXPECT_TRUE(eventually([this] { return committed() == Step(1); }));

  // A recovery ends the stream, and reports what was held before it began.
  JobState recovery = two_nodes(JobPhase::quiescing);
  recovery.generation = Generation(2);
  put_state(recovery);
  EXPECT_TRUE(stream.is_closed());
  EXPECT_TRUE(eventually([this] { return control.count("/pawl/test:reports/2/inventory/") == 1; }));
  const auto inventory = parse_inventory(control.value("/pawl/test:reports/2/inventory/0"));
  ASSERT_TRUE(inventory);
  EXPECT_EQ(inventory->committed, Step(1));
  EXPECT_EQ(inventory->items.at(0).step, Step(1));
}

TEST_F(PawldInAJob, ANodeOfTheTreeReportsToItsParentAndAsksTheRoot) {
  options.node = 1;
  run_with_other();
  capture(Generation(1), Step(1));
  for (std::uint64_t held = 0; held == 0;) {
    const auto [message, id] = said_to<ReportMessage>(*to_other);
    ASSERT_EQ(message.generation, Generation(1));
    held = message.report.held;
    EXPECT_TRUE(held == 0 || held == 1) << held;
  }
  PeerEnd from_root = connect_link();
  from_root.say(ProgressMessage{Generation(1), Progress{Step(1), 0}});
  EXPECT_TRUE(eventually([this] { return committed() == Step(1); }));

  trainer->say(RendezvousMessage{Generation(1), about(RendezvousOp::get)}, 5);
  const auto [request, request_id] = said_to<PeerRendezvousMessage>(*to_other);
  EXPECT_EQ(request.request.key, "g1/port");
  // The link breaks before the answer: it is asked again over the next one.
  to_other->hang_up();
  PeerEnd again = accept_link();
  const auto [repeated, repeated_id] = said_to<PeerRendezvousMessage>(again);
  EXPECT_EQ(repeated.request, request.request);
  answer(again, PeerValueMessage{{true, "4242", ""}}, repeated_id);
  EXPECT_EQ(trainer->next_as<ValueMessage>().answer.value, "4242");
}

TEST_F(PawldInAJob, FencesItsNodeWhereANeighbourSaysThatItIsEvicted) {
  put_state(two_nodes(JobPhase::restoring));
  begin();
  PeerEnd link = network.accept();
  (void)link.next<Hello>();
  link.say(PeerRefusedMessage{PeerRefusal::evicted, "evicted in generation 2"});
  EXPECT_EQ(keeper_end->next<FenceNode>().reason, "node 1 says: evicted in generation 2");
}

TEST_F(PawldInAJob, TellsOfANodeWhoseAddressRefuses) {
  put_state(two_nodes(JobPhase::restoring));
  register_other();
  NodeRecord spare;
  spare.life = {NodeId(2), Incarnation(1)};
  spare.address = "127.0.0.1:102";
  spare.healthy = true;
  spare.parked = 1;
  control.put("/pawl/test:nodes/2", to_json(spare));
  begin();
  PeerEnd link = accept_link();
  network.refuse_next(1000);
  link.hang_up();
  EXPECT_TRUE(has_told("fault_detected"));
}

TEST_F(PawldInAJob, OnceEvictedEndsItsTrainersAndLingersForAsLongAsItsCopiesMayBeNeeded) {
  put_state(two_nodes(JobPhase::restoring));
  begin();
  start_trainer();
  (void)trainer->next_as<SeatedMessage>();
  JobState next = two_nodes(JobPhase::restoring);
  next.generation = Generation(2);
  next.seats[0].life = {NodeId(2), Incarnation(1)};
  next.evicted = {life_of(0)};
  put_state(next);
  EXPECT_EQ(keeper_end->next<KillTrainer>().local_index, 0u);
  next.phase = JobPhase::running;
  put_state(next);
  EXPECT_EQ(keeper_end->next<ResetNode>().reason, "evicted in generation 2");
}

// Alone it would train on, and nobody could take its seats: while the others, who hear nothing of it, go on without it.
TEST_F(PawldInAJob, FencesItsNodeWhenItIsCutOffFromAllOthers) {
  put_state(two_nodes(JobPhase::restoring));
  begin();
  const Deadlines deadlines = derive_deadlines(std::chrono::milliseconds(spec.deadline_ms));
  for (Duration skipped{}; skipped < 2 * deadlines.lease; skipped += deadlines.silence / 3) {
    clock.skip(deadlines.silence / 3);  // its loop was not stopped for as long as that
    std::this_thread::sleep_for(20ms);
  }
  EXPECT_NE(keeper_end->next<FenceNode>().reason.find("of 2 members 1 are heard"), std::string::npos);
}

TEST_F(PawldInAJob, SaysThatNothingCanBeRecoveredWhenTheControlHasLostTheState) {
  put_state(two_nodes(JobPhase::restoring));
  register_other();
  begin();
  control.erase("/pawl/test/state");
  control.resync();
  EXPECT_TRUE(has_told("control_lost_data"));
}

// --- When it can't begin

TEST_F(PawldInAJob, EndsTheNodeWhereTheJobSpeaksAnotherVersion) {
  spec.version = kProtocolVersion + 1;
  control.put("/pawl/test/spec", to_json(spec));
  start_unregistered();
  run();
  EXPECT_EQ(keeper_end->next<EndNode>().code, 1u);
  EXPECT_EQ(registered(), "");
}

TEST_F(PawldInAJob, WaitsForTheControlAndForTheSpec) {
  control.fail_next_lists(3);
  start_unregistered();
  run();
  EXPECT_TRUE(eventually([this] { return control.lists() >= 5; }));  // three failed, and in others there was no spec
  EXPECT_EQ(registered(), "");
  control.put("/pawl/test/spec", to_json(spec));
  EXPECT_TRUE(eventually([this] { return !registered().empty(); }));
}

TEST_F(PawldInAJob, EndsWithItsKeeper) {
  begin();
  keeper_end->hang_up();
  EXPECT_TRUE(eventually([this] { return exit_code == 1; }));
}

}  // namespace
}  // namespace pawl::job
