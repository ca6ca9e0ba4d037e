// How a command ends: the exit codes, and the one way to say on standard error why.
#pragma once

#include <string>

#include "base/result.h"

namespace pawl {

enum ExitCode : int {
  kExitOk = 0,
  kExitFailed = 1,
  kExitUsage = 2,
  kExitNotFound = 3,
  kExitDegraded = 4,
  kExitKeeper = 70 /* a keeper that ended by itself, not by the job */
};

// Says it on standard error, as "pawl: ...", and answers the exit code that fits.
int report_error(const Error& error);
void say(const std::string& sentence);  // the same for what is no error
int usage_error(const std::string& sentence);

}  // namespace pawl
