// FirstFew: sentences about things of which there may be very many, joined to one that names the first five.
//
// "a; b; c; d; e; and 12 more". Memory is that of the five. For errors that name tensors, files, copies.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"

namespace pawl {

class FirstFew {
 public:
  static constexpr std::size_t kNamedMax = 5;

  void add(std::string_view sentence) {
    if (++count_ <= kNamedMax) what_ += text(what_.empty() ? "" : "; ", sentence);
  }
  [[nodiscard]] bool any() const { return count_ != 0; }
  [[nodiscard]] bool full() const { return count_ >= kNamedMax; }  // more are only counted
  [[nodiscard]] std::string sentence() const {
    return count_ <= kNamedMax ? what_ : text(what_, "; and ", count_ - kNamedMax, " more");
  }

 private:
  std::string what_;
  std::size_t count_ = 0;
};

[[nodiscard]] inline std::string first_few(const std::vector<std::string>& sentences) {
  FirstFew few;
  for (const std::string& sentence : sentences) few.add(sentence);
  return few.sentence();
}

}  // namespace pawl
