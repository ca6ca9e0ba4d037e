// SpareProbes: which spares answer on their data link, asked before one of them is given seats.
//
// Nobody has a link to a spare, so of one whose data links are cut nobody knows: it would be given seats, and be evicted
// for its silence. A probe connects to the address where it would be fetched from, says hello and waits for any answer, in
// a task of its own. What it finds is a preference (recovery/spares.h), no proof: where one has answered, another that
// takes longer than `communication_grace` is passed by; while none has, as on machines without a free core, all have
// time. On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "job/daemon/node_context.h"
#include "job/transport/messages.h"

namespace pawl::job {

class SpareProbes {
 public:
  // The context outlives the probes' tasks. `on_answer`: one more is known.
  SpareProbes(NodeContext& context, std::function<Hello(Purpose)> hello, std::function<void()> on_answer);

  struct Answers {
    std::vector<NodeLife> silent;   // they did not answer
    std::vector<NodeLife> pending;  // they have not yet
  };
  // Asks those that were not asked in this generation yet. Who does not answer is silent after `communication_grace` if
  // another has answered, or if there is no other; else after `silence`.
  [[nodiscard]] Answers ask(std::span<const NodeRecord> spares);
  void forget() { asked_.clear(); }  // they are asked anew

 private:
  enum class Answer { pending, answered, silent };
  struct Asked {
    Duration at;
    Answer answer = Answer::pending;
  };
  void start(const NodeRecord& spare, Duration asked_at);

  NodeContext& context_;
  std::function<Hello(Purpose)> hello_;
  std::function<void()> on_answer_;
  Generation asked_in_;
  std::map<NodeLife, Asked> asked_;  // in that generation
};

}  // namespace pawl::job
