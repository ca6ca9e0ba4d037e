#include "library.h"

#include <dlfcn.h>

#include <mutex>
#include <stdexcept>

namespace pawl {
namespace {

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

Library& Library::loaded() {
  static auto* library = new Library;  // never destroyed: threads may still call when the process ends
  return *library;
}

void Library::attach(const std::string& path, std::uintptr_t handle) {
  // Never closed again: the trainer's threads run code of it until the process ends.
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    throw std::runtime_error("pawl: " + path + " cannot be loaded: " + (why != nullptr ? why : "unknown reason"));
  }
  Functions found;
  find(library, "pawl_progress", found.progress);
  find(library, "pawl_interrupted", found.interrupted);
  find(library, "pawl_event_fd", found.event_fd);
  find(library, "pawl_error", found.error);
  find(library, "pawl_rendezvous_set", found.rendezvous_set);
  find(library, "pawl_rendezvous_get_all", found.rendezvous_get_all);
  find(library, "pawl_rendezvous_try_get", found.rendezvous_try_get);
  find(library, "pawl_rendezvous_add", found.rendezvous_add);
  find(library, "pawl_rendezvous_compare_set", found.rendezvous_compare_set);
  find(library, "pawl_rendezvous_delete", found.rendezvous_delete);
  std::lock_guard lock(mutex_);
  path_ = path;
  functions_ = found;
  required(functions_.progress, "pawl_progress");
  required(functions_.interrupted, "pawl_interrupted");
  required(functions_.event_fd, "pawl_event_fd");
  required(functions_.error, "pawl_error");
  required(functions_.rendezvous_set, "pawl_rendezvous_set");  // at once, not in the middle of making a group
  required(functions_.rendezvous_get_all, "pawl_rendezvous_get_all");
  trainer_ = reinterpret_cast<pawl_trainer*>(handle);
}

void Library::detach() {
  std::lock_guard lock(mutex_);
  trainer_ = nullptr;
}

bool Library::attached() const {
  std::shared_lock lock(mutex_);
  return trainer_ != nullptr;
}

void Library::progress(int phase) const {
  if (phase == 0) return;
  std::shared_lock lock(mutex_);
  if (trainer_ != nullptr) functions_.progress(trainer_, phase);
}

bool Library::interrupted() const {
  std::shared_lock lock(mutex_);
  return trainer_ != nullptr && functions_.interrupted(trainer_) != 0;
}

int Library::event_fd() const {
  std::shared_lock lock(mutex_);
  return trainer_ != nullptr ? functions_.event_fd(trainer_) : -1;
}

std::string Library::error() const {
  std::shared_lock lock(mutex_);
  return trainer_ != nullptr ? functions_.error(trainer_) : "no trainer is attached";
}

template <class Function>
Function Library::required(Function function, const char* name) const {
  if (function != nullptr) return function;
  throw std::runtime_error("pawl: " + path_ + " lacks " + name +
                           ": it is of another version than this extension; build both from one checkout (make build)");
}

Answer Library::rendezvous_set(const std::string& key, const void* value, std::size_t size) const {
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  return Answer(required(functions_.rendezvous_set, "pawl_rendezvous_set")(trainer_, key.c_str(), value, size));
}

Answer Library::rendezvous_get_all(const std::vector<std::string>& keys, void* values, std::size_t& size,
                                   std::vector<std::size_t>& sizes, std::uint32_t timeout_ms) const {
  std::vector<const char*> names;
  for (const std::string& key : keys) names.push_back(key.c_str());
  sizes.resize(keys.size());
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  return Answer(required(functions_.rendezvous_get_all, "pawl_rendezvous_get_all")(
      trainer_, names.data(), names.size(), values, &size, sizes.data(), timeout_ms));
}

Answer Library::rendezvous_try_get(const std::string& key, void* value, std::size_t& size) const {
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  return Answer(
      required(functions_.rendezvous_try_get, "pawl_rendezvous_try_get")(trainer_, key.c_str(), value, &size));
}

Answer Library::rendezvous_add(const std::string& key, std::int64_t amount, std::int64_t& sum) const {
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  return Answer(required(functions_.rendezvous_add, "pawl_rendezvous_add")(trainer_, key.c_str(), amount, &sum));
}

Answer Library::rendezvous_compare_set(const std::string& key, const void* expected, std::size_t expected_size,
                                       const void* desired, std::size_t desired_size, void* value,
                                       std::size_t& size) const {
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  return Answer(required(functions_.rendezvous_compare_set, "pawl_rendezvous_compare_set")(
      trainer_, key.c_str(), expected, expected_size, desired, desired_size, value, &size));
}

Answer Library::rendezvous_delete(const std::string& key, bool& deleted) const {
  std::shared_lock lock(mutex_);
  if (trainer_ == nullptr) return Answer::unreachable;
  int count = 0;
  const auto answer =
      Answer(required(functions_.rendezvous_delete, "pawl_rendezvous_delete")(trainer_, key.c_str(), &count));
  deleted = count != 0;
  return answer;
}

}  // namespace pawl
