#include "job/recovery/health.h"

#include <algorithm>

#include "base/text.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

Duration clock_apart(const HealthPeer& peer) {
  const Duration apart = peer.clock_ahead < Duration::zero() ? -peer.clock_ahead : peer.clock_ahead;
  return std::max(apart - peer.took, Duration::zero());
}

// From what the peers say; empty: nothing is wrong.
std::string why_apart(const std::vector<HealthPeer>& answered) {
  const auto near = [](const HealthPeer& peer) { return clock_apart(peer) <= kClockApartMax; };
  if (answered.empty() || std::ranges::any_of(answered, near)) return {};
  const HealthPeer& peer = answered.front();
  return text("its clock is ", clock_apart(peer) / 1s, " s ",
              peer.clock_ahead > Duration::zero() ? "behind" : "ahead of", " that of node ", peer.node,
              ": set both by NTP");
}

}  // namespace

std::optional<Unfit> judge_health(const HealthFacts& facts, const Deadlines& deadlines) {
  if (!facts.arena) return Unfit{text("its shared memory: ", facts.arena.error().what), kHealthAgain};
  // A full disk keeps nobody out: whoever serves a seat does without, and it fills for all spares of a machine at once.
  if (!facts.disk && facts.disk.error().code != Code::full)
    return Unfit{text("its run directory: ", facts.disk.error().what), kHealthAgain};
  if (!facts.probe) return Unfit{text("--health-check: ", facts.probe.error().what), kHealthAgain};
  std::vector<HealthPeer> answered = facts.peers;
  std::erase_if(answered, [](const HealthPeer& peer) { return !peer.answered; });
  if (answered.empty() && !facts.peers.empty()) {
    const HealthPeer& peer = facts.peers.front();
    return Unfit{text("it can't reach the members: node ", peer.node, ": ", peer.answered.error().what),
                 std::max<Duration>(deadlines.silence, 1s)};  // who was cut off is to be back soon after
  }
  if (std::string why = why_apart(answered); !why.empty()) return Unfit{std::move(why), kHealthAgain};
  return std::nullopt;
}

}  // namespace pawl::job
