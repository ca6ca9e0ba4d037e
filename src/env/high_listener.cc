#include "env/high_listener.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>

namespace pawl {
namespace {

constexpr rlim_t kLowest = 512;  // the kernel keeps a table up to the highest

Fd raised(Fd fd) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return fd;
  const auto lowest = static_cast<int>(std::min(kLowest, limit.rlim_cur / 2));
  const int high = fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest);
  return high >= 0 ? Fd(high) : std::move(fd);
}

class HighListener final : public Listener {
 public:
  // Itself, too: a peer whose line broke connects again, and what a low socket accepts then is no sign of life.
  explicit HighListener(Fd fd) : fd_(raised(std::move(fd))) {}
  int handle() const override { return fd_.get(); }
  Result<std::unique_ptr<Stream>> try_accept() override {
    PAWL_ASSIGN(Fd accepted, pawl::try_accept(fd_.get()));
    return accepted.valid() ? real_stream(raised(std::move(accepted))) : nullptr;
  }

 private:
  const Fd fd_;
};

}  // namespace

std::unique_ptr<Listener> real_high_listener(Fd socket) {
  return std::make_unique<HighListener>(std::move(socket));
}

}  // namespace pawl
