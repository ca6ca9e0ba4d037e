// ProtectionWatch: says when the committed step stands still while this node's trainers go on, why, and when that is over.
//
// Looks twice in a silence deadline, while the job runs here. What it sees is judged in recovery/protection.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "job/daemon/events.h"
#include "job/daemon/memory.h"
#include "job/daemon/node_context.h"
#include "job/daemon/streams.h"
#include "job/daemon/trainers.h"
#include "job/recovery/protection.h"

namespace pawl::job {

class ProtectionWatch {
 public:
  struct Parts {
    NodeContext& context;
    Trainers& trainers;
    Memory& memory;
    Streams& streams;
    Events& events;
  };
  // `cut`: to which nodes of the progress tree beside this one no link stands.
  ProtectionWatch(Parts parts, std::function<Progress()> progress, std::function<std::vector<NodeId>()> cut = {})
      : parts_(parts),
        progress_(std::move(progress)),
        cut_(std::move(cut)),
        given_up_(parts.context.metrics.counter("steps_given_up_total",
                                                "Steps given up because their bytes were found wrong at a holder.")) {}

  void begin();  // the state's generation runs here
  void on_given_up(const GivenUpStep& step);
  // Why the steps of this node's seats are not held, each a sentence; empty while protection goes on.
  [[nodiscard]] std::vector<std::string> stopped_by() const;

 private:
  void check(Generation generation);
  void tell(ProtectionChange change, const ProtectionView& view);
  [[nodiscard]] ProtectionView view() const;

  Parts parts_;
  std::function<Progress()> progress_;
  std::function<std::vector<NodeId>()> cut_;
  Counter& given_up_;
  ProtectionNotes notes_;
  Generation watched_;  // a timer looks after this one
};

}  // namespace pawl::job
