// The two ends of a replica stream, each against a peer that the test plays.
#include "job/daemon/replication.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "job/daemon/test_wire.h"
#include "job/layout/seat_layout.h"
#include "job/redundancy/progress.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Generation kGeneration{3};
constexpr Seat kSeat{1};

ArenaSpec arena_of_two_shelves() {
  ArenaSpec spec = test_arena(ArenaKind::own, kSeat);
  spec.shelf_count = 2;
  return spec;
}

std::string layout_of_ten_thousand() {
  LayoutBuilder builder(8);
  EXPECT_TRUE(builder.add_mesh({"dense", {{"dp", 8}}}));
  for (int i = 0; i < 10'000; ++i) {
    LayoutEntry entry;
    entry.name = text("model.layers.", i / 30, ".mlp.experts.", i % 30, ".up_proj.weight");
    entry.role = "exp_avg";
    entry.shape = {4096, 1024};
    entry.box = whole_box(entry.shape);
    entry.mesh = 0;
    EXPECT_TRUE(builder.add(entry));
  }
  return text_of(*builder.build());
}

// --- Sender

class Sends : public testing::Test {
 protected:
  ~Sends() override {
    if (sender) sender->end();
    streams.wait_until_ended();
  }
  void start() {
    Hello hello;
    hello.job = "test";
    hello.generation = kGeneration;
    hello.purpose = Purpose::data;
    hello.seat = kSeat;
    sender = ReplicaSender::start({.hello = hello,
                                   .address = "127.0.0.1:7",
                                   .holder_index = 1,
                                   .holder = NodeId(2),
                                   .arena = arena,
                                   .context = streams.context,
                                   .equal = equal,
                                   .on_held = [this](Step step) { held = step.value; },
                                   .on_given_up =
                                       [this](const GivenUpStep& step) {
                                         given_up = step;
                                         given_up_step = step.step.value;
                                       },
                                   .on_refused = [this](const Error&) { ++refused; }});
  }
  // Of a holder that takes whoever comes.
  PeerEnd welcome() {
    PeerEnd holder = streams.world.network.accept();
    EXPECT_EQ(holder.next<Hello>().seat, kSeat);
    holder.say(WelcomeMessage{NodeId(2), Incarnation(1)});
    return holder;
  }
  void expect_open(PeerEnd& holder, Step step) {
    const auto open = holder.next<OpenMessage>();
    EXPECT_EQ(open.generation, kGeneration);
    EXPECT_EQ(open.step, step);
    EXPECT_EQ(open.samples, 64 * step.value);
    EXPECT_EQ(open.shape, shape_of(test_arena(ArenaKind::own, kSeat)));
  }
  void expect_bucket(PeerEnd& holder, Step step, std::uint32_t index) {
    const auto bucket = holder.next_bucket();
    const auto bytes = bucket_bytes(step, index, slot(0).bucket(index).size());
    EXPECT_EQ(bucket.fields.index, index);
    EXPECT_EQ(bucket.fields.crc32c, crc32c(bytes));
    EXPECT_EQ(bucket.bytes, std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  }
  // Step 11 is being captured; its first bucket has been sent to this holder.
  PeerEnd holder_of_first_bucket() {
    open_step(slot(0), kGeneration, Step(11));
    capture_bucket(slot(0), 0);
    start();
    PeerEnd holder = welcome();
    expect_open(holder, Step(11));
    holder.say(OpenedMessage{});
    expect_bucket(holder, Step(11), 0);
    return holder;
  }
  // Takes the whole step, and says nothing of it yet.
  void take_unanswered(PeerEnd& holder, Step step) {
    expect_open(holder, step);
    holder.say(OpenedMessage{});
    for (std::uint32_t i = 0; i < kTestBuckets; ++i) expect_bucket(holder, step, i);
    EXPECT_EQ(holder.next<SealMessage>().step, step);
  }
  // Takes all buckets as they come, whatever they hold; and finds one of them wrong.
  void take_unseen(PeerEnd& holder, Step step) {
    expect_open(holder, step);
    holder.say(OpenedMessage{});
    for (std::uint32_t i = 0; i < kTestBuckets; ++i) holder.skip_bucket();
    EXPECT_EQ(holder.next<SealMessage>().step, step);
  }
  void find_wrong(PeerEnd& holder, Step step, std::uint32_t index) {
    take_unseen(holder, step);
    holder.say(BucketBadMessage{index});
  }
  // Takes the whole step, and acknowledges it.
  void take(PeerEnd& holder, Step step) {
    take_unanswered(holder, step);
    holder.say(HeldMessage{step});
    EXPECT_TRUE(eventually([&] { return held == step.value; }));
  }
  [[nodiscard]] Slot slot(std::uint32_t index) const { return arena->arena.slot(index); }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  // The stream's holder has it, and the other one has not.
  [[nodiscard]] bool is_acknowledged_here_alone() const {
    return slot(0).acknowledged(slot(0).word(), 1) && !slot(0).acknowledged(slot(0).word(), 0);
  }
  ArenaHandle arena = *memory.arena_for(arena_of_two_shelves());
  std::vector<EqualExtent> equal;  // with the holder's node
  std::atomic<std::uint64_t> held{0};
  GivenUpStep given_up;  // until given_up_step is its step, the sender's thread's
  std::atomic<std::uint64_t> given_up_step{0};
  std::atomic<int> refused{0};
  std::shared_ptr<ReplicaSender> sender;
};

TEST_F(Sends, AStepIsOpenedThenItsBucketsInOrderThenSealed) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take(holder, Step(11));
  EXPECT_TRUE(is_acknowledged_here_alone());
  EXPECT_EQ(streams.sent.value(), kTestPayloadBytes);
  EXPECT_TRUE(holder.is_quiet());  // what is held is not sent again
}

