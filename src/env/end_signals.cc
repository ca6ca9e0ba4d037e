#include "env/end_signals.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <thread>
#include <utility>

namespace pawl {

Status on_end_signal(bool parent_alone, std::function<void(int signal)> then) {
  sigset_t wanted;
  sigemptyset(&wanted);
  sigaddset(&wanted, SIGTERM);
  sigaddset(&wanted, SIGINT);
  if (const int error = pthread_sigmask(SIG_BLOCK, &wanted, nullptr); error != 0)
    return system_error("block SIGTERM and SIGINT", error);
  std::thread([wanted, parent_alone, then = std::move(then)] {
    for (;;) {
      siginfo_t info{};
      const int signal = sigwaitinfo(&wanted, &info);
      if (signal < 0 && errno == EINTR) continue;
      if (signal < 0) return;
      if (!parent_alone || info.si_pid == ::getppid()) return then(signal);
    }
  }).detach();
  return {};
}

bool dies_with_its_parent() {
  int signal = 0;
  return ::prctl(PR_GET_PDEATHSIG, &signal) == 0 && signal != 0;
}

}  // namespace pawl
