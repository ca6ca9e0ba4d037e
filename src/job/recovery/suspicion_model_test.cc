// Small jobs around the shipped suspicion, in virtual time: their nodes are divided, cut off from the control, stopped or
// dead in every way, and healed. Each node sees of the control what it could last read, and of the others what it hears.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/text.h"
#include "job/recovery/attention.h"
#include "job/recovery/duties.h"
#include "job/recovery/members.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {
namespace {

using namespace std::chrono_literals;

constexpr Duration kTick = 100ms;

NodeLife life_of(std::uint32_t node) {
  return {NodeId(node), Incarnation(1)};
}

// Who reaches whom: two sides, A (false) and B (true), for data and for the control.
struct Cut {
  std::set<std::uint32_t> side_b;
  bool data = false;       // between the sides
  bool control_a = false;  // A is cut off from the control
  bool control_b = false;  // B is
  bool stopped_b = false;  // B's nodes stand still: neither hear nor speak nor act
  bool refuses_b = false;  // B's nodes are dead, and their addresses say so
  [[nodiscard]] bool has(std::uint32_t node) const { return side_b.count(node) > 0; }
};

class World {
 public:
  World(std::uint32_t members, std::uint32_t spares) {
    state_.generation = Generation(1);
    state_.phase = JobPhase::running;
    state_.ran = Generation(1);
    state_.leader = life_of(0);
    for (std::uint32_t i = 0; i < members; ++i) state_.seats.push_back({Seat(i), life_of(i), text("host", i), 0});
    for (std::uint32_t i = 0; i < members + spares; ++i) {
      nodes_[i].life = life_of(i);
      nodes_[i].state = state_;
      renew(i);
    }
    for (auto& [i, node] : nodes_) look(i, node);
    run(10s, {});
    EXPECT_TRUE(evicted().empty());
  }

  void run(Duration time, const Cut& cut) {
    cut_ = cut;
    for (const Duration end = now_ + time; now_ < end;) {
      now_ += kTick;
      for (auto& [i, node] : nodes_)
        if (!node.fenced && !stands_still(i)) act(i, node);
      expire();
    }
  }

  // Its pawld dies and another one begins, which knows nothing yet.
  void restart(std::uint32_t i) {
    nodes_[i].attention = {};
    nodes_[i].contacts.clear();
    nodes_[i].last_tick = nodes_[i].renewed_at = now_;
  }

  [[nodiscard]] std::set<std::uint32_t> evicted() const {
    std::set<std::uint32_t> out;
    for (const NodeLife& life : state_.evicted) out.insert(life.node.value);
    return out;
  }
  [[nodiscard]] std::set<std::uint32_t> fenced() const {
    std::set<std::uint32_t> out;
    for (const auto& [i, node] : nodes_)
      if (node.fenced) out.insert(i);
    return out;
  }
  [[nodiscard]] bool ended() const { return state_.phase == JobPhase::failed; }
  [[nodiscard]] const Deadlines& deadlines() const { return deadlines_; }

 private:
  struct Node {
    NodeLife life;
    JobState state;  // as it last read them
    Registrations registrations;
    std::vector<Accusation> accusations;
    std::map<NodeLife, Contact> contacts;
    Attention attention;
    Duration renewed_at{};
    Duration last_tick{};
    Duration orphaned_since{};
    bool fenced = false;
  };

  [[nodiscard]] bool stands_still(std::uint32_t i) const { return (cut_.stopped_b || cut_.refuses_b) && cut_.has(i); }
  [[nodiscard]] bool reaches_control(std::uint32_t i) const { return !(cut_.has(i) ? cut_.control_b : cut_.control_a); }
  [[nodiscard]] bool hears(std::uint32_t i, std::uint32_t other) const {
    return !stands_still(other) && !nodes_.at(other).fenced && !(cut_.data && cut_.has(i) != cut_.has(other));
  }

  void renew(std::uint32_t i) {
    Node& node = nodes_[i];
    node.renewed_at = now_ - deadlines_.lease / 4 * static_cast<int>(i % 4) / 4;  // each at another moment
    leases_[i] = node.renewed_at + deadlines_.lease;
    control_.nodes[node.life.node].life = node.life;
    control_.gone_since.erase(node.life.node);
  }
  void expire() {
    for (const auto& [i, end] : leases_)
      if (end < now_ && control_.nodes.erase(NodeId(i)) > 0) control_.gone_since[NodeId(i)] = now_;
  }