TEST_F(Sends, ALayoutIsToldToWhoAsksForIt) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  for (int i = 0; i < 2; ++i) {
    expect_open(holder, Step(11));
    holder.say(LayoutWantedMessage{arena->arena.spec().layout_digest});
    EXPECT_EQ(holder.next<LayoutTextMessage>().layout, "layout 5");
    holder.say(BusyMessage{});
  }
  take(holder, Step(11));
}

TEST_F(Sends, WhoAsksForAnotherLayoutGetsNone) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(11));
  holder.say(LayoutWantedMessage{9});
  EXPECT_TRUE(holder.is_closed());
  PeerEnd again = welcome();
  take(again, Step(11));
}

// What a step costs beside its buckets must not depend on the number of tensors.
TEST_F(Sends, AStepNamesALayoutOfTenThousandTensorsInAFewBytes) {
  ArenaSpec spec = arena_of_two_shelves();
  spec.layout = layout_of_ten_thousand();
  spec.layout_digest = digest_of(spec.layout);
  arena = *memory.arena_for(spec);
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  const Frame open = *receive_frame(holder.fd(), Deadline::in(kTestPatience));
  EXPECT_TRUE(is<OpenMessage>(open));
  EXPECT_GT(spec.layout.size(), 1'000'000u);
  EXPECT_LT(kFrameHeaderBytes + open.payload.size(), 100u);
  holder.say(LayoutWantedMessage{spec.layout_digest});
  EXPECT_EQ(holder.next<LayoutTextMessage>().layout, spec.layout);
}

TEST_F(Sends, BucketsGoWhileTheCaptureStillRuns) {
  PeerEnd holder = holder_of_first_bucket();
  capture_bucket(slot(0), 2);  // copy threads need not be in order; the stream is
  sender->notice();
  EXPECT_TRUE(holder.is_quiet());
  capture_bucket(slot(0), 1);
  sender->notice();
  expect_bucket(holder, Step(11), 1);
  expect_bucket(holder, Step(11), 2);
  EXPECT_TRUE(holder.is_quiet());  // every byte is there, but the trainer has not sealed it
  ASSERT_TRUE(slot(0).try_seal(kGeneration, Step(11)));
  sender->notice();
  EXPECT_EQ(holder.next<SealMessage>().step, Step(11));
  holder.say(HeldMessage{Step(11)});
  EXPECT_TRUE(eventually([&] { return held == 11; }));
}

TEST_F(Sends, TheOldestStepOfItsGenerationFirst) {
  capture_step(slot(0), kGeneration, Step(12));
  capture_step(slot(1), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take(holder, Step(11));
  take(holder, Step(12));
}

// A trainer opens a slot by its word first, and says then with how many samples.
TEST_F(Sends, AStepWithTheSamplesThatItWasOpenedWith) {
  capture_step(slot(0), kGeneration, Step(11));
  ASSERT_TRUE(slot(0).acknowledge(kGeneration, Step(11), 1));
  const SlotWord opened{kGeneration, Step(13), SlotState::dirty, false};
  auto* header = reinterpret_cast<std::byte*>(slot(0).buckets().data()) - 4096;
  reinterpret_cast<std::atomic<std::uint64_t>*>(header)->store(opened.pack());
  start();
  PeerEnd holder = welcome();
  EXPECT_TRUE(holder.is_quiet());
  ASSERT_TRUE(slot(0).try_open(opened, kGeneration, Step(15), 64 * 15));
  sender->notice();
  expect_open(holder, Step(15));
}

TEST_F(Sends, NothingOfAnotherGenerationOrThatIsHeld) {
  capture_step(slot(0), Generation(2), Step(11));
  capture_step(slot(1), kGeneration, Step(12));
  ASSERT_TRUE(slot(1).acknowledge(kGeneration, Step(12), 1));
  start();
  PeerEnd holder = welcome();
  EXPECT_TRUE(holder.is_quiet());
}

TEST_F(Sends, NothingThatIsFrozen) {
  capture_step(slot(0), kGeneration, Step(11));
  slot(0).freeze();
  start();
  PeerEnd holder = welcome();
  EXPECT_TRUE(holder.is_quiet());
}

TEST_F(Sends, ABusyHolderIsAskedAgain) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(11));
  holder.say(BusyMessage{});
  expect_open(holder, Step(11));
  holder.say(BusyMessage{});
  take(holder, Step(11));
}

TEST_F(Sends, AHolderThatCanNotTakeItIsAskedLessAndLessAndItsReasonKept) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  EXPECT_EQ(sender->obstacle(), "");
  expect_open(holder, Step(11));
  for (const Duration pause : {20ms, 40ms, 80ms}) {
    const Duration said = real_clock().now();
    holder.say(LaterMessage{"4 GiB are needed, 1 GiB is there"});
    sender->notice();  // hurries nobody
    expect_open(holder, Step(11));
    EXPECT_GE(real_clock().now() - said, pause);
  }
  holder.say(LaterMessage{"4 GiB are needed, 1 GiB is there"});
  EXPECT_TRUE(
      eventually([&] { return sender->obstacle() == "node 2 can't take it: 4 GiB are needed, 1 GiB is there"; }));
  take(holder, Step(11));
  EXPECT_EQ(sender->obstacle(), "");
}

