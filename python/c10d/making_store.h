// MakingStore: the store that an inner group sees while it is made. Its waits last until the deadline of the making,
// whatever timeout they are called with, and end at once when the generation is no longer the open one. Once the group is
// made there is no deadline: NCCL makes a communicator for two ranks when one first sends something to the other.
//
// So the timeout that gloo's constructor is given can be short (gloo waits five times as long for a connection), and a
// thread that is left behind soon ends, over any store. Everything else goes to the store below.
#pragma once

#include <atomic>

#include "torch_headers.h"

namespace pawl {

class MakingStore final : public ::c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;
  using ::c10d::Store::compareSet;
  using ::c10d::Store::set;

  MakingStore(StorePointer below, std::uint64_t generation, std::chrono::steady_clock::time_point deadline)
      : below_(std::move(below)), generation_(generation), deadline_(deadline) {}

  void set_made() { made_ = true; }

  // Not in every supported version of torch.
  c10::intrusive_ptr<::c10d::Store> clone() { return c10::make_intrusive<MakingStore>(below_, generation_, deadline_); }
  void set(const std::string& key, const Bytes& value) override { below_->set(key, value); }
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) override {
    return below_->compareSet(key, expected, desired);
  }
  Bytes get(const std::string& key) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override { return below_->add(key, amount); }
  bool deleteKey(const std::string& key) override { return below_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return below_->check(keys); }
  std::int64_t getNumKeys() override { return below_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override { wait(keys); }
  bool hasExtendedApi() const override { return below_->hasExtendedApi(); }
  std::vector<Bytes> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<Bytes>& values) override {
    below_->multiSet(keys, values);
  }
  void append(const std::string& key, const Bytes& value) override { below_->append(key, value); }

 private:
  const StorePointer below_;
  const std::uint64_t generation_;
  const std::chrono::steady_clock::time_point deadline_;
  std::atomic<bool> made_{false};
};

}  // namespace pawl
