// State: as many bytes as are wanted, each a function of seed, seat and step.
//
// It consists of blocks. A step writes one block of each `period` anew, so that steps can be short whatever the size; a
// block's bytes say of which step, seat and place they are. Hence one pass tells whether all of it is that of one step:
// a byte of another step, seat or place is seen, wherever it comes from. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace statebench {

inline constexpr std::uint64_t kBlockBytes = 4096;
inline constexpr std::uint64_t kStateBytesMax = std::uint64_t{1} << 42;

// Whose state it is.
struct Identity {
  std::uint64_t seed = 0;
  std::uint64_t seat = 0;
};

class State {
 public:
  State() = default;
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  // Zeroes, not yet touched. `touch`: the part of the blocks that a step changes. False: there is too little memory.
  [[nodiscard]] bool allocate(std::uint64_t bytes, double touch);
  // In memory of somebody else's, which outlives this.
  void use(void* memory, std::uint64_t bytes, double touch);

  void fill(Identity identity);  // all of it: the state before step 1
  // From the state of step - 1 to that of `step`.
  void advance(Identity identity, std::uint64_t step);
  // Calls `changed` with where each block begins that advance() to `step` writes.
  template <class Changed>
  void each_change(std::uint64_t step, Changed changed) const {
    for (std::uint64_t i = step % period_; i < block_count_; i += period_) changed(i * kBlockBytes);
  }
  // Where the first block begins that is not as the state of `step` has it; nothing: every byte is right.
  [[nodiscard]] std::optional<std::uint64_t> first_difference(Identity identity, std::uint64_t step) const;

  // The words of tensor `index` of `count`; together they are the state.
  [[nodiscard]] std::span<std::uint64_t> tensor(std::uint64_t index, std::uint64_t count) const;
  [[nodiscard]] std::uint64_t bytes() const { return block_count_ * kBlockBytes; }
  [[nodiscard]] std::uint64_t period() const { return period_; }

 private:
  [[nodiscard]] std::uint64_t* block(std::uint64_t index) const {
    return words_ + index * (kBlockBytes / sizeof(std::uint64_t));
  }

  bool is_own_ = false;
  std::uint64_t* words_ = nullptr;
  std::uint64_t block_count_ = 0;
  std::uint64_t period_ = 1;
};

}  // namespace statebench
