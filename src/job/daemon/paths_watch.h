// PathsWatch: whether seats whose state was declared equal have equal state, at each step that is committed; and where not.
//
// Of each own slot that is sealed and not committed yet, the sums of its buckets are joined to one of each extent that is offered to
// other seats (Memory::equal_offers). They go up the progress tree ahead of the report that says the step is held: so at the root they
// are compared when it is committed, and what differs is told, once until it is equal again. The step is committed all the
// same: each seat has copies of its own, and no other seat's slot is one of them (docs/decisions/0013). What a link that does not
// stand should have brought is not compared. A new generation begins with nothing.
// Which tensors: the root has all nodes tell the sums of sixteen parts of what differs, in the steps that follow, and of sixteen parts
// of the first of these that differs, until the node of the seat that differs can name it. One at a time.
// Cost: of each step, one look at the table of each own slot; nothing where nothing was declared equal.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/layout/seat_layout.h"
#include "job/redundancy/equal_sums.h"
#include "job/redundancy/progress.h"
#include "job/transport/frame.h"
#include "job/transport/messages.h"

namespace pawl::job {

class PathsWatch {
 public:
  struct Hooks {
    std::function<bool(NodeId, const Frame&)> send;  // false: no link stands
  };
  PathsWatch(NodeContext& context, Memory& memory, Events& events, Hooks hooks);

  void pass_on();  // before each report of this node
  void on_sums(NodeId child, Generation generation, const std::string& sums);
  void on_narrow(const NarrowMessage& order);  // of the parent
  void on_progress(Progress progress);         // as this node learns of it
  // What differed when it was last compared. At the root; elsewhere empty.
  [[nodiscard]] std::vector<Compared> differing() const;

 private:
  struct Narrowed {
    EqualExtent what;
    Seat seat;                  // the least of the fewest
    std::uint32_t commits = 0;  // since the root ordered it
    bool operator==(const Narrowed& other) const { return what == other.what && seat == other.seat; }
  };
  void enter();  // the state's generation
  void look();
  void look_at(const HeldArena& held, std::uint32_t slot, std::span<const EqualOffer> offers);
  void judge(Step committed);
  void judge_parts(const std::vector<Compared>& all);
  [[nodiscard]] bool is_part(const EqualExtent& what) const;
  void narrow(std::optional<Narrowed> narrowed);
  void name_tensors();
  void tell(const Compared& one);

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
  std::map<EqualExtent, Compared> differing_;  // as it was compared last
  std::optional<Narrowed> narrowed_;
  std::set<EqualExtent> narrowed_before_;           // of differing_
  std::set<std::pair<std::uint64_t, Seat>> named_;  // digests and seats, whose tensors this node has named
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
