// Replication: the replica stream of one seat to one holder, and its receiving end. Bulk bytes, so tasks of their own.
//
// Bucket by bucket while the capture still runs; the holder lands each bucket in its final place, verifies it there,
// and acknowledges when the slot is sealed in its memory (`held`). The reuse gate is asked at the holder (busy: ask
// again; later: the holder can't take anything now, and says why). The text of the layout goes over the wire only if the
// holder asks for it: steps name it by its digest. Of a large slot the buckets go over several connections side by side,
// the lanes (replica_lanes.h); all else is said on the first one. Of buckets that the holder's node captures itself only
// the sums are sent (equal_buckets.h). A stream belongs to one generation; ending it (end())
// never waits. The daemon counts live workers and restores nothing while one of an older generation still runs.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/metrics.h"
#include "env/environment.h"
#include "job/daemon/equal_buckets.h"
#include "job/daemon/memory.h"
#include "job/recovery/deadlines.h"
#include "job/transport/messages.h"
#include "job/transport/rate_limit.h"

namespace pawl::job {

// Counted by whoever must know that no thread of an older generation touches memory any more.
class Workers {
 public:
  explicit Workers(std::function<void()> on_idle) : on_idle_(std::move(on_idle)) {}
  void begin() { ++count_; }
  void finish() {
    if (--count_ == 0) on_idle_();
  }
  [[nodiscard]] bool idle() const { return count_ == 0; }

 private:
  std::atomic<int> count_{0};
  std::function<void()> on_idle_;  // any thread
};

// A simulation's slots are small.
struct FetchSizes {
  std::uint64_t one_stream_bytes_max = std::uint64_t{32} << 20;  // of a slot: more are fetched by several
  std::uint64_t range_bytes = std::uint64_t{8} << 20;            // taken at once
};

inline constexpr std::size_t kSpreadConnectionsMax = 4;  // of a replica stream, the first one included
struct SpreadSizes {
  std::uint64_t one_connection_bytes_max = std::uint64_t{32} << 20;  // of a slot: more are sent over several
};

struct StreamSizes {
  FetchSizes fetch;
  SpreadSizes spread;
};

class ReplicaLanes;

// What this node may send to holders, over all its streams together. Thread-safe.
class SendLimit {
 public:
  void set(std::uint64_t bytes_a_second) {
    std::lock_guard lock(mutex_);
    rate_ = RateLimit(bytes_a_second);
  }
  [[nodiscard]] Duration take(std::uint64_t bytes, Duration now) {  // as RateLimit::take
    std::lock_guard lock(mutex_);
    return rate_.take(bytes, now);
  }

 private:
  std::mutex mutex_;
  RateLimit rate_{0};
};

// What streams share with the daemon. Outlives every stream.
struct StreamContext {
  const Environment* environment = nullptr;
  Workers* workers = nullptr;
  const std::atomic<std::uint64_t>* progress = nullptr;  // Progress::pack() of the current generation
  Counter* bytes_sent = nullptr;
  Counter* bytes_received = nullptr;
  Counter* bytes_spared = nullptr;
  bool gate_off = false;  // test only
  FetchSizes fetch_sizes;
  SpreadSizes spread_sizes;
  SendLimit* send_limit = nullptr;  // of replicas; nullptr: none
  // A hold of the drill: returns when released or when `ended` turns true.
  std::function<void(const char* phase, const std::atomic<bool>& ended)> hold;
};

// Of the stream's generation: the step will never be committed, so nobody needs it.
[[nodiscard]] bool is_void(const StreamContext& context, Step step);
// The slot still has the step that `word` names, which may be needed, and is not frozen.
[[nodiscard]] bool is_still(const StreamContext& context, const Slot& slot, SlotWord word);

// A step whose bytes a holder has found wrong, so that its seat has given it up: it is void.
struct GivenUpStep {
  Seat seat;
  Step step;
  std::uint32_t bucket = 0;   // that was found wrong last
  bool is_own_wrong = false;  // where it lies in the seat's own slot; else it came wrong to the holder in each try
  NodeId holder;
  std::uint32_t tries = 0;
};
[[nodiscard]] std::string to_text(const GivenUpStep& step);  // why, a sentence

inline constexpr std::uint32_t kDamagedTriesMax = 8;  // of a step whose own bytes are right

class ReplicaSender : public std::enable_shared_from_this<ReplicaSender> {
 public:
  struct Options {
    Hello hello;          // purpose data; seat and generation of the stream
    std::string address;  // of the holder
    std::uint32_t holder_index = 0;
    NodeId holder;
    ArenaHandle arena;  // the seat's own
    StreamContext context;
    std::vector<EqualExtent> equal = {};  // of its payload, in whole buckets: what the holder's node has, too
    std::function<void(Step)> on_held;    // any thread
    std::function<void(const GivenUpStep&)> on_given_up = [](const GivenUpStep&) {};  // any thread
    std::function<void(const Error&)> on_refused;  // never-refusal: version, token, job
  };
  [[nodiscard]] static std::shared_ptr<ReplicaSender> start(Options options);
  void notice();  // something new may lie in the arena. Any thread
  void end();     // never waits
  // Why the holder has not got what lies here, a sentence; empty: it has, or it is on its way. Any thread.
  [[nodiscard]] std::string obstacle() const;
  [[nodiscard]] std::uint32_t holder_index() const { return options_.holder_index; }
  [[nodiscard]] const ArenaHandle& arena() const { return options_.arena; }

