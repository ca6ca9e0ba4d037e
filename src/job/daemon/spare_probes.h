// SpareProbes: which spares answer on their data link, asked before one of them is given seats.
//
// Nobody has a link to a spare, so of one whose data links are cut nobody knows: it would be given seats, and be evicted
// for its silence. A probe connects to the address where it would be fetched from, says hello and waits for any answer, in
// a task of its own. What it finds is a preference (recovery/spares.h), no proof: where enough have answered, another
// that takes longer than `communication_grace` is passed by; while too few have, as on machines without a free core, all
// have time. On the loop's thread.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "job/daemon/node_context.h"
#include "job/transport/messages.h"

namespace pawl::job {

inline constexpr Duration kProbePatience = std::chrono::seconds(3);

class SpareProbes {
 public:
  // The context outlives the probes' tasks. `on_answer`: one more is known.
  SpareProbes(NodeContext& context, std::function<Hello(Purpose)> hello, std::function<void()> on_answer);

  struct Answers {
    std::vector<NodeLife> silent;   // they did not answer
    std::vector<NodeLife> pending;  // they have not yet
  };
  // Asks those that were not asked in this generation yet. `wanted`: so many are to be taken. Once as many have answered, or
  // where there is no choice, who does not answer is silent after `communication_grace`; else, and always without
  // `wanted`, as where a silent one ends all, after three times that or kProbePatience, whichever is longer.
  [[nodiscard]] Answers ask(std::span<const NodeRecord> spares, std::optional<std::size_t> wanted);
  void forget() { asked_.clear(); }  // they are asked anew

 private:
  enum class Answer { pending, answered, silent };
  struct Asked {
    Duration at;
    Answer answer = Answer::pending;
  };
  void start(const NodeRecord& spare, Duration asked_at);

  [[nodiscard]] Duration patience() const;

  NodeContext& context_;
  std::function<Hello(Purpose)> hello_;
  std::function<void()> on_answer_;
  Generation asked_in_;
  std::map<NodeLife, Asked> asked_;  // in that generation
  const std::shared_ptr<const int> alive_ = std::make_shared<const int>(0);
};

}  // namespace pawl::job
