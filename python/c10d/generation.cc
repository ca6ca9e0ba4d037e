#include "generation.h"

namespace pawl {

std::string sentence_of(const std::string& message) {
  std::string text = message.substr(0, message.find('\n'));
  text = text.substr(0, text.find(". This is typically"));
  for (std::size_t begin; (begin = text.find("[/")) != std::string::npos;) {  // [/path/to/source.cc:12]
    const std::size_t end = text.find("] ", begin);
    if (end == std::string::npos) break;
    text.erase(begin, end + 2 - begin);
  }
  return text;
}

Generation& Generation::current() {
  static auto* generation = new Generation;  // never destroyed: threads may still ask when the process ends
  return *generation;
}

Generation::State Generation::state() const {
  const std::uint64_t state = state_.load(std::memory_order_acquire);
  return {Mode(state & 3), state >> 2};
}

void Generation::enter(Mode mode, std::uint64_t number) {
  state_.store(number << 2 | static_cast<std::uint64_t>(mode), std::memory_order_release);
}

std::optional<std::string> Generation::failed() const {
  if (state().mode != Mode::draining) return std::nullopt;  // asked at each object collective: no lock
  std::lock_guard lock(mutex_);
  if (state().mode != Mode::draining) return std::nullopt;
  return why_;
}

std::string Generation::lost() const {
  std::lock_guard lock(mutex_);
  return lost_;
}

void Generation::open(std::uint64_t number) {
  std::lock_guard lock(mutex_);
  why_.clear();
  lost_.clear();
  enter(Mode::open, number);
}

void Generation::close() {
  std::lock_guard lock(mutex_);
  if (state().mode == Mode::open) enter(Mode::closed, state().number);
}

void Generation::set_loopback(bool loopback) {
  std::lock_guard lock(mutex_);
  if (loopback) {
    enter(Mode::loopback, 0);
  } else if (state().mode == Mode::loopback) {
    enter(Mode::closed, 0);
  }
}

bool Generation::fail_once(std::uint64_t number, const std::string& why, const std::string& lost) {
  {
    std::lock_guard lock(mutex_);
    if (state().mode != Mode::open || state().number != number) return false;
    why_ = why;
    lost_ = lost;
    enter(Mode::draining, number);
  }
  if (react_) react_();
  return true;
}

bool Generation::fail(std::uint64_t number, const char* collective, const std::string& error, const std::string& lost) {
  return fail_once(number, collective + (": " + sentence_of(error)), lost);
}

}  // namespace pawl
