// Attention: since when this node has been able to notice that another is gone.
//
// Whoever was stopped himself, or was not answered by the control, has heard nothing and learned nothing meanwhile: that
// says nothing of others. So silence and ended registrations are counted from when this node last began to be both awake
// and answered. The renewals of its lease, a quarter of a lease apart, are enough to know it. All times are on the steady
// clock. Pure.
#pragma once

#include <optional>

#include "job/recovery/deadlines.h"

namespace pawl::job {

class Attention {
 public:
  // A call to the control that was begun at `asked` was answered at `now`.
  void control_answered(Duration asked, Duration now, const Deadlines& deadlines);
  void control_failed() { answered_ = false; }            // it was not answered in its time
  void ticked(Duration now, const Deadlines& deadlines);  // this node's loop goes round
  // nullopt: it can't tell now.
  [[nodiscard]] std::optional<Duration> since(Duration now, const Deadlines& deadlines) const;

 private:
  bool answered_ = false;
  Duration answered_since_{};
  Duration last_asked_{};
  Duration awake_since_{};
  Duration last_tick_{};
};

}  // namespace pawl::job