// A void step's slot is taken for the next one while the stream is at it: not a byte of that goes under the old name.
TEST_F(Sends, AReopenedSlotsBucketsAreNotSentAsTheOldStep) {
  PeerEnd holder = holder_of_first_bucket();
  ASSERT_TRUE(slot(0).try_abandon(kGeneration, Step(11)));
  capture_step(slot(0), kGeneration, Step(12));
  sender->notice();
  EXPECT_EQ(holder.next<AbandonMessage>().step, Step(11));
  take(holder, Step(12));
}

TEST_F(Sends, AStepThatIsDroppedWhileItIsSentIsTakenBack) {
  PeerEnd holder = holder_of_first_bucket();
  ASSERT_TRUE(slot(0).try_abandon(kGeneration, Step(11)));
  EXPECT_EQ(holder.next<AbandonMessage>().step, Step(11));
  capture_step(slot(0), kGeneration, Step(12));
  sender->notice();
  take(holder, Step(12));
}

TEST_F(Sends, ALostLinkIsMadeAnewAndTheStepSentFromItsStart) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd first = welcome();
  expect_open(first, Step(11));
  first.say(OpenedMessage{});
  expect_bucket(first, Step(11), 0);
  streams.world.network.refuse_next(2);
  first.hang_up();
  PeerEnd second = welcome();
  EXPECT_EQ(held, 0u);
  take(second, Step(11));
  EXPECT_EQ(streams.world.network.asked().size(), 4u);
}

TEST_F(Sends, ALinkLostBeforeTheAcknowledgementLeavesTheStepUnheld) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd first = welcome();
  take_unanswered(first, Step(11));
  first.hang_up();
  PeerEnd second = welcome();
  EXPECT_FALSE(slot(0).acknowledged(slot(0).word(), 1));
  expect_open(second, Step(11));
  second.say(HeldMessage{Step(11)});  // it had sealed it: nothing is sent twice
  EXPECT_TRUE(eventually([&] { return held == 11; }));
  EXPECT_TRUE(is_acknowledged_here_alone());
  EXPECT_TRUE(second.is_quiet());
}

TEST_F(Sends, ADamagedBucketMakesItSendTheStepAgain) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take_unanswered(holder, Step(11));
  holder.say(BucketBadMessage{1});
  take(holder, Step(11));
}

// A flipped bit, a stray write: sent again it would be as wrong, for ever, and no later step would be captured.
TEST_F(Sends, AStepThatIsWrongInItsOwnSlotIsGivenUpAndTheNextOneSent) {
  capture_step(slot(0), kGeneration, Step(11));
  slot(0).bucket(1)[5] ^= std::byte{0x10};
  start();
  PeerEnd holder = welcome();
  find_wrong(holder, Step(11), 1);
  ASSERT_TRUE(eventually([&] { return given_up_step == 11; }));
  EXPECT_EQ(to_text(given_up), "a flipped bit in seat 1's own copy of step 11, in bucket 1");
  EXPECT_EQ(sender->obstacle(), to_text(given_up));
  EXPECT_EQ(slot(0).word(), SlotWord{});
  capture_step(slot(0), kGeneration, Step(12));
  sender->notice();
  take(holder, Step(12));
  EXPECT_EQ(sender->obstacle(), "");
}

TEST_F(Sends, AStepThatComesDamagedEachTimeIsSentLessAndLessAndThenGivenUp) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  Duration pause = 20ms;
  find_wrong(holder, Step(11), 1);
  for (std::uint32_t tries = 2; tries <= kDamagedTriesMax; ++tries, pause = std::min<Duration>(2 * pause, 1s)) {
    const Duration said = real_clock().now();
    sender->notice();  // hurries nobody
    EXPECT_EQ(given_up_step, 0u);
    find_wrong(holder, Step(11), 1);
    EXPECT_GE(real_clock().now() - said, pause - 5ms) << tries;
  }
  ASSERT_TRUE(eventually([&] { return given_up_step == 11; }));
  EXPECT_EQ(to_text(given_up), "bucket 1 of step 11 came damaged to node 2, or its memory is bad; tried 8 times");
  EXPECT_EQ(slot(0).word(), SlotWord{});
  capture_step(slot(0), kGeneration, Step(12));
  sender->notice();
  find_wrong(holder, Step(12), 0);  // it begins to count anew
  take(holder, Step(12));
}

TEST_F(Sends, AFrozenStepIsNotGivenUp) {
  capture_step(slot(0), kGeneration, Step(11));
  slot(0).bucket(1)[5] ^= std::byte{0x10};
  start();
  PeerEnd holder = welcome();
  take_unseen(holder, Step(11));
  slot(0).freeze();
  holder.say(BucketBadMessage{1});
  EXPECT_TRUE(holder.is_quiet());
  EXPECT_EQ(slot(0).word().state, SlotState::sealed);
  EXPECT_EQ(given_up_step, 0u);
}

