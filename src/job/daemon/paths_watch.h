// PathsWatch: whether seats whose state was declared equal have equal state, at each step that is committed; and where not.
//
// Of each own slot that is sealed and not committed yet, the sums of its buckets are joined to one of each extent that is offered to
// other seats (Memory::equal_offers). They go up the progress tree ahead of the report that says the step is held: so the node
// below which all seats of the group are has all of them when the step is committed. It compares them, and tells what differs. The
// step is committed all the same: each seat has copies of its own, and no other seat's slot is one of them (docs/decisions/0013). A
// step of which a link that does not stand brought no sums is not compared. A new generation begins with nothing.
// Told is the first difference of an extent, and later one with other seats; and that it has been equal again for some steps.
// Which tensors: who compares has all nodes below it tell the sums of sixteen parts of what differs, in the steps that follow, and of
// sixteen parts of the first of these that differs, until the node of the seat that differs can name it.
// Cost: of each step, one look at the table of each own slot, and one message to the parent; nothing where nothing was declared equal.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/redundancy/equal_sums.h"
#include "job/redundancy/progress.h"
#include "job/transport/frame.h"
#include "job/transport/messages.h"

namespace pawl::job {

class PathsWatch {
 public:
  static constexpr std::uint32_t kEqualCommits = 16;  // after which what differed is equal again
  static constexpr std::uint64_t kStepsBetween = 64;  // of two words about one extent
  static constexpr std::uint32_t kToldMax = 256;      // in a generation
  static constexpr std::uint32_t kPartCommits = 32;   // in which narrower parts are waited for

  struct Hooks {
    std::function<bool(NodeId, const Frame&)> send;  // false: no link stands
  };
  PathsWatch(NodeContext& context, Memory& memory, Events& events, Hooks hooks);

  // Of this node and those below it, about to be told to the parent, which may know nothing if `anew`.
  void before_report(const SeatReport& report, bool anew);
  void on_sums(NodeId child, Generation generation, const std::string& sums);
  void on_narrow(const NarrowMessage& order);  // of the parent
  void on_progress(Progress progress);         // as this node learns of it
  // What differed when this node last compared it; its step is the first at which it did.
  [[nodiscard]] std::vector<Compared> differing() const;

 private:
  struct Difference {
    Compared last;
    Step since, told_at;
    std::uint32_t told_count = 0;
    std::set<Seat> told;
    std::uint32_t equal_commits = 0;
  };
  struct Narrowed {
    EqualExtent what;
    Seat seat;                  // the first that differs
    std::uint32_t commits = 0;  // since it was ordered
    bool operator==(const Narrowed& other) const { return what == other.what && seat == other.seat; }
  };
  void enter();  // the state's generation
  [[nodiscard]] EqualSums all() const;
  void look();
  void look_at(const HeldArena& held, std::uint32_t slot, std::span<const EqualOffer> offers);
  void judge(Step committed);
  void differs(const Compared& one);
  void is_equal(const Compared& one);
  void judge_parts(const std::vector<Compared>& all);
  void narrow(std::uint64_t digest, std::optional<Narrowed> narrowed);
  void name_tensors(const Narrowed& narrowed);
  void tell(const char* kind, const std::string& detail);

  Counter& differences_;
  NodeContext& context_;
  Memory& memory_;
  Events& events_;
  Hooks hooks_;
  Generation watched_;
  Step settled_;
  std::map<std::pair<Seat, std::uint32_t>, SlotWord> looked_at_;  // by seat and slot
  EqualSums own_;
  std::map<NodeId, EqualSums> children_;
  EqualSums passed_on_;
  std::map<EqualExtent, Difference> differing_;
  std::map<std::uint64_t, Narrowed> narrowed_;      // by digest: this node's orders, and those of nodes above
  std::set<std::pair<std::uint64_t, Seat>> named_;  // digests and seats, whose tensors this node has named
  std::uint32_t told_ = 0;
};

// As it is told: {"step", "seats", "count", "like", "like_count", "bytes"}, an object's text.
[[nodiscard]] std::string json_of(const Compared& one);
// Of a sealed slot's buckets in that extent, which begins and ends with one.
[[nodiscard]] std::uint64_t sum_of_buckets(const Slot& slot, std::uint32_t bucket_bytes, Extent extent);
// At most kPartsMax parts of it, of as many buckets each; none where it has one bucket. Of a slot of `buckets`.
inline constexpr std::uint64_t kPartsMax = 16;
[[nodiscard]] std::vector<EqualExtent> parts_of(const EqualExtent& what, std::uint32_t bucket_bytes,
                                                std::uint64_t buckets);

}  // namespace pawl::job
