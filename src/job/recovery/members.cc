#include "job/recovery/members.h"

#include <set>

#include "base/text.h"

namespace pawl::job {
namespace {

constexpr std::size_t kNamedMax = 8;

}  // namespace

std::vector<NodeLife> lives_of(const std::vector<Member>& seats) {
  std::vector<NodeLife> lives;
  std::set<NodeLife> known;
  for (const Member& member : seats)
    if ((lives.empty() || lives.back() != member.life) && known.insert(member.life).second)
      lives.push_back(member.life);
  return lives;
}

std::vector<NodeLife> survivors_of(const JobState& state) {
  std::vector<NodeLife> lives = lives_of(state.seats);
  std::erase_if(lives, [&state](NodeLife life) { return contains(state.evicted, life); });
  return lives;
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

std::string some_numbers_of(const std::vector<NodeLife>& lives) {
  if (lives.size() <= kNamedMax) return numbers_of(lives);
  return text(numbers_of(std::vector(lives.begin(), lives.begin() + kNamedMax)), " and ", lives.size() - kNamedMax,
              " more");
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
