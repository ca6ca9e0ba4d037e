// Fetch: the step of one seat, from the daemons that hold it into this node's own arena, during a recovery.
//
// Its streams take ranges of buckets from all sources side by side (fetch_ranges.h), and fill one slot: several to one
// source where there is much to come, one where there is little. A source from which nothing comes, or less than from
// others, gives what it has not sent yet back to them. Buckets become ready in any order.
// Every bucket is verified where it landed. One that is wrong proves nothing against the source: it may have been damaged
// on the way, or here. The range is asked for again, and the source then proves its buckets in its own memory first; only
// its own word strikes it out, in that extent. A path, another seat's slot that was declared equal, gives nothing before its
// sums are found equal to those that a slot of the seat's own has; where they differ, it is struck out for this seat. Where the
// seat has no slot left, all paths tell their sums first, and those that differ are struck out, both; one that does not answer
// for `patience` is asked no more.
// A connection on which nothing comes for long is made anew: the link may be cut, or only that connection. Runs in tasks of
// its own; the slots at both ends are frozen meanwhile. end() never waits: a task that does not touch memory then never
// will, and one that does is counted (StreamContext::workers) until it has stopped. So an arena that is still being made,
// or a connection, holds up no further recovery.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "job/daemon/fetch_ranges.h"
#include "job/daemon/memory.h"
#include "job/daemon/path_proof.h"
#include "job/daemon/replication.h"
#include "job/recovery/recovery_waits.h"

namespace pawl::job {

inline constexpr std::size_t kFetchStreamsMax = 4;
inline constexpr std::size_t kStruckRangesMax = 4;  // of a source that has more wrong ones all is struck out

struct FetchFromPlace {
  Source source;
  std::string address;
};

[[nodiscard]] inline Struck struck_of(const Source& source, Extent extent) {
  return {source.from, source.seat, source.kind, source.slot_generation, source.step, extent, source.of};
}
[[nodiscard]] inline Struck struck_for_difference(const Source& source) {  // a path: all that it should have had
  Struck struck = struck_of(source, source.extent);
  struck.differs = true;
  return struck;
}

// How it ended. `corrupt`: the sources themselves say that they haven't got all of it, or not right: strike out `struck`.
// `cancelled`: ended. All else: this node can't do it, the sources are sound.
struct Fetched {
  Status status;
  std::vector<std::uint64_t> bytes_from = {};  // of each source, in their order
  std::vector<Struck> struck = {};             // also where others had what these had not
  std::size_t compared = 0;                    // paths, where nothing was left of the seat
};

class Fetch : public std::enable_shared_from_this<Fetch> {
 public:
  struct Options {
    Hello hello;                          // purpose fetch; to each source as the life that it names
    std::vector<FetchFromPlace> sources;  // of one seat, slot generation and step, in order of preference
    StreamContext context;
    Duration patience{};  // Deadlines::fetch
    // On the fetch's thread: the own arena for this spec (made by the loop).
    std::function<Result<ArenaHandle>(const ArenaSpec&)> arena_for;
    // Any thread, once the slot is open: its buckets are ready from now on, one after another, each verified.
    std::function<void()> on_filling = {};
    std::function<void(Fetched)> on_done;  // any thread, once
  };
  static std::shared_ptr<Fetch> start(Options options);
  void end();
  [[nodiscard]] Seat seat() const { return first().seat; }
  [[nodiscard]] FetchState state() const;  // any thread

