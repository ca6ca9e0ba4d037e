#include "job/daemon/acceptor.h"

#include <utility>

#include "base/log.h"

namespace pawl::job {
namespace {

constexpr Duration kToldEvery = std::chrono::seconds(60);

}  // namespace

void Acceptor::start() {
  started_ = true;
  watch();
}

void Acceptor::stop() {
  started_ = false;
  watch();
}

void Acceptor::watch() {
  const bool wanted = started_ && !rests_;
  if (wanted == (watch_ != 0)) return;
  if (wanted)
    watch_ = loop_.watch(listener_->handle(), kRead, [this](const Ready&) { accept_all(); });
  else
    loop_.unwatch(std::exchange(watch_, 0));
}

void Acceptor::accept_all() {
  while (watch_ != 0) {
    auto accepted = listener_->try_accept();
    if (accepted && *accepted == nullptr) return;
    if (accepted) {
      taken_(std::move(*accepted));
      continue;
    }
    const Duration now = loop_.environment().clock.now();
    if (told_at_ == Duration::zero() || now - told_at_ >= kToldEvery) {
      told_at_ = now;
      log_warn("accept_failed", "why", accepted.error().what, "again_in_ms",
               kAcceptRest / std::chrono::milliseconds(1));
    }
    rests_ = true;
    watch();
    loop_.after(kAcceptRest, [this, gone = gone_] {
      if (*gone) return;
      rests_ = false;
      watch();
    });
  }
}

}  // namespace pawl::job