  void look(std::uint32_t i, Node& node) {
    node.attention.ticked(now_, deadlines_);
    node.last_tick = now_;
    if (reaches_control(i)) {
      node.state = state_;
      node.accusations = accusations_;
      for (const auto& [id, gone] : control_.gone_since) node.registrations.gone_since.try_emplace(id, now_);
      std::erase_if(node.registrations.gone_since,
                    [this](const auto& entry) { return control_.nodes.count(entry.first) > 0; });
      node.registrations.nodes = control_.nodes;
    }
    std::map<NodeLife, Contact> contacts;
    for (const Member& member : watched_by(node.state, node.registrations, node.life)) {
      const auto known = node.contacts.find(member.life);
      Contact contact = known != node.contacts.end() ? known->second : Contact{member.life, now_, now_, false};
      const std::uint32_t other = member.life.node.value;
      if (hears(i, other)) contact.heard = contact.heard_boottime = now_;
      if (cut_.refuses_b && cut_.has(other) && !cut_.has(i)) contact.refused = true;
      contacts[member.life] = contact;
    }
    node.contacts = std::move(contacts);
  }

  void act(std::uint32_t i, Node& node) {
    const bool stalled = now_ - node.last_tick > deadlines_.silence;
    if (now_ - node.renewed_at > deadlines_.lease && fence(node, stalled)) return;
    if (now_ - node.renewed_at >= deadlines_.lease / 4) {
      if (reaches_control(i)) {
        node.renewed_at = now_;
        leases_[i] = now_ + deadlines_.lease;
        control_.nodes[node.life.node].life = node.life;
        control_.gone_since.erase(node.life.node);
        node.attention.control_answered(now_, now_, deadlines_);
      } else {
        node.attention.control_failed();
      }
    }
    look(i, node);
    if (is_evicted(node.state, node.life)) {
      node.fenced = true;
      return;
    }
    if (reaches_control(i)) write(node);
  }

  // Those that keep a link to us are heard, too.
  [[nodiscard]] std::vector<NodeId> beating(const Node& node) const {
    std::vector<NodeId> out;
    for (const auto& [other, them] : nodes_)
      if (them.contacts.count(node.life) > 0 && hears(node.life.node.value, other)) out.push_back(them.life.node);
    return out;
  }

  bool fence(Node& node, bool stalled) {
    FenceView view;
    view.now_boottime = now_;
    view.lease_renewed_boottime = node.renewed_at;
    view.last_tick_boottime = stalled ? node.last_tick : now_;
    std::vector<Contact> contacts;
    for (const auto& [life, contact] : node.contacts) contacts.push_back(contact);
    std::map<NodeId, Duration> beats;
    for (const NodeId other : beating(node)) beats[other] = now_;
    count_heard(view, links_of(node.state, node.registrations, node.life), contacts, beats, deadlines_);
    node.fenced = must_fence(view, deadlines_);
    return node.fenced;
  }

  void write(Node& node) {
    std::vector<Contact> contacts;
    std::vector<Cause> causes;
    for (const auto& [life, contact] : node.contacts) {
      contacts.push_back(contact);
      if (contact.refused && is_survivor(node.state, life))
        causes.push_back({FaultKind::node_lost, life, std::nullopt, "refused", 0});
    }
    const SuspicionView view{node.state, node.registrations, node.accusations,
                             contacts,   node.life,          node.attention.since(now_, deadlines_),
                             now_,       beating(node)};
    const std::vector<NodeLife> accused = accused_by(view, deadlines_);
    std::erase_if(accusations_, [&](const Accusation& a) { return a.accuser == node.life; });
    for (const NodeLife& victim : accused) accusations_.push_back({victim, node.life});
    if (!is_survivor(state_, node.life)) {
      const Orphaned orphaned =
          decide_orphaned(node.state, node.registrations, contacts, node.life, node.orphaned_since, now_, deadlines_);
      node.orphaned_since = orphaned.since;
      if (orphaned.move) state_ = orphaned.move->next;
      return;
    }
    for (const Cause& cause : convicted(view, deadlines_)) causes.push_back(cause);
    const Decision decision = open_generation(state_, causes, node.life);
    const StateMove* move = std::get_if<StateMove>(&decision);
    if (causes.empty() || move == nullptr) return;
    state_ = move->next;
    accusations_.clear();
  }

