#include "job/redundancy/protection.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include "base/text.h"
#include "job/redundancy/placement.h"

namespace pawl::job {
namespace {

constexpr std::uint64_t kPieceBytes = 4096;  // a cut falls on a multiple of it
constexpr std::uint32_t kLossesMax = 64;
constexpr std::uint64_t kGroupBytesMax = std::uint64_t{1} << 44;  // so that no sum of them wraps
constexpr std::size_t kNamedMax = 8;

Error refusal(std::string why) {
  return {Code::invalid, std::move(why)};
}

std::string name_of(const ShelfId& shelf) {
  if (shelf.kind == ShelfKind::own) return text("own copy of seat ", shelf.of);
  if (shelf.kind == ShelfKind::copy) return text("copy ", shelf.index, " of seat ", shelf.of);
  return text("parity ", shelf.of);
}

class Fnv {
 public:
  void mix(std::uint64_t word) {
    digest_ = (digest_ ^ word) * 0x100000001b3u;
    digest_ ^= digest_ >> 29;
  }
  void mix(const ShelfId& shelf) {
    mix(static_cast<std::uint64_t>(shelf.kind) << 32 | shelf.of);
    mix(shelf.index);
  }
  [[nodiscard]] std::uint64_t digest() const { return digest_; }

 private:
  std::uint64_t digest_ = 0xcbf29ce484222325u;
};

std::uint64_t digest_of(const ProtectionPlan& plan) {
  Fnv fnv;
  for (const StateGroup& group : plan.groups) {
    fnv.mix(group.bytes);
    fnv.mix(group.digest);
    fnv.mix(group.seats.size());
    for (const Seat seat : group.seats) fnv.mix(seat.value);
  }
  for (const std::uint32_t domain : plan.domains) fnv.mix(domain);
  for (const Stripe& stripe : plan.stripes) {
    fnv.mix(std::uint64_t{stripe.data.size()} << 32 | stripe.at.size());
    for (const StreamExtent& extent : stripe.data) {
      fnv.mix(extent.group.value);
      fnv.mix(extent.begin);
      fnv.mix(extent.end);
    }
    for (const Fragment& fragment : stripe.at) {
      fnv.mix(fragment.shelf);
      fnv.mix(std::uint64_t{fragment.position} << 8 | static_cast<std::uint64_t>(fragment.fill));
    }
  }
  return fnv.digest();
}

std::uint64_t bytes_of(const Stripe& stripe, std::size_t fragment) {
  const auto length = [](const StreamExtent& extent) { return extent.end - extent.begin; };
  if (stripe.data.size() == 1) return length(stripe.data.front());
  if (fragment < stripe.data.size()) return length(stripe.data[fragment]);
  std::uint64_t longest = 0;
  for (const StreamExtent& extent : stripe.data) longest = std::max(longest, length(extent));
  return longest;
}

// --- Making a plan

Status check_groups(const std::vector<StateGroup>& groups, std::uint32_t seat_count) {
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const std::vector<Seat>& seats = groups[i].seats;
    if (seats.empty()) return refusal(text("group ", i, " has no seat"));
    if (groups[i].bytes > kGroupBytesMax)
      return refusal(text("group ", i, " has ", groups[i].bytes, " bytes; more than ", kGroupBytesMax,
                          " in one seat are not possible"));
    for (std::size_t j = 0; j < seats.size(); ++j) {
      if (seats[j].value >= seat_count)
        return refusal(text("group ", i, ": seat ", seats[j], " is none of the job's ", seat_count));
      if (j > 0 && seats[j] <= seats[j - 1])
        return refusal(text("group ", i, ": seat ", seats[j], " follows seat ", seats[j - 1], "; seats ascend"));
    }
  }
  return {};
}

std::string domains_sentence(std::uint32_t losses, std::uint32_t there, const char* of_what) {
  return text("to survive the loss of ", losses, losses == 1 ? " failure domain" : " failure domains",
              " each byte must lie in ", losses + 1, " of them, and ", of_what, there == 1 ? " are in " : " are in ",
              there);
}

class PlanMaker {
 public:
  PlanMaker(std::vector<StateGroup> groups, const Positions& positions, const ProtectionPolicy& policy)
      : ring_(positions.seat_counts, policy.losses, positions.domains) {
    plan_.groups = std::move(groups);
    plan_.policy = policy;
    for (std::uint32_t position = 0; position < ring_.position_count(); ++position) {
      plan_.domains.push_back(ring_.domain_of(position));
      position_of_.insert(position_of_.end(), ring_.seats_at(position), position);
    }
  }

