// Messages as they come off a socket: the first byte says which, the rest are its fields. What is taken must be written
// again as the same bytes, and be refused where one is missing or more than were meant.
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "job/transport/messages.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using namespace pawl::job;

template <class Message>
void try_bytes(std::string_view bytes) {
  Message message;
  if (!decode(bytes, message)) return;
  if constexpr (std::is_same_v<Message, Hello>) {
    if (message.version != kPeerWireVersion) return;  // of another version nothing else is read
  }
  if (encode(message) != bytes) std::abort();
  Message again;
  if constexpr (!std::is_same_v<Message, QuestionMessage> && !std::is_same_v<Message, AnswerMessage>) {
    if (decode(std::string(bytes) + 'x', again)) std::abort();
    if (!bytes.empty() && decode(bytes.substr(0, bytes.size() - 1), again)) std::abort();
  }
}

// The bytes as they are, and as many as a message of this kind has with all its texts empty.
template <class Message>
void try_as(std::string_view bytes) {
  try_bytes<Message>(bytes);
  std::string fixed(bytes);
  fixed.resize(encode(Message()).size());
  try_bytes<Message>(fixed);
}

template <class... Message>
void try_one_of(unsigned which, std::string_view bytes) {
  unsigned i = 0;
  ((which % sizeof...(Message) == i++ ? try_as<Message>(bytes) : void()), ...);
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  try_one_of<AttachMessage, JoinMessage, LayoutMessage, RestoreMessage, RestoreBadMessage, DoneMessage, FaultMessage,
             RendezvousMessage, FinishMessage, DetachMessage, StopAfterMessage, AttachedMessage, SeatedMessage,
             ArenaMessage, SlotMessage, RunningMessage, NotedMessage, ValueMessage, FinishedMessage, RefusedMessage,
             StoppingMessage, Hello, WelcomeMessage, PeerRefusedMessage, BeatMessage, BeatBackMessage, ReportMessage,
             PaceMessage, EqualSumsMessage, NarrowMessage, PersistMessage, ProgressMessage, PeerRendezvousMessage,
             PeerValueMessage, OpenMessage, OpenedMessage, BusyMessage, LaterMessage, LayoutWantedMessage,
             LayoutTextMessage, HeldMessage, BucketMessage, BucketBadMessage, SameBucketsMessage, BucketsWantedMessage,
             SealMessage, AbandonMessage, FetchMessage, SlotBeginMessage, BucketsBadMessage, QuestionMessage,
             AnswerMessage, TornMessage>(data[0], {reinterpret_cast<const char*>(data) + 1, size - 1});
  return 0;
}
