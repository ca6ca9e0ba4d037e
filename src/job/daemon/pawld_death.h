// PawldDeath: how a keeper learns at once that its pawld runs no more, however much memory that has mapped.
//
// A page that the keeper makes for each pawld and hands to it. Its main thread holds the page's robust mutex
// (env/robust_mutex.h) from before its first word until the process ends; a task of the keeper waits for it. The exit
// itself, and what it was, the pidfd tells later: until then other threads of that pawld may still be in the middle of
// their last write, and its sockets are open.
#pragma once

#include <memory>

#include "base/result.h"
#include "env/environment.h"
#include "env/fd.h"

namespace pawl::job {

class PawldDeath {
 public:
  // Fails: `full`, `io`.
  [[nodiscard]] static Result<PawldDeath> make(const Environment& environment);
  PawldDeath(PawldDeath&&) = default;
  PawldDeath& operator=(PawldDeath&&) = delete;
  ~PawldDeath();  // the task ends within a second

  [[nodiscard]] int page_fd() const { return page_.get(); }  // for the pawld
  // It has said its first word, so it holds the mutex. Again: nothing.
  void watch();
  // Readable once it has died. Not at all where the pawld does not hold the mutex: then there is the pidfd.
  [[nodiscard]] int fd() const;
  [[nodiscard]] bool has_died() const;

 private:
  struct Shared;
  PawldDeath(const Environment& environment, Fd page, std::shared_ptr<Shared> shared);
  const Environment* environment_;
  Fd page_;
  std::shared_ptr<Shared> shared_;  // the task's, too
  bool watched_ = false;
};

// In pawld, in its main thread: from now on the keeper sees its death. The page stays mapped. Fails: `invalid`, `io`;
// `timeout` where another holds the mutex.
[[nodiscard]] Status show_death(const Environment& environment, Fd page);

}  // namespace pawl::job