  Result<ProtectionPlan> plan() {
    const std::uint32_t losses = plan_.policy.losses;
    if (losses >= ring_.domain_count()) {
      const std::string why = domains_sentence(losses, ring_.domain_count(), "the nodes that train");
      if (!plan_.policy.accepts_less)
        return Error{Code::full, text(why, ": ask for less, name more domains, or let nodes of others train")};
      plan_.degraded.push_back(why);
    }
    for (std::uint32_t group = 0; group < plan_.groups.size(); ++group) add_group(GroupId(group));
    finish_plan(plan_, ring_.seat_count());
    return std::move(plan_);
  }

 private:
  // Of the group's seats as positions of a ring of their own: who else captures what a seat does.
  Ring ring_of_group(const StateGroup& group, std::uint32_t others) const {
    std::vector<std::uint32_t> domains;
    for (const Seat seat : group.seats) domains.push_back(domain_of(seat));
    return {std::vector<std::uint32_t>(group.seats.size(), 1), others, domains};
  }

  void add_group(GroupId id) {
    const StateGroup& group = plan_.groups[id.value];
    if (group.bytes == 0) return;
    if (group.seats.size() == 1 || !plan_.policy.cut_own) {
      Stripe stripe{{{id, 0, group.bytes}}, {}};
      for (const Seat seat : group.seats) stripe.at.push_back(own(seat));
      return complete(std::move(stripe));
    }
    const auto n = static_cast<std::uint32_t>(group.seats.size());
    // No more than there are domains of: a second copy in one of them would be captured for nothing.
    const std::uint32_t there = ring_of_group(group, 0).domain_count();
    const Ring ring = ring_of_group(group, std::min(plan_.policy.losses, there - 1));
    const std::uint64_t pages = (group.bytes + kPieceBytes - 1) / kPieceBytes;
    for (std::uint32_t piece = 0; piece < n; ++piece) {
      const std::uint64_t begin = pages * piece / n * kPieceBytes;
      const std::uint64_t end = std::min(group.bytes, pages * (piece + 1) / n * kPieceBytes);
      if (begin >= end) continue;
      Stripe stripe{{{id, begin, end}}, {own(group.seats[piece])}};
      for (const std::uint32_t other : ring.holders_at(piece)) stripe.at.push_back(own(group.seats[other]));
      complete(std::move(stripe));
    }
  }

  // Sends the copies that it lacks.
  void complete(Stripe stripe) {
    const std::size_t wanted = std::size_t{plan_.policy.losses} + 1;
    std::vector<std::uint32_t> domains;
    for (std::size_t i = 0; i < stripe.at.size() && domains.size() < wanted; ++i)
      if (const std::uint32_t domain = ring_.domain_of(stripe.at[i].position); std::ranges::count(domains, domain) == 0)
        domains.push_back(domain);
    const std::uint32_t feeder = stripe.at.front().shelf.of;
    const auto holders = ring_.holders_at(stripe.at.front().position);
    const auto send_to = [&](std::uint32_t i) {
      stripe.at.push_back({{ShelfKind::copy, feeder, i}, FragmentFill::sent, holders[i]});
      domains.push_back(ring_.domain_of(holders[i]));
    };
    for (std::uint32_t i = 0; i < holders.size() && domains.size() < wanted; ++i)
      if (std::ranges::count(domains, ring_.domain_of(holders[i])) == 0) send_to(i);
    // Too few domains, by consent: other nodes at least.
    for (std::uint32_t i = 0; i < holders.size() && domains.size() < wanted; ++i)
      if (is_elsewhere(stripe, holders[i])) send_to(i);
    plan_.stripes.push_back(std::move(stripe));
  }

