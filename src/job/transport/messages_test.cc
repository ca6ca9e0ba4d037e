#include "job/transport/messages.h"

#include <gtest/gtest.h>

namespace pawl::job {
namespace {

// Blanks in an expected text separate fields for the reader.
std::string without_blanks(std::string text) {
  std::erase(text, ' ');
  return text;
}

std::string hex(const std::string& bytes) {
  static const char* digits = "0123456789abcdef";
  std::string out;
  for (const char byte : bytes) {
    out += digits[static_cast<unsigned char>(byte) >> 4];
    out += digits[static_cast<unsigned char>(byte) & 15];
  }
  return out;
}

// Pins kind and bytes: daemons and trainers of one protocol version must agree on them. And what was written is read
// back as the same bytes; one byte less or more is refused.
template <class Message>
void expect_wire(int kind, const std::string& bytes, const Message& message) {
  const Frame frame = frame_of(message, 9);
  EXPECT_EQ(frame.kind, kind);
  EXPECT_EQ(frame.id, 9U);
  EXPECT_EQ(hex(frame.payload), without_blanks(bytes)) << "kind " << kind;
  EXPECT_TRUE(is<Message>(frame));
  const Result<Message> back = message_in<Message>(frame);
  ASSERT_TRUE(back) << "kind " << kind;
  EXPECT_EQ(encode(*back), frame.payload) << "kind " << kind;
  Message out;
  if (!frame.payload.empty()) {
    EXPECT_FALSE(decode(std::string_view(frame.payload).substr(0, frame.payload.size() - 1), out)) << "kind " << kind;
  }
  EXPECT_FALSE(decode(frame.payload + "x", out)) << "kind " << kind;
}

const RendezvousRequest kRequest{RendezvousOp::add, 3, 4, "k", "v", "e", -1, 5};
const std::string kRequestBytes =
    "04 0300000000000000 0400000000000000 010000006b 0100000076 0100000065 ffffffffffffffff 05000000";
const ArenaShape kShape{2, 7, 5, 4096, 8, 6, 9};
const std::string kShapeBytes =
    "02000000 0700000000000000 0500000000000000 00100000 0800000000000000 0600000000000000 0900000000000000";

TEST(Messages, OfATrainer) {
  expect_wire(1, "02000000 01000000 0200000000000000 0300000000000000 04000000",
              AttachMessage{2, 1, 2, Generation(3), 4});
  expect_wire(2, "0100000000000000", JoinMessage{Generation(1)});
  expect_wire(3, "0700000000000000 0500000000000000 00100000 0600000000000000 020000006162",
              LayoutMessage{7, 5, 4096, 6, "ab"});
  expect_wire(4, "0100000000000000 01", RestoreMessage{Generation(1), true});
  expect_wire(5, "01000000 0100000077", RestoreBadMessage{1, "w"});
  expect_wire(6, "0100000000000000", DoneMessage{Generation(1)});
  expect_wire(7, "0100000000000000 0100000077 0300000030203a", FaultMessage{Generation(1), "w", "0 :"});
  expect_wire(8, "0100000000000000" + kRequestBytes, RendezvousMessage{Generation(1), kRequest});
  expect_wire(10, "0100000000000000 0200000000000000", FinishMessage{Step(1), Step(2)});
  expect_wire(11, "", DetachMessage{});
  expect_wire(12, "0100000000000000 0200000000000000", StopAfterMessage{Generation(1), Step(2)});
}

TEST(Messages, ToATrainer) {
  expect_wire(21, "03000000 ffffffff", AttachedMessage{});
  expect_wire(22, "0100000000000000 02000000 03000000 04000000 0500000000000000 020000006731",
              SeatedMessage{Generation(1), Seat(2), 3, 4, Step(5), "g1"});
  expect_wire(23, "0100000000000000", ArenaMessage{1});
  expect_wire(24, "01000000 0200000000000000 0300000000000000", SlotMessage{1, Generation(2), Step(3)});
  expect_wire(25, "0100000000000000", RunningMessage{Generation(1)});
  expect_wire(26, "", NotedMessage{});
  expect_wire(27, "01 0100000076 00000000", ValueMessage{{true, "v", ""}});
  expect_wire(28, "", FinishedMessage{});
  expect_wire(29, "03000000 0100000077", RefusedMessage{3, "w"});
  expect_wire(30, "0100000000000000", StoppingMessage{Step(1)});
}

TEST(Messages, BetweenDaemons) {
  Hello hello;
  hello.job = "j";
  hello.token = "t";
  hello.node = NodeId(1);
  hello.incarnation = Incarnation(2);
  hello.expected = Incarnation(3);
  hello.generation = Generation(4);
  hello.purpose = Purpose::fetch;
  hello.seat = Seat(5);
  hello.stream = 6;
  expect_wire(40,
              "0b000000 010000006a 0100000074 01000000 0200000000000000 0300000000000000 0400000000000000 03 05000000"
              "0600000000000000",
              hello);
  expect_wire(41, "01000000 0200000000000000", WelcomeMessage{NodeId(1), Incarnation(2)});
  expect_wire(42, "04 0100000077", PeerRefusedMessage{PeerRefusal::missing, "w"});
  expect_wire(50, "0100000000000000", BeatMessage{Generation(1)});
  expect_wire(51, "", BeatBackMessage{});
  expect_wire(52, "0100000000000000 0300000002000000 0400000000000000 0500000000000000",
              ReportMessage{Generation(1), SeatReport{Progress{Step(2 << 8), 3}, 4, 5}});
  expect_wire(53, "0100000000000000 0300000002000000", ProgressMessage{Generation(1), Progress{Step(2 << 8), 3}});
  expect_wire(56, "0100000000000000 0100000077", PaceMessage{Generation(1), "w"});
  expect_wire(57, "0100000000000000 0100000077", EqualSumsMessage{Generation(1), "w"});
  expect_wire(58, "0100000000000000 0010000000000000 0020000000000000 6300000000000000 02000000",
              NarrowMessage{Generation(1), 4096, 8192, 99, Seat(2)});
  expect_wire(
      59,
      "0100000000000000 0700000000000000 02000000 01000000 00000000 0010000000000000 07000000 6e6f20726f6f6d 01 "
      "0900000000000000",
      PersistMessage{Generation(1), 7, 2, 1, 0, 4096, "no room", true, Step(9)});
  expect_wire(54, "0100000000000000" + kRequestBytes, PeerRendezvousMessage{Generation(1), kRequest});
  expect_wire(55, "00 00000000 0100000077", PeerValueMessage{{false, "", "w"}});
}

TEST(Messages, OfAReplicaStreamAndAFetch) {
  const std::string numbers = "0100000000000000 0200000000000000 0300000000000000";
  expect_wire(60, numbers + kShapeBytes, OpenMessage{Generation(1), Step(2), 3, kShape});
  expect_wire(61, "", OpenedMessage{});
  expect_wire(62, "", BusyMessage{});
  expect_wire(63, "0100000000000000", HeldMessage{Step(1)});
  expect_wire(64, "05000000 01000000 02000000 0300000000000000 0400000000000000",
              BucketMessage{5, 1, 2, Generation(3), Step(4)});
  EXPECT_EQ(encode(BucketMessage{}).size(), BucketMessage::kFieldsBytes);
  expect_wire(65, "01000000", BucketBadMessage{1});
  expect_wire(66, "0100000000000000 02000000", SealMessage{Step(1), 2});
  expect_wire(67, "0100000000000000 02000000", AbandonMessage{Step(1), 2});
  expect_wire(76, "0100000000000000 0200000000000000", TornMessage{Generation(1), Step(2)});
  expect_wire(74, "0100000000000000 0200000000000000 0300000000000000 04000000 02000000 05000000 06000000",
              SameBucketsMessage{Generation(1), Step(2), 3, 4, {5, 6}});
  expect_wire(75, "01 01000000 07000000", BucketsWantedMessage{true, {7}});
  expect_wire(68, "0100000077", LaterMessage{"w"});
  expect_wire(69, "0100000000000000", LayoutWantedMessage{1});
  expect_wire(72, "020000006162", LayoutTextMessage{"ab"});
  expect_wire(70, "01000000 02 0300000000000000 0400000000000000 01 05000000 06000000 00",
              FetchMessage{Seat(1), FetchFrom::replica, Generation(3), Step(4), true, 5, 6});
  expect_wire(73, "01000000 02000000 0100000077", BucketsBadMessage{1, 2, "w"});
  expect_wire(71, numbers + kShapeBytes + "020000006162", SlotBeginMessage{Generation(1), Step(2), 3, kShape, "ab"});
}

TEST(Messages, OfAReportToItsCollector) {
  expect_wire(80, "0100000072", CollectMessage{"r"});
  expect_wire(81, "", CollectedMessage{});
}

TEST(Messages, AQuestionIsItsJson) {
  const Frame question = frame_of(QuestionMessage{R"({"ask":"status"})"}, 1);
  EXPECT_EQ(question.kind, 100);
  EXPECT_EQ(question.payload, R"({"ask":"status"})");
  const Frame answer = frame_of(AnswerMessage{"{}"}, 1);
  EXPECT_EQ(answer.kind, 101);
  EXPECT_EQ(message_in<AnswerMessage>(answer)->json, "{}");
}

TEST(Messages, OfAHelloInAnotherVersionOnlyTheVersionCounts) {
  Hello hello;
  EXPECT_TRUE(decode(Writer().u32(12).str("whatever").take(), hello));
  EXPECT_EQ(hello.version, 12U);
  EXPECT_FALSE(decode("ab", hello));
}

TEST(Messages, ATruthIsZeroOrOne) {
  FetchMessage out;
  std::string bytes = encode(FetchMessage{Seat(1), FetchFrom::replica, Generation(3), Step(4), true});
  EXPECT_TRUE(decode(bytes, out));
  bytes[bytes.size() - 10] = 2;
  EXPECT_FALSE(decode(bytes, out));
}

TEST(Messages, RefusesAnUnknownOperationAndAnotherKind) {
  RendezvousRequest wrong = kRequest;
  wrong.op = static_cast<RendezvousOp>(8);
  RendezvousMessage out;
  EXPECT_FALSE(decode(encode(RendezvousMessage{Generation(1), wrong}), out));
  EXPECT_EQ(message_in<SealMessage>(frame_of(HeldMessage{Step(1)})).error().code, Code::corrupt);
}

TEST(Messages, OnALinkBeginWithTheirGeneration) {
  EXPECT_EQ(generation_of(frame_of(ReportMessage{Generation(6), {}})), Generation(6));
  EXPECT_EQ(generation_of(frame_of(PeerRendezvousMessage{Generation(6), {}})), Generation(6));
  EXPECT_EQ(generation_of(frame_of(BeatBackMessage{})), Generation(0));
}

}  // namespace
}  // namespace pawl::job