 private:
  explicit ReplicaSender(Options options);
  void set_obstacle(std::string why);
  void run();
  [[nodiscard]] Status serve_connection(Stream& stream, const Address& address);
  [[nodiscard]] Status greet(Stream& stream, const Hello& hello);
  [[nodiscard]] Status send_steps(Stream& stream, ReplicaLanes& lanes);
  [[nodiscard]] Status tell_torn(Stream& stream);
  [[nodiscard]] Result<bool> offer(Stream& stream, const Slot& slot, SlotWord word);  // true: it wants the buckets
  [[nodiscard]] Result<Frame> answer_to(const OpenMessage& open, Stream& stream);
  [[nodiscard]] Status send_step(Stream& stream, ReplicaLanes& lanes, const Slot& slot, SlotWord word);
  [[nodiscard]] Result<Frame> answer_to_seal(Stream& stream, const Slot& slot, SlotWord word,
                                             std::uint32_t lane_buckets);
  [[nodiscard]] Status seal_step(Stream& stream, const Slot& slot, SlotWord word, std::uint32_t lane_buckets);
  [[nodiscard]] Status on_bucket_bad(const Frame& answer, const Slot& slot, SlotWord word);
  [[nodiscard]] bool still_there(const Slot& slot, SlotWord word) const;
  [[nodiscard]] Status note_held(const Slot& slot, SlotWord word);
  [[nodiscard]] bool pick(Slot& slot, SlotWord& word);
  void wait_notice(Duration at_most);
  void wait_while_there(const Slot& slot, SlotWord word, Duration at_most);  // a notice does not end it
  void wait_for_limit(std::size_t bytes);                                    // until the node may send as many

