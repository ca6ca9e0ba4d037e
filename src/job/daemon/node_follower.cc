#include "job/daemon/node_follower.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "job/recovery/node_followers.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

constexpr Duration kTryAgainAfter = 100ms;

}  // namespace

NodeFollower::NodeFollower(NodeContext& context, Loop& loop, ControlSession& session, std::uint32_t all_follow_max,
                           Handlers handlers)
    : context_(context),
      loop_(loop),
      session_(session),
      all_follow_max_(all_follow_max),
      handlers_(std::move(handlers)),
      joined_at_(context.clock->now()) {}

NodeFollower::~NodeFollower() = default;

void NodeFollower::take_step() {
  if (is_needed()) {
    if (watch_ == nullptr) begin();
  } else if (watch_ != nullptr) {
    end();
  }
  if (std::exchange(context_.watched.nodes.ask_anew, false) && watch_ != nullptr)
    watch_->confirm(context_.deadlines.silence / 4, [this](Duration begun) {
      context_.watched.nodes.as_of = begun;
      handlers_.drive();
    });
  read_wanted();
}

// At each step would be too often: a large job has many.
bool NodeFollower::is_needed() {
  const JobMirror& mirror = context_.mirror;
  const Duration now = context_.clock->now();
  const bool is_same = need_.judged_of == mirror.state_revision();
  if (!is_same || now - need_.judged_at >= context_.deadlines.heartbeat_interval / 2) {
    const std::vector<Contact> contacts = handlers_.contacts();
    const std::vector<NodeLife> who_failed = failed();
    const auto accusations = mirror.accusations();
    const auto attentive = context_.attention.since(now, context_.deadlines);
    FollowView view{mirror.spec(), mirror.has_state() ? &mirror.state() : nullptr, mirror.roster(),
                    mirror.registrations(), context_.self};
    view.all_follow_max = all_follow_max_;
    view.joined_for = now - joined_at_;
    view.quiet_for = attentive ? now - std::max(mirror.news_at(), *attentive) : Duration::zero();
    view.contacts = contacts;
    view.accuses = std::ranges::find(accusations, context_.self, &Accusation::accuser) != accusations.end();
    view.attentive_since = attentive;
    view.now = now;
    view.leaving = context_.orders.drains().leaving;
    view.failed = who_failed;
    need_ = {mirror.state_revision(), now, must_follow_nodes(view, context_.deadlines), need_.last};
    if (need_.now) need_.last = now;
  }
  return need_.now || (watch_ != nullptr && now - need_.last < 2 * context_.deadlines.silence);
}

std::vector<NodeLife> NodeFollower::failed() const {
  std::vector<NodeLife> lives;
  const JobMirror& mirror = context_.mirror;
  for (const auto& [seat, report] : mirror.faults)
    if (mirror.has_state() && seat.value < mirror.state().seats.size())
      if (const NodeLife life = mirror.state().seats[seat.value].life; !contains(lives, life)) lives.push_back(life);
  return lives;
}

void NodeFollower::begin() {
  if (std::exchange(listing_, true)) return;
  session_.call_untimed<Listing>(
      [prefix = context_.mirror.keys().nodes()](Control& control) { return control.list(prefix); },
      [this, asked = context_.clock->now()](const Result<Listing>& listing) {
        if (listing) {
          listing_ = false;
          return begun(*listing, asked);
        }
        log_warn("control_away", "why", listing.error().what);
        loop_.after(kTryAgainAfter, [this] {
          listing_ = false;
          handlers_.drive();
        });
      });
}

void NodeFollower::begun(const Listing& listing, Duration asked) {
  if (context_.ending) return;
  watch_ = std::make_unique<KeyWatch>(
      loop_, session_, context_.mirror.keys().nodes(), listing,
      KeyWatch::Handlers{.on_listing =
                             [this](const Listing& all) {
                               context_.watched.nodes.as_of = relisting_at_;
                               handlers_.on_change(context_.mirror.apply_nodes(all, context_.clock->now()));
                             },
                         .on_event = handlers_.on_event,
                         .on_listed = handlers_.drive,
                         .on_listing_begun = [this] { relisting_at_ = context_.clock->now(); }});
  context_.watched.nodes.as_of = asked;
  handlers_.on_change(context_.mirror.apply_nodes(listing, context_.clock->now()));
  log_debug("follows_nodes", "nodes", listing.kvs.size());
  handlers_.drive();
}

void NodeFollower::end() {
  watch_.reset();
  context_.mirror.nodes.forget(context_.mirror.links().lives);
  log_debug("follows_no_nodes");
}

void NodeFollower::read_wanted() {
  const Duration now = context_.clock->now();
  for (auto life = context_.watched.wanted.begin(); life != context_.watched.wanted.end();) {
    if (context_.mirror.nodes.record_of(*life) != nullptr) {
      read_at_.erase(*life);
      life = context_.watched.wanted.erase(life);
      continue;
    }
    const auto [asked, is_first] = read_at_.try_emplace(*life, now);
    if (watch_ == nullptr && (is_first || now - asked->second >= context_.deadlines.silence / 2)) {
      asked->second = now;
      read(*life);
    }
    ++life;
  }
  std::erase_if(read_at_, [this](const auto& read) { return !context_.watched.wanted.contains(read.first); });
}

void NodeFollower::read(NodeLife life) {
  session_.call<KeyValue>([key = context_.mirror.keys().node(life.node)](Control& control) { return control.get(key); },
                          [this, life](const Result<KeyValue>& there) {
                            const auto record =
                                there ? parse_node_record(there->value) : Result<NodeRecord>(there.error());
                            if (!record || record->life != life) return;  // later, if it is still wanted
                            context_.mirror.nodes.note_read(*record);
                            JobMirror::Change change;
                            change.nodes = true;
                            handlers_.on_change(change);
                            handlers_.drive();
                          });
}

}  // namespace pawl::job
