#include "making_store.h"

#include "generation.h"

namespace pawl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kMakingSlice{100};  // how long a failure of the generation may go unseen

}  // namespace

MakingStore::Bytes MakingStore::get(const std::string& key) {
  wait({key});
  return below_->get(key);
}

std::vector<MakingStore::Bytes> MakingStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys);
  return below_->multiGet(keys);
}

void MakingStore::wait(const std::vector<std::string>& keys) {
  for (;;) {
    const Clock::time_point began = Clock::now();
    try {
      below_->wait(keys, kMakingSlice);
      return;
    } catch (const std::exception&) {
      const Generation::State state = Generation::current().state();
      if (state.mode != Mode::open || state.number != generation_) throw;
      // An error that did not take the slice is no timeout: the store itself has failed.
      if (Clock::now() - began < kMakingSlice / 2) throw;
      if (made_ || Clock::now() < deadline_) continue;
    }
    C10_THROW_ERROR(DistStoreError, "a peer did not publish its address in time (key " + keys.front() + ")");
  }
}

}  // namespace pawl
