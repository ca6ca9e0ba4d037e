#include "cli/job/trainer_command.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "base/text.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {

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
  if (!path_exists(command.front()))
    return Error{Code::not_found, text("trainer ", command.front(), ": no such program")};
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