TEST_F(Sends, ABadBucketOfNoSuchIndexEndsTheStream) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take_unanswered(holder, Step(11));
  holder.say(BucketBadMessage{kTestBuckets});
  EXPECT_TRUE(holder.is_closed());
  PeerEnd again = welcome();
  take(again, Step(11));
}

TEST_F(Sends, AnAcknowledgementOfAFrozenStepCountsForNothing) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(11));
  slot(0).freeze();
  holder.say(HeldMessage{Step(11)});
  EXPECT_TRUE(holder.is_quiet());
  EXPECT_EQ(held, 0u);
  EXPECT_FALSE(slot(0).acknowledged(slot(0).word(), 1));
}

TEST_F(Sends, ARefusalForEverIsTold) {
  start();
  PeerEnd holder = streams.world.network.accept();
  (void)holder.next<Hello>();
  holder.say(PeerRefusedMessage{PeerRefusal::later, "not yet"});
  PeerEnd again = streams.world.network.accept();
  (void)again.next<Hello>();
  EXPECT_EQ(refused, 0);
  again.say(PeerRefusedMessage{PeerRefusal::never, "another job"});
  EXPECT_TRUE(eventually([&] { return refused == 1; }));
}

TEST_F(Sends, EndsWhateverItWaitsFor) {
  open_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(11));
  sender->end();
  EXPECT_TRUE(holder.is_closed());
  EXPECT_TRUE(eventually([&] { return streams.workers.idle(); }));
  EXPECT_FALSE(streams.world.network.has_waiting());
}

TEST_F(Sends, AMarkThatAStepIsTornOnceAndAnewToANewStream) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take(holder, Step(11));
  EXPECT_TRUE(holder.is_quiet());
  slot(0).mark_torn(kGeneration, Step(11));
  sender->notice();
  const auto told = holder.next<TornMessage>();
  EXPECT_EQ(told.generation, kGeneration);
  EXPECT_EQ(told.step, Step(11));
  EXPECT_TRUE(holder.is_quiet());
  holder.hang_up();
  capture_step(slot(1), kGeneration, Step(12));
  sender->notice();
  PeerEnd again = welcome();  // whether it was heard on the other stream is not known
  EXPECT_EQ(again.next<TornMessage>().step, Step(11));
  take(again, Step(12));
}

TEST_F(Sends, AMarkOfAStepBeforeTheNextOneThatIsOffered) {
  capture_step(slot(0), kGeneration, Step(11));
  start();
  PeerEnd holder = welcome();
  take_unanswered(holder, Step(11));
  slot(0).mark_torn(kGeneration, Step(11));  // the holder has not said yet that it has it
  capture_step(slot(1), kGeneration, Step(12));
  holder.say(HeldMessage{Step(11)});
  EXPECT_EQ(holder.next<TornMessage>().step, Step(11));
  take(holder, Step(12));
}

// All but the last bucket are equal on the holder's node.
class SendsSums : public Sends {
 protected:
  static constexpr std::uint64_t kDigest = 77;
  SendsSums() { equal = {{{0, (kTestBuckets - 1) * std::uint64_t{4096}}, kDigest}}; }
  void expect_sums(PeerEnd& holder, Step step, std::uint32_t first, std::uint32_t count) {
    const auto told = holder.next<SameBucketsMessage>();
    EXPECT_EQ(told.generation, kGeneration);
    EXPECT_EQ(told.step, step);
    EXPECT_EQ(told.digest, kDigest);
    EXPECT_EQ(told.first, first);
    std::vector<std::uint32_t> sums;
    for (std::uint32_t i = first; i < first + count; ++i)
      sums.push_back(crc32c(bucket_bytes(step, i, slot(0).bucket(i).size())));
    EXPECT_EQ(told.crc32c, sums);
  }
  PeerEnd holder_of_sums() {
    capture_step(slot(0), kGeneration, Step(11));
    start();
    PeerEnd holder = welcome();
    expect_open(holder, Step(11));
    holder.say(OpenedMessage{});
    expect_sums(holder, Step(11), 0, kTestBuckets - 1);
    expect_bucket(holder, Step(11), kTestBuckets - 1);
    EXPECT_EQ(holder.next<SealMessage>().step, Step(11));
    return holder;
  }
};

TEST_F(SendsSums, OfWhatTheHoldersNodeCapturesItself) {
  PeerEnd holder = holder_of_sums();
  holder.say(HeldMessage{Step(11)});
  EXPECT_TRUE(eventually([&] { return held == 11; }));
  EXPECT_EQ(streams.sent.value(), test_bucket_bytes(kTestBuckets - 1));
  EXPECT_EQ(streams.sent.value() + streams.spared.value(), kTestPayloadBytes);
}

TEST_F(SendsSums, WhileTheCaptureStillRuns) {
  open_step(slot(0), kGeneration, Step(11));
  capture_bucket(slot(0), 0);
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(11));
  holder.say(OpenedMessage{});
  expect_sums(holder, Step(11), 0, 1);
  capture_bucket(slot(0), 1);
  sender->notice();
  expect_sums(holder, Step(11), 1, 1);
}

