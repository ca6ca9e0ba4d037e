#include "job/trainer/thread.h"

#include <csignal>
#include <utility>

#include "base/text.h"

namespace pawl::job {
namespace {

void* run(void* body) {
  (*static_cast<std::function<void()>*>(body))();
  return nullptr;
}

}  // namespace

Result<Thread> Thread::start(const std::string& name, std::function<void()> body) {
  Thread thread;
  thread.body_ = std::make_unique<std::function<void()>>(std::move(body));
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // a new thread inherits the mask
  const int failed = pthread_create(&thread.handle_, nullptr, &run, thread.body_.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (failed != 0) {
    thread.body_.reset();
    return system_error(text("start thread ", name), failed);
  }
  pthread_setname_np(thread.handle_, name.substr(0, 15).c_str());
  return thread;
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (this == &other) return *this;
  join();
  body_ = std::move(other.body_);
  handle_ = other.handle_;
  return *this;
}

void Thread::join() {
  if (!running()) return;
  pthread_join(handle_, nullptr);
  body_.reset();
}

}  // namespace pawl::job