  static bool is_elsewhere(const Stripe& stripe, std::uint32_t position) {
    return std::ranges::none_of(stripe.at, [position](const Fragment& one) { return one.position == position; });
  }
  [[nodiscard]] std::uint32_t domain_of(Seat seat) const { return ring_.domain_of(position_of_[seat.value]); }
  [[nodiscard]] Fragment own(Seat seat) const {
    return {{ShelfKind::own, seat.value, 0}, FragmentFill::captured, position_of_[seat.value]};
  }

  const Ring ring_;
  std::vector<std::uint32_t> position_of_;  // of each seat
  ProtectionPlan plan_;
};

struct PositionNeeds {
  std::uint64_t own = 0;     // bytes of one slot of all its shelves of that kind
  std::uint64_t others = 0;  // copies and parity
  std::uint64_t sent = 0;
};

std::vector<PositionNeeds> needs_of(const ProtectionPlan& plan) {
  std::vector<PositionNeeds> needs(plan.domains.size());
  for (const Shelf& shelf : plan.shelves)
    (shelf.id.kind == ShelfKind::own ? needs[shelf.position].own : needs[shelf.position].others) += shelf.bytes;
  for (const Stripe& stripe : plan.stripes)
    for (std::size_t i = 0; i < stripe.at.size(); ++i)
      if (stripe.at[i].fill == FragmentFill::sent) needs[stripe.at.front().position].sent += bytes_of(stripe, i);
  return needs;
}

Status check_budgets(const ProtectionPlan& plan, const ProtectionBudgets& budgets) {
  const std::vector<PositionNeeds> needs = needs_of(plan);
  for (std::size_t position = 0; position < needs.size(); ++position) {
    const PositionNeeds& need = needs[position];
    const std::uint64_t memory = budgets.slot_count * (need.own + need.others);
    if (memory > budgets.memory_bytes)
      return Error{Code::full,
                   text(to_text(plan.policy), " needs more memory than there is: position ", position, " has ",
                        budgets.slot_count, " slots of ", need.own, " bytes of its own and ", need.others,
                        " of others, ", memory, " in all; ", budgets.memory_bytes, " are possible")};
    if (need.sent > budgets.sent_bytes)
      return Error{Code::full,
                   text(to_text(plan.policy), " sends more than the network can take: position ", position, " sends ",
                        need.sent, " bytes in each step; ", budgets.sent_bytes, " are possible")};
  }
  return {};
}

Result<ProtectionPlan> protect_by_copies(std::vector<StateGroup> groups, const Positions& positions,
                                         const ProtectionPolicy& policy, const ProtectionBudgets& budgets) {
  PAWL_ASSIGN(ProtectionPlan plan, PlanMaker(std::move(groups), positions, policy).plan());
  PAWL_TRY(check_budgets(plan, budgets));
  return plan;
}

// One copy, or none where there is one node; the own copy whole if the memory is there, because a restore then reads nothing
// of others.
Result<ProtectionPlan> protect_automatically(const std::vector<StateGroup>& groups, const Positions& positions,
                                             ProtectionPolicy policy, const ProtectionBudgets& budgets) {
  policy.scheme = RedundancyScheme::copies;
  policy.losses = positions.seat_counts.size() > 1 ? 1 : 0;
  Result<ProtectionPlan> whole = protect_by_copies(groups, positions, policy, budgets);
  if (whole || policy.cut_own) return whole;
  policy.cut_own = true;
  return protect_by_copies(groups, positions, policy, budgets);
}

// --- Reading

bool is_in(std::span<const ShelfId> sound, const ShelfId& shelf) {
  return std::ranges::binary_search(sound, shelf);
}

std::vector<ShelfId> sorted(std::span<const ShelfId> shelves) {
  std::vector<ShelfId> all(shelves.begin(), shelves.end());
  std::ranges::sort(all);
  return all;
}

// Of one extent of a stripe. Empty: it can't be read.
std::vector<ShelfId> sources_of(const Stripe& stripe, std::size_t data, std::span<const ShelfId> sound, Seat seat) {
  const std::size_t k = stripe.data.size();
  std::vector<ShelfId> there;
  for (std::size_t i = 0; i < stripe.at.size(); ++i) {
    const ShelfId& shelf = stripe.at[i].shelf;
    if (!is_in(sound, shelf)) continue;
    const bool is_own = shelf == ShelfId{ShelfKind::own, seat.value, 0};
    if (k == 1 ? is_own : i == data) return {shelf};
    there.push_back(shelf);
  }
  if (there.size() < k) return {};
  there.resize(k);
  return there;
}

// How many domains may die, whichever they are, until fewer than k fragments are left; nullopt: there are fewer now.
std::optional<std::uint32_t> losses_borne(const Stripe& stripe, std::span<const ShelfId> sound,
                                          std::span<const std::uint32_t> domains) {
  std::vector<std::uint32_t> at;
  for (const Fragment& fragment : stripe.at)
    if (is_in(sound, fragment.shelf)) at.push_back(domains[fragment.position]);
  const std::size_t k = stripe.data.size();
  if (at.size() < k) return std::nullopt;
  std::ranges::sort(at);
  std::vector<std::size_t> in_one;  // domain
  for (std::size_t i = 0, end = 0; i < at.size(); i = end) {
    while (end < at.size() && at[end] == at[i]) ++end;
    in_one.push_back(end - i);
  }
  std::ranges::sort(in_one, std::ranges::greater{});
  std::size_t left = at.size();
  std::uint32_t losses = 0;
  for (const std::size_t count : in_one) {
    if (left - count < k) break;
    left -= count;
    ++losses;
  }
  return losses;
}

bool parse_count(std::string_view digits, std::uint32_t& out) {
  return parse_number(digits, out) && out <= kLossesMax;
}

}  // namespace

