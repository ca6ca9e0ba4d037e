#include "job/daemon/node_reads.h"

#include <algorithm>
#include <utility>

#include "base/contains.h"
#include "job/recovery/spread.h"

namespace pawl::job {
namespace {

constexpr int kLeasesBetween = 16;  // at most

}  // namespace

bool NodeReads::is_due(Questions& questions, NodeLife life, Duration spread_over) {
  const Duration now = context_.clock->now();
  const auto [found, is_first] = questions.try_emplace(life);
  Question& question = found->second;
  if (is_first)
    question = {now + drawn_within(spread_over, context_.self.node, now), context_.deadlines.silence / 2};
  else if (spread_over == Duration::zero() && question.pause == context_.deadlines.silence / 2)
    question.due = std::min(question.due, now);  // by now it is wanted at once
  if (now < question.due) return false;
  question.due = now + question.pause + drawn_within(question.pause / 2, context_.self.node, now);
  question.pause = std::min(question.pause * 2, context_.deadlines.lease * kLeasesBetween);
  return true;
}

void NodeReads::read_wanted() {
  auto& wanted = context_.watched.wanted;
  std::erase_if(wanted, [this](const auto& one) { return context_.mirror.nodes.record_of(one.first) != nullptr; });
  std::erase_if(wanted_, [&](const auto& question) { return !wanted.contains(question.first); });
  if (context_.knows_nodes()) return;  // it is told of them
  for (const auto& [life, haste] : wanted)
    if (is_due(wanted_, life, haste == Haste::now ? Duration::zero() : context_.deadlines.silence / 2)) read(life);
}

void NodeReads::read(NodeLife life) {
  session_.call<KeyValue>([key = context_.mirror.keys().node(life.node)](Control& control) { return control.get(key); },
                          [this, life](const Result<KeyValue>& there) {
                            const auto record =
                                there ? parse_node_record(there->value) : Result<NodeRecord>(there.error());
                            if (!record || record->life != life) return;  // later, if it is still wanted
                            context_.mirror.nodes.note_read(*record);
                            on_read_();
                          });
}

void NodeReads::look_up(std::span<const NodeLife> lives) {
  std::erase_if(looked_up_, [&](const auto& question) {
    if (contains(lives, question.first)) return false;
    context_.mirror.nodes.note_looked_up(question.first.node, true, context_.clock->now());  // it is heard again
    return true;
  });
  for (const NodeLife& life : lives)
    if (is_due(looked_up_, life, context_.deadlines.lease)) look_up(life);
}

void NodeReads::look_up(NodeLife life) {
  session_.call<KeyValue>([key = context_.mirror.keys().node(life.node)](Control& control) { return control.get(key); },
                          [this, life](const Result<KeyValue>& there) {
                            if (!there && there.error().code != Code::not_found) return;
                            context_.mirror.nodes.note_looked_up(life.node, there.has_value(), context_.clock->now());
                            on_read_();
                          });
}

}  // namespace pawl::job
