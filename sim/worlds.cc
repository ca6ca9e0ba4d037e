#include "worlds.h"

#include <algorithm>
#include <memory>
#include <random>

#include "base/contains.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster.h"

namespace pawl::sim {

using namespace std::chrono_literals;

namespace {

std::string text_of(const std::vector<Seat>& seats) {
  std::string out;
  for (const Seat seat : seats) out += text(out.empty() ? "" : ",", seat);
  return out;
}

std::vector<Seat> as_numbered(std::size_t count) {
  std::vector<Seat> seats;
  for (std::uint32_t seat = 0; seat < count; ++seat) seats.emplace_back(seat);
  return seats;
}

class WorldChanger : public std::enable_shared_from_this<WorldChanger> {
 public:
  WorldChanger(Cluster& cluster, std::function<void()> on_end)
      : cluster_(cluster), on_end_(std::move(on_end)), random_(cluster.options.seed * 0x9e3779b97f4a7c15ull + 71) {}
  void begin() {
    left_ = 1 + below(3);
    later(Duration(static_cast<std::int64_t>(below(3'000'000'000))), [this] { next(); });
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void later(Duration delay, std::function<void()> what) {
    cluster_.scheduler.after(delay, [self = shared_from_this(), what = std::move(what)] { what(); });
  }
  void end() {
    cluster_.worlds.give_up();
    on_end_();
  }
  void next() {
    if (cluster_.is_over()) return;
    if (!cluster_.is_well()) return later(20ms, [this] { next(); });
    ask_for(drawn());
  }
  void ask_for(std::vector<Seat> world) {
    log_warn("sim_world_wished", "before", text_of(world), "instead_of", text_of(cluster_.worlds.now()));
    changes_ = cluster_.worlds.changes();
    cluster_.worlds.wish(std::move(world));
    killed_ = false;
    if (below(4) != 0) kill_a_trainer();
    wait(cluster_.scheduler.now() + 200ms + Duration(static_cast<std::int64_t>(below(8'000'000'000))));
  }
  // Until the job has it; or too long, since nothing happens, or it is refused.
  void wait(Duration until) {
    if (cluster_.is_over()) return;
    if (cluster_.worlds.changes() > changes_) {
      if (--left_ == 0) return end();
      // Right away, or when all is well again.
      if (below(2) == 0) return later(Duration(static_cast<std::int64_t>(below(300'000'000))), [this] { back(); });
      return next();
    }
    if (cluster_.scheduler.now() < until) return later(5ms, [this, until] { wait(until); });
    if (killed_ || !cluster_.is_well()) return end();
    kill_a_trainer();
    wait(cluster_.scheduler.now() + 3s);
  }
  void back() {
    if (cluster_.is_over()) return;
    ask_for(cluster_.worlds.first());
  }
  void kill_a_trainer() {
    killed_ = true;
    const std::vector<job::Member>& seats = cluster_.state()->seats;
    const job::Member& member = seats[below(seats.size())];
    Node* const node = cluster_.nodes[member.life.node.value].get();
    if (Process* trainer = node->trainer(member.local_index)) cluster_.machines.kill(*trainer, "killed by SIGKILL");
  }
  // Nodes in another order, and those of a node; and some that vanish, as long as enough nodes stay for the copies.
  std::vector<Seat> drawn() {
    const std::vector<Seat>& now = cluster_.worlds.now();
    const std::vector<job::Member>& seats = cluster_.state()->seats;
    std::vector<std::vector<Seat>> nodes;
    for (std::size_t seat = 0; seat < now.size(); ++seat) {
      if (seat == 0 || seats[seat].life != seats[seat - 1].life) nodes.emplace_back();
      nodes.back().push_back(now[seat]);
    }
    const std::uint64_t how = below(4);
    if (how != 0) {
      std::rotate(nodes.begin(), nodes.begin() + static_cast<std::ptrdiff_t>(below(nodes.size())), nodes.end());
      if (below(2) == 0) std::ranges::reverse(nodes);
      for (std::vector<Seat>& node : nodes)
        if (below(2) == 0) std::ranges::reverse(node);
    }
    if (how != 1) {
      std::vector<Seat>& node = nodes[below(nodes.size())];
      if (node.size() > 1 && below(3) != 0)
        node.erase(node.begin() + static_cast<std::ptrdiff_t>(below(node.size())));
      else if (nodes.size() > cluster_.options.replicas + 1)
        nodes.erase(nodes.begin() + (&node - nodes.data()));
    }
    std::vector<Seat> world;
    for (const std::vector<Seat>& node : nodes) world.insert(world.end(), node.begin(), node.end());
    return world;
  }

  Cluster& cluster_;
  std::function<void()> on_end_;
  std::mt19937_64 random_;
  std::uint64_t left_ = 0;
  std::uint32_t changes_ = 0;  // of the world, when this one was wished
  bool killed_ = false;
};

}  // namespace

Worlds::Worlds(std::uint32_t seats) {
  by_generation_[0] = as_numbered(seats);
}

void Worlds::wish(std::vector<Seat> before) {
  given_.push_back(before);
  wished_ = std::move(before);
}

std::string Worlds::decided(const job::JobState& state) {
  std::vector<Seat> world;
  for (const job::Member& member : state.seats) world.push_back(before_of(member));
  if (world == now()) return {};
  const bool is_begun_anew = state.cold && world == as_numbered(world.size()) &&
                             (world.size() == now().size() || std::ranges::any_of(given_, [&](const auto& given) {
                                return given.size() == world.size();
                              }));
  if (!contains(given_, world) && !is_begun_anew)
    return text("generation ", state.generation, " has a world that goes on from the seats ", text_of(world),
                ", and nobody has asked for that");
  by_generation_[state.generation.value] = std::move(world);
  wished_.reset();
  return {};
}

const std::vector<Seat>& Worlds::in(Generation generation) const {
  return std::prev(by_generation_.upper_bound(generation.value))->second;
}

void change_worlds(Cluster& cluster, std::function<void()> on_end) {
  std::make_shared<WorldChanger>(cluster, std::move(on_end))->begin();
}

}  // namespace pawl::sim