std::string digest_in_hex(std::uint64_t digest) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(digest));
  return digits;
}

Result<std::vector<StateGroup>> join_shares(std::span<const GroupShare> shares) {
  std::vector<StateGroup> groups;
  std::unordered_map<std::string_view, std::size_t> known;
  for (const GroupShare& share : shares) {
    const auto [found, is_new] = known.try_emplace(share.group, groups.size());
    if (is_new) groups.push_back({{}, share.bytes, share.digest});
    StateGroup& group = groups[found->second];
    if (group.bytes != share.bytes || group.digest != share.digest)
      return refusal(text("group '", share.group, "': seats ", group.seats.front(), " and ", share.seat,
                          " should have the same state, and have ", group.bytes, " bytes of layout ",
                          digest_in_hex(group.digest), " and ", share.bytes, " bytes of layout ",
                          digest_in_hex(share.digest)));
    group.seats.push_back(share.seat);
  }
  for (const auto& [name, index] : known) {
    std::vector<Seat>& seats = groups[index].seats;
    std::ranges::sort(seats);
    if (const auto twice = std::ranges::adjacent_find(seats); twice != seats.end())
      return refusal(text("group '", name, "': seat ", *twice, " declares it twice"));
  }
  return groups;
}

Result<ProtectionPolicy> parse_redundancy(std::string_view words) {
  const auto wrong = [words](std::string_view why) {
    return refusal(
        text('"', words, "\": ", why, "; possible are copies:K (K copies in other failure domains) and auto"));
  };
  ProtectionPolicy policy;
  const std::size_t comma = words.find(',');
  const std::string_view scheme = words.substr(0, comma);
  const std::size_t colon = scheme.find(':');
  const std::string_view name = scheme.substr(0, colon);
  const std::string_view count = colon == std::string_view::npos ? "" : scheme.substr(colon + 1);
  if (name == "copies" || name == "cut") {
    policy.cut_own = name == "cut";
    if (!parse_count(count, policy.losses))
      return wrong(text("expected a number up to ", kLossesMax, " behind ", name, ":"));
    if (policy.cut_own && policy.losses == 0) return wrong("cut:0 would keep one copy of nothing");
  } else if (name == "raim5" && colon == std::string_view::npos) {
    policy.scheme = RedundancyScheme::raim5;
    policy.cut_own = true;
  } else if (name == "rs") {
    policy.scheme = RedundancyScheme::reed_solomon;
    const std::size_t plus = count.find('+');
    if (plus == std::string_view::npos || !parse_count(count.substr(0, plus), policy.data_count) ||
        !parse_count(count.substr(plus + 1), policy.losses) || policy.data_count == 0 || policy.losses == 0)
      return wrong(text("expected rs:K+M, each from 1 to ", kLossesMax));
  } else if (name == "auto" && colon == std::string_view::npos) {
    policy.scheme = RedundancyScheme::automatic;
  } else {
    return wrong("no such policy");
  }
  if (comma == std::string_view::npos) return policy;
  const std::string_view own = words.substr(comma + 1);
  if (own != "own=whole" && own != "own=cut") return wrong("expected own=whole or own=cut behind the comma");
  policy.cut_own = own == "own=cut";
  return policy;
}

