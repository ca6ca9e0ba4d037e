// Environment: everything outside the process that the daemon touches, one interface each.
//
// Passed in from the top and handed down; nobody below calls real_...() directly. A simulation passes its own.
#pragma once

#include "env/clock.h"
#include "env/files.h"
#include "env/network.h"
#include "env/process.h"
#include "env/shared_memory.h"
#include "env/tasks.h"

namespace pawl {

struct Environment {
  Clock& clock;
  Tasks& tasks;
  Network& network;
  Files& files;
  Processes& processes;
  SharedMemory& memory;
};

[[nodiscard]] const Environment& real_environment();

}  // namespace pawl
