// Trainers against processes that the test plays: over the real socket, and as the keeper tells of them.
#include "job/daemon/trainers.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "env/temporary_directory.h"
#include "job/daemon/keeper_channel.h"
#include "job/daemon/test_node.h"
#include "job/daemon/test_wire.h"
#include "job/daemon/trainer_watch.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

class Attaches : public testing::Test {
 protected:
  void SetUp() override {
    loop.run([this] {
      trainers.emplace(
          loop.loop(), 2, "test", real_listener(*listen_unix(path)),
          Trainers::Handlers{.on_request = [this](TrainerProcess&, const Frame& frame) { requests.push_back(frame); },
                             .on_notice = [this](TrainerProcess&) { ++notices; },
                             .on_death = [this](TrainerProcess&, const std::string& how) { deaths.push_back(how); },
                             .on_question = [this](auto, const Frame&) { ++questions; },
                             .hold = [this](const std::string& name, int) { held.push_back(name); },
                             .on_page = [this](TrainerProcess& process) { process.shared.page->world.store(2); }});
      trainers->open();
    });
  }
  ~Attaches() override {
    loop.run([this] { trainers.reset(); });
    EXPECT_TRUE(eventually([this] { return world.tasks.all_ended(); }));
  }
  static AttachMessage attach_message(Generation generation = Generation(0), std::uint32_t index = 0) {
    AttachMessage attach;
    attach.local_index = index;
    attach.nonce = 55;
    attach.generation = generation;
    return attach;
  }
  // As a new process, which then has its page.
  void attach(TrainerSide& process) {
    process.say(attach_message(), 1);
    ASSERT_TRUE(is<AttachedMessage>(process.next()));
    ASSERT_EQ(process.fds.size(), 3u);
    loop.run([this] { place().shared.page->nonce.store(55); });
  }
  TrainerProcess& place() { return trainers->places()[0]; }
  template <class Read>
  auto ask(Read read) {
    return loop.run(read);
  }

  TemporaryDirectory directory{"/tmp"};
  const std::string path = directory.path("pawld.sock");
  TestWorld world;
  std::vector<Frame> requests;  // all on the loop's thread
  std::vector<std::string> deaths;
  std::vector<std::string> held;
  int notices = 0;
  int questions = 0;
  RunningLoop loop{world.environment};
  std::optional<Trainers> trainers;
};

TEST_F(Attaches, ANewProcessGetsItsPageAndBothEvents) {
  TrainerSide process(path);
  process.say(attach_message(), 9);
  const Frame frame = process.next();
  EXPECT_EQ(frame.id, 9u);
  const auto attached = message_in<AttachedMessage>(frame);
  ASSERT_TRUE(attached);
  EXPECT_EQ(attached->seat, kNoSeat);
  ASSERT_EQ(process.fds.size(), 3u);
  const auto mapping = map_segment(process.fds[0].get(), kTrainerPageBytes);
  ASSERT_TRUE(mapping);
  const auto page = open_page(mapping->bytes());
  ASSERT_TRUE(page);
  EXPECT_EQ((*page)->world.load(), 2u);  // it was filled in before anybody saw it
  EXPECT_EQ(ask([this] { return place().pid; }), static_cast<std::uint64_t>(getpid()));
  EXPECT_EQ(held, std::vector<std::string>{"page.0"});

  const std::uint64_t one = 1;
  ASSERT_EQ(write(process.fds[2].get(), &one, sizeof one), 8);
  EXPECT_TRUE(loop.eventually([this] { return notices == 1; }));
  loop.run([this] { trainers->interrupt(place(), Generation(4)); });
  EXPECT_TRUE(wait_readable(process.fds[1].get(), Deadline::in(kTestPatience)));
  EXPECT_EQ((*page)->recover_generation.load(), 4u);
}

