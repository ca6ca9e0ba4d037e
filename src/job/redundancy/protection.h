// Protection plan: where every byte of a job's state lies, and who brings it there.
//
// Seats whose declared bytes are equal (a model that data-parallel paths replicate) form a *group*: its bytes are one
// stream, which every seat of it has in its own memory. What only one seat has is a group of one. A *stripe* lies over
// extents of streams: k pieces of data and m more fragments, any k of which give the data back; a copy is a stripe of
// k = 1. Each *fragment* lies on a *shelf*, an arena with one word a slot: a seat's own, a copy of it elsewhere, or parity.
// There it is captured by the seat itself, sent by another, or encoded. A captured fragment costs no network, and nobody
// acknowledges it: that seat's own seal does.
//
//   copies:K  each seat captures all it has; what fewer than K+1 domains have anyway is sent to as many more
//   cut:K     the same, but of what a group has each seat captures only (K+1)/n: its own copy is cut
//
// Always: a stripe's fragments lie in so many failure domains that it decodes after any `losses` of them have died, and a
// further sound shelf never makes less readable. No two fragments share a domain, except the own copies of a group that
// has several seats there and captures whole. Where there are too few domains the plan is refused; or, if the policy
// consents, made with copies on distinct nodes as far apart as can be, and `degraded` says so.
// It speaks of positions, never of nodes: a swap keeps it. Pure: equal arguments give an equal plan, and an equal digest,
// on every node. Thread-safe. Who holds replicas in the job that runs: Ring (placement.h), which is copies:K of groups of
// one, without the stripes.
#pragma once

#include <compare>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace pawl::job {

// --- What is to be protected

using GroupId = Id<struct GroupTag, std::uint32_t>;  // its index in a plan

struct StateGroup {
  std::vector<Seat> seats;  // ascending
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;  // of the layout of these bytes
};

// What one seat declares of a group that it belongs to: its entries that are equal along some mesh axes.
struct GroupShare {
  std::string group;  // equal for those that share; it names the axes and the place on all others: "dp of tp=1"
  Seat seat;
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
};
// In the order in which the names first appear.
// Fails: `invalid` if seats of one group declare different bytes, or one declares twice; it names both.
[[nodiscard]] Result<std::vector<StateGroup>> join_shares(std::span<const GroupShare> shares);

struct Positions {  // of the ring (placement.h)
  std::vector<std::uint32_t> seat_counts;
  std::vector<std::uint32_t> domains = {};  // equal numbers die together; empty: each position alone
};

// --- How

enum class RedundancyScheme : std::uint8_t { copies, raim5, reed_solomon, automatic };

struct ProtectionPolicy {
  RedundancyScheme scheme = RedundancyScheme::copies;
  std::uint32_t losses = 1;      // failure domains that may die at once: k of copies, m of Reed-Solomon
  std::uint32_t data_count = 1;  // k of Reed-Solomon
  bool cut_own = false;          // a seat captures only its part of what its group has
  bool accepts_less = false;     // consent: a plan that breaks the rule is better than none
  bool operator==(const ProtectionPolicy&) const = default;
};
// "copies:K", "cut:K", "raim5", "rs:K+M", "auto"; behind it maybe ",own=whole" or ",own=cut".
// Fails: `invalid`, with what is possible. Policies that are not built yet can be read; protect() refuses them.
[[nodiscard]] Result<ProtectionPolicy> parse_redundancy(std::string_view words);
[[nodiscard]] std::string to_text(const ProtectionPolicy& policy);  // as it is read; without the consent

struct ProtectionBudgets {
  std::uint64_t memory_bytes = std::numeric_limits<std::uint64_t>::max();  // of each position
  std::uint64_t sent_bytes = std::numeric_limits<std::uint64_t>::max();    // by each position, in each step
  std::uint32_t slot_count = 2;                                            // of each shelf
};

// --- The plan

struct StreamExtent {
  GroupId group;
  std::uint64_t begin = 0;  // bytes of the group's stream
  std::uint64_t end = 0;
  auto operator<=>(const StreamExtent&) const = default;
};

enum class ShelfKind : std::uint8_t { own, copy, parity };
struct ShelfId {
  ShelfKind kind = ShelfKind::own;
  std::uint32_t of = 0;     // own, copy: the seat whose state it is; parity: a number
  std::uint32_t index = 0;  // of the seat's copies, as in Ring::holders_of
  auto operator<=>(const ShelfId&) const = default;
};

enum class FragmentFill : std::uint8_t { captured, sent, encoded };
struct Fragment {
  ShelfId shelf;
  FragmentFill fill = FragmentFill::captured;
  std::uint32_t position = 0;  // where the shelf is
};

struct Stripe {
  // k extents, data[i] in fragment i; with one of them every fragment is a copy of it. What lies elsewhere comes from the
  // first k fragments.
  std::vector<StreamExtent> data;
  std::vector<Fragment> at;  // k+m
};

struct Shelf {
  ShelfId id;
  std::uint32_t position = 0;
  std::uint64_t bytes = 0;  // of one slot
};

struct ProtectionPlan {
  std::vector<StateGroup> groups;
  std::vector<Stripe> stripes;
  std::vector<Shelf> shelves;                   // ascending by id
  std::vector<std::vector<ShelfId>> feeds;      // of each seat, on other positions: the i-th has acknowledgement i
  std::vector<std::vector<GroupId>> groups_of;  // of each seat
  std::vector<std::vector<std::uint32_t>> stripes_of;  // of each group
  std::vector<std::uint32_t> domains;                  // of each position
  ProtectionPolicy policy;                             // what an automatic one has chosen
  std::vector<std::string> degraded;                   // why it protects less than was asked for
  std::uint64_t digest = 0;
};

// Groups of which each seat is in at least one. Cost: O(seats x fragments).
// Fails: `invalid` if a policy is not built yet, or a group has no seat or one that is not there; `full` if there are too few
// domains, or more is needed than the budgets have, with the arithmetic.
[[nodiscard]] Result<ProtectionPlan> protect(std::vector<StateGroup> groups, const Positions& positions,
                                             const ProtectionPolicy& policy, const ProtectionBudgets& budgets = {});

// As messages and `pawl status` show it: 16 digits.
[[nodiscard]] std::string digest_in_hex(std::uint64_t digest);

// Shelves, feeds and digest of a plan that has its groups, stripes and domains.
void finish_plan(ProtectionPlan& plan, std::uint32_t seat_count);

// --- What it gives back

struct StreamRead {
  StreamExtent extent;
  std::vector<ShelfId> from;  // one, or as many as it takes to decode
};
// How a seat gets all its bytes from these shelves, which are sound: each extent once, from its own shelf where that is
// among them. Fails: `not_found`, naming bytes that nobody has.
[[nodiscard]] Result<std::vector<StreamRead>> sources(const ProtectionPlan& plan, std::span<const ShelfId> sound,
                                                      Seat seat);

struct Survival {
  std::uint32_t domains = 0;  // so many may die, whichever they are, and every stripe still decodes
  bool whole = false;         // it decodes now
  std::vector<Seat> weakest;  // seats with a stripe that bears no more than that (or that does not decode), ascending
};
// `domains`: where each position really is, which may be elsewhere than where the plan was made for.
[[nodiscard]] Survival survival_of(const ProtectionPlan& plan, std::span<const ShelfId> sound,
                                   std::span<const std::uint32_t> domains);

}  // namespace pawl::job
