#include "forked.h"

#include <pthread.h>

#include <atomic>

namespace pawl {
namespace {

std::atomic<bool> in_a_fork{false};

const int watched = ::pthread_atfork(nullptr, nullptr, [] { in_a_fork = true; });

}  // namespace

bool forked() {
  return in_a_fork.load(std::memory_order_relaxed);
}

}  // namespace pawl
