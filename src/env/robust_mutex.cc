#include "env/robust_mutex.h"

#include <cerrno>

#include "env/clock.h"

namespace pawl {

Status make_robust_mutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  int failed = pthread_mutexattr_init(&attributes);
  if (failed == 0) failed = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (failed == 0) failed = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (failed == 0) failed = pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
  if (failed != 0) return system_error("make a robust mutex", failed);
  return {};
}

bool hold_robust_mutex(pthread_mutex_t* mutex) {
  const Deadline deadline = Deadline::in(std::chrono::seconds(1));
  for (;;) {
    const int failed = pthread_mutex_trylock(mutex);
    if (failed == EOWNERDEAD) pthread_mutex_consistent(mutex);
    if (failed == 0 || failed == EOWNERDEAD) return true;
    if (failed != EBUSY || deadline.passed()) return false;
    real_clock().sleep(std::chrono::milliseconds(1));
  }
}

}  // namespace pawl