TEST_F(SendsSums, AndTheBytesThatAreWantedAllTheSameThenTheSealAgain) {
  PeerEnd holder = holder_of_sums();
  holder.say(BucketsWantedMessage{false, {1}});
  expect_bucket(holder, Step(11), 1);
  EXPECT_EQ(holder.next<SealMessage>().step, Step(11));
  holder.say(BucketsWantedMessage{false, {0}});  // more than go into one message
  expect_bucket(holder, Step(11), 0);
  EXPECT_EQ(holder.next<SealMessage>().step, Step(11));
  holder.say(HeldMessage{Step(11)});
  EXPECT_TRUE(eventually([&] { return held == 11; }));

  capture_step(slot(1), kGeneration, Step(12));  // it was late, so the next two are sent in full
  sender->notice();
  take(holder, Step(12));
  capture_step(slot(0), kGeneration, Step(13));
  sender->notice();
  take(holder, Step(13));
  capture_step(slot(1), kGeneration, Step(14));
  sender->notice();
  expect_open(holder, Step(14));
  holder.say(OpenedMessage{});
  expect_sums(holder, Step(14), 0, kTestBuckets - 1);
}

TEST_F(SendsSums, AndTheSealOnlyOfAStepThatIsStillThere) {
  PeerEnd holder = holder_of_sums();
  slot(0).buckets()[1].ready = 0;  // as when the slot is reopened meanwhile
  ASSERT_TRUE(slot(0).freeze().frozen);
  slot(0).unfreeze(false);
  open_step(slot(0), kGeneration, Step(12));
  holder.say(BucketsWantedMessage{false, {1}});
  EXPECT_EQ(holder.next<AbandonMessage>().step, Step(11));
}

TEST_F(Sends, NothingThatACommittedStepHasPassed) {
  streams.progress = Progress{Step(12), 0}.pack();
  capture_step(slot(0), kGeneration, Step(11));
  capture_step(slot(1), kGeneration, Step(13));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(13));
}

TEST_F(Sends, NothingOfAStepThatIsVoid) {
  streams.progress = Progress{Step(10), 1}.pack();
  capture_step(slot(0), kGeneration, Step(11));
  capture_step(slot(1), kGeneration, Step(12));
  start();
  PeerEnd holder = welcome();
  expect_open(holder, Step(12));
}

TEST_F(SendsSums, NotOfTheStepsAfterADifference) {
  PeerEnd holder = holder_of_sums();
  holder.say(BucketsWantedMessage{true, {1}});
  expect_bucket(holder, Step(11), 1);
  EXPECT_EQ(holder.next<SealMessage>().step, Step(11));
  holder.say(HeldMessage{Step(11)});
  EXPECT_TRUE(eventually([&] { return held == 11; }));
  capture_step(slot(1), kGeneration, Step(12));
  sender->notice();
  take(holder, Step(12));
}

TEST_F(SendsSums, AndNothingMoreOfAStepThatIsThereNoMore) {
  PeerEnd holder = holder_of_sums();
  (void)slot(0).freeze();
  holder.say(BucketsWantedMessage{false, {0}});
  EXPECT_EQ(holder.next<AbandonMessage>().step, Step(11));
}

TEST_F(SendsSums, EndsTheLinkOfWhoWantsABucketThatIsNone) {
  PeerEnd holder = holder_of_sums();
  holder.say(BucketsWantedMessage{false, {kTestBuckets}});
  EXPECT_TRUE(holder.is_closed());
}

// --- Receiver

class Receives : public testing::Test {
 protected:
  Receives() {
    auto [ours, theirs] = connected_pair();
    sender = PeerEnd(std::move(theirs));
    streams.progress = Progress{Step(10), 0}.pack();
    receiver = ReplicaReceiver::start({.stream = real_stream(std::move(ours)),
                                       .generation = kGeneration,
                                       .seat = kSeat,
                                       .job = "test",
                                       .context = streams.context,
                                       .held = [this] { return memory.find(ArenaKind::replica, kSeat); },
                                       .arena_for = [this](const ArenaSpec& spec) -> Result<ArenaHandle> {
                                         if (refusals > 0 && refusals-- > 0) return Error{Code::full, "no room"};
                                         return memory.arena_for(spec);
                                       },
                                       .equal_arenas =
                                           [this] {
                                             return std::vector<EqualArena>{{{{0, kStreamEnd}, kDigest}, own}};
                                           }});
  }
  ~Receives() override {
    receiver->end();
    streams.wait_until_ended();
  }
  void open(Step step, Generation generation = kGeneration) {
    const ArenaSpec arena = test_arena(ArenaKind::own, kSeat);
    if (!std::exchange(has_layout, true)) return say_first_open(sender, generation, step, arena);
    sender.say(OpenMessage{generation, step, 64 * step.value, shape_of(arena)});
  }
  void bucket(Step step, std::uint32_t index) { sender.say_bucket(index, bytes_of(step, index), kGeneration, step); }
  static std::vector<std::byte> bytes_of(Step step, std::uint32_t index) {
    return bucket_bytes(step, index, test_bucket_bytes(index));
  }
  void send(Step step) {
    open(step);
    sender.next<OpenedMessage>();
    for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(step, i);
    sender.say(SealMessage{step});
    EXPECT_EQ(sender.next<HeldMessage>().step, step);
  }
  [[nodiscard]] std::vector<SlotWord> words() {
    const ArenaHandle arena = memory.find(ArenaKind::replica, kSeat);
    if (!arena) return {};
    return {arena->arena.slot(0).word(), arena->arena.slot(1).word()};
  }
  [[nodiscard]] std::optional<Slot> sealed(Step step) {
    const ArenaHandle arena = memory.find(ArenaKind::replica, kSeat);
    for (std::uint32_t i = 0; arena && i < arena->arena.slot_count(); ++i) {
      const SlotWord word = arena->arena.slot(i).word();
      if (word.state == SlotState::sealed && word.step == step && word.generation == kGeneration)
        return arena->arena.slot(i);
    }
    return std::nullopt;
  }

