// Messages: everything that pawld says over a socket and is told there, as structs. The bytes: docs/protocol.md.
//
// Each message is the payload of one frame (job/transport/frame.h), and its kind is that frame's kind. This is the only
// place that names kinds or knows the order of fields; encode() and decode() are exact inverses.
//
// Trainer <-> pawld, a Unix socket: the trainer speaks first (AttachMessage). Each request has an id, and its answer
//   carries the same id. pawld answers when it can, which may be long after (join, restore, done, rendezvous, finish).
//   After a restart of pawld the trainer attaches again (same nonce, seat and generation) and repeats its waiting
//   requests with the same ids, so every request may be repeated. A recovery is not a message: pawld raises
//   TrainerPage::recover_generation and writes the event descriptor; the trainer drops its request and sends join.
//   Descriptors travel as SCM_RIGHTS with the first byte of the frame that names them. The trainer writes 1 to the
//   notice descriptor when buckets or a seal are new.
// pawld <-> pawld, TCP: a connection begins with Hello; the answer is WelcomeMessage or PeerRefusedMessage. What may
//   follow depends on its purpose (Purpose). A message of another generation than the hello's is refused.
// Anyone -> pawld, either socket: a question and its answer, in JSON.
// Pure. Not here: what pawld and its keeper say (job/transport/keeper_messages.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "job/redundancy/progress.h"
#include "job/transport/frame.h"

namespace pawl::job {

enum class MessageKind : std::uint16_t {
  // trainer -> pawld
  attach = 1,
  join = 2,
  layout = 3,
  restore = 4,
  restore_bad = 5,
  done = 6,
  fault = 7,
  rendezvous = 8,
  finish = 10,
  detach = 11,
  stop_after = 12,

  // pawld -> trainer
  attached = 21,
  seated = 22,
  arena = 23,
  slot = 24,
  running = 25,
  noted = 26,
  value = 27,
  finished = 28,
  refused = 29,
  stopping = 30,

  // pawld <-> pawld, any purpose
  hello = 40,
  welcome = 41,
  peer_refused = 42,
  // purpose link
  beat = 50,
  beat_back = 51,
  report = 52,
  progress = 53,
  peer_rendezvous = 54,
  peer_value = 55,
  pace = 56,
  equal_sums = 57,
  narrow = 58,
  persist = 59,
  // purpose data
  open = 60,
  opened = 61,
  busy = 62,
  held = 63,
  bucket = 64,
  bucket_bad = 65,
  seal = 66,
  abandon = 67,
  later = 68,
  layout_wanted = 69,
  // purpose fetch
  fetch = 70,
  slot_begin = 71,
  buckets_bad = 73,
  // purpose data
  layout_text = 72,
  same_buckets = 74,
  buckets_wanted = 75,
  torn = 76,
  // purpose report
  collect = 80,
  collected = 81,

