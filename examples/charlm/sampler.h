// Sampler: which samples a step trains on, as a function of one global position.
//
// Sample n of the whole job begins at a place in the text that is a function of (seed, n) alone. A step takes
// world * batch consecutive samples, rank r the r-th slice of them. No sample is skipped or seen twice, whoever trains:
// the hash over all consumed samples proves it. Its state is two numbers, protected as a blob.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace charlm {

struct SamplerOptions {
  std::uint64_t seed = 1;
  std::uint64_t place_count = 1;  // samples begin in [0, place_count)
};

class Sampler {
 public:
  struct Slice {
    std::vector<std::uint64_t> ids;     // global sample numbers
    std::vector<std::uint64_t> places;  // where each begins in the text
    std::uint64_t digest = 0;           // over both, in order
  };

  explicit Sampler(SamplerOptions options) : options_(options) {}

  // This rank's part of the next global batch. Changes nothing.
  [[nodiscard]] Slice slice(std::size_t rank, std::size_t batch) const;
  // The global batch was consumed: `digests` of all ranks' slices, in rank order.
  void consume(std::size_t batch, std::span<const std::uint64_t> digests);
  void reset() { position_ = hash_ = 0; }

  [[nodiscard]] std::uint64_t position() const { return position_; }  // samples consumed by the whole job
  [[nodiscard]] std::uint64_t hash() const { return hash_; }          // over all of them

  static constexpr std::size_t kStateBytes = 24;
  // The state as bytes, and back. `load` refuses what `save` did not write.
  void save(void* buffer) const;
  [[nodiscard]] bool load(const void* buffer, std::size_t size);

 private:
  SamplerOptions options_;
  std::uint64_t position_ = 0;
  std::uint64_t hash_ = 0;
};

}  // namespace charlm
