// EndSignals: SIGTERM and SIGINT, told to whoever should end.
//
// A scheduler (Slurm, systemd) tells every process of a job to end, at once. A child that has work to do until its parent says so, such as
// a daemon that writes a last checkpoint, heeds its parent alone: the parent is told, too.
#pragma once

#include <functional>

#include "base/result.h"

namespace pawl {

// From now on these signals end neither this thread nor those that it makes: call it before there are others. The first that counts is
// told in a thread of its own. `parent_alone`: those that other processes send are ignored. Fails: `io`.
[[nodiscard]] Status on_end_signal(bool parent_alone, std::function<void(int signal)> then);

// Whether this process dies with its parent, as those do that a launcher or keeper of ours starts.
[[nodiscard]] bool dies_with_its_parent();

}  // namespace pawl
