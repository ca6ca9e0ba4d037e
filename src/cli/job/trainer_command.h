// What `pawl run` starts as the trainer, in torchrun's sense: a module, a Python script, or any program.
//
// Pure, but for a look for the program.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "cli/job/commands.h"

namespace pawl::job {

// -m MODULE: python3 -u -m MODULE; SCRIPT.py without --no-python: python3 -u SCRIPT.py; else the command itself.
// ($PYTHON_EXEC names another interpreter, as with torchrun.)
// Fails: `invalid` without a command, or if it can't be executed; `not_found` if there is no such program or script.
[[nodiscard]] Result<std::vector<std::string>> trainer_command(const RunOptions& options);

// Letters, digits, '.', '_', '-'; 63 at most; it becomes a directory and a key.
[[nodiscard]] Status check_job_name(const std::string& name);

}  // namespace pawl::job
