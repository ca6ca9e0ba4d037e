#include "job/daemon/own_registration.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr int kLeasesBetweenLooks = 16;  // at most

}  // namespace

OwnRegistration::OwnRegistration(NodeContext& context, Loop& loop, ControlSession& session, Hooks hooks)
    : context_(context), loop_(loop), session_(session), hooks_(std::move(hooks)) {}

void OwnRegistration::put() {
  if (written_at_) {
    session_.register_again();
  } else {
    session_.keep_registered(
        context_.mirror.keys().node(context_.self.node), context_.deadlines.lease,
        [this] { return to_json(hooks_.record()); }, hooks_.on_renewed);
    written_at_ = context_.clock->now();
  }
  look_after(context_.deadlines.lease / 4);
}

void OwnRegistration::put_again() {
  if (written_at_) put();
}

void OwnRegistration::look_after(Duration pause) {
  pause_ = pause;
  loop_.after(pause, [this, look = ++looks_] {
    if (look != looks_ || context_.ending) return;
    if (!context_.knows_nodes()) this->look();
    look_after(std::min(pause_ * 2, context_.deadlines.lease * kLeasesBetweenLooks));
  });
}

void OwnRegistration::look() {
  session_.call<KeyValue>(
      [key = context_.mirror.keys().node(context_.self.node)](Control& control) { return control.get(key); },
      [this](const Result<KeyValue>& there) {
        if (!there && there.error().code != Code::not_found) return;  // it is looked for again
        const auto found = there ? parse_node_record(there->value) : Result<NodeRecord>(there.error());
        check(found ? &*found : nullptr);
      });
}

void OwnRegistration::check() {
  if (!context_.knows_nodes()) return;
  const auto& nodes = context_.mirror.registrations().nodes;
  const auto own = nodes.find(context_.self.node);
  check(own != nodes.end() ? &own->second : nullptr);
}

void OwnRegistration::check(const NodeRecord* found) {
  if (!written_at_ || context_.ending) return;
  if (found != nullptr && found->life.incarnation > context_.self.incarnation) return;  // it has begun anew
  if (found != nullptr && *found == hooks_.record()) return;
  const Duration now = context_.clock->now();
  if (const Duration pause = *written_at_ + context_.deadlines.lease / 4 - now; pause > Duration::zero()) {
    if (std::exchange(check_planned_, true)) return;
    loop_.after(pause, [this] {
      check_planned_ = false;
      if (context_.knows_nodes())
        check();
      else if (!context_.ending)
        look();
    });
    return;
  }
  written_at_ = now;
  log_warn("registration_wrong", "found", found != nullptr ? to_json(*found) : "nothing");
  session_.register_again();
  look_after(context_.deadlines.lease / 4);
}

}  // namespace pawl::job
