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

SpareProbes::Answers SpareProbes::ask(std::span<const NodeRecord> spares) {
  if (std::exchange(asked_in_, context_.mirror.generation()) != context_.mirror.generation()) asked_.clear();
  const Duration time = context_.clock->now();
  for (const NodeRecord& spare : spares)
    if (spare.life != context_.self && asked_.try_emplace(spare.life, Asked{time}).second) start(spare, time);
  const bool no_other = asked_.size() == 1 || std::ranges::any_of(asked_, [](const auto& each) {
                          return each.second.answer == Answer::answered;
                        });
  const Duration patience = no_other ? context_.deadlines.communication_grace : context_.deadlines.silence;
  Answers now;
  for (const NodeRecord& spare : spares) {
    const auto known = asked_.find(spare.life);
    if (known == asked_.end() || known->second.answer == Answer::answered) continue;
    const bool waits = known->second.answer == Answer::pending && time - known->second.at < patience;
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
  const Duration patience = context_.deadlines.silence;
  context_.after(context_.deadlines.communication_grace, on_answer_);  // it is late, where another has answered
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
