// A trainer on each core, for bench/storage: how much of its speed does a checkpoint cost?
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace pawl::job::bench {

// Threads that make steps of AdamW, each over 32 MiB of its own: bound by the memory, as optimizers are. Until destroyed.
class Trainers {
 public:
  explicit Trainers(unsigned count);
  Trainers(const Trainers&) = delete;
  Trainers& operator=(const Trainers&) = delete;
  ~Trainers();
  // Steps per second of all, while `work` runs.
  [[nodiscard]] double rate_during(const std::function<void()>& work) const;

 private:
  void train();

  std::atomic<bool> stop_{false};
  std::atomic<std::uint64_t> rows_{0};  // parts of steps
  std::vector<std::thread> threads_;
};

}  // namespace pawl::job::bench