std::string to_text(const ProtectionPolicy& policy) {
  switch (policy.scheme) {
    case RedundancyScheme::copies:
      return text(policy.cut_own && policy.losses > 0 ? "cut:" : "copies:", policy.losses,
                  policy.cut_own && policy.losses == 0 ? ",own=cut" : "");
    case RedundancyScheme::raim5:
      return policy.cut_own ? "raim5" : "raim5,own=whole";
    case RedundancyScheme::reed_solomon:
      return text("rs:", policy.data_count, '+', policy.losses, policy.cut_own ? ",own=cut" : "");
    case RedundancyScheme::automatic:
      return policy.cut_own ? "auto,own=cut" : "auto";
  }
  return "?";
}

void finish_plan(ProtectionPlan& plan, std::uint32_t seat_count) {
  plan.groups_of.resize(seat_count);
  plan.stripes_of.resize(plan.groups.size());
  plan.feeds.resize(seat_count);
  for (std::uint32_t group = 0; group < plan.groups.size(); ++group)
    for (const Seat seat : plan.groups[group].seats) plan.groups_of[seat.value].emplace_back(group);
  std::vector<Shelf> shelves;
  for (std::uint32_t index = 0; index < plan.stripes.size(); ++index) {
    const Stripe& stripe = plan.stripes[index];
    for (const StreamExtent& extent : stripe.data) {
      std::vector<std::uint32_t>& stripes = plan.stripes_of[extent.group.value];
      if (stripes.empty() || stripes.back() != index) stripes.push_back(index);
    }
    for (std::size_t i = 0; i < stripe.at.size(); ++i) {
      const Fragment& fragment = stripe.at[i];
      shelves.push_back({fragment.shelf, fragment.position, bytes_of(stripe, i)});
      if (fragment.fill == FragmentFill::captured || fragment.shelf.kind == ShelfKind::own) continue;
      for (std::size_t from = 0; from < stripe.data.size(); ++from)
        if (const ShelfId& feeder = stripe.at[from].shelf; feeder.kind == ShelfKind::own)
          plan.feeds[feeder.of].push_back(fragment.shelf);
    }
  }
  std::ranges::stable_sort(shelves, {}, &Shelf::id);
  for (const Shelf& shelf : shelves) {
    if (plan.shelves.empty() || plan.shelves.back().id != shelf.id)
      plan.shelves.push_back(shelf);
    else
      plan.shelves.back().bytes += shelf.bytes;
  }
  for (std::vector<ShelfId>& fed : plan.feeds) {
    std::ranges::sort(fed);
    fed.erase(std::unique(fed.begin(), fed.end()), fed.end());
  }
  plan.digest = digest_of(plan);
}

