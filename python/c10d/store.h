// PawlStore: a c10d::Store over pawl's rendezvous: new for each generation, cancelled when the generation changes.
// In loopback it is in this process's memory instead.
//
// Its contract is that of c10d::Store. A wait ends with an error when a recovery or a stop is pending, within
// milliseconds; the open generation fails then, as libpawl would let it fail anyway. Keys are counted only in loopback.
//
// Threads: all calls from any thread; a waiting call keeps no other waiting.
// Errors: c10::DistStoreError with a sentence.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>

#include "torch_headers.h"

namespace pawl {

// What PawlStore is in loopback: keys and values in memory.
class LocalKeys {
 public:
  using Bytes = std::vector<std::uint8_t>;
  using Until = std::chrono::steady_clock::time_point;

  void set(const std::string& key, Bytes value);
  // Nothing: `until` has passed.
  std::optional<Bytes> get(const std::string& key, Until until);
  Bytes compare_set(const std::string& key, const Bytes& expected, const Bytes& desired);
  std::int64_t add(const std::string& key, std::int64_t amount);
  bool remove(const std::string& key);
  bool has(const std::string& key);
  std::int64_t count();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Bytes> values_;
};

enum class Wanted { values, nothing };  // of a wait for keys

class PawlStore final : public ::c10d::Store {
 public:
  using Bytes = LocalKeys::Bytes;
  using ::c10d::Store::compareSet;
  using ::c10d::Store::set;

  explicit PawlStore(std::chrono::milliseconds timeout) : Store(timeout), local_(std::make_shared<LocalKeys>()) {}
  PawlStore(const PawlStore& other) : Store(other), local_(other.local_) {}

  c10::intrusive_ptr<::c10d::Store> clone();  // not in every supported version of torch
  void set(const std::string& key, const Bytes& value) override;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override;
  Bytes get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  std::int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  // gloo reads the keys of all ranks by it, if GLOO_ENABLE_STORE_V2_API is set: one request, not one a rank.
  bool hasExtendedApi() const override { return true; }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override;
  void append(const std::string& key, const Bytes& value) override;

 private:
  using Keys = std::vector<std::string>;
  std::vector<Bytes> wait_for(const Keys& keys, std::chrono::milliseconds timeout, Wanted wanted = Wanted::values);
  std::vector<Bytes> wait_in_loopback(const Keys& keys, std::chrono::milliseconds timeout);
  std::vector<Bytes> wait_in_job(const Keys& keys, std::chrono::milliseconds timeout, Wanted wanted);

  std::shared_ptr<LocalKeys> local_;
};

}  // namespace pawl
