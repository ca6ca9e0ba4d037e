#include "job/daemon/dial.h"

#include <utility>

namespace pawl::job {

std::unique_ptr<Dial> Dial::start(Loop& loop, const Address& address, Done done) {
  std::unique_ptr<Dial> dial(new Dial(loop, std::move(done)));
  Dial* const self = dial.get();
  auto started = loop.environment().network.start_connect(address);
  if (!started) {
    loop.post([self, weak = std::weak_ptr(dial->alive_), error = started.error()] {
      if (weak.expired()) return;
      const Done told = std::move(self->done_);
      told(error);
    });
    return dial;
  }
  dial->stream_ = std::move(*started);
  dial->watch_ = loop.watch(dial->stream_->handle(), kWrite, [self](const Ready&) { self->finish(); });
  return dial;
}

Dial::~Dial() {
  if (watch_ != 0) loop_.unwatch(watch_);
}

void Dial::finish() {
  loop_.unwatch(std::exchange(watch_, 0));
  const Done told = std::move(done_);
  std::unique_ptr<Stream> stream = std::move(stream_);
  if (Status finished = stream->finish_connect(); !finished) return told(finished.error());
  told(std::move(stream));
}

}  // namespace pawl::job