  // anyone -> pawld, and back
  question = 100,
  answer = 101,
};

// --- The rendezvous store: what may be asked of it (job/rendezvous/rendezvous_store.h)

enum class RendezvousOp : std::uint8_t {
  set = 1,          // the key has `value`
  get = 2,          // its value, once there is one
  try_get = 3,      // its value, or not found
  add = 4,          // its value, a decimal number (0 where there is none), grows by `amount`; answers the sum
  compare_set = 5,  // `value` where it has `expected`, or is not there and `expected` is empty; answers what is there
                    // now (`expected`, where the key is not there)
  erase = 6,        // found: it was there
  get_all = 7,      // `value`: keys, packed. Once all are there: their values, packed; of the first ones only, at least
                    // of one, where all come to more than kValuesBytesMax
};
[[nodiscard]] constexpr bool changes_something(RendezvousOp op) {
  return op != RendezvousOp::get && op != RendezvousOp::try_get && op != RendezvousOp::get_all;
}
inline constexpr std::size_t kKeysMax = 4096;  // of one get_all
inline constexpr std::size_t kValuesBytesMax = std::size_t{8} << 20;
// Several strings as one. unpack: false where it is none of pack, or more than kKeysMax.
[[nodiscard]] std::string pack(std::span<const std::string> strings);
[[nodiscard]] bool unpack(std::string_view packed, std::vector<std::string>& strings);

struct RendezvousRequest {
  RendezvousOp op = RendezvousOp::get;
  std::uint64_t client = 0;  // the asking process' nonce; 0: a pawld, that asks only what may be repeated anyway
  std::uint64_t number = 0;  // of the client's requests; the same in a repeated one
  std::string key;
  std::string value;
  std::string expected;
  std::int64_t amount = 0;
  std::uint32_t wait_ms = 0;  // get, get_all: nobody waits for the answer any longer. 0: for ever
  bool operator==(const RendezvousRequest&) const = default;
};

// Why what was asked for by a get is not given: it took longer than the request waits. A trainer that is late to see its
// own deadline pass finds this instead.
inline constexpr std::string_view kWaitIsOver = "nobody waits for it any longer";

struct RendezvousAnswer {
  bool found = true;
  std::string value;
  std::string refused;  // not empty: why it can't be done; nothing has changed
  bool operator==(const RendezvousAnswer&) const = default;
};

// --- Trainer -> pawld

inline constexpr std::uint32_t kTrainerWireVersion = 3;
inline constexpr std::uint32_t kNoSeat = 0xffffffffu;

struct AttachMessage {
  static constexpr MessageKind kKind = MessageKind::attach;
  std::uint32_t version = kTrainerWireVersion;
  std::uint32_t local_index = 0;  // PAWL_LOCAL_INDEX
  std::uint64_t nonce = 0;
  Generation generation;         // in which it is seated; 0: a new process
  std::uint32_t seat = kNoSeat;  // or its seat
};
struct JoinMessage {  // copy threads are joined. Answer: seated
  static constexpr MessageKind kKind = MessageKind::join;
  Generation left;  // 0: none
};
struct LayoutMessage {  // Answer: arena or refused
  static constexpr MessageKind kKind = MessageKind::layout;
  std::uint64_t payload_bytes = 0;
  std::uint64_t stable_bytes = 0;
  std::uint32_t bucket_bytes = 0;
  std::uint64_t layout_digest = 0;
  std::string layout;
};
struct RestoreMessage {  // Answer: slot, when the resume step lies sealed in the own arena
  static constexpr MessageKind kKind = MessageKind::restore;
  Generation generation;
  bool as_it_fills = false;  // or as soon as a fetch fills one with it, bucket by bucket
};
struct RestoreBadMessage {  // the source is corrupt. No answer: a recovery follows
  static constexpr MessageKind kKind = MessageKind::restore_bad;
  std::uint32_t slot = 0;
  std::string why;
};
struct DoneMessage {  // Answer: running
  static constexpr MessageKind kKind = MessageKind::done;
  Generation generation;
};
struct FaultMessage {  // Answer: noted
  static constexpr MessageKind kKind = MessageKind::fault;
  Generation generation;
  std::string what;
  std::string lost = {};  // as in FaultReport
};
// Answer: value, when there is one. Any number may wait; of those that change something, one at a time.
struct RendezvousMessage {
  static constexpr MessageKind kKind = MessageKind::rendezvous;
  Generation generation;
  RendezvousRequest request;  // pawld fills in client and number
};
struct FinishMessage {  // Answer: finished
  static constexpr MessageKind kKind = MessageKind::finish;
  Step commit_first;  // to be committed before the answer; 0: none
  Step last_step;     // the last that the trainer has begun
};
struct DetachMessage {  // a regular end. No answer
  static constexpr MessageKind kKind = MessageKind::detach;
};
struct StopAfterMessage {  // Answer: stopping, when every member's pages have the step
  static constexpr MessageKind kKind = MessageKind::stop_after;
  Generation generation;
  Step step;
};

// --- pawld -> trainer

struct AttachedMessage {  // descriptors: page segment, event (pawld writes), notice (the trainer writes)
  static constexpr MessageKind kKind = MessageKind::attached;
  std::uint32_t version = kTrainerWireVersion;
  std::uint32_t seat = kNoSeat;
};
struct SeatedMessage {
  static constexpr MessageKind kKind = MessageKind::seated;
  Generation generation;
  Seat seat;
  std::uint32_t world = 0;
  std::uint32_t local_rank = 0;
  Step resume;
  std::string rendezvous_prefix;  // new for each generation
};
struct ArenaMessage {  // descriptor: the segment
  static constexpr MessageKind kKind = MessageKind::arena;
  std::uint64_t size_bytes = 0;
};
struct SlotMessage {
  static constexpr MessageKind kKind = MessageKind::slot;
  std::uint32_t index = 0;
  Generation generation;
  Step step;
};
struct RunningMessage {
  static constexpr MessageKind kKind = MessageKind::running;
  Generation generation;
};
struct NotedMessage {
  static constexpr MessageKind kKind = MessageKind::noted;
};
struct ValueMessage {
  static constexpr MessageKind kKind = MessageKind::value;
  RendezvousAnswer answer;
};
struct FinishedMessage {
  static constexpr MessageKind kKind = MessageKind::finished;
};
struct RefusedMessage {  // the request will never be answered otherwise
  static constexpr MessageKind kKind = MessageKind::refused;
  std::uint32_t status = 0;  // a pawl_status
  std::string why;
};
struct StoppingMessage {
  static constexpr MessageKind kKind = MessageKind::stopping;
  Step step;  // after which the job ends
};

// --- pawld <-> pawld

inline constexpr std::uint32_t kPeerWireVersion = 11;

enum class Purpose : std::uint8_t {
  link = 1,      // heartbeats, reports up and progress down the tree, the rendezvous store. One for each direction of a
                 // neighbour pair; requests go one way, answers come back on the same connection
  data = 2,      // the replica stream of one seat to one holder
  fetch = 3,     // recovery: ranges of buckets of one slot of one seat
  lifeline = 4,  // to a keeper's own address, and nowhere else: its end tells that the node is dead. Beats are answered
  report = 5,    // recovery: a node's reports to the collector of its group, and the answers
  lane = 6,      // a further connection of a replica stream that stands: buckets, and nothing else
};

enum class PeerRefusal : std::uint8_t {
  never = 1,    // another version or token
  stale = 2,    // another job has this address; of an old generation or incarnation
  later = 3,    // not yet in that generation: ask again
  missing = 4,  // no such slot, or its sums are wrong where it lies
  evicted = 5,  // the asking life of that node
};

struct Hello {
  static constexpr MessageKind kKind = MessageKind::hello;
  std::uint32_t version = kPeerWireVersion;
  std::string job;
  std::string token;
  NodeId node;
  Incarnation incarnation;
  Incarnation expected;  // of the receiver; 0: any
  Generation generation;
  Purpose purpose = Purpose::link;
  Seat seat;  // data, lane: whose replica stream
  // data: the sender's number of this stream, never 0. lane: of the stream that it belongs to.
  std::uint64_t stream = 0;
};
struct WelcomeMessage {
  static constexpr MessageKind kKind = MessageKind::welcome;
  NodeId node;
  Incarnation incarnation;
};
struct PeerRefusedMessage {
  static constexpr MessageKind kKind = MessageKind::peer_refused;
  PeerRefusal refusal = PeerRefusal::never;
  std::string why;
};

// link
struct BeatMessage {  // Answer: beat_back
  static constexpr MessageKind kKind = MessageKind::beat;
  Generation generation;
};
struct BeatBackMessage {
  static constexpr MessageKind kKind = MessageKind::beat_back;
};
struct ReportMessage {  // to the parent in the tree
  static constexpr MessageKind kKind = MessageKind::report;
  Generation generation;
  SeatReport report;  // of the sender's subtree
};
struct PaceMessage {  // to the parent in the tree
  static constexpr MessageKind kKind = MessageKind::pace;
  Generation generation;
  std::string paces;  // of the sender's subtree (job/recovery/stragglers.h)
};
struct EqualSumsMessage {  // to the parent in the tree, ahead of the report that says that these steps are held
  static constexpr MessageKind kKind = MessageKind::equal_sums;
  Generation generation;
  std::string sums;  // of the sender's subtree (job/redundancy/equal_sums.h)
};
struct NarrowMessage {  // to the children in the tree: what differs, of which each tells the sums of narrower parts
  static constexpr MessageKind kKind = MessageKind::narrow;
  Generation generation;
  std::uint64_t begin = 0, end = 0;  // of the payload; both 0: nothing any longer
  std::uint64_t digest = 0;          // EqualExtent's
  Seat seat;                         // the least that differs: its node names the tensors
};
struct PersistMessage {  // to the parent in the tree: what the seats of the sender's subtree have done of an attempt
  static constexpr MessageKind kKind = MessageKind::persist;
  Generation generation;
  std::uint64_t attempt = 0;  // the record's (job/persist/persist_record.h)
  std::uint32_t pinned = 0;   // seats
  std::uint32_t written = 0;
  std::uint32_t proven = 0;
  std::uint64_t bytes = 0;  // written so far
  std::string failed;       // why one of them can't; empty: none
  bool unpinned = false;    // for want of the step, not of storage
  Step wanted;              // the greatest that a trainer has asked for (pawl_persist); 0: none has
  bool operator==(const PersistMessage&) const = default;
};
struct ProgressMessage {  // to the children in the tree
  static constexpr MessageKind kKind = MessageKind::progress;
  Generation generation;
  Progress progress;
};
// To the root. Answer: peer_value with the same id, when there is one; asked again over every new link.
struct PeerRendezvousMessage {
  static constexpr MessageKind kKind = MessageKind::peer_rendezvous;
  Generation generation;
  RendezvousRequest request;
};
struct PeerValueMessage {
  static constexpr MessageKind kKind = MessageKind::peer_value;
  RendezvousAnswer answer;
};

// data: one step after the other. Receivers land bytes in their final place and verify them there.
struct ArenaShape {  // of an arena (job/snapshot/arena.h), without whose it is and the text of its layout
  std::uint32_t slot_count = 2;
  std::uint64_t payload_bytes = 0;
  std::uint64_t stable_bytes = 0;
  std::uint32_t bucket_bytes = 0;
  std::uint64_t plan_digest = 0;    // by which the step is spread; 0: there are no plans yet, any other is refused
  std::uint64_t layout_digest = 0;  // of the layout's text, and how long that is
  std::uint64_t layout_bytes = 0;
  bool operator==(const ArenaShape&) const = default;
};
struct OpenMessage {  // Answer: opened, busy or later (ask again), or held; before one of these layout_wanted
  static constexpr MessageKind kKind = MessageKind::open;
  Generation generation;
  Step step;
  std::uint64_t samples = 0;
  ArenaShape shape;
};
struct OpenedMessage {
  static constexpr MessageKind kKind = MessageKind::opened;
};
struct BusyMessage {  // the reuse gate leaves no slot yet
  static constexpr MessageKind kKind = MessageKind::busy;
};
struct LaterMessage {  // the holder can't take any step now
  static constexpr MessageKind kKind = MessageKind::later;
  std::string why;
};
struct LayoutWantedMessage {  // the holder has never had that layout's text. Answer: layout_text
  static constexpr MessageKind kKind = MessageKind::layout_wanted;
  std::uint64_t layout_digest = 0;
};
struct LayoutTextMessage {  // no answer of its own: that of the open follows
  static constexpr MessageKind kKind = MessageKind::layout_text;
  std::string layout;
};
struct HeldMessage {  // acknowledgement: the slot lies verified and sealed in the holder's memory
  static constexpr MessageKind kKind = MessageKind::held;
  Step step;
};
struct BucketMessage {  // the bucket's bytes follow these fields in the frame's payload
  static constexpr MessageKind kKind = MessageKind::bucket;
  static constexpr std::size_t kFieldsBytes = 28;
  std::uint32_t extent = 0;  // of the slot's extents: 0, until there are more than one
  std::uint32_t index = 0;
  std::uint32_t crc32c = 0;  // of those bytes
  Generation generation;     // of the extent: another than that of the open step is refused
  Step step;
};
struct BucketBadMessage {  // the bytes that arrived do not have that sum
  static constexpr MessageKind kKind = MessageKind::bucket_bad;
  std::uint32_t index = 0;
};
// In place of some buckets: they were declared equal on a seat of the holder's node, too, which may take them from its slot of that
// step, if they have these sums there.
struct SameBucketsMessage {
  static constexpr MessageKind kKind = MessageKind::same_buckets;
  Generation generation;  // of the open step, as in a bucket
  Step step;
  std::uint64_t digest = 0;           // of the EqualExtent in which they are
  std::uint32_t first = 0;            // they follow each other
  std::vector<std::uint32_t> crc32c;  // of each
};
struct BucketsWantedMessage {  // of the open step, which the holder does not have: they are sent, and the seal again
  static constexpr MessageKind kKind = MessageKind::buckets_wanted;
  bool differ = false;  // some are here and have another sum; else they are not here, or not yet
  std::vector<std::uint32_t> buckets;
};
// Seal and abandon end a step when as many of its buckets have come over lanes, which may be later than this word.
struct SealMessage {  // Answer: held, bucket_bad or buckets_wanted
  static constexpr MessageKind kKind = MessageKind::seal;
  Step step;
  std::uint32_t lane_buckets = 0;
};
struct AbandonMessage {  // the step is void
  static constexpr MessageKind kKind = MessageKind::abandon;
  Step step;
  std::uint32_t lane_buckets = 0;
};

struct TornMessage {  // a step that the holder has acknowledged was written while it was copied. Not answered
  static constexpr MessageKind kKind = MessageKind::torn;
  Generation generation;
  Step step;
};

// fetch
enum class FetchFrom : std::uint8_t { own = 1, replica = 2 };
// Answer: slot_begin, buckets_bad or peer_refused. Any number on one connection, one after another.
struct FetchMessage {
  static constexpr MessageKind kKind = MessageKind::fetch;
  Seat seat;
  FetchFrom from = FetchFrom::own;
  Generation slot_generation;
  Step step;
  bool prove = false;  // it came damaged: the source first proves these buckets where they lie
  std::uint32_t first_bucket = 0;
  std::uint32_t bucket_count = 0;  // 0: only slot_begin, with the layout's text
  bool sums = false;               // only the buckets' sums are wanted, to prove with them what comes from elsewhere
};
// Then, outside frames, the buckets that were asked for, in order: of each its CRC32C (u32), its bytes. Where only sums are
// wanted: the CRC32C of each bucket, then that of these.
struct SlotBeginMessage {
  static constexpr MessageKind kKind = MessageKind::slot_begin;
  Generation generation;
  Step step;
  std::uint64_t samples = 0;
  ArenaShape shape;
  std::string layout;  // its text; empty where buckets follow
};
struct BucketsBadMessage {  // of those that were asked for: wrong where they lie, from the first such to the last
  static constexpr MessageKind kKind = MessageKind::buckets_bad;
  std::uint32_t first = 0;
  std::uint32_t count = 0;
  std::string why;
};

// report
struct CollectMessage {  // Answer, with the same id: collected, or peer_refused
  static constexpr MessageKind kKind = MessageKind::collect;
  std::string report;  // job/membership/node_report.h
};
struct CollectedMessage {  // it is with the control
  static constexpr MessageKind kKind = MessageKind::collected;
};

// --- Anyone -> pawld, and back. The payload is the JSON itself.

struct QuestionMessage {
  static constexpr MessageKind kKind = MessageKind::question;
  std::string json;
};
struct AnswerMessage {
  static constexpr MessageKind kKind = MessageKind::answer;
  std::string json;
};

// --- Bytes. For every type above that has a kKind, and for RendezvousRequest and RendezvousAnswer.

template <class Message>
[[nodiscard]] std::string encode(const Message& message);
// False if `payload` is not exactly such a message. Fields that were there have their values then, the rest is zero or
// empty. Of a Hello in another version only the version is read, and that is true.
template <class Message>
[[nodiscard]] bool decode(std::string_view payload, Message& out);

// --- Frames

[[nodiscard]] inline MessageKind kind_of(const Frame& frame) {
  return static_cast<MessageKind>(frame.kind);
}
template <class Message>
[[nodiscard]] bool is(const Frame& frame) {
  return kind_of(frame) == Message::kKind;
}
template <class Message>
[[nodiscard]] Frame frame_of(const Message& message, std::uint64_t id = 0) {
  return Frame{static_cast<std::uint16_t>(Message::kKind), id, encode(message)};
}
// Of a message on a link between pawlds: all of them begin with it. 0 if it is too short.
[[nodiscard]] Generation generation_of(const Frame& frame);
// The error `corrupt` for a frame that makes no sense here.
[[nodiscard]] Error unexpected_message(const Frame& frame);
// Fails: `corrupt` if it is of another kind, or its payload is not such a message.
template <class Message>
[[nodiscard]] Result<Message> message_in(const Frame& frame) {
  Message message;
  if (is<Message>(frame) && decode(frame.payload, message)) return message;
  return unexpected_message(frame);
}

}  // namespace pawl::job
