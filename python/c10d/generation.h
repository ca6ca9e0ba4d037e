// Generation: the one state that all managed groups of this process share.
//
//     closed ──open(g)──► open(g) ──fail(g, why)──► draining(g) ──open(g')──► open(g')
//        ▲                  │ close                     │ (close keeps it draining: the step still runs out)
//        └──────────────────┘                    loopback: by set_loopback, alone in the world
//
// What always holds: only the open generation can fail, and only once: the first reason is kept until the next opens.
// A late error of an older generation's work changes nothing. When it fails, `on_failure` runs before `fail` returns.
//
// Threads: all calls from any thread. It makes and frees no group: that is managed_group.h.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>

namespace pawl {

enum class Mode : std::uint8_t {
  closed,    // no generation yet: a collective is the caller's mistake
  open,      // collectives go to the inner groups
  draining,  // something failed: collectives are local no-ops until the next generation opens
  loopback   // alone: collectives are local and of the right shape (a spare's rehearsal)
};

// The sentence in a message of torch or gloo: without source files, backtrace and advice.
std::string sentence_of(const std::string& message);

class Generation {
 public:
  static Generation& current();

  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  struct State {
    Mode mode;
    std::uint64_t number;
  };
  [[nodiscard]] State state() const;  // one load
  [[nodiscard]] std::optional<std::string> failed() const;
  [[nodiscard]] std::string lost() const;  // whom the failure found gone, as pawl_fault_report_lost wants it

  void open(std::uint64_t number);
  void close();
  void set_loopback(bool loopback);
  // False: the generation `number` is not the open one (it has failed already, or is past).
  bool fail(std::uint64_t number, const std::string& why) { return fail_once(number, why, ""); }
  // Of a collective's error: its name and what torch or gloo say, made readable. `lost`: as in lost().
  bool fail(std::uint64_t number, const char* collective, const std::string& error, const std::string& lost = {});

  // Set once, before the first generation opens.
  void on_failure(std::function<void()> react) { react_ = std::move(react); }

 private:
  Generation() = default;
  void enter(Mode mode, std::uint64_t number);
  bool fail_once(std::uint64_t number, const std::string& why, const std::string& lost);

  mutable std::mutex mutex_;
  std::atomic<std::uint64_t> state_{0};  // number * 4 + mode; written under the mutex
  std::string why_;                      // of the mode `draining`
  std::string lost_;                     // likewise
  std::function<void()> react_;
};

}  // namespace pawl
