#include "env/thread.h"

#include <csignal>
#include <memory>
#include <utility>

#include "base/text.h"

namespace pawl {
namespace {

void* run(void* given) {
  const std::unique_ptr<std::function<void()>> body(static_cast<std::function<void()>*>(given));
  (*body)();
  return nullptr;
}

}  // namespace

Result<Thread> Thread::start(const std::string& name, std::function<void()>&& body) {
  Thread thread;
  auto given = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask
  const int failed = pthread_create(&thread.handle_, nullptr, &run, given.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    body = std::move(*given);
    return system_error(text("start thread ", name), failed);
  }
  given.release();  // NOLINT(bugprone-unused-return-value): the thread's now
  thread.running_ = true;
  pthread_setname_np(thread.handle_, name.substr(0, 15).c_str());
  return thread;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this == &other) return *this;
  join();
  running_ = std::exchange(other.running_, false);
  handle_ = other.handle_;
  return *this;
}

void Thread::join() {
  if (std::exchange(running_, false)) pthread_join(handle_, nullptr);
}

void Thread::detach() {
  if (std::exchange(running_, false)) pthread_detach(handle_);
}

}  // namespace pawl
