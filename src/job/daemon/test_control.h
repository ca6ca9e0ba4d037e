// For unit tests: a control in memory, which answers at once and tells its watches; a test counts and delays its calls.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "job/control/control.h"

namespace pawl::job {

// Thread-safe. Outlives all its lines and their watches.
class MemoryControl {
 public:
  // A client's end.
  [[nodiscard]] std::unique_ptr<Control> connect() { return std::make_unique<Line>(*this); }

  Revision put(const std::string& key, const std::string& value) {
    std::lock_guard lock(mutex_);
    return put_locked(key, value);
  }
  std::int64_t erase(const std::string& key) {
    std::lock_guard lock(mutex_);
    return erase_locked(key);
  }
  void resync() {
    std::lock_guard lock(mutex_);
    tell({WatchEvent::Kind::resync, {}, revision_});
  }
  // As if the server at the other end of all watches stood still.
  void hold_watches() {
    std::lock_guard lock(mutex_);
    watches_held_ = true;
  }
  // One of what they would have told, later.
  void tell_held(const WatchEvent& event) {
    std::lock_guard lock(mutex_);
    for (const auto& [watch, told] : watches_) told.tell(event);
  }
  // As if the control could not be reached.
  void fail_next_lists(int count) {
    std::lock_guard lock(mutex_);
    lists_to_fail_ = count;
  }
  [[nodiscard]] std::string value(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = keys_.find(key);
    return found != keys_.end() ? found->second.value : "";
  }
  [[nodiscard]] std::size_t count(const std::string& prefix) const {
    std::lock_guard lock(mutex_);
    return listed(prefix).size();
  }
  [[nodiscard]] int gets(const std::string& key) const {
    std::lock_guard lock(mutex_);
    const auto found = gets_.find(key);
    return found != gets_.end() ? found->second : 0;
  }
  // How many watches this key is told to.
  [[nodiscard]] std::size_t watchers(const std::string& key) const {
    std::lock_guard lock(mutex_);
    return static_cast<std::size_t>(
        std::ranges::count_if(watches_, [&key](const auto& watch) { return key.starts_with(watch.second.prefix); }));
  }
  [[nodiscard]] int lists() const { return counted(lists_); }
  [[nodiscard]] int writes() const { return counted(writes_); }
  // Each listing waits for this before it answers (what it answers is as of then).
  std::function<void()> before_list = [] {};
  std::function<void(std::string_view prefix)> on_list = [](std::string_view) {};

 private:
  class Line;
  using Tell = std::function<void(const WatchEvent&)>;
  class Watching final : public Watch {
   public:
    Watching(MemoryControl& control, std::string prefix, Tell tell) : control_(control) {
      std::lock_guard lock(control_.mutex_);
      control_.watches_[this] = {std::move(prefix), std::move(tell)};
    }
    ~Watching() override {
      std::lock_guard lock(control_.mutex_);
      control_.watches_.erase(this);
    }

   private:
    MemoryControl& control_;
  };

  [[nodiscard]] int counted(const int& count) const {
    std::lock_guard lock(mutex_);
    return count;
  }
  void tell(const WatchEvent& event) {
    if (watches_held_) return;
    for (const auto& [watch, told] : watches_)
      if (event.kv.key.starts_with(told.prefix) || event.kind == WatchEvent::Kind::resync) told.tell(event);
  }
  Revision put_locked(const std::string& key, const std::string& value) {
    KeyValue& kv = keys_[key];
    kv.key = key;
    kv.value = value;
    kv.mod_revision = ++revision_;
    tell({WatchEvent::Kind::put, kv, revision_});
    return revision_;
  }
  std::int64_t erase_locked(const std::string& key) {
    if (keys_.erase(key) == 0) return 0;
    ++revision_;
    tell({WatchEvent::Kind::erased, {key, "", revision_, 0, 0}, revision_});
    return 1;
  }
  [[nodiscard]] std::vector<KeyValue> listed(std::string_view prefix) const {
    std::vector<KeyValue> kvs;
    for (auto it = keys_.lower_bound(std::string(prefix)); it != keys_.end() && it->first.starts_with(prefix); ++it)
      kvs.push_back(it->second);
    return kvs;
  }