TEST_F(Attaches, ARequestIsAnsweredOnceUnderItsId) {
  TrainerSide process(path);
  attach(process);
  process.say(JoinMessage{}, 7);
  EXPECT_TRUE(loop.eventually([this] { return requests.size() == 1; }));
  loop.run([this] {
    EXPECT_TRUE(place().line.waits_for(MessageKind::join));
    trainers->answer(place(), MessageKind::done, RunningMessage{Generation(1)});  // it does not wait in that one
    SeatedMessage seated;
    seated.seat = Seat(5);
    trainers->answer(place(), MessageKind::join, seated);
    seated.seat = Seat(6);
    trainers->answer(place(), MessageKind::join, seated);
  });
  process.say(RendezvousMessage{}, 20);
  process.say(RendezvousMessage{}, 21);
  EXPECT_TRUE(loop.eventually([this] { return requests.size() == 3; }));
  loop.run([this] {
    trainers->answer_rendezvous(place(), 21, ValueMessage{});
    trainers->answer_rendezvous(place(), 21, ValueMessage{});
    trainers->answer_rendezvous(place(), 20, ValueMessage{});
  });
  const Frame seated = process.next();
  EXPECT_EQ(seated.id, 7u);
  EXPECT_EQ(message_in<SeatedMessage>(seated)->seat, Seat(5));
  EXPECT_EQ(process.next().id, 21u);
  EXPECT_EQ(process.next().id, 20u);
}

TEST_F(Attaches, ARecoveryFreesATrainerFromAllButItsJoin) {
  TrainerSide process(path);
  attach(process);
  process.say(JoinMessage{}, 2);
  process.say(RestoreMessage{}, 3);
  process.say(DoneMessage{}, 4);
  process.say(RendezvousMessage{}, 5);
  EXPECT_TRUE(loop.eventually([this] { return requests.size() == 4; }));
  loop.run([this] {
    trainers->interrupt(place(), Generation(4));
    EXPECT_TRUE(place().line.waits_for(MessageKind::join));
    EXPECT_EQ(place().line.waiting.size(), 1u);
    EXPECT_TRUE(place().line.rendezvous_waiting.empty());
  });
}

TEST_F(Attaches, WhoDoesNotFitIsRefused) {
  auto refusal = [this](const AttachMessage& attach) {
    TrainerSide process(path);
    process.say(attach, 1);
    const auto refused = message_in<RefusedMessage>(process.next());
    return refused ? refused->why : "not refused";
  };
  AttachMessage other_version = attach_message();
  other_version.version = kTrainerWireVersion + 1;
  EXPECT_NE(refusal(other_version).find("install the same release"), std::string::npos);
  EXPECT_NE(refusal(attach_message(Generation(0), 2)).find("this node has 2 places"), std::string::npos);
  EXPECT_NE(refusal(attach_message(Generation(3))).find("must start anew"), std::string::npos);
  TrainerSide process(path);
  process.say(JoinMessage{}, 1);
  EXPECT_EQ(message_in<RefusedMessage>(process.next())->why, "the first message must be attach");
  EXPECT_TRUE(ask([this] { return held.empty() && requests.empty(); }));
}

TEST_F(Attaches, TheSameProcessKeepsItsPageAndSeatOnAnotherConnection) {
  TrainerSide first(path);
  attach(first);
  const TrainerPage* page = ask([this]() -> const TrainerPage* { return place().shared.page; });
  TrainerSide second(path);
  second.say(attach_message(Generation(3)), 1);
  EXPECT_TRUE(is<AttachedMessage>(second.next()));
  EXPECT_TRUE(first.is_closed());
  loop.run([&] {
    EXPECT_EQ(place().shared.page, page);
    EXPECT_EQ(place().seated, Generation(3));
    EXPECT_EQ(notices, 1);  // something may have been missed
  });
}

TEST_F(Attaches, AQuestionNeedsNoPlace) {
  TrainerSide asker(path);
  asker.say(QuestionMessage{"{}"}, 1);
  EXPECT_TRUE(loop.eventually([this] { return questions == 1; }));
}

