// `pawl drill [options] -- COMMAND`: proves recovery of the user's own script. Handed over to python/pawl/drill.py,
// which starts `pawl run` itself; `pawl drill kill|stop|...` (commands.h) hurts a job that is there already.
#pragma once

#include <string>
#include <vector>

namespace pawl::job {

// Whether these words of the command line, "drill" first, ask for it: they have a "--".
[[nodiscard]] bool is_script_drill(const std::vector<std::string>& words);

// $PYTHON_EXEC (python3) -m pawl.drill, with everything behind "drill" as it stands; the checkout's package is found,
// if `self`, our own path, lies in a checkout's build. What the environment gets is in `python_path`.
struct DrillCommand {
  std::vector<std::string> argv;
  std::string python_path;  // new value of PYTHONPATH; empty: as it is
};
[[nodiscard]] DrillCommand drill_command(const std::vector<std::string>& words, const std::string& self);

// Becomes that program; returns only if it can't, with the exit code.
int command_drill_script(const std::vector<std::string>& words);

}  // namespace pawl::job