  TestStreams streams;
  Memory memory{real_shared_memory(), nobody_keeps()};
  // A seat here, which declares all of its state equal to that of the sender.
  static constexpr std::uint64_t kDigest = 77;
  ArenaHandle own = *memory.arena_for(test_arena(ArenaKind::own, Seat(7)));
  void same(Step step, std::uint32_t first, std::uint32_t count) {
    SameBucketsMessage told{kGeneration, step, kDigest, first, {}};
    for (std::uint32_t i = first; i < first + count; ++i) told.crc32c.push_back(crc32c(bytes_of(step, i)));
    sender.say(told);
  }
  void open_and_tell(Step step) {
    open(step);
    sender.next<OpenedMessage>();
    same(step, 0, kTestBuckets);
    sender.say(SealMessage{step});
  }
  static std::vector<std::uint32_t> all_buckets() {
    std::vector<std::uint32_t> all(kTestBuckets);
    std::iota(all.begin(), all.end(), 0u);
    return all;
  }
  std::atomic<int> refusals{0};
  bool has_layout = false;
  PeerEnd sender{Fd()};
  std::shared_ptr<ReplicaReceiver> receiver;
};

TEST_F(Receives, AStepLandsAndIsSealed) {
  send(Step(11));
  const auto slot = sealed(Step(11));
  ASSERT_TRUE(slot);
  EXPECT_TRUE(holds_bytes_of(*slot, Step(11)));
  EXPECT_EQ(slot->samples(), 64u * 11);
  EXPECT_EQ(streams.received.value(), kTestPayloadBytes);
}

TEST_F(Receives, BucketsMayComeInAnyOrderAndTwice) {
  open(Step(11));
  sender.next<OpenedMessage>();
  for (std::uint32_t index : {2u, 0u, 2u, 1u, 0u}) bucket(Step(11), index);
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<HeldMessage>().step, Step(11));
  EXPECT_TRUE(holds_bytes_of(*sealed(Step(11)), Step(11)));
}

TEST_F(Receives, AStepThatItHoldsIsNotTakenAgain) {
  send(Step(11));
  const auto before = words();
  open(Step(11));
  EXPECT_EQ(sender.next<HeldMessage>().step, Step(11));
  EXPECT_EQ(words(), before);
  bucket(Step(11), 0);  // who sends it all the same breaks the protocol
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(holds_bytes_of(*sealed(Step(11)), Step(11)));
}

TEST_F(Receives, AStepThatItHoldsFrozenIsNotAcknowledged) {
  send(Step(11));
  sealed(Step(11))->freeze();
  open(Step(11));
  EXPECT_EQ(sender.next<LaterMessage>().why, "its slot 0 is frozen, at step 11");
}

TEST_F(Receives, AnOpenedStepMayBeOpenedAgainAndStartsAnew) {
  open(Step(11));
  sender.next<OpenedMessage>();
  bucket(Step(11), 0);
  bucket(Step(11), 1);
  open(Step(11));
  sender.next<OpenedMessage>();
  bucket(Step(11), 2);
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<BucketBadMessage>().index, 0u);  // what came before the second opening does not count
  send(Step(11));
}

TEST_F(Receives, AMissingOrDamagedBucketIsNamedAndNothingIsSealed) {
  open(Step(11));
  sender.next<OpenedMessage>();
  bucket(Step(11), 0);
  // Other bytes than the sum is of.
  sender.say_bucket(1, bytes_of(Step(12), 1), kGeneration, Step(11), crc32c(bytes_of(Step(11), 1)));
  bucket(Step(11), 2);
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<BucketBadMessage>().index, 1u);
  EXPECT_FALSE(sealed(Step(11)));
  EXPECT_EQ(words()[0].state, SlotState::empty);
  send(Step(11));
}

TEST_F(Receives, AStepThatWasTornIsMarkedHere) {
  send(Step(10));
  send(Step(11));
  EXPECT_FALSE(sealed(Step(11))->torn(sealed(Step(11))->word()));
  sender.say(TornMessage{kGeneration, Step(9)});  // not here any more: nothing to mark
  sender.say(TornMessage{kGeneration, Step(11)});
  EXPECT_TRUE(eventually([&] { return sealed(Step(11))->torn(sealed(Step(11))->word()); }));
  EXPECT_FALSE(sealed(Step(10))->torn(sealed(Step(10))->word()));
  const auto marks = [&] {
    std::vector<std::uint64_t> steps;
    for (const InventoryItem& item : memory.inventory())
      if (item.torn) steps.push_back(item.step.value);
    return steps;
  };
  EXPECT_EQ(marks(), std::vector<std::uint64_t>{11});
}

