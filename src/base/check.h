// PAWL_CHECK(condition, parts...): our own mistakes, checked in release too. Ends the process.
//
// For the daemon and the command: the arena outlives pawld and is verified when it returns.
// libpawl never uses it: there PAWL_ENSURE returns Code::broken, pawl detaches, and the training goes on.
// Bad bytes from a peer, a disk or shared memory are Code::corrupt, never a check.
#pragma once

#include <cstdlib>

#include "base/log.h"
#include "base/result.h"

#define PAWL_CHECK(condition, ...)                                                                        \
  do {                                                                                                    \
    if (!(condition)) [[unlikely]] {                                                                      \
      ::pawl::log_error("check_failed", "condition", #condition, "at", __FILE__, "line", __LINE__, "why", \
                        ::pawl::text(__VA_ARGS__));                                                       \
      std::abort();                                                                                       \
    }                                                                                                     \
  } while (false)

#define PAWL_ENSURE(condition, ...)                                                              \
  do {                                                                                           \
    if (!(condition)) [[unlikely]]                                                               \
      return ::pawl::Error{::pawl::Code::broken, ::pawl::text("" #condition ": ", __VA_ARGS__)}; \
  } while (false)
