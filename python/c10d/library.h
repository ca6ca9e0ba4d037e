// Library: libpawl as the extension calls it.
//
// The extension has no link dependency on libpawl: Python has loaded it and attached the trainer, and hands over the
// library's path and the handle. This finds the functions there; the path must be the very file that Python loaded.
//
// Threads: `attach` and `detach` are one thread's; everything else may come from any thread at any time. `detach`
// returns only when no other thread is inside a call, so that the handle may be freed afterwards.
// Errors: `attach` and the rendezvous calls throw std::runtime_error with a sentence; the rest is silent when detached.
// What runs at an interruption is in interrupt.h; what the rendezvous calls mean is in store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <shared_mutex>
#include <string>
#include <vector>

struct pawl_trainer;

namespace pawl {

// pawl_status of pawl.h, as far as the extension tells its values apart.
enum class Answer : int { ok = 0, recover = 1, stop = 2, invalid = 3, timeout = 4, unreachable = 5 };

class Library {
 public:
  static Library& loaded();

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  void attach(const std::string& path, std::uintptr_t handle);
  void detach();
  [[nodiscard]] bool attached() const;

  // The hang watch: this process is alive and in `phase` (pawl_phase; 0: nothing is reported). No system call.
  void progress(int phase) const;
  // A recovery or a stop is pending.
  [[nodiscard]] bool interrupted() const;
  // Readable when an event waits; -1 while detached. The fd belongs to libpawl.
  [[nodiscard]] int event_fd() const;

  // Why the last call of the trainer failed. The sentence may belong to another thread's call.
  [[nodiscard]] std::string error() const;

  [[nodiscard]] Answer rendezvous_set(const std::string& key, const void* value, std::size_t size) const;
  [[nodiscard]] Answer rendezvous_get_all(const std::vector<std::string>& keys, void* values, std::size_t& size,
                                          std::vector<std::size_t>& sizes, std::uint32_t timeout_ms) const;
  [[nodiscard]] Answer rendezvous_try_get(const std::string& key, void* value, std::size_t& size) const;
  [[nodiscard]] Answer rendezvous_add(const std::string& key, std::int64_t amount, std::int64_t& sum) const;
  [[nodiscard]] Answer rendezvous_compare_set(const std::string& key, const void* expected, std::size_t expected_size,
                                              const void* desired, std::size_t desired_size, void* value,
                                              std::size_t& size) const;
  [[nodiscard]] Answer rendezvous_delete(const std::string& key, bool& deleted) const;

 private:
  Library() = default;
  // A function that an older libpawl may lack; throws a sentence that names it.
  template <class Function>
  Function required(Function function, const char* name) const;

  struct Functions {
    int (*progress)(pawl_trainer*, int) = nullptr;
    int (*interrupted)(const pawl_trainer*) = nullptr;
    int (*event_fd)(const pawl_trainer*) = nullptr;
    const char* (*error)(const pawl_trainer*) = nullptr;
    int (*rendezvous_set)(pawl_trainer*, const char*, const void*, std::size_t) = nullptr;
    int (*rendezvous_get_all)(pawl_trainer*, const char* const*, std::size_t, void*, std::size_t*, std::size_t*,
                              std::uint32_t) = nullptr;
    int (*rendezvous_try_get)(pawl_trainer*, const char*, void*, std::size_t*) = nullptr;
    int (*rendezvous_add)(pawl_trainer*, const char*, std::int64_t, std::int64_t*) = nullptr;
    int (*rendezvous_compare_set)(pawl_trainer*, const char*, const void*, std::size_t, const void*, std::size_t, void*,
                                  std::size_t*) = nullptr;
    int (*rendezvous_delete)(pawl_trainer*, const char*, int*) = nullptr;
  };

  mutable std::shared_mutex mutex_;  // shared: inside a call; exclusive: attach and detach
  std::string path_;
  pawl_trainer* trainer_ = nullptr;  // null: detached
  Functions functions_;
};

}  // namespace pawl
