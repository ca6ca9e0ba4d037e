#include "stuck_watch.h"

#include <dirent.h>
#include <pthread.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "draining_work.h"
#include "managed_group.h"

namespace pawl {
namespace {

constexpr std::chrono::seconds kTick{1};
constexpr const char* kWorkerName = "pt_gloo_runloop";  // as torch names them

// How often each worker of gloo went to sleep or was interrupted; empty if one of them is awake, or there is none.
using Rest = std::map<int, std::string>;

// A sleeping thread's counts of switches; empty if it is awake.
std::string switches_of_sleeper(const std::string& task) {
  std::ifstream status(task + "/status");
  std::string switches;
  bool asleep = false;
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("State:", 0) == 0) asleep = line.find("S (") != std::string::npos;
    if (line.find("ctxt_switches:") != std::string::npos) switches += line;
  }
  return asleep ? switches : std::string();
}

Rest workers_at_rest() {
  Rest rest;
  const std::string tasks = "/proc/self/task/";
  std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(tasks.c_str()), ::closedir);
  if (!directory) return {};
  while (const dirent* entry = ::readdir(directory.get())) {
    const int thread = std::atoi(entry->d_name);
    if (thread == 0) continue;  // . and ..
    std::string name;
    std::getline(std::ifstream(tasks + entry->d_name + "/comm") >> std::ws, name);
    if (name != kWorkerName) continue;
    std::string switches = switches_of_sleeper(tasks + entry->d_name);
    if (switches.empty()) return {};
    rest.emplace(thread, std::move(switches));
  }
  return rest;
}

[[noreturn]] void watch() {
  ::pthread_setname_np(::pthread_self(), "pawl-stuck");
  Rest before;
  for (;;) {
    std::this_thread::sleep_for(kTick);
    const auto hopeless = OutstandingWorks::all().hopeless();
    Rest now = hopeless.empty() ? Rest() : workers_at_rest();
    const bool rested = !now.empty() && now == before;
    for (const auto& work : hopeless) {
      try {
        work->tick(rested);
      } catch (const std::exception&) {
        // It stays on the list, as if there were no watch.
      }
    }
    Groups::all().look();
    before = std::move(now);
  }
}

}  // namespace

StuckWatch& StuckWatch::only() {
  static auto* watch = new StuckWatch;  // never destroyed: its thread runs until the process ends
  return *watch;
}

void StuckWatch::start() {
  std::call_once(started_, [] { std::thread(watch).detach(); });
}

}  // namespace pawl