TEST_F(Attaches, TheRobustMutexTellsOfADeathBeforeTheKeeperDoes) {
  TrainerSide process(path);
  attach(process);
  std::thread([this] { EXPECT_EQ(pthread_mutex_lock(&place().shared.page->alive), 0); }).join();  // and is gone
  process.say(JoinMessage{}, 2);  // from the first request on the mutex is watched
  EXPECT_TRUE(loop.eventually([this] { return deaths.size() == 1; }));
  loop.run([this] {
    EXPECT_EQ(deaths[0], "");
    EXPECT_TRUE(place().dying);
    trainers->exited(0, place().pid, "killed by SIGKILL");
    EXPECT_EQ(deaths.back(), "killed by SIGKILL");
    EXPECT_EQ(place().pid, 0u);
    EXPECT_FALSE(place().line.waits());
  });
  EXPECT_TRUE(process.is_closed());
}

// bash -c, uv run, srun: what the keeper has started is not what attaches.
TEST_F(Attaches, BehindAWrapperBothItsEndsCount) {
  loop.run([this] { trainers->spawned(0, 4242, 1); });
  TrainerSide process(path);
  attach(process);
  loop.run([this] {
    EXPECT_EQ(place().pid, 4242u);
    EXPECT_EQ(place().attached.pid, static_cast<std::uint64_t>(getpid()));
    EXPECT_EQ(place().trainer().pid, static_cast<std::uint64_t>(getpid()));
  });
  std::thread([this] { EXPECT_EQ(pthread_mutex_lock(&place().shared.page->alive), 0); }).join();  // and is gone
  process.say(JoinMessage{}, 2);
  EXPECT_TRUE(loop.eventually([this] { return deaths.size() == 1; }));
  loop.run([this] {
    EXPECT_TRUE(place().dying);
    trainers->exited(0, 4242, "exited 0", "bye\n");
    ASSERT_EQ(deaths.size(), 2u);
    EXPECT_EQ(deaths.back(), "exited 0");
    EXPECT_EQ(place().death.said, "bye\n");
    EXPECT_EQ(place().pid, 0u);
  });
  EXPECT_TRUE(process.is_closed());
}

TEST_F(Attaches, AProcessThatAttachedToThePawldBeforeUsIsWatchedFromTheStart) {
  auto fd = *create_segment("page", kTrainerPageBytes);
  auto mapping = *map_segment(fd.get(), kTrainerPageBytes);
  TrainerPage* page = *initialise_page(mapping.bytes());
  page->pid.store(4243);
  page->start_time.store(7);
  std::thread([&] { EXPECT_EQ(pthread_mutex_lock(&page->alive), 0); }).join();
  loop.run([&] {
    ASSERT_TRUE(trainers->adopt_page(0, std::move(fd)));
    trainers->spawned(0, 4242, 5);  // a wrapper, which lives on
  });
  EXPECT_TRUE(loop.eventually([this] { return deaths.size() == 1; }));
}

TEST_F(Attaches, APageOfAnEarlierProcessTellsNothingOfThisOne) {
  auto fd = *create_segment("page", kTrainerPageBytes);
  auto mapping = *map_segment(fd.get(), kTrainerPageBytes);
  TrainerPage* page = *initialise_page(mapping.bytes());
  page->pid.store(4243);
  page->start_time.store(7);
  loop.run([&] {
    ASSERT_TRUE(trainers->adopt_page(0, std::move(fd)));
    trainers->spawned(0, 4250, 9);
    EXPECT_FALSE(place().watched);
  });
}

