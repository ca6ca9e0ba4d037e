// ReplicaLanes: the connections over which the sender of a replica stream sends the buckets of its steps.
//
// The first connection is the stream's own: whatever is said on a stream is said there, by the stream's task. A large
// slot's stream has further ones to the same holder, its lanes, each with a task of its own, which carry buckets only.
// Buckets are dealt in their order, each to the connection that is free first, as soon as it is captured. A lane joins
// while the first connection already sends; one that can't connect is missed by nobody, and tries again. One that has
// joined and breaks takes the stream down, as the first one's end does.
// The receiving end: ReplicaReceiver (replication.h).
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "job/daemon/replication.h"

namespace pawl::job {

// The bytes of that step's bucket, in its frame; whatever they are meanwhile.
[[nodiscard]] Status send_bucket(Stream& stream, const Slot& slot, SlotWord word, std::uint32_t index);

class ReplicaLanes : public std::enable_shared_from_this<ReplicaLanes> {
 public:
  struct Options {
    Hello hello;  // of the first connection
    Address address;
    ArenaHandle arena;
    StreamContext context;
    std::size_t count = 0;  // of connections beside the first one
  };
  // Of a first connection that was welcomed; it stays the caller's, who calls end() before it closes it.
  [[nodiscard]] static std::shared_ptr<ReplicaLanes> start(Options options, Stream& first);
  void notice();  // something new may lie in the arena. Any thread
  void end();     // never waits: lanes end soon; those that have joined are counted as workers. Any thread

  struct Sent {
    std::uint32_t lane_buckets = 0;  // how many of them went over lanes
    bool is_whole = false;           // all buckets were sent; else the slot is that step's no more
  };
  // All buckets of a step that the holder has opened; returns when none is under way here. On the stream's task only. Of those
  // with an offer (one for each bucket, or none at all) only the sums are told, on the first connection.
  // Fails: also if a lane broke; the stream is over then.
  [[nodiscard]] Result<Sent> send(const Slot& slot, SlotWord word, std::vector<const EqualExtent*> offers = {});

 private:
  struct Deal {  // of one step's buckets
    Slot slot;
    SlotWord word;
    bool is_open = false;
    std::uint32_t next = 0;  // to be sent
    std::vector<const EqualExtent*> offers = {};
    std::uint32_t told = 0;       // of those before it the sums were told, or they are sent
    std::uint32_t under_way = 0;  // on lanes
    std::uint32_t lane_buckets = 0;
  };
  ReplicaLanes(Options options, Stream& first);
  void run_lane();
  void leave(const Status& ended);
  [[nodiscard]] Status try_lane(bool& has_joined);
  [[nodiscard]] Status join(Stream& lane);
  [[nodiscard]] Status carry(Stream& lane);
  [[nodiscard]] Status send_one(Stream& stream, std::uint32_t index);
  // Under the mutex.
  [[nodiscard]] bool is_over() const { return is_ended_ || broken_.has_value(); }
  [[nodiscard]] bool is_there() const;  // the slot, as that step's
  [[nodiscard]] bool may_take() const;
  void pass_told();
  [[nodiscard]] SameBucketsMessage take_same();
  [[nodiscard]] Status tell(const SameBucketsMessage& same);
  [[nodiscard]] bool may_send_now(std::unique_lock<std::mutex>& lock, Duration look_again);
  [[nodiscard]] std::uint32_t take();
  void shut_down_all();

  Options options_;
  Stream& first_;
  const std::unique_ptr<Condition> changed_;
  std::mutex mutex_;  // over all that follows
  std::vector<Stream*> lanes_;
  bool is_ended_ = false;
  std::optional<Error> broken_;
  Deal deal_;
};

}  // namespace pawl::job