  const Deadlines deadlines_ = derive_deadlines(3s);
  Duration now_ = 1000s;
  JobState state_;
  Registrations control_;
  std::map<std::uint32_t, Duration> leases_;
  std::vector<Accusation> accusations_;
  std::map<std::uint32_t, Node> nodes_;
  Cut cut_;
};

using Nodes = std::set<std::uint32_t>;

// Every side B of jobs of 2 to 5 members; of 9 every rack of neighbours.
template <class Try>
void for_each_side(Try&& attempt) {
  for (const std::uint32_t members : {2u, 3u, 4u, 5u}) {
    for (std::uint32_t bits = 1; bits < (1u << members); ++bits) {
      Nodes side;
      for (std::uint32_t i = 0; i < members; ++i)
        if ((bits >> i & 1) != 0) side.insert(i);
      attempt(members, side);
    }
  }
  for (std::uint32_t first = 0; first < 9; ++first) {
    Nodes side;
    for (std::uint32_t length = 1; length < 9; ++length) {
      side.insert((first + length - 1) % 9);
      attempt(9u, side);
    }
  }
}

std::string named(std::uint32_t members, const Nodes& side) {
  std::string out = text(members, " members, side B:");
  for (const std::uint32_t node : side) out += text(" ", node);
  return out;
}

TEST(SuspicionModel, WhoeverLosesOnlyTheControlIsNotEvictedAndDoesNotFence) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    for (const std::uint32_t spares : {0u, 2u}) {
      World world(members, spares);
      world.run(30s, {.side_b = side, .control_b = true});
      world.run(15s, {});
      EXPECT_EQ(world.evicted(), Nodes{}) << named(members, side) << " spares " << spares;
      EXPECT_EQ(world.fenced(), Nodes{}) << named(members, side);
      EXPECT_FALSE(world.ended());
    }
  });
}

TEST(SuspicionModel, AControlThatWasAwayEvictsNobody) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (side.size() != 1) return;
    for (const Duration away : {Duration(1s), Duration(4s), Duration(6s), Duration(10s), Duration(60s)}) {
      World world(members, 1);
      world.run(away, {.side_b = {}, .control_a = true, .control_b = true});
      world.run(15s, {});
      EXPECT_EQ(world.evicted(), Nodes{}) << named(members, side);
      EXPECT_EQ(world.fenced(), Nodes{}) << named(members, side);
    }
  });
}

// One node's pawld is killed while the control is away: it can't join before the control is back, and is silent.
TEST(SuspicionModel, WhoIsSilentBecauseTheControlWasAwayIsNotEvicted) {
  for (const std::uint32_t members : {2u, 3u, 4u, 5u, 9u}) {
    World world(members, 1);
    world.run(1s, {.side_b = {}, .control_a = true, .control_b = true});
    world.run(9s, {.side_b = {1}, .control_a = true, .control_b = true, .stopped_b = true});
    world.restart(1);
    world.run(500ms, {.side_b = {1}, .control_b = true});  // it joins last
    world.run(15s, {});
    EXPECT_EQ(world.evicted(), Nodes{}) << members;
  }
}

TEST(SuspicionModel, ANodeWithoutDataLinksGoesAndTakesNobodyWithIt) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (side.size() != 1) return;
    World world(members, 1);
    world.run(world.deadlines().silence + 500ms, {.side_b = side, .data = true});
    EXPECT_EQ(world.evicted(), side) << named(members, side);
    World alone(members, 0);  // of two nobody can tell who has lost his cable
    alone.run(30s, {.side_b = side, .data = true});
    EXPECT_EQ(alone.evicted(), members == 2 ? Nodes{} : side) << named(members, side);
  });
}

// When all of a side that is gone are replaced. One more silence: who was watched by the others of the side only is looked
// at after they are gone. In a larger job there may be one behind those: once more.
Duration within(const Deadlines& deadlines, std::uint32_t members) {
  return deadlines.lease + deadlines.absence + deadlines.silence * (members > 5 ? 2 : 1) + 2s;
}

