#include "job/daemon/node_follower.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "job/recovery/spread.h"
#include "job/recovery/suspicion.h"

namespace pawl::job {

using namespace std::chrono_literals;

namespace {

constexpr Duration kPauseMin = 100ms;
constexpr int kLeasesBetweenCounts = 16;  // at most

}  // namespace

NodeFollower::NodeFollower(NodeContext& context, Loop& loop, ControlSession& session, FollowLimits limits,
                           Handlers handlers)
    : context_(context),
      loop_(loop),
      session_(session),
      limits_(limits),
      handlers_(std::move(handlers)),
      joined_at_(context.clock->now()),
      reads_(context, session, [this] {
        JobMirror::Change change;
        change.nodes = true;
        handlers_.on_change(change);
        handlers_.drive();
      }) {}

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
  reads_.read_wanted();
}

// At each step would be too often: a large job has many.
bool NodeFollower::is_needed() {
  const Duration now = context_.clock->now();
  const bool is_same = need_.judged_of == context_.mirror.state_revision();
  if (!is_same || now - need_.judged_at >= context_.deadlines.heartbeat_interval / 2) {
    need_ = {context_.mirror.state_revision(), now, must_follow(), need_.last};
    if (need_.now) need_.last = now;
    look_up();
    count();
  }
  return need_.now || (watch_ != nullptr && now - need_.last < 2 * context_.deadlines.silence);
}

bool NodeFollower::must_follow() {
  const JobMirror& mirror = context_.mirror;
  const Duration now = context_.clock->now();
  const auto attentive = context_.attention.since(now, context_.deadlines);
  FollowView view{mirror.spec(), mirror.has_state() ? &mirror.state() : nullptr, mirror.roster(), context_.self,
                  limits_};
  view.position = mirror.my_position();
  view.position_count = mirror.ring().position_count();
  view.joined_for = now - joined_at_;
  view.in_state_for = now - mirror.state_since();
  view.quiet_for = attentive ? now - std::max(mirror.news_at(), *attentive) : Duration::zero();
  view.accused_for = accused_for();
  view.leaving = context_.orders.drains().leaving;
  view.few_registered = count_.few;
  context_.watched.few_follow = !do_all_follow(mirror.spec(), limits_);
  context_.watched.has_post = is_spread(view.position, view.position_count, 0, limits_.at_once);
  return must_follow_nodes(view, context_.deadlines);
}

Duration NodeFollower::accused_for() {
  const Duration now = context_.clock->now();
  if (context_.mirror.accusations().empty())
    accused_since_.reset();
  else if (!accused_since_)
    accused_since_ = now;
  return accused_since_ ? now - *accused_since_ : Duration::zero();
}

// Who leads is waited for.
void NodeFollower::begin() {
  if (std::exchange(first_.under_way, true)) return;
  const JobMirror& mirror = context_.mirror;
  const bool waits = context_.watched.few_follow && mirror.has_state() && mirror.state().leader != context_.self;
  if (!waits) return list();
  const Duration wait = drawn_within(context_.deadlines.silence / 8, context_.self.node, context_.clock->now());
  after(wait, [this] { list(); });
}

void NodeFollower::after(Duration pause, std::function<void()> task) {
  loop_.after(pause, [alive = std::weak_ptr(alive_), task = std::move(task)] {
    if (!alive.expired()) task();
  });
}

void NodeFollower::list() {
  if (context_.ending) return;
  session_.call_beside<Listing>(
      [prefix = context_.mirror.keys().nodes()](Control& control) { return control.list_many(prefix); },
      [this, asked = context_.clock->now()](const Result<Listing>& listing) {
        if (listing) {
          first_ = {};
          return begun(*listing, asked);
        }
        log_warn("control_away", "why", listing.error().what);
        list_again();
      });
}

void NodeFollower::list_again() {
  first_.pause = std::clamp(first_.pause * 2, kPauseMin, std::max(kPauseMin, context_.deadlines.silence));
  const Duration now = context_.clock->now();
  after(first_.pause / 2 + drawn_within(first_.pause / 2, context_.self.node, now), [this] {
    first_.under_way = false;
    handlers_.drive();
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

// Who does not follow and hears few looks at the keys of those that it does not hear (suspicion.h).
void NodeFollower::look_up() {
  const JobMirror& mirror = context_.mirror;
  std::vector<NodeLife> lives;
  const std::vector<Contact> contacts = handlers_.contacts();
  const Duration now = context_.clock->now();
  if (mirror.has_state() && context_.watched.few_follow)
    lives = looked_up_by({mirror.state(),
                          mirror.registrations(),
                          {},
                          contacts,
                          context_.self,
                          context_.attention.since(now, context_.deadlines),
                          now},
                         context_.deadlines);
  reads_.look_up(lives);
}

// Of a job whose members are all gone the nodes without a seat must notice it, the lowest of which may be gone, too.
void NodeFollower::count() {
  const JobMirror& mirror = context_.mirror;
  const Duration now = context_.clock->now();
  const std::size_t survivors = mirror.roster().survivors().size();
  if (context_.knows_nodes()) count_.few = 2 * mirror.registrations().nodes.size() < survivors;
  if (need_.now || !mirror.has_state() || mirror.is_over() || mirror.is_member()) return;
  if (now < count_.due) return;
  count_.pause =
      std::clamp(2 * count_.pause, context_.deadlines.lease, kLeasesBetweenCounts * context_.deadlines.lease);
  count_.due = now + count_.pause / 2 + drawn_within(count_.pause / 2, context_.self.node, now);
  session_.call_untimed<KeyTally>([prefix = mirror.keys().nodes()](Control& control) { return control.tally(prefix); },
                                  [this](const Result<KeyTally>& tally) {
                                    if (tally)
                                      count_.few = 2 * tally->count < context_.mirror.roster().survivors().size();
                                  });
}

}  // namespace pawl::job
