#include "cli/job/trainer_command.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/text.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {

namespace {

// A program that can't be started would be tried on every node, for nothing.
Status check_executable(const std::string& program) {
  struct stat found {};
  if (::stat(program.c_str(), &found) != 0)
    return Error{Code::not_found, text("trainer ", program, ": no such program")};
  if (S_ISDIR(found.st_mode))
    return Error{Code::invalid, text("trainer ", program, ": a folder can't be executed; name a program or a script")};
  if (!S_ISREG(found.st_mode) || ::access(program.c_str(), X_OK) != 0)
    return Error{Code::invalid, text("trainer ", program,
                                     ": not executable; run chmod +x on it, or name its "
                                     "interpreter before it (-- python3 ",
                                     program, ")")};
  return {};
}

}  // namespace

Result<std::vector<std::string>> trainer_command(const RunOptions& options) {
  if (options.command.empty())
    return Error{Code::invalid,
                 "no trainer named: end the command with SCRIPT.py ARGUMENTS, or with -- PROGRAM ARGUMENTS"};
  const std::string& first = options.command.front();
  const bool script = !options.module && !options.no_python && first.ends_with(".py");
  std::vector<std::string> command;
  if (options.module || script) {
    const char* interpreter = std::getenv("PYTHON_EXEC");
    command = {interpreter != nullptr ? interpreter : "python3", "-u"};
    if (options.module) command.emplace_back("-m");
    if (script && !path_exists(first)) return Error{Code::not_found, text("trainer ", first, ": no such script")};
  }
  command.insert(command.end(), options.command.begin(), options.command.end());
  PAWL_ASSIGN(command.front(), find_program(command.front()));
  PAWL_TRY(check_executable(command.front()));
  return command;
}

Status check_job_name(const std::string& name) {
  const auto allowed = [](unsigned char c) { return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-'; };
  if (!name.empty() && name.size() <= 63 && name.front() != '.' && std::all_of(name.begin(), name.end(), allowed))
    return {};
  return Error{Code::invalid, text("job name \"", name,
                                   "\": expected 1 to 63 letters, digits, '.', '_' or '-', not starting with '.'")};
}

}  // namespace pawl::job