TEST_F(Receives, TheGateKeepsTheLastCommittedStep) {
  send(Step(10));
  send(Step(11));
  open(Step(12));
  sender.next<BusyMessage>();  // committed is 10: neither may go
  streams.progress = Progress{Step(11), 0}.pack();
  send(Step(12));
  EXPECT_FALSE(sealed(Step(10)));
  EXPECT_TRUE(sealed(Step(11)));
}

TEST_F(Receives, AnOlderStepThatComesLateTakesNoNewerOnesPlace) {
  send(Step(12));
  send(Step(11));
  EXPECT_TRUE(sealed(Step(12)));
  EXPECT_TRUE(sealed(Step(11)));
  open(Step(10));
  sender.next<BusyMessage>();
}

TEST_F(Receives, AnAbandonedStepLeavesAnEmptySlot) {
  open(Step(11));
  sender.next<OpenedMessage>();
  bucket(Step(11), 0);
  sender.say(AbandonMessage{Step(11)});
  send(Step(12));
  EXPECT_EQ(words()[0].step, Step(12));  // in the very slot
}

TEST_F(Receives, ALayoutIsAskedForOnce) {
  refusals = 2;
  for (int i = 0; i < 3; ++i) {
    open(Step(11));  // asks for it the first time only, though there is no arena yet
    if (i < 2) sender.next<LaterMessage>();
  }
  sender.next<OpenedMessage>();
  send(Step(11));
  send(Step(12));
}

TEST_F(Receives, ALayoutThatIsHereFromBeforeIsNotAskedFor) {
  has_layout = true;
  const ArenaHandle before = *memory.arena_for(test_arena(ArenaKind::replica, kSeat));
  send(Step(11));
  EXPECT_EQ(memory.find(ArenaKind::replica, kSeat), before);
}

TEST_F(Receives, AnotherLayoutThanTheOneThatWasNamedEndsTheLink) {
  const ArenaSpec arena = test_arena(ArenaKind::own, kSeat);
  sender.say(OpenMessage{kGeneration, Step(11), 0, shape_of(arena)});
  sender.next<LayoutWantedMessage>();
  sender.say(LayoutTextMessage{"layout 6"});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(words().empty());
}

TEST_F(Receives, AnotherMessageInPlaceOfTheLayoutEndsTheLink) {
  sender.say(OpenMessage{kGeneration, Step(11), 0, shape_of(test_arena(ArenaKind::own, kSeat))});
  sender.next<LayoutWantedMessage>();
  sender.say(SealMessage{Step(11)});
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, AnotherLayoutInTheSameStreamReplacesTheArena) {
  send(Step(11));
  const ArenaSpec other = test_arena(ArenaKind::own, kSeat, 6);
  say_first_open(sender, kGeneration, Step(12), other);
  sender.next<OpenedMessage>();
  EXPECT_EQ(memory.find(ArenaKind::replica, kSeat)->arena.spec().layout, "layout 6");
}

TEST_F(Receives, AStepOfAPlanEndsTheLink) {
  ArenaShape shape = shape_of(test_arena(ArenaKind::own, kSeat));
  shape.plan_digest = 7;
  sender.say(OpenMessage{kGeneration, Step(11), 0, shape});
  sender.next<LayoutWantedMessage>();
  sender.say(LayoutTextMessage{"layout 5"});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(words().empty());
}

TEST_F(Receives, ABucketOfAnotherExtentEndsTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  const auto bytes = bytes_of(Step(11), 0);
  sender.say_bucket({1, 0, crc32c(bytes), kGeneration, Step(11)}, bytes);
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, AStepOfAnotherGenerationEndsTheLink) {
  has_layout = true;  // it is not even asked for
  open(Step(11), Generation(2));
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(words().empty());
}

TEST_F(Receives, ABucketOfNoOpenStepEndsTheLink) {
  bucket(Step(11), 0);
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, ABucketThatIsNotInTheArenaEndsTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  sender.say_bucket(kTestBuckets, bytes_of(Step(11), 0), kGeneration, Step(11));
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, ABucketOfAWrongSizeEndsTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  sender.say_bucket(2, bytes_of(Step(11), 0), kGeneration, Step(11));
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, ASealOfAnotherStepEndsTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(Step(11), i);
  sender.say(SealMessage{Step(12)});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_FALSE(sealed(Step(11)));
}

TEST_F(Receives, AFrozenSlotIsNotSealedNorAcknowledged) {
  open(Step(11));
  sender.next<OpenedMessage>();
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) bucket(Step(11), i);
  memory.freeze_all();
  sender.say(SealMessage{Step(11)});
  EXPECT_TRUE(sender.is_closed());
  EXPECT_EQ(words()[0].state, SlotState::dirty);
}

TEST_F(Receives, ABucketOfAnotherStepOrGenerationEndsTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  sender.say_bucket(0, bytes_of(Step(12), 0), kGeneration, Step(12));
  EXPECT_TRUE(sender.is_closed());
  EXPECT_FALSE(sealed(Step(11)));
}

TEST_F(Receives, TooLittleMemoryIsSaidAndTriedAgainWhenTheSenderAsks) {
  refusals = 2;
  for (int i = 0; i < 2; ++i) {
    open(Step(11));
    EXPECT_EQ(sender.next<LaterMessage>().why, "no room");
  }
  send(Step(11));
  EXPECT_TRUE(sealed(Step(11)));
}

