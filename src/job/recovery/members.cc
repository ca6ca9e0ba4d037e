#include "job/recovery/members.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "base/text.h"
#include "job/redundancy/failure_domains.h"

namespace pawl::job {
namespace {

constexpr std::size_t kNamedMax = 8;

// Of the seats at one position.
void add_shared(std::vector<SharedDomain>& all, std::span<const Member> seats, const Ring& ring,
                std::uint32_t position) {
  std::vector<const Member*> copies = {&seats[ring.first_seat(position).value]};
  for (const std::uint32_t holder : ring.holders_at(position)) copies.push_back(&seats[ring.first_seat(holder).value]);
  for (std::size_t i = 0; i < copies.size(); ++i)
    for (std::size_t j = i + 1; j < copies.size(); ++j)
      if (!copies[i]->domain.empty() && copies[i]->domain == copies[j]->domain)
        all.push_back({position, copies[i]->life, copies[j]->life, copies[i]->domain});
}

}  // namespace

Roster::Roster(const JobState& state) : evicted_(state.evicted), gone_(state.evicted), members_(lives_of(state.seats)) {
  gone_.insert(gone_.end(), state.departed.begin(), state.departed.end());
  std::ranges::sort(evicted_);
  std::ranges::sort(gone_);
  std::ranges::copy_if(members_, std::back_inserter(survivors_),
                       [this](NodeLife life) { return !std::ranges::binary_search(evicted_, life); });
  for (const Member& member : state.seats)
    if (places_.empty() || places_.back().life != member.life) places_.push_back({member.life, member.seat});
  std::ranges::sort(places_, {}, [](const Place& place) { return std::pair(place.life, place.lowest); });
  reads_from_evicted_ = std::ranges::any_of(
      state.sources, [this](const Source& source) { return std::ranges::binary_search(evicted_, source.from); });
}

std::optional<Seat> Roster::lowest_seat_of(NodeLife life) const {
  const auto place = std::ranges::lower_bound(places_, life, {}, &Place::life);
  return place != places_.end() && place->life == life ? std::optional(place->lowest) : std::nullopt;
}

std::optional<Seat> Roster::lowest_seat_of(NodeId node) const {
  std::optional<Seat> lowest;
  auto place = std::ranges::lower_bound(places_, NodeLife{node, Incarnation(0)}, {}, &Place::life);
  for (; place != places_.end() && place->life.node == node; ++place)
    lowest = lowest ? std::min(*lowest, place->lowest) : place->lowest;
  return lowest;
}

bool Roster::is_evicted(NodeLife life) const {
  return std::ranges::binary_search(gone_, life);
}

bool Roster::is_survivor(NodeLife life) const {
  return is_member(life) && !std::ranges::binary_search(evicted_, life);
}

bool Roster::has_survivor(NodeId node) const {
  auto place = std::ranges::lower_bound(places_, NodeLife{node, Incarnation(0)}, {}, &Place::life);
  for (; place != places_.end() && place->life.node == node; ++place)
    if (!std::ranges::binary_search(evicted_, place->life)) return true;
  return false;
}

Ring ring_of(std::span<const Member> seats, std::uint32_t replica_count) {
  std::vector<std::uint32_t> counts;
  std::vector<std::string> domains;
  bool any_named = false;
  for (std::size_t seat = 0; seat < seats.size(); ++seat) {
    if (seat == 0 || seats[seat].life != seats[seat - 1].life) {
      counts.push_back(0);
      domains.push_back(seats[seat].plan_domain);
      any_named = any_named || !domains.back().empty();
    }
    ++counts.back();
  }
  return any_named ? Ring(counts, replica_count, numbers_of_domains(domains)) : Ring(counts, replica_count);
}

std::vector<SharedDomain> shared_domains(std::span<const Member> seats, const Ring& ring) {
  std::vector<SharedDomain> all;
  if (std::ranges::all_of(seats, [](const Member& member) { return member.domain.empty(); })) return all;
  for (std::uint32_t position = 0; position < ring.position_count(); ++position) add_shared(all, seats, ring, position);
  return all;
}

std::vector<SharedDomain> shared_domains_of(std::span<const Member> seats, const Ring& ring, std::uint32_t position) {
  std::vector<SharedDomain> all;
  add_shared(all, seats, ring, position);
  return all;
}

std::vector<SharedDomain> shared_domains_at(std::span<const Member> seats, const Ring& ring, std::uint32_t position) {
  std::vector<SharedDomain> all = shared_domains_of(seats, ring, position);
  std::set<std::uint32_t> owners;
  for (const Seat ward : ring.wards_of(position)) owners.insert(ring.position_of(ward));
  const NodeLife life = seats[ring.first_seat(position).value].life;
  for (const std::uint32_t owner : owners) {
    std::ranges::copy_if(shared_domains_of(seats, ring, owner), std::back_inserter(all),
                         [life](const SharedDomain& one) { return one.one == life || one.other == life; });
  }
  return all;
}

std::string to_text(const SharedDomain& shared, const Ring& ring) {
  const Seat first = ring.first_seat(shared.position);
  const std::uint32_t count = ring.seats_at(shared.position);
  return text(count == 1 ? text("seat ", first) : text("seats ", first, "-", first.value + count - 1),
              ": copies at nodes ", shared.one.node, " and ", shared.other.node, " are both in failure domain ",
              shared.domain);
}

Ring ring_of(const JobSpec& spec) {
  return Ring(std::vector(spec.node_count, spec.seats_per_node), spec.replica_count);
}

std::vector<NodeLife> lives_of(const std::vector<Member>& seats) {
  std::vector<NodeLife> lives;
  for (const Member& member : seats)
    if (lives.empty() || lives.back() != member.life) lives.push_back(member.life);
  std::vector<NodeLife> sorted = lives;
  std::ranges::sort(sorted);
  if (std::ranges::adjacent_find(sorted) == sorted.end()) return lives;  // the seats of each lie together, as usual
  std::set<NodeLife> known;
  std::erase_if(lives, [&known](NodeLife life) { return !known.insert(life).second; });
  return lives;
}

std::vector<NodeLife> survivors_of(const JobState& state) {
  return Roster(state).survivors();
}

std::vector<Seat> seats_of(const JobState& state, NodeLife life) {
  std::vector<Seat> seats;
  for (const Member& member : state.seats)
    if (member.life == life) seats.push_back(member.seat);
  return seats;
}

std::optional<Seat> lowest_seat_of(const JobState& state, NodeLife life) {
  for (const Member& member : state.seats)
    if (member.life == life) return member.seat;
  return std::nullopt;
}

std::optional<Seat> seat_after(std::span<const Member> seats, Seat before) {
  const auto found = std::ranges::find(seats, before, [](const Member& member) { return before_of(member); });
  return found != seats.end() ? std::optional(found->seat) : std::nullopt;
}

bool is_survivor(const JobState& state, NodeLife life) {
  return lowest_seat_of(state, life).has_value() && !contains(state.evicted, life);
}

bool brought_progress(const JobState& state, const Attempt& attempt) {
  return attempt.resume < state.resume;
}

std::string numbers_of(const std::vector<NodeLife>& lives) {
  std::string out;
  for (const NodeLife& life : lives) out += text(out.empty() ? "" : ",", life.node);
  return out;
}

std::string numbers_of(const std::vector<Seat>& seats) {
  std::string out;
  for (const Seat seat : seats) out += text(out.empty() ? "" : ",", seat);
  return out;
}

std::string some_numbers_of(std::span<const NodeLife> lives) {
  const auto first = lives.first(std::min(lives.size(), kNamedMax));
  const std::string named = numbers_of(std::vector(first.begin(), first.end()));
  return lives.size() > kNamedMax ? text(named, " and ", lives.size() - kNamedMax, " more") : named;
}

std::string joined(const std::vector<std::string>& sentences, std::string_view between) {
  std::string out;
  for (const std::string& sentence : sentences) out += text(out.empty() ? "" : between, sentence);
  return out;
}

JobState failed(const JobState& state, NodeLife self, std::string verdict) {
  JobState next = state;
  next.phase = JobPhase::failed;
  next.leader = self;
  next.waiting.clear();
  next.verdict = std::move(verdict);
  return next;
}

}  // namespace pawl::job
