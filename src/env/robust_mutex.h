// Robust mutex: how one process learns of another's death at once, whatever memory that has to give back.
//
// It lies in memory that both map. The kernel marks it as one of the first things when its owner dies; a pidfd and
// sockets tell only when all that the process had mapped has been taken back, which takes 0.15 s a GiB. The other side
// waits in Processes::wait_for_owner_death. A process that is stopped has not died.
// Its owner is a *thread*: hold it in one that lives as long as the process. It is held by nobody after an exec, so take
// it after that; a forked child doesn't hold it.
#pragma once

#include <pthread.h>

#include "base/result.h"

namespace pawl {

// In zeroed memory that stays mapped as long as anybody uses it. Fails: `full`, `io`.
[[nodiscard]] Status make_robust_mutex(pthread_mutex_t* mutex);
// Locks it for the calling thread. Another may have it for a moment, and whoever owned it before is dead. False: another
// still has it after a second.
[[nodiscard]] bool hold_robust_mutex(pthread_mutex_t* mutex);

}  // namespace pawl
