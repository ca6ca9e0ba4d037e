// How a command ends: the exit codes, and messages on standard error.
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
  kExitKeeper = 70 /* a keeper that could not go on */
};

// Prints it on standard error, as "pawl: ...". Returns the exit code that fits.
int report_error(const Error& error);
void say(const std::string& sentence);  // prints a message that is not an error
int usage_error(const std::string& sentence);

}  // namespace pawl