TEST_F(Attaches, APageThatTheKeeperGivesBackIsUsed) {
  auto fd = *create_segment("page", kTrainerPageBytes);
  auto mapping = *map_segment(fd.get(), kTrainerPageBytes);
  TrainerPage* const page = *initialise_page(mapping.bytes());
  page->nonce.store(55);
  page->pause_step.store(7);  // of a drain that the pawld before us knew
  auto nothing = *create_segment("page", kTrainerPageBytes);
  loop.run([&] {
    EXPECT_FALSE(trainers->adopt_page(2, Fd(dup(fd.get()))));
    EXPECT_FALSE(trainers->adopt_page(1, std::move(nothing)));
    EXPECT_TRUE(trainers->adopt_page(0, std::move(fd)));
  });
  EXPECT_EQ(page->pause_step.load(), 0u) << "this pawld may be without the control, and the trainer waits";
  TrainerSide process(path);
  process.say(attach_message(Generation(3)), 1);
  EXPECT_TRUE(is<AttachedMessage>(process.next()));
}

// --- What the keeper says

class Starts : public testing::Test {
 protected:
  void start_again() { node.pass(100ms); }
  TestNode node;
  std::unique_ptr<Loop> loop = *Loop::make(real_environment());
  Trainers trainers{*loop, 1, "test", nullptr, [this] {
                      auto handlers = no_handlers();
                      handlers.on_death = [this](TrainerProcess& process, const std::string& how) {
                        watch.on_death(process, how);
                      };
                      return handlers;
                    }()};
  TrainerProcess& process = trainers.places()[0];
  int spawned = 0;
  TrainerWatch watch{node.context,
                     trainers,
                     node.mover,
                     {.spawn = [this](std::uint32_t, std::span<const std::string>) { ++spawned; },
                      .kill = [](std::uint32_t) {},
                      .on_parked_changed = [] {},
                      .state_of = [](std::uint64_t) { return Result<char>('R'); }}};
};

TEST_F(Starts, AProcessThatCanNotBeStartedIsTriedAgainThenGivenUp) {
  const std::string how = "start trian.py: too many open files (EMFILE)";
  watch.start_missing();
  EXPECT_EQ(spawned, 1);
  trainers.exited(0, 0, how);  // no pid: it never had one
  EXPECT_EQ(process.pid, 0u);
  EXPECT_EQ(process.ended, how);
  start_again();
  EXPECT_EQ(spawned, 2);
  trainers.exited(0, 0, how);
  start_again();
  EXPECT_EQ(spawned, 3);
  trainers.exited(0, 0, how);
  start_again();
  EXPECT_EQ(spawned, 3);
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const auto failed = parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(failed->phase, JobPhase::failed);
  EXPECT_EQ(failed->verdict, "node 0: its trainer ended 3 times before it had a seat (" + how + ")");
}

TEST_F(Starts, AProcessThatCanBeStartedLaterRuns) {
  watch.start_missing();
  trainers.exited(0, 0, "too many open files (EMFILE)");
  start_again();
  trainers.spawned(0, 77, 5);
  EXPECT_EQ(process.pid, 77u);
  EXPECT_EQ(process.start_time, 5u);
  EXPECT_TRUE(node.control.swaps.empty());
}

TEST_F(Starts, WhatCanNotBeExecutedIsNotTriedAgain) {
  watch.start_missing();
  trainers.exited(0, 0, "start ./notes.txt: Permission denied");
  start_again();
  EXPECT_EQ(spawned, 1);
  ASSERT_EQ(node.control.swaps.size(), 1u);
  const auto failed = parse_job_state(node.control.swaps[0].value);
  EXPECT_EQ(failed->verdict.find("node 0: its trainer can't start (start ./notes.txt: Permission denied); "), 0u)
      << failed->verdict;
}

TEST_F(Starts, ADeathThatNoPawldSawIsReported) {
  node.state.ran = Generation(1);
  node.run_in(JobPhase::running);
  process.seat = Seat(0);
  trainers.exited(0, 77, "exited 1");  // the keeper's first words to a new pawld
  watch.start_missing();
  EXPECT_EQ(spawned, 1);
  node.pass(1s);
  node.mover.drive();
  ASSERT_FALSE(node.control.swaps.empty());
  const auto causes = parse_job_state(node.control.swaps.back().value)->causes;
  ASSERT_EQ(causes.size(), 1u);
  EXPECT_EQ(causes[0].kind, FaultKind::trainer_exit);
  EXPECT_EQ(causes[0].seat, Seat(0));
  EXPECT_EQ(causes[0].detail, "exited 1");
}

