#include "store.h"

#include <algorithm>
#include <iterator>

#include "generation.h"
#include "interrupt.h"
#include "library.h"

namespace pawl {
namespace {

using Clock = std::chrono::steady_clock;
using Bytes = LocalKeys::Bytes;

// A wait is cut into slices, so that what has happened meanwhile is seen: short ones at first.
constexpr std::chrono::milliseconds kStoreSlice{100};
constexpr std::chrono::milliseconds kStoreSliceMax{1600};
constexpr std::size_t kKeysAtOnce = 256;
constexpr std::size_t kUsualSize = 4096;

bool in_loopback() {
  return Generation::current().state().mode == Mode::loopback;
}

[[noreturn]] void fail(const char* call, const std::string& key, Answer answer) {
  const std::string error = Library::loaded().error();
  if (answer == Answer::recover || answer == Answer::stop) InterruptThread::check();
  C10_THROW_ERROR(DistStoreError, std::string("pawl: store ") + call + " of " + key + ": " + error);
}

void require(const char* call, const std::string& key, Answer answer) {
  if (answer != Answer::ok) fail(call, key, answer);
}

// Reads a value of unknown size by `read(buffer, size)`, which says the true size where the buffer is too small.
template <class Read>
std::pair<Answer, Bytes> read_value(Read read, std::size_t likely_size = 0) {
  Bytes value(std::max(kUsualSize, likely_size));
  for (;;) {
    std::size_t size = value.size();
    const Answer answer = read(value.data(), size);
    if (answer == Answer::invalid && size > value.size()) {
      value.resize(size);
      continue;
    }
    value.resize(answer == Answer::ok ? size : 0);
    return {answer, std::move(value)};
  }
}

std::vector<Bytes> split(const Bytes& all, const std::vector<std::size_t>& sizes) {
  std::vector<Bytes> values;
  auto at = all.begin();
  for (const std::size_t size : sizes) {
    values.emplace_back(at, at + static_cast<std::ptrdiff_t>(size));
    at += static_cast<std::ptrdiff_t>(size);
  }
  return values;
}

// Whether they are there in time, with their values or without.
std::pair<Answer, std::vector<Bytes>> ask_for(const std::vector<std::string>& keys, std::chrono::milliseconds slice,
                                              Wanted wanted) {
  std::vector<std::size_t> sizes;
  const auto read = [&](void* buffer, std::size_t& size) {
    return Library::loaded().rendezvous_get_all(keys, buffer, size, sizes, static_cast<std::uint32_t>(slice.count()));
  };
  if (wanted == Wanted::nothing) {
    std::size_t size = 0;
    const Answer answer = read(nullptr, size);
    const bool too_large = answer == Answer::invalid && size > 0;  // and so there
    return {too_large ? Answer::ok : answer, {}};
  }
  const auto [answer, all] = read_value(read, keys.size() * kUsualSize);
  return {answer, answer == Answer::ok ? split(all, sizes) : std::vector<Bytes>()};
}

[[noreturn]] void fail_late(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) {
  const std::string which =
      keys.size() == 1 ? keys.front() : std::to_string(keys.size()) + " keys, the first of them " + keys.front();
  C10_THROW_ERROR(DistStoreError, "pawl: store get of " + which + ": no rank has set it within " +
                                      std::to_string(timeout.count()) + " ms");
}

}  // namespace

void LocalKeys::set(const std::string& key, Bytes value) {
  std::lock_guard lock(mutex_);
  values_[key] = std::move(value);
  changed_.notify_all();
}

std::optional<Bytes> LocalKeys::get(const std::string& key, Until until) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, until, [&] { return values_.count(key) != 0; })) return std::nullopt;
  return values_[key];
}

Bytes LocalKeys::compare_set(const std::string& key, const Bytes& expected, const Bytes& desired) {
  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end() && !expected.empty()) return expected;
  if (found != values_.end() && found->second != expected) return found->second;
  values_[key] = desired;
  changed_.notify_all();
  return desired;
}

std::int64_t LocalKeys::add(const std::string& key, std::int64_t amount) {
  std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found != values_.end()) amount += std::stoll(std::string(found->second.begin(), found->second.end()));
  const std::string text = std::to_string(amount);
  values_[key] = Bytes(text.begin(), text.end());
  changed_.notify_all();
  return amount;
}

bool LocalKeys::remove(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.erase(key) != 0;
}

bool LocalKeys::has(const std::string& key) {
  std::lock_guard lock(mutex_);
  return values_.count(key) != 0;
}

