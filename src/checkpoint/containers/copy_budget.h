// CopyBudget: how many bytes of names, paths and lists a reader may make out of the values of one file.
//
// Values of a pickle are shared: two bytes name a long string, or a large dict, once more. A reader that copies what it
// finds wherever it finds it would take the product of both. So before, or at the latest after, each copy of what may be
// shared it takes as many bytes from the budget, which is a multiple of what the file says it in. What programs write
// takes a small part of that. Not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/result.h"

namespace pawl::checkpoint {

class CopyBudget {
 public:
  static constexpr std::uint64_t kBytesAlways = 32 << 20;
  static constexpr std::uint64_t kCopiesPerByte = 32;

  // `source_bytes`: of the pickle or table that says the values. `where`: what errors call it.
  explicit CopyBudget(std::uint64_t source_bytes = 0, std::string where = {})
      : where_(std::move(where)), bytes_max_(kBytesAlways + kCopiesPerByte * source_bytes) {}

  // So many more bytes say values of this file.
  void add_source(std::uint64_t source_bytes) { bytes_max_ += kCopiesPerByte * source_bytes; }
  // Fails: `full` where all copies together are too many, and from then on.
  [[nodiscard]] Status take(std::uint64_t bytes) {
    if (__builtin_add_overflow(taken_, bytes, &taken_)) taken_ = ~std::uint64_t{0};
    if (taken_ <= bytes_max_) return {};
    return exceeded();
  }
  [[nodiscard]] Status take(std::uint64_t count, std::uint64_t bytes_each) {
    std::uint64_t bytes = 0;
    return take(__builtin_mul_overflow(count, bytes_each, &bytes) ? ~std::uint64_t{0} : bytes);
  }

 private:
  [[nodiscard]] Status exceeded() const;

  std::string where_;
  std::uint64_t bytes_max_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace pawl::checkpoint
