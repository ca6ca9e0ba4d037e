#include "trainers.h"

#include <cmath>
#include <cstddef>

#include "memory/scene.h"

namespace pawl::job::bench {
namespace {

constexpr std::size_t kNumbers = 2 << 20;  // of each of four arrays
constexpr std::size_t kRow = 1 << 15;

}  // namespace

Trainers::Trainers(unsigned count) {
  for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { train(); });
}

Trainers::~Trainers() {
  stop_ = true;
  for (std::thread& thread : threads_) thread.join();
}

void Trainers::train() {
  std::vector<float> weight(kNumbers, 1), gradient(kNumbers, 0.01f), first(kNumbers), second(kNumbers);
  for (std::size_t row = 0; !stop_; row = (row + kRow) % kNumbers) {
    for (std::size_t i = row; i < row + kRow; ++i) {
      first[i] = 0.9f * first[i] + 0.1f * gradient[i];
      second[i] = 0.95f * second[i] + 0.05f * gradient[i] * gradient[i];
      weight[i] = 0.9999f * weight[i] - 1e-4f * first[i] / (std::sqrt(second[i]) + 1e-8f);
    }
    ++rows_;
  }
}

double Trainers::rate_during(const std::function<void()>& work) const {
  const std::uint64_t before = rows_;
  const double begun = seconds_now();
  work();
  const double took = seconds_now() - begun;
  return static_cast<double>(rows_ - before) / (kNumbers / kRow) / took;
}

}  // namespace pawl::job::bench