Result<ProtectionPlan> protect(std::vector<StateGroup> groups, const Positions& positions,
                               const ProtectionPolicy& policy, const ProtectionBudgets& budgets) {
  if (!positions.domains.empty() && positions.domains.size() != positions.seat_counts.size())
    return refusal(
        text(positions.domains.size(), " failure domains are named for ", positions.seat_counts.size(), " positions"));
  PAWL_TRY(check_groups(groups,
                        std::accumulate(positions.seat_counts.begin(), positions.seat_counts.end(), std::uint32_t{0})));
  switch (policy.scheme) {
    case RedundancyScheme::copies:
      return protect_by_copies(std::move(groups), positions, policy, budgets);
    case RedundancyScheme::automatic:
      return protect_automatically(groups, positions, policy, budgets);
    case RedundancyScheme::raim5:
    case RedundancyScheme::reed_solomon:
      break;
  }
  return refusal(text(to_text(policy), ": parity is not built yet; use copies:", policy.losses));
}

Result<std::vector<StreamRead>> sources(const ProtectionPlan& plan, std::span<const ShelfId> sound, Seat seat) {
  if (seat.value >= plan.groups_of.size()) return refusal(text("seat ", seat, " is not in the plan"));
  const std::vector<ShelfId> there = sorted(sound);
  std::vector<StreamRead> reads;
  for (const GroupId group : plan.groups_of[seat.value])
    for (const std::uint32_t index : plan.stripes_of[group.value]) {
      const Stripe& stripe = plan.stripes[index];
      for (std::size_t i = 0; i < stripe.data.size(); ++i) {
        const StreamExtent& extent = stripe.data[i];
        if (extent.group != group) continue;
        std::vector<ShelfId> from = sources_of(stripe, i, there, seat);
        if (from.empty()) {
          std::string places;
          for (const Fragment& fragment : stripe.at)
            places += text(places.empty() ? "" : ", ", name_of(fragment.shelf));
          return Error{Code::not_found, text("seat ", seat, ": bytes ", extent.begin, " to ", extent.end, " of group ",
                                             group, " can't be read: too few are sound of ", places)};
        }
        reads.push_back({extent, std::move(from)});
      }
    }
  return reads;
}

Survival survival_of(const ProtectionPlan& plan, std::span<const ShelfId> sound,
                     std::span<const std::uint32_t> domains) {
  const std::vector<ShelfId> there = sorted(sound);
  Survival survival{std::numeric_limits<std::uint32_t>::max(), true, {}};
  std::vector<bool> weak(plan.groups.size());
  for (const Stripe& stripe : plan.stripes) {
    const std::optional<std::uint32_t> borne = losses_borne(stripe, there, domains);
    const std::uint32_t losses = borne.value_or(0);
    const bool weaker = losses < survival.domains || (survival.whole && !borne);
    if (weaker) weak.assign(weak.size(), false);
    if (weaker || (losses == survival.domains && borne.has_value() == survival.whole))
      for (const StreamExtent& extent : stripe.data) weak[extent.group.value] = true;
    survival.domains = std::min(survival.domains, losses);
    survival.whole = survival.whole && borne.has_value();
  }
  if (plan.stripes.empty()) survival.domains = 0;
  for (std::size_t group = 0; group < weak.size(); ++group)
    if (weak[group])
      survival.weakest.insert(survival.weakest.end(), plan.groups[group].seats.begin(), plan.groups[group].seats.end());
  std::ranges::sort(survival.weakest);
  const auto twice = std::ranges::unique(survival.weakest);
  survival.weakest.erase(twice.begin(), twice.end());
  return survival;
}

}  // namespace pawl::job
