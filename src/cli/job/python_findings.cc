#include "cli/job/python_findings.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <csignal>

#include "base/json_access.h"
#include "base/text.h"
#include "cli/exit_codes.h"
#include "cli/output.h"
#include "env/fd.h"
#include "env/files.h"
#include "env/process.h"

namespace pawl::job {
namespace {

constexpr auto kPythonTakes = std::chrono::minutes(3);

// Argument 1: the version of this command.
constexpr const char* kAskPython = R"PYTHON(
import json, os, sys
def end(check, found, remedy):
    print(json.dumps([{"check": check, "verdict": "FAIL", "found": found, "remedy": remedy}]))
    sys.exit(0)
if sys.version_info < (3, 11):
    end("python", "%s is Python %d.%d" % ((sys.executable,) + tuple(sys.version_info[:2])),
        "pawl needs Python 3.11 or later: name another one, with --python and PYTHON_EXEC")
try:
    import pawl
except ImportError as error:
    end("pawl", "%s can't import it: %s" % (sys.executable, error),
        "install the wheel there: %s -m pip install pawl-%s-*.whl (in a checkout: make wheel)" % (sys.executable, sys.argv[1]))
try:
    from pawl import doctor
except ImportError as error:
    end("pawl", "%s isn't of this version: %s" % (os.path.dirname(str(pawl.__file__)), error),
        "install pawl %s there, and see that PYTHONPATH names no other one" % sys.argv[1])
print(json.dumps(list(doctor.findings(sys.argv[1]))))
)PYTHON";

const char* word_of(Verdict verdict) {
  return verdict == Verdict::ok ? "OK" : verdict == Verdict::warn ? "WARN" : "FAIL";
}

Result<Verdict> verdict_of(const std::string& name) {
  for (const Verdict verdict : {Verdict::ok, Verdict::warn, Verdict::fail})
    if (name == word_of(verdict)) return verdict;
  return Error{Code::invalid, text("\"", name, "\" is no verdict")};
}

// What it printed.
Result<std::string> ask_python(const std::string& interpreter) {
  const Fd output(::memfd_create("doctor", MFD_CLOEXEC));
  if (!output.valid()) return system_error("memfd_create", errno);
  SpawnOptions options;
  options.argv = {interpreter, "-c", kAskPython, PAWL_VERSION_TEXT};
  options.stdout_fd = output.get();
  options.parent_death_signal = SIGKILL;
  PAWL_ASSIGN(const Process process, spawn(options));
  Result<Exit> exit = wait_exit(process.pidfd.get(), Deadline::in(kPythonTakes));
  if (!exit) {
    (void)send_signal(process.pidfd.get(), SIGKILL);
    (void)wait_exit(process.pidfd.get(), Deadline::never());
    return exit.error();
  }
  if (!exit->clean()) return Error{Code::invalid, text("it ", exit->describe())};
  return read_file(text("/proc/self/fd/", output.get()));
}

Result<std::vector<Finding>> ask_for_findings(const std::string& interpreter) {
  PAWL_ASSIGN(const std::string output, ask_python(interpreter));
  return parse_findings(output);
}

}  // namespace

Result<std::vector<Finding>> parse_findings(const std::string& output) {
  const std::size_t end = output.find_last_not_of('\n');
  if (end == std::string::npos) return Error{Code::invalid, "it said nothing"};
  const std::size_t before = output.rfind('\n', end);
  const std::size_t begin = before == std::string::npos ? 0 : before + 1;
  const json list = json::parse(output.substr(begin, end + 1 - begin), nullptr, false);
  if (!list.is_array() || list.empty()) return Error{Code::invalid, "its answer can't be read"};
  std::vector<Finding> findings;
  for (const json& each : list) {
    PAWL_ASSIGN(const Verdict verdict, verdict_of(string_in(each, "verdict")));
    findings.push_back({string_in(each, "check"), verdict, string_in(each, "found"), string_in(each, "remedy")});
  }
  return findings;
}

std::vector<Finding> findings_in_python(const std::string& interpreter) {
  Result<std::vector<Finding>> findings = ask_for_findings(interpreter);
  if (findings) return std::move(*findings);
  return {{"python", Verdict::fail, text(interpreter, ": ", findings.error().what),
           "name an interpreter of Python 3.11 or later: pawl doctor --python PYTHON"}};
}

int print_findings(const std::vector<Finding>& findings, bool as_json) {
  bool failed = false;
  json list = json::array();
  std::vector<std::vector<std::string>> rows;
  for (const Finding& finding : findings) {
    failed |= finding.verdict == Verdict::fail;
    const std::string remedy = finding.verdict == Verdict::ok ? "" : finding.remedy;
    list.push_back(
        {{"check", finding.what}, {"verdict", word_of(finding.verdict)}, {"found", finding.found}, {"remedy", remedy}});
    rows.push_back({word_of(finding.verdict), finding.what, finding.found});
    if (!remedy.empty()) rows.push_back({"", "", text("-> ", remedy)});
  }
  print(as_json ? json{{"checks", list}, {"failed", failed}}.dump() + "\n" : table(rows));
  return failed ? kExitFailed : kExitOk;
}

}  // namespace pawl::job