std::int64_t LocalKeys::count() {
  std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(values_.size());
}

c10::intrusive_ptr<::c10d::Store> PawlStore::clone() {
  return c10::make_intrusive<PawlStore>(*this);
}

void PawlStore::set(const std::string& key, const Bytes& value) {
  if (in_loopback()) return local_->set(key, value);
  require("set", key, Library::loaded().rendezvous_set(key, value.data(), value.size()));
}

Bytes PawlStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  if (in_loopback()) return local_->compare_set(key, expected, desired);
  auto [answer, value] = read_value(
      [&](void* buffer, std::size_t& size) {
        return Library::loaded().rendezvous_compare_set(key, expected.data(), expected.size(), desired.data(),
                                                        desired.size(), buffer, size);
      },
      std::max(expected.size(), desired.size()));
  require("compare-and-set", key, answer);
  return value;
}

Bytes PawlStore::get(const std::string& key) {
  return wait_for({key}, timeout_).front();
}

std::int64_t PawlStore::add(const std::string& key, std::int64_t amount) {
  if (in_loopback()) return local_->add(key, amount);
  std::int64_t sum = 0;
  require("add", key, Library::loaded().rendezvous_add(key, amount, sum));
  return sum;
}

bool PawlStore::deleteKey(const std::string& key) {
  if (in_loopback()) return local_->remove(key);
  bool deleted = false;
  require("delete", key, Library::loaded().rendezvous_delete(key, deleted));
  return deleted;
}

bool PawlStore::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (in_loopback()) {
      if (!local_->has(key)) return false;
      continue;
    }
    const auto [answer, value] = read_value(
        [&](void* buffer, std::size_t& size) { return Library::loaded().rendezvous_try_get(key, buffer, size); });
    if (answer == Answer::timeout) return false;
    require("check", key, answer);
  }
  return true;
}

std::int64_t PawlStore::getNumKeys() {
  if (in_loopback()) return local_->count();
  C10_THROW_ERROR(NotImplementedError, "pawl: the store of a job does not count its keys");
}

void PawlStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  wait_for(keys, timeout, Wanted::nothing);
}

std::vector<Bytes> PawlStore::multiGet(const std::vector<std::string>& keys) {
  return wait_for(keys, timeout_);
}

void PawlStore::multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) {
  if (keys.size() != values.size())
    C10_THROW_ERROR(DistStoreError, "pawl: store multi-set: a value for each key, please");
  for (std::size_t i = 0; i < keys.size(); ++i) set(keys[i], values[i]);
}

void PawlStore::append(const std::string& key, const Bytes& value) {
  for (Bytes before;;) {
    Bytes after = before;
    after.insert(after.end(), value.begin(), value.end());
    Bytes there = compareSet(key, before, after);
    if (there == after) return;
    before = std::move(there);
  }
}

std::vector<Bytes> PawlStore::wait_for(const Keys& keys, std::chrono::milliseconds timeout, Wanted wanted) {
  if (keys.empty()) return {};
  return in_loopback() ? wait_in_loopback(keys, timeout) : wait_in_job(keys, timeout, wanted);
}

std::vector<Bytes> PawlStore::wait_in_loopback(const Keys& keys, std::chrono::milliseconds timeout) {
  const Clock::time_point until = Clock::now() + timeout;
  std::vector<Bytes> values;
  for (const std::string& key : keys) {
    auto value = local_->get(key, until);
    if (!value) fail_late(keys, timeout);
    values.push_back(std::move(*value));
  }
  return values;
}

std::vector<Bytes> PawlStore::wait_in_job(const Keys& keys, std::chrono::milliseconds timeout, Wanted wanted) {
  const Clock::time_point until = Clock::now() + timeout;
  std::vector<Bytes> values;
  for (std::size_t at = 0; at < keys.size(); at += kKeysAtOnce) {
    const auto first = keys.begin() + static_cast<std::ptrdiff_t>(at);
    const Keys some(first, first + static_cast<std::ptrdiff_t>(std::min(kKeysAtOnce, keys.size() - at)));
    for (auto slice = kStoreSlice;; slice = std::min(2 * slice, kStoreSliceMax)) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
      auto [answer, found] = ask_for(some, std::clamp(left, std::chrono::milliseconds(0), slice), wanted);
      std::move(found.begin(), found.end(), std::back_inserter(values));
      if (answer == Answer::ok) break;
      if (answer != Answer::timeout) fail("get", some.front(), answer);
      if (left <= slice) fail_late(keys, timeout);
    }
  }
  return values;
}

}  // namespace pawl