TEST_F(Starts, ADeathThatNoPawldSawIsKnownWhereItsRecoveryIsUnderWay) {
  node.state.ran = Generation(1);
  node.state.restart = {Seat(0)};
  node.run_in(JobPhase::restoring);
  process.seat = Seat(0);
  trainers.exited(0, 77, "exited 1");
  watch.start_missing();
  EXPECT_EQ(spawned, 1);
  node.pass(1s);
  node.mover.drive();
  EXPECT_TRUE(node.control.swaps.empty());
}

// Its place is free, and it still writes into the arena of its seat.
TEST_F(Starts, AProcessThatOutlivesItsCommandIsWaitedFor) {
  node.state.ran = Generation(1);
  node.run_in(JobPhase::running);
  process.seat = Seat(0);
  watch.start_missing();
  trainers.spawned(0, 77, 5);
  process.attached = {static_cast<std::uint64_t>(getpid()), *process_start_time(getpid())};
  node.clock.set(real_clock().now());  // which the trainers look at
  trainers.exited(0, 77, "exited 0");
  start_again();
  EXPECT_EQ(spawned, 1);
  const std::size_t timers = node.timers.size();
  for (int asked = 0; asked < 3; ++asked) watch.start_missing();  // for other places, say
  start_again();
  EXPECT_EQ(node.timers.size(), timers) << "one timer, however often it is looked at";
  process.attached.start_time += 1;  // it is gone, and its number is another's
  start_again();
  EXPECT_EQ(spawned, 2);
}

// A returning pawld that had not heard of all of its trainers would start others in their places.
TEST_F(Starts, AllThatTheKeeperSaidIsHeardAtOnce) {
  PacketPair pair = *make_packet_pair();
  std::vector<std::string> heard;
  KeeperChannel keeper(*loop, real_stream(std::move(pair.first)),
                       {.spawned = [&](std::uint32_t index, std::uint64_t pid,
                                       std::uint64_t) { heard.push_back(text("spawned ", index, " ", pid)); },
                        .exited = [&](const TrainerExited& exited) { heard.push_back(text("exited ", exited.pid)); },
                        .lost = [&] { heard.emplace_back("lost"); }});
  const auto say = [&](const FromKeeper& news) {
    const std::string packet = packet_of(news);
    EXPECT_TRUE(send_all(pair.second.get(), std::as_bytes(std::span(packet)), Deadline::in(kTestPatience)));
  };
  say(TrainerSpawned{0, 77, 5});
  say(TrainerSpawned{1, 78, 5});
  say(TrainerExited{2, 79, "exited 1"});
  keeper.read();
  EXPECT_EQ(heard, (std::vector<std::string>{"spawned 0 77", "spawned 1 78", "exited 79"}));
  pair.second.reset();
  keeper.read();
  EXPECT_EQ(heard.back(), "lost");
}

TEST_F(Starts, NewsThatComeTwiceOrLateCountOnce) {
  watch.start_missing();
  trainers.exited(0, 76, "exited 1");  // of the one before
  EXPECT_EQ(process.pid, kPidNotKnownYet);
  trainers.exited(0, 0, "too many open files");
  for (int i = 0; i < 5; ++i) trainers.exited(0, 0, "too many open files");
  EXPECT_TRUE(node.control.swaps.empty());  // one failed start, not six
  start_again();
  EXPECT_EQ(spawned, 2);
  trainers.spawned(0, 77, 5);
  trainers.exited(0, 0, "too many open files");
  EXPECT_EQ(process.pid, 77u);
  trainers.exited(7, 77, "exited 1");  // a place that there isn't
  EXPECT_EQ(process.pid, 77u);
  trainers.exited(0, 77, "exited 1");
  EXPECT_EQ(process.pid, 0u);
}

}  // namespace
}  // namespace pawl::job
