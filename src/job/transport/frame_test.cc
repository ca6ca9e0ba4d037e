#include <gtest/gtest.h>

#include <sys/socket.h>
#include <unistd.h>
#include <cstring>

#include "job/transport/frame.h"

namespace pawl::job {
namespace {

std::span<const std::byte> bytes_of(const std::string& s) {
  return {reinterpret_cast<const std::byte*>(s.data()), s.size()};
}

TEST(Frame, ComesOutOfAReaderByteByByte) {
  const std::string wire = encode_frame({7, 42, "hello"}) + encode_frame({8, 43, ""});
  FrameReader reader;
  Frame frame;
  int frames = 0;
  for (char c : wire) {
    const std::string one(1, c);
    reader.append(bytes_of(one));
    auto got = reader.next(frame);
    ASSERT_TRUE(got);
    if (*got) ++frames;
  }
  EXPECT_EQ(frames, 2);
  EXPECT_EQ(frame.kind, 8);
  EXPECT_EQ(frame.id, 43u);
}

TEST(Frame, RefusesAHugeLengthBeforeAllocating) {
  std::string wire(kFrameHeaderBytes, '\0');
  encode_header({kFramePayloadMax + 1, 7, 0},
                std::span<std::byte, kFrameHeaderBytes>(reinterpret_cast<std::byte*>(wire.data()), kFrameHeaderBytes));
  FrameReader reader;
  reader.append(bytes_of(wire));
  Frame frame;
  auto got = reader.next(frame);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().code, Code::corrupt);
}

TEST(Frame, AnyFlippedBitIsNoticed) {
  const std::string wire = encode_frame({7, 42, "held 17"}) + encode_frame({8, 43, "after it"});
  const std::size_t first = kFrameHeaderBytes + 7;
  for (std::size_t bit = 0; bit < first * 8; ++bit) {
    std::string damaged = wire;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    FrameReader reader;
    reader.append(bytes_of(damaged));
    Frame frame;
    auto got = reader.next(frame);
    ASSERT_FALSE(got) << "bit " << bit;
    EXPECT_EQ(got.error().code, Code::corrupt);
  }
}

TEST(Frame, SumsMayBeLeftOutOnALocalSocketOnly) {
  std::string wire = encode_frame({100, 1, "{}"});
  std::memset(wire.data() + 16, 0, 8);
  Frame frame;
  FrameReader strict;
  strict.append(bytes_of(wire));
  EXPECT_FALSE(strict.next(frame));
  FrameReader local(FrameSums::optional);
  local.append(bytes_of(wire));
  auto got = local.next(frame);
  ASSERT_TRUE(got);
  EXPECT_TRUE(*got);
  EXPECT_EQ(frame.payload, "{}");
}

TEST(Frame, FieldsRoundTripAndShortPayloadsAreNoticed) {
  const std::string payload = Writer().u8(1).u32(2).u64(3).str("four").take();
  Reader reader(payload);
  EXPECT_EQ(reader.u8(), 1);
  EXPECT_EQ(reader.u32(), 2u);
  EXPECT_EQ(reader.u64(), 3u);
  EXPECT_EQ(reader.str(), "four");
  EXPECT_TRUE(reader.done());
  for (std::size_t cut = 0; cut < payload.size(); ++cut) {
    Reader shorter(std::string_view(payload).substr(0, cut));
    shorter.u8();
    shorter.u32();
    shorter.u64();
    shorter.str();
    EXPECT_FALSE(shorter.ok()) << cut;
  }
}

TEST(Frame, BlockingCallsCarryAFrameAndNoticeTheEnd) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  ASSERT_TRUE(send_frame(ends[0], {3, 9, "payload"}));
  auto got = receive_frame(ends[1]);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->payload, "payload");
  close(ends[0]);
  auto end = receive_frame(ends[1]);
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code, Code::unreachable);
  close(ends[1]);
}

}  // namespace
}  // namespace pawl::job
