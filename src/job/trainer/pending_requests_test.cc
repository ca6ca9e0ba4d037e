#include "job/trainer/pending_requests.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <span>

#include "env/poller.h"
#include "pawl/pawl.h"

namespace pawl::job {
namespace {

// Ids of the frames that are sent now, in order.
std::vector<std::uint64_t> send_new(PendingRequests& requests) {
  std::vector<std::uint64_t> ids;
  requests.send_new([&](const std::string& bytes) {
    FrameReader reader;
    reader.append(std::as_bytes(std::span(bytes)));
    Frame frame;
    EXPECT_TRUE(*reader.next(frame));
    ids.push_back(frame.id);
  });
  return ids;
}
using Ids = std::vector<std::uint64_t>;

TEST(PendingRequests, AnAnswerIsTakenOnce) {
  PendingRequests requests;
  const std::uint64_t id = requests.add(frame_of(JoinMessage{Generation(3)}), MessageKind::noted);
  EXPECT_FALSE(requests.take_result(id));
  Frame answer = frame_of(NotedMessage{}, id);
  answer.payload = "payload";
  std::vector<Fd> fds;
  fds.push_back(Fd(dup(0)));
  EXPECT_TRUE(requests.take(answer, std::move(fds)));
  Frame again = frame_of(NotedMessage{}, id);
  EXPECT_FALSE(requests.take(again, {}));  // sent to two pawlds, answered by both
  std::optional<Result<Answer>> result = requests.take_result(id);
  ASSERT_TRUE(result && *result);
  EXPECT_EQ((*result)->payload, "payload");
  EXPECT_EQ((*result)->fds.size(), 1u);
  EXPECT_FALSE(requests.take_result(id));
  EXPECT_FALSE(requests.take(again, {}));
}

TEST(PendingRequests, ARefusalIsAnErrorWithItsCodeAndReason) {
  PendingRequests requests;
  const std::uint64_t id = requests.add(frame_of(JoinMessage{}), MessageKind::seated);
  Frame refusal = frame_of(RefusedMessage{PAWL_INVALID, "no such seat"}, id);
  EXPECT_TRUE(requests.take(refusal, {}));
  const std::optional<Result<Answer>> result = requests.take_result(id);
  ASSERT_TRUE(result && !*result);
  EXPECT_EQ(result->error().code, Code::invalid);
  EXPECT_EQ(result->error().what, "no such seat");
}

TEST(PendingRequests, AnAnswerOfAnotherKindIsBroken) {
  PendingRequests requests;
  const std::uint64_t id = requests.add(frame_of(JoinMessage{}), MessageKind::seated);
  Frame other = frame_of(NotedMessage{}, id);
  EXPECT_TRUE(requests.take(other, {}));
  const std::optional<Result<Answer>> result = requests.take_result(id);
  ASSERT_TRUE(result && !*result);
  EXPECT_EQ(result->error().code, Code::broken);
}

TEST(PendingRequests, AnAnswerToADroppedRequestIsIgnored) {
  PendingRequests requests;
  const std::uint64_t id = requests.add(frame_of(JoinMessage{}), MessageKind::seated);
  requests.drop(id);
  Frame late = frame_of(SeatedMessage{}, id);
  EXPECT_FALSE(requests.take(late, {}));
  EXPECT_FALSE(requests.take_result(id));
  EXPECT_EQ(send_new(requests), Ids{});
}

TEST(PendingRequests, EachIsSentOnceOnEachConnectionWithItsOwnId) {
  PendingRequests requests;
  const std::uint64_t first = requests.add(frame_of(JoinMessage{}), MessageKind::seated);
  EXPECT_EQ(send_new(requests), Ids{first});
  const std::uint64_t attach = requests.next_id();
  const std::uint64_t second = requests.add(frame_of(JoinMessage{}), MessageKind::seated);
  EXPECT_NE(attach, first);
  EXPECT_NE(attach, second);
  EXPECT_EQ(send_new(requests), Ids{second});
  EXPECT_EQ(send_new(requests), Ids{});
  requests.repeat_all();
  EXPECT_EQ(send_new(requests), (Ids{first, second}));
}

}  // namespace
}  // namespace pawl::job