TEST(SuspicionModel, ASmallerSideWithTheControlAndWithoutDataLinksIsReplaced) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (2 * side.size() >= members || (members == 9 && side.size() > 3)) return;
    World world(members, 1);
    world.run(within(world.deadlines(), members), {.side_b = side, .data = true});
    EXPECT_EQ(world.evicted(), side) << named(members, side);
  });
}

TEST(SuspicionModel, NobodyIsEvictedOfASideThatIsMoreThanHalf) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    for (const bool control_b : {false, true}) {
      World world(members, 0);
      world.run(30s, {.side_b = side, .data = true, .control_b = control_b});
      for (std::uint32_t i = 0; i < members; ++i) {
        const bool in_b = side.count(i) > 0;
        const bool in_larger = 2 * (in_b ? side.size() : members - side.size()) > members;
        if (in_larger) {
          EXPECT_EQ(world.evicted().count(i), 0u) << named(members, side) << " control_b " << control_b;
          EXPECT_EQ(world.fenced().count(i), 0u) << named(members, side) << " control_b " << control_b;
        }
      }
      world.run(20s, {});
      EXPECT_FALSE(world.ended());
    }
  });
}

TEST(SuspicionModel, ASmallerSideWithoutTheControlIsReplacedAndFencesItself) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (2 * side.size() > members) return;
    World world(members, 1);
    const Deadlines& deadlines = world.deadlines();
    world.run(within(deadlines, members), {.side_b = side, .data = true, .control_b = true});
    EXPECT_EQ(world.evicted(), side) << named(members, side);
    if (members == 9) return;  // not all are neighbours: a rack can't count who is left
    EXPECT_EQ(world.fenced(), side) << named(members, side);
  });
}

TEST(SuspicionModel, WhoIsStoppedIsReplacedWithinTheDeadlines) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (2 * side.size() > members) return;
    World world(members, 1);
    const Deadlines& deadlines = world.deadlines();
    const bool by_silence = side.size() == 1 && members > 1;
    world.run(by_silence ? deadlines.silence + 500ms : within(deadlines, members), {.side_b = side, .stopped_b = true});
    EXPECT_EQ(world.evicted(), side) << named(members, side);
    world.run(10s, {});  // it wakes
    EXPECT_EQ(world.evicted(), side) << named(members, side);
    EXPECT_EQ(world.fenced(), side) << named(members, side);
  });
}

TEST(SuspicionModel, OfTwoWithoutASpareTheLeaseDecides) {
  for (const std::uint32_t victim : {0u, 1u}) {
    World world(2, 0);
    const Deadlines& deadlines = world.deadlines();
    world.run(deadlines.lease - 500ms, {.side_b = {victim}, .stopped_b = true});
    EXPECT_EQ(world.evicted(), Nodes{});
    world.run(deadlines.absence + 1500ms, {.side_b = {victim}, .stopped_b = true});
    EXPECT_EQ(world.evicted(), Nodes{victim});
  }
}

TEST(SuspicionModel, ARefusedAddressIsEnoughForAnyNumber) {
  for_each_side([](std::uint32_t members, const Nodes& side) {
    if (side.size() == members) return;
    World world(members, 1);
    world.run(5s, {.side_b = side, .refuses_b = true});
    Nodes seen = world.evicted();
    EXPECT_EQ(seen, side) << named(members, side);
  });
}

TEST(SuspicionModel, ASpareTakesOverOnlyWhoIsProvenDead) {
  for (const std::uint32_t members : {1u, 2u, 4u}) {
    Nodes all;
    for (std::uint32_t i = 0; i < members; ++i) all.insert(i);
    World cut_off(members, 2);
    cut_off.run(60s, {.side_b = all, .data = true, .control_b = true});
    EXPECT_EQ(cut_off.evicted(), Nodes{}) << members;
    cut_off.run(10s, {});
    EXPECT_EQ(cut_off.evicted(), Nodes{}) << members;
    World dead(members, 2);
    dead.run(15s, {.side_b = all, .refuses_b = true});
    EXPECT_EQ(dead.evicted(), all) << members;
  }
}

}  // namespace
}  // namespace pawl::job