  class Line final : public Control {
   public:
    explicit Line(MemoryControl& all) : all_(all) {}
    Result<KeyValue> get(std::string_view key) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.gets_[std::string(key)];
      const auto found = all_.keys_.find(std::string(key));
      if (found == all_.keys_.end()) return Error{Code::not_found, std::string(key)};
      return found->second;
    }
    Result<Listing> list(std::string_view prefix) override {
      all_.before_list();
      std::lock_guard lock(all_.mutex_);
      ++all_.lists_;
      all_.on_list(prefix);
      if (all_.lists_to_fail_ > 0) {
        --all_.lists_to_fail_;
        return Error{Code::unreachable, "the test fails this listing"};
      }
      return Listing{all_.listed(prefix), all_.revision_};
    }
    Result<KeyTally> tally(std::string_view prefix) override {
      std::lock_guard lock(all_.mutex_);
      KeyTally tally{0, 0, all_.revision_};
      for (const KeyValue& kv : all_.listed(prefix)) {
        ++tally.count;
        tally.newest = std::max(tally.newest, kv.mod_revision);
      }
      return tally;
    }
    Result<Revision> put(std::string_view key, std::string_view value, LeaseId) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.writes_;
      return all_.put_locked(std::string(key), std::string(value));
    }
    Result<std::int64_t> erase(std::string_view key) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.writes_;
      return all_.erase_locked(std::string(key));
    }
    Result<std::int64_t> erase_prefix(std::string_view prefix) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.writes_;
      std::int64_t count = 0;
      for (const KeyValue& kv : all_.listed(prefix)) count += all_.erase_locked(kv.key);
      return count;
    }
    Result<Swapped> compare_and_swap(std::string_view key, Revision expected, std::string_view value,
                                     LeaseId) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.writes_;
      const auto found = all_.keys_.find(std::string(key));
      if ((found != all_.keys_.end() ? found->second.mod_revision : 0) == expected)
        return Swapped{true, all_.put_locked(std::string(key), std::string(value)), std::nullopt};
      return Swapped{false, all_.revision_, found != all_.keys_.end() ? std::optional(found->second) : std::nullopt};
    }
    Result<Transacted> transact(const std::vector<KeyCompare>& compares,
                                const std::vector<KeyChange>& changes) override {
      std::lock_guard lock(all_.mutex_);
      ++all_.writes_;
      if (changes.size() > 128) return Error{Code::invalid, "this test has no such thing"};
      Transacted lost{false, all_.revision_, {}};
      bool holds = true;
      for (const KeyCompare& compare : compares) {
        const auto found = all_.keys_.find(compare.key);
        lost.current.push_back(found != all_.keys_.end() ? std::optional(found->second) : std::nullopt);
        holds = holds && (lost.current.back() ? lost.current.back()->mod_revision : 0) == compare.revision;
      }
      if (!holds) return lost;
      for (const KeyChange& change : changes) {
        if (change.kind == KeyChange::Kind::erase) (void)all_.erase_locked(change.key);
        if (change.kind == KeyChange::Kind::put) (void)all_.put_locked(change.key, change.value);
      }
      return Transacted{true, all_.revision_, {}};
    }
    Result<LeaseId> lease_grant(std::chrono::seconds) override { return LeaseId{1}; }
    Result<std::chrono::seconds> lease_keep_alive_once(LeaseId) override { return std::chrono::seconds(60); }
    Status lease_revoke(LeaseId) override { return {}; }
    std::unique_ptr<Watch> watch(std::string_view prefix, WatchOptions, Tell on_event) override {
      return std::make_unique<Watching>(all_, std::string(prefix), std::move(on_event));
    }

   private:
    MemoryControl& all_;
  };

  mutable std::mutex mutex_;
  std::map<std::string, KeyValue> keys_;
  Revision revision_ = 0;
  struct Told {
    std::string prefix;
    Tell tell;
  };
  std::map<Watch*, Told> watches_;
  bool watches_held_ = false;
  std::map<std::string, int> gets_;  // by key
  int lists_ = 0;
  int lists_to_fail_ = 0;
  int writes_ = 0;
};

}  // namespace pawl::job