TEST_F(Receives, WhatASeatHereHasCapturedNeedNotCome) {
  capture_step(own->arena.slot(0), kGeneration, Step(11));
  open_and_tell(Step(11));
  EXPECT_EQ(sender.next<HeldMessage>().step, Step(11));
  const auto slot = sealed(Step(11));
  ASSERT_TRUE(slot);
  EXPECT_TRUE(holds_bytes_of(*slot, Step(11)));
  EXPECT_EQ(streams.received.value(), 0u);
}

TEST_F(Receives, TheSealOfAVoidStepWaitsForNoSeat) {
  open_step(own->arena.slot(0), kGeneration, Step(11));
  open(Step(11));
  sender.next<OpenedMessage>();
  same(Step(11), 0, kTestBuckets);
  streams.progress = Progress{Step(10), 1}.pack();
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<BucketsWantedMessage>().buckets, all_buckets());
}

TEST_F(Receives, TheSealWaitsForASeatHereThatCapturesTheStep) {
  open_step(own->arena.slot(0), kGeneration, Step(11));
  open_and_tell(Step(11));
  EXPECT_TRUE(sender.is_quiet());
  for (std::uint32_t i = 0; i < kTestBuckets; ++i) capture_bucket(own->arena.slot(0), i);
  receiver->notice();
  EXPECT_EQ(sender.next<HeldMessage>().step, Step(11));
  const auto slot = sealed(Step(11));
  EXPECT_TRUE(slot && holds_bytes_of(*slot, Step(11)));
}

TEST_F(Receives, WhatNoSeatHereHasIsWantedAndLandsAsEver) {
  open_and_tell(Step(11));  // the seat never comes to the step
  const auto wanted = sender.next<BucketsWantedMessage>();
  EXPECT_FALSE(wanted.differ);
  EXPECT_EQ(wanted.buckets, all_buckets());
  for (const std::uint32_t i : wanted.buckets) bucket(Step(11), i);
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<HeldMessage>().step, Step(11));
  const auto slot = sealed(Step(11));
  EXPECT_TRUE(slot && holds_bytes_of(*slot, Step(11)));
}

TEST_F(Receives, WhatDiffersHereIsWantedAndSaidToDiffer) {
  capture_step(own->arena.slot(0), kGeneration, Step(11));
  own->arena.slot(0).buckets()[1].crc32c ^= 1;
  open_and_tell(Step(11));
  const auto wanted = sender.next<BucketsWantedMessage>();
  EXPECT_TRUE(wanted.differ);
  EXPECT_EQ(wanted.buckets.size(), kTestBuckets);  // the others, too
  sender.say(SealMessage{Step(11)});               // without it
  EXPECT_EQ(sender.next<BucketBadMessage>().index, 1u);
  EXPECT_FALSE(sealed(Step(11)));
}

TEST_F(Receives, WhatIsSentAgainAndCameDamagedIsNotSealedAsWhatWasThere) {
  capture_step(own->arena.slot(0), kGeneration, Step(11));
  own->arena.slot(0).buckets()[1].crc32c ^= 1;
  open_and_tell(Step(11));
  for (const std::uint32_t i : sender.next<BucketsWantedMessage>().buckets) {
    auto bytes = bytes_of(Step(11), i);
    const std::uint32_t sum = crc32c(bytes);
    if (i == 0) bytes[3] ^= std::byte{1};  // it had been taken, and was right
    sender.say_bucket(i, bytes, kGeneration, Step(11), sum);
  }
  sender.say(SealMessage{Step(11)});
  EXPECT_EQ(sender.next<BucketBadMessage>().index, 0u);
  EXPECT_FALSE(sealed(Step(11)));
}

TEST_F(Receives, ACaptureThatNeverEndsIsNotAwaitedForEver) {
  open_step(own->arena.slot(0), kGeneration, Step(11));
  capture_bucket(own->arena.slot(0), 0);
  open_and_tell(Step(11));
  std::vector<std::uint32_t> rest = all_buckets();
  rest.erase(rest.begin());
  EXPECT_EQ(sender.next<BucketsWantedMessage>().buckets, rest);
}

TEST_F(Receives, WhatWasToldOfAStepIsNotAwaitedInTheNext) {
  open(Step(11));
  sender.next<OpenedMessage>();
  same(Step(11), 0, kTestBuckets);
  sender.say(AbandonMessage{Step(11)});
  send(Step(12));
}

TEST_F(Receives, EqualBucketsOutsideTheArenaEndTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  same(Step(11), 1, kTestBuckets);
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, EqualBucketsOfAStepThatIsNotOpenEndTheLink) {
  open(Step(11));
  sender.next<OpenedMessage>();
  same(Step(12), 0, 1);
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, EndsAtOnceWhileItWaitsForASeatHere) {
  open_step(own->arena.slot(0), kGeneration, Step(11));
  open_and_tell(Step(11));
  EXPECT_TRUE(sender.is_quiet());
  receiver->end();
  EXPECT_TRUE(sender.is_closed());
}

TEST_F(Receives, EndsAtOnce) {
  open(Step(11));
  sender.next<OpenedMessage>();
  EXPECT_FALSE(receiver->finished());
  receiver->end();
  EXPECT_TRUE(sender.is_closed());
  EXPECT_TRUE(eventually([&] { return receiver->finished(); }));
}

}  // namespace
}  // namespace pawl::job
