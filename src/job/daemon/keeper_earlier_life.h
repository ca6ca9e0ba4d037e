// What an earlier keeper of this node has started, and may still live.
//
// When a keeper dies the kernel kills its children, and only them. A process that gives back gigabytes, or waits in the
// kernel, takes its time to die; what a child has started itself (the program behind a wrapper) is not killed at all. A
// new life beside either would be a second writer. So a keeper notes in a file what it starts, and the next one of that
// node ends all of it before it begins.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl::job {

struct StartedProcess {  // leads a group of its own
  pid_t pid = 0;
  std::uint64_t start_time = 0;
};

// Replaces what `path` says. Not kept over a crash of the machine, which no process outlives.
[[nodiscard]] Status note_started(const std::string& path, std::span<const StartedProcess> processes);

// SIGKILL to those that `path` names and to all of their groups; who has not ended yet. Numbers that have meanwhile
// become another's are left alone: a process is told by its start time, a member of a group whose leader has ended by
// `mark`, an entry of the environment that only this node's trainers have.
[[nodiscard]] std::vector<pid_t> kill_earlier(const std::string& path, std::string_view mark);

}  // namespace pawl::job