  Options options_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;
  std::unique_ptr<Condition> changed_;
  std::string obstacle_;  // under mutex_
  std::uint64_t notices_ = 0;
  std::uint64_t seen_ = 0;
  Stream* stream_ = nullptr;             // the live connection, for end(); under mutex_
  std::shared_ptr<ReplicaLanes> lanes_;  // its further ones; under mutex_
  UnsentBuckets unsent_;                 // its task's; and of the step that is sealed, whether bytes were wanted
  bool was_late_ = false;
  struct Damage {
    SlotWord word;
    std::uint32_t tries = 0;
  };
  std::vector<SlotWord> told_torn_;  // its task's: of each slot, on this connection
  std::optional<Damage> damage_;     // its task's: of the step that came damaged last, until one is held
};

// The holder's end of a stream, after the hello of its first connection was welcomed. Buckets land from each of its
// connections, in the step that is open. When one of them ends, all do.
class ReplicaReceiver : public std::enable_shared_from_this<ReplicaReceiver> {
 public:
  struct Options {
    std::unique_ptr<Stream> stream;  // the first connection
    std::uint64_t number = 0;        // the sender's of this stream; 0: it has no lanes
    Generation generation;
    Seat seat;
    std::string job;
    StreamContext context;
    // On the stream's thread: the replica arena that is there; nullptr: none.
    std::function<ArenaHandle()> held;
    // On the stream's thread, until it succeeds: the replica arena for this spec (made by the loop).
    std::function<Result<ArenaHandle>(const ArenaSpec&)> arena_for;
    // On the stream's thread: own arenas here, and what of them is equal on other seats.
    std::function<std::vector<EqualArena>()> equal_arenas = [] { return std::vector<EqualArena>(); };
  };
  [[nodiscard]] static std::shared_ptr<ReplicaReceiver> start(Options options);
  void notice();  // a seat here may have captured more. Any thread
  void end();
  [[nodiscard]] bool finished() const { return finished_; }  // none of its threads touches anything any more
  [[nodiscard]] std::uint64_t number() const { return options_.number; }
  [[nodiscard]] bool may_add_lane();
  // Closed at once if the stream has ended meanwhile. On the task that called start(). `welcome` is said by the lane's own task: what
  // has no thread to read it should not be sent anything.
  void add_lane(std::unique_ptr<Stream> stream, std::optional<Frame> welcome = {});

 private:
  explicit ReplicaReceiver(Options options);
  void start_task(std::function<Status()> serve);
  void leave(const Status& served);
  [[nodiscard]] Status serve_first(Stream& stream);
  [[nodiscard]] Status serve_lane(Stream& stream);
  [[nodiscard]] Status on_open(const Frame& frame);
  [[nodiscard]] Result<std::string> layout_of(const ArenaShape& shape);
  [[nodiscard]] Status open_slot(const OpenMessage& open);
  [[nodiscard]] Status on_bucket(Stream& stream, FrameHeader header);
  [[nodiscard]] Result<Slot> begin_landing(const BucketMessage& bucket, std::uint64_t size_bytes);
  void end_landing(const BucketMessage& bucket, bool is_right, bool is_on_lane);
  [[nodiscard]] Status await_lanes(std::uint32_t lane_buckets);
  void close_step();  // no bucket lands in it any more
  [[nodiscard]] Status on_abandon(const Frame& frame);
  [[nodiscard]] Status on_torn(const Frame& frame);
  [[nodiscard]] Status on_same(const Frame& frame);
  void await_same();
  [[nodiscard]] Status on_seal(const Frame& frame);
  [[nodiscard]] std::optional<std::uint32_t> bad_bucket() const;

  struct Opened {  // a step
    bool is_open = false;
    Step step = {};
    Slot slot = {};
    std::uint32_t landing = 0;                  // buckets of which bytes come now
    std::uint32_t lane_buckets = 0;             // that have come over lanes
    std::optional<std::uint32_t> damaged = {};  // the first that came wrong: others may have landed in its place
  };
  Options options_;
  std::shared_ptr<Stream> stream_;
  std::atomic<bool> ended_{false};
  std::atomic<bool> finished_{false};
  ArenaHandle arena_;
  std::string layout_;   // the text that the sender was asked for, until there is an arena with it
  AwaitedBuckets told_;  // of the open step; the first connection's task's
  const std::unique_ptr<Condition> changed_;
  std::mutex mutex_;  // over all that follows; opened_ is changed on the first connection's task, but for what lands
  std::vector<std::shared_ptr<Stream>> lanes_;
  std::size_t running_ = 0;  // tasks
  bool is_over_ = false;     // one of them has left
  Opened opened_;
};

// An arena's shape as it travels, and back: whose the arena is, the receiver knows.
[[nodiscard]] ArenaShape shape_of(const ArenaSpec& spec);
// `layout` is the text that the shape names. Fails: `corrupt` if it isn't, or the shape is one of a later version.
[[nodiscard]] Result<ArenaSpec> spec_of(const ArenaShape& shape, std::string layout, const std::string& job, Seat seat,
                                        ArenaKind kind);

}  // namespace pawl::job
