// Fd: one file descriptor that belongs to whoever holds this object.
//
// Move-only; closes what it holds when it goes. Calls that only use a descriptor take a plain int.
// Not for sharing between threads without a lock, as any value.
#pragma once

#include <unistd.h>

#include <utility>

namespace pawl {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;

  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }  // now the caller's to close
  // Closes the old one. Linux frees the number even where close(2) reports an error, so it is never retried.
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace pawl
