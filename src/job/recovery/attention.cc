#include "job/recovery/attention.h"

#include <algorithm>

namespace pawl::job {
namespace {

// Two renewals: one may take its time.
Duration gap_max(const Deadlines& deadlines) {
  return deadlines.lease / 2;
}

}  // namespace

void Attention::control_answered(Duration asked, Duration now, const Deadlines& deadlines) {
  if (answered_ && asked <= last_asked_) return;  // of two at the same time, the later one has told
  const bool in_time = now - asked <= deadlines.silence / 2;
  if (!answered_ || !in_time || asked - last_asked_ > gap_max(deadlines)) answered_since_ = now;
  answered_ = true;
  last_asked_ = asked;
}

void Attention::ticked(Duration now, const Deadlines& deadlines) {
  if (now - last_tick_ > deadlines.silence / 2) awake_since_ = now;
  last_tick_ = now;
}

std::optional<Duration> Attention::since(Duration now, const Deadlines& deadlines) const {
  if (!answered_ || now - last_asked_ > gap_max(deadlines) || now - last_tick_ > deadlines.silence / 2)
    return std::nullopt;
  return std::max(answered_since_, awake_since_);
}

}  // namespace pawl::job
