#include "cli/job/drill_script.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "base/text.h"
#include "cli/job/commands.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {
namespace {

// build/bin/pawl, or build/<tree>/bin/pawl: the package lies beside build. Empty: installed, Python finds it by itself.
std::string package_folder(const std::string& self) {
  std::string folder = parent_path(parent_path(self));
  for (int level = 0; level < 3 && folder.size() > 1; ++level) {
    folder = parent_path(folder);
    if (path_exists(join_path(folder, "python/pawl/drill.py"))) return join_path(folder, "python");
  }
  return "";
}

}  // namespace

bool is_script_drill(const std::vector<std::string>& words) {
  return !words.empty() && words.front() == "drill" && std::find(words.begin(), words.end(), "--") != words.end();
}

DrillCommand drill_command(const std::vector<std::string>& words, const std::string& self) {
  const char* interpreter = std::getenv("PYTHON_EXEC");
  DrillCommand command;
  command.argv = {interpreter != nullptr ? interpreter : "python3", "-m", "pawl.drill", "--pawl", self};
  command.argv.insert(command.argv.end(), words.begin() + 1, words.end());
  command.python_path = package_folder(self);
  if (const char* before = std::getenv("PYTHONPATH");
      !command.python_path.empty() && before != nullptr && *before != '\0')
    command.python_path += text(":", before);
  return command;
}

int command_drill_script(const std::vector<std::string>& words) {
  std::string self(4096, '\0');
  const ssize_t size = ::readlink("/proc/self/exe", self.data(), self.size());
  self.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  const DrillCommand command = drill_command(words, self);
  if (!command.python_path.empty()) ::setenv("PYTHONPATH", command.python_path.c_str(), 1);
  std::vector<char*> argv;
  for (const std::string& word : command.argv) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv.front(), argv.data());
  return report_error(
      {Code::not_found, text("drill: ", command.argv.front(), " can't be started (", std::strerror(errno),
                             "): install Python 3.11 or later, or name one with PYTHON_EXEC")});
}

}  // namespace pawl::job
