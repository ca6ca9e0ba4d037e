#include "job/daemon/spare_probes.h"

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

SpareProbes::Answers SpareProbes::ask(std::span<const NodeRecord> spares) {
  if (std::exchange(asked_in_, context_.mirror.generation()) != context_.mirror.generation()) asked_.clear();
  Answers now;
  for (const NodeRecord& spare : spares) {
    if (spare.life == context_.self) continue;
    const Duration time = context_.clock->now();
    const auto [known, fresh] = asked_.try_emplace(spare.life, Asked{time});
    if (fresh) start(spare, time);
    Asked& asked = known->second;
    if (asked.answer == Answer::pending && time - asked.at > 2 * context_.deadlines.communication_grace)
      asked.answer = Answer::silent;
    if (asked.answer == Answer::pending) now.pending.push_back(spare.life);
    if (asked.answer == Answer::silent) now.silent.push_back(spare.life);
  }
  return now;
}

// As whoever fetches: no link is disturbed by it, and nobody who is not frozen serves it.
void SpareProbes::start(const NodeRecord& spare, Duration asked_at) {
  Hello hello = hello_(Purpose::fetch);
  hello.expected = spare.life.incarnation;
  const Generation generation = asked_in_;
  const Environment& world = *context_.environment;
  const Duration patience = context_.deadlines.communication_grace;
  (void)world.tasks.start("pawl-probe", [this, spare, hello, generation, asked_at, patience, &world] {
    const bool answered = answers(world.network, spare, hello, Deadline::in(patience, world.clock));
    context_.post([this, life = spare.life, generation, asked_at, answered] {
      const auto known = asked_.find(life);
      if (generation != asked_in_ || known == asked_.end() || known->second.at != asked_at) return;  // asked anew
      known->second.answer = answered ? Answer::answered : Answer::silent;
      if (!answered) log_warn("spare_silent", "node", life.node, "why", "its data link does not answer");
      on_answer_();
    });
  });
}

}  // namespace pawl::job
