#include "cli/job/sign_of_life.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/text.h"
#include "env/fd.h"
#include "env/files.h"

namespace pawl::job {
namespace {

Result<Duration> modified(int fd, const std::string& path) {
  struct stat found {};
  if (::fstat(fd, &found) != 0) return system_error(path, errno);
  return std::chrono::duration_cast<Duration>(std::chrono::seconds(found.st_mtim.tv_sec) +
                                              std::chrono::nanoseconds(found.st_mtim.tv_nsec));
}

}  // namespace

SignOfLife::SignOfLife(const std::string& directory)
    : path_(join_path(directory, "launcher.json")), thread_([this] { run(); }) {}

SignOfLife::~SignOfLife() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SignOfLife::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    (void)::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);  // the file system's own time
    lock.lock();
    changed_.wait_for(lock, kSignEvery, [this] { return stopping_; });
  }
}

Result<Duration> since_sign_of_life(const std::string& directory, const std::string& scratch) {
  const std::string path = join_path(directory, "launcher.json");
  const Fd record(::open(path.c_str(), O_RDONLY | O_CLOEXEC));  // opened: NFS asks the server anew
  if (!record.valid()) return system_error(path, errno);
  std::string now_path = join_path(scratch, ".now-XXXXXX");
  const Fd touched(::mkostemp(now_path.data(), O_CLOEXEC));
  if (!touched.valid()) return system_error(now_path, errno);
  ::unlink(now_path.c_str());
  if (::futimens(touched.get(), nullptr) != 0) return system_error(now_path, errno);
  PAWL_ASSIGN(const Duration now, modified(touched.get(), now_path));
  PAWL_ASSIGN(const Duration then, modified(record.get(), path));
  return now - then;
}

}  // namespace pawl::job
