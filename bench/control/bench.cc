// What many nodes ask of the control in a recovery: each puts two reports, and one node, the leader, hears them all.
// bench/control/run starts the control and counts its CPU. Two roles:
//
//   control_bench put ENDPOINT FIRST COUNT CLIENTS GROUP   reports of COUNT nodes from node FIRST on, GROUP of them in a
//                                                    key, by CLIENTS connections, each a thread that has one call under
//                                                    way; says "ready", begins at a line of its input, ends when all are put
//   control_bench watch ENDPOINT KEYS                follows the reports until it has heard of so many keys of both kinds
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/text.h"
#include "job/control/control.h"

namespace pawl::job {
namespace {

constexpr const char* kReports = "/pawl/bench:reports/2/";
constexpr std::size_t kInventoryBytes = 384;  // of eight seats, of which each has a layout of its own
constexpr std::size_t kReadyBytes = 35;
constexpr std::size_t kAroundBytes = 75;  // of a collected report: its first line and its sum

[[noreturn]] void give_up(const std::string& why) {
  std::fprintf(stderr, "control_bench: %s\n", why.c_str());
  std::exit(1);
}

std::unique_ptr<Control> connect(const char* endpoint) {
  auto control = connect_control(endpoint, {.deadline = std::chrono::seconds(60)});
  if (!control) give_up(control.error().what);
  return std::move(*control);
}

void wait_for_a_line() {
  std::puts("ready");
  std::fflush(stdout);
  for (int c = std::getchar(); c != '\n' && c != EOF;) c = std::getchar();
}

void put_all(const char* endpoint, std::uint32_t first, std::uint32_t count, std::uint32_t clients,
             std::uint32_t group) {
  std::vector<std::unique_ptr<Control>> controls;
  for (std::uint32_t i = 0; i < clients; ++i) {
    controls.push_back(connect(endpoint));
    (void)controls.back()->list("/pawl/bench/nothing");  // the connection stands
  }
  wait_for_a_line();
  std::atomic<std::uint32_t> next{first};
  std::vector<std::thread> threads;
  for (const auto& control : controls) {
    threads.emplace_back([&] {
      for (std::uint32_t node = next.fetch_add(group); node < first + count; node = next.fetch_add(group)) {
        for (const bool inventory : {true, false}) {
          const std::size_t each = inventory ? kInventoryBytes : kReadyBytes;
          const std::size_t bytes = group == 1 ? each : (each + kAroundBytes) * std::min(group, first + count - node);
          const auto put =
              control->put(text(kReports, inventory ? "inventory/" : "ready/", node), std::string(bytes, 'x'));
          if (!put) give_up(put.error().what);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void watch_all(const char* endpoint, std::uint32_t keys) {
  const auto control = connect(endpoint);
  std::mutex mutex;
  std::condition_variable changed;
  std::uint32_t heard = 0;
  bool connected = false;
  WatchOptions options;
  options.on_connection = [&](bool stands) {
    const std::lock_guard lock(mutex);
    connected = stands;
    changed.notify_all();
  };
  const auto watch = control->watch(kReports, options, [&](const WatchEvent& event) {
    const std::lock_guard lock(mutex);
    if (event.kind == WatchEvent::Kind::put) ++heard;
    if (event.kind == WatchEvent::Kind::resync) give_up("some events were lost");
    if (heard == 2 * keys) changed.notify_all();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return connected; });
  lock.unlock();
  wait_for_a_line();
  lock.lock();
  changed.wait(lock, [&] { return heard == 2 * keys; });
}

int run(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  std::vector<std::uint32_t> numbers;
  for (std::size_t i = 2; i < words.size(); ++i)
    if (!parse_number(words[i], numbers.emplace_back())) give_up("not a number: " + words[i]);
  if (words.size() == 6 && words[0] == "put" && numbers[3] > 0)
    put_all(words[1].c_str(), numbers[0], numbers[1], numbers[2], numbers[3]);
  else if (words.size() == 3 && words[0] == "watch")
    watch_all(words[1].c_str(), numbers[0]);
  else
    give_up("put ENDPOINT FIRST COUNT CLIENTS GROUP, or watch ENDPOINT KEYS");
  return 0;
}

}  // namespace
}  // namespace pawl::job

int main(int count, char** arguments) {
  return pawl::job::run(count, arguments);
}
