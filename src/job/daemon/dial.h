// Dial: a connection that is being made to another node, on the loop's thread.
#pragma once

#include <functional>
#include <memory>

#include "env/network.h"
#include "job/daemon/loop.h"

namespace pawl::job {

class Dial {
 public:
  // `done` is called once, from the loop and never within start(): the connected stream, or why there is none. It may
  // destroy the Dial. Destroying it before gives the connection up, and nothing is called.
  using Done = std::function<void(Result<std::unique_ptr<Stream>>)>;
  [[nodiscard]] static std::unique_ptr<Dial> start(Loop& loop, const Address& address, Done done);
  ~Dial();
  Dial(const Dial&) = delete;
  Dial& operator=(const Dial&) = delete;

 private:
  Dial(Loop& loop, Done done) : loop_(loop), done_(std::move(done)) {}
  void finish();

  Loop& loop_;
  Done done_;
  std::unique_ptr<Stream> stream_;
  std::uint64_t watch_ = 0;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);  // for what was posted
};

}  // namespace pawl::job
