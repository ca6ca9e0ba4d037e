// What `pawl doctor` found, and what it finds in a Python (--python): that is asked itself (python/pawl/doctor.py), or, where
// it hasn't got the package, a few lines that every Python 3 understands.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace pawl::job {

enum class Verdict { ok, warn, fail };

struct Finding {
  std::string what;
  Verdict verdict;
  std::string found;
  std::string remedy;  // where it is not ok
};

// Prints them as a table or as JSON. The exit code: kExitFailed if one of them is a `fail`.
[[nodiscard]] int print_findings(const std::vector<Finding>& findings, bool as_json);

// Runs it, and waits for up to three minutes: torch is imported. `interpreter` without a slash is looked for in PATH.
// What fails is a finding, too.
[[nodiscard]] std::vector<Finding> findings_in_python(const std::string& interpreter);

// Of the last line of what that Python printed: scripts of its site may print before it. Fails: `invalid`.
[[nodiscard]] Result<std::vector<Finding>> parse_findings(const std::string& output);

}  // namespace pawl::job
