#include "job/daemon/spare_probes.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

// Whatever it says, it got our bytes and we got its own.
bool answers(Network& network, const NodeRecord& spare, const Hello& hello, Deadline deadline) {
  const auto address = Address::parse(spare.address);
  if (!address) return false;
  auto stream = network.connect(*address, deadline);
  return stream && send_frame(**stream, frame_of(hello), deadline) && receive_frame(**stream, deadline);
}

}  // namespace

SpareProbes::SpareProbes(NodeContext& context, std::function<Hello(Purpose)> hello, std::function<void()> on_answer)
    : context_(context), hello_(std::move(hello)), on_answer_(std::move(on_answer)) {}

Duration SpareProbes::patience() const {
  const Deadlines& deadlines = context_.deadlines;
  return std::min(deadlines.silence, std::max(3 * deadlines.communication_grace, kProbePatience));
}

SpareProbes::Answers SpareProbes::ask(std::span<const NodeRecord> spares, std::optional<std::size_t> wanted) {
  if (std::exchange(asked_in_, context_.mirror.generation()) != context_.mirror.generation()) asked_.clear();
  const Duration time = context_.clock->now();
  std::size_t others = 0;
  std::size_t answered = 0;
  for (const NodeRecord& spare : spares) {
    if (spare.life == context_.self) continue;
    const auto [known, fresh] = asked_.try_emplace(spare.life, Asked{time});
    if (fresh) start(spare, time);
    ++others;
    if (known->second.answer == Answer::answered) ++answered;
  }
  const bool soon = wanted && (answered >= *wanted || others <= *wanted);
  const Duration most = soon ? context_.deadlines.communication_grace : patience();
  Answers now;
  for (const NodeRecord& spare : spares) {
    const auto known = asked_.find(spare.life);
    if (known == asked_.end() || known->second.answer == Answer::answered) continue;
    const bool waits = known->second.answer == Answer::pending && time - known->second.at < most;
    (waits ? now.pending : now.silent).push_back(spare.life);
  }
  return now;
}

// As whoever fetches: no link is disturbed by it, and nobody who is not frozen serves it.
void SpareProbes::start(const NodeRecord& spare, Duration asked_at) {
  Hello hello = hello_(Purpose::fetch);
  hello.expected = spare.life.incarnation;
  const Generation generation = asked_in_;
  const Environment& world = *context_.environment;
  const std::weak_ptr alive(alive_);
  context_.after(context_.deadlines.communication_grace, [this, alive] {
    if (!alive.expired()) on_answer_();  // it is late, where others have answered
  });
  const Duration most = patience();
  (void)world.tasks.start("pawl-probe", [this, alive, &context = context_, spare, hello, generation, asked_at, most] {
    const Environment& here = *context.environment;
    const bool answered = answers(here.network, spare, hello, Deadline::in(most, here.clock));
    context.post([this, alive, life = spare.life, generation, asked_at, answered] {
      if (alive.expired()) return;
      const auto known = asked_.find(life);
      if (generation != asked_in_ || known == asked_.end() || known->second.at != asked_at) return;  // asked anew
      known->second.answer = answered ? Answer::answered : Answer::silent;
      if (!answered) log_warn("spare_silent", "node", life.node, "why", "its data link does not answer");
      on_answer_();
    });
  });
}

}  // namespace pawl::job
