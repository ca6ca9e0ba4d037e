// At which priority checkpoints are written: the least that still makes progress. Idle would be less, and starve where trainers take
// every core.
#pragma once

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace pawl::job {

// This task, and the threads that it begins.
inline void be_nice() {
  constexpr int kNice = 19;
  (void)::setpriority(PRIO_PROCESS, static_cast<id_t>(::syscall(SYS_gettid)), kNice);
}

}  // namespace pawl::job