 private:
  struct Place {  // what is known of a source
    std::uint64_t bytes = 0;
    std::uint32_t failures = 0;                 // tries in a row that brought nothing
    int odd = 0;                                // answers that were none to what was asked
    std::map<std::uint32_t, int> damaged = {};  // buckets that came wrong, how often: it has to prove them first
    std::size_t streams = 0;                    // at it now
    std::size_t struck = 0;                     // ranges
    std::optional<Error> failed = {};           // it is asked no more
  };
  struct Lane {  // a task, and its connection
    Stream* stream = nullptr;
    std::size_t source = 0;
    bool has_range = false;
    Duration moved_at{};  // when its last bucket came
  };
  struct Filling {  // the slot, once it is open
    ArenaHandle arena;
    Slot slot;
    ArenaShape shape;
    FetchRanges ranges;
    bool is_sealing = false;  // by one of the lanes
    int hastened = 0;         // lanes that had to give back what they had taken
  };
  explicit Fetch(Options options);
  [[nodiscard]] const Source& first() const { return options_.sources.front().source; }
  void start_lane();
  void run_lane(std::size_t lane);
  void lane_ended();
  [[nodiscard]] std::optional<std::size_t> pick_source();
  [[nodiscard]] Status attempt(std::size_t lane, std::size_t source);
  [[nodiscard]] Status talk(Stream& stream, std::size_t lane, std::size_t source);
  enum class Asked : std::uint8_t { bytes, proven_bytes, sums };
  [[nodiscard]] Result<Frame> ask(Stream& stream, std::size_t source, BucketRange range, Asked what);
  [[nodiscard]] Result<SlotBeginMessage> begin_in(const Frame& answer) const;  // of the step that is fetched
  [[nodiscard]] Error of_another_layout(std::size_t source) const;
  [[nodiscard]] Status open_slot(Stream& stream, std::size_t source);
  void start_other_lanes();
  [[nodiscard]] bool is_lost() const;
  [[nodiscard]] Result<std::vector<std::uint32_t>> sums_at(Stream& stream, std::size_t source);
  [[nodiscard]] Status prove_by_sums(Stream& stream, std::size_t source);
  [[nodiscard]] Status receive_ranges(Stream& stream, std::size_t lane, std::size_t source);
  [[nodiscard]] Status receive_range(Stream& stream, std::size_t lane, std::size_t source, BucketRange range);
  [[nodiscard]] Status receive_bucket(Stream& stream, std::size_t source, std::uint32_t index);
  [[nodiscard]] std::optional<BucketRange> take(std::size_t lane, std::size_t source);
  void hasten_others(std::size_t source);
  void bucket_done(std::size_t lane, std::size_t source, std::uint32_t index);
  void seal();
  // What follows from how a try ended. False: this lane is not needed any more.
  [[nodiscard]] bool judge(std::size_t lane, std::size_t source, const Error& error);
  [[nodiscard]] bool has_failed_for_long();  // counts: no memory, no descriptor
  void came_odd(std::size_t source, const Error& error);
  void came_damaged(std::size_t source, std::uint32_t bucket, const Error& error);
  [[nodiscard]] bool must_prove(std::size_t source, BucketRange range) const;
  void strike(std::size_t source, const Struck& wrong, const std::string& why);
  void give_up_source(std::size_t source, Error why);
  [[nodiscard]] Error why_lost() const;
  void finish_if_lost();
  void finish(Status status);
  [[nodiscard]] bool is_open() const;
  [[nodiscard]] bool may_touch();                                  // then workers->finish() has to follow
  [[nodiscard]] Deadline deadline(std::uint64_t bytes = 0) const;  // for what comes next, which takes that many to make
  Options options_;
  const std::unique_ptr<Condition> changed_;
  std::atomic<bool> ended_{false};
  mutable std::mutex mutex_;  // over all that follows
  bool over_ = false;         // on_done is called, or about to be
  std::size_t running_ = 0;   // lanes
  int no_resources_ = 0;      // tries in a row for which there was no descriptor or memory
  std::vector<Place> places_;
  PathProof proof_;
  const Duration began_;
  std::vector<Lane> lanes_;
  std::optional<Filling> filling_;
  bool has_lanes_ = false;  // all that the slot is worth
  std::vector<Struck> struck_;
  std::string why_struck_;
  FetchState state_;
};

// The source's end, after the hello was welcomed: answers each `fetch` until the other side closes. `find` is asked on
// the loop.
class FetchServer : public std::enable_shared_from_this<FetchServer> {
 public:
  struct Options {
    std::unique_ptr<Stream> stream;
    StreamContext context;
    std::function<ArenaHandle(ArenaKind, Seat)> find;  // any thread; waits for the loop
    // Any thread: asked to prove it, this node finds that it has some of that slot wrong.
    std::function<void(ArenaKind, Seat, SlotWord)> on_wrong = [](ArenaKind, Seat, SlotWord) {};
  };
  static std::shared_ptr<FetchServer> start(Options options);
  void end();

 private:
  explicit FetchServer(Options options);
  [[nodiscard]] Status serve();
  [[nodiscard]] Status answer(const FetchMessage& asked);
  [[nodiscard]] Status send_buckets(const Slot& slot, BucketRange range);
  [[nodiscard]] Status send_sums(const Slot& slot, BucketRange range);
  [[nodiscard]] Status refuse(const Error& why);
  Options options_;
  std::unique_ptr<Stream> stream_;
  ArenaHandle arena_;                 // of what was asked for last
  std::optional<SlotWord> verified_;  // of that arena: the slot whose table was right
};

// The slot to restore (generation, step) into, without losing one that a further recovery may need: the very slot if it
// is there, else an empty or dirty one, else the one with the least step.
[[nodiscard]] Slot slot_to_fill(const Arena& arena, Generation generation, Step step);
// The sealed slot (generation, step); false if there is none.
[[nodiscard]] bool find_sealed(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index);
// The slot that a fetch has opened for (generation, step), sealed or not yet. Before a fetch has, a dirty one may be what
// a capture left behind.
[[nodiscard]] bool find_filling(const Arena& arena, Generation generation, Step step, Slot& slot, std::uint32_t& index);

}  // namespace pawl::job
