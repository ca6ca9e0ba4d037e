// JsonScan: strict JSON read from front to back, a token at a time, without a tree in memory.
//
// For headers of a hundred thousand entries. RFC 8259 to the letter: no comments, no NaN, no lone surrogates, valid
// UTF-8, no leading zeros. The caller asks for the tokens that it expects and skips what it does not need, at most 64
// levels deep. Pure. The first failure stays: later calls fail too, so a caller may check once at the end.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace pawl::checkpoint {

class JsonScan {
 public:
  explicit JsonScan(std::string_view text) : text_(text) {}

  // {"key": ...}: begin_object, then next_key until it says false, each time followed by a read of the value.
  bool begin_object() { return begin('{'); }
  [[nodiscard]] bool next_key(std::string& key);
  // [...]: begin_array, then next_item until it says false.
  bool begin_array() { return begin('['); }
  [[nodiscard]] bool next_item();

  bool string(std::string& out);
  bool number(std::uint64_t& out);  // digits only: no sign, no fraction, no exponent
  bool numbers(std::vector<std::uint64_t>& out, std::size_t count_max);  // an array of them: a shape, mostly
  bool skip();                                                           // any value
  // What begins here: '{', '[', '"', '0' for a number, 't', 'f', 'n'; 0 for nothing that may.
  [[nodiscard]] char peek();
  bool finish();  // nothing but white space is left

  bool fail(std::string_view why);
  [[nodiscard]] bool failed() const { return failed_; }
  [[nodiscard]] Error error() const;  // `corrupt`: offset and reason
  [[nodiscard]] std::size_t offset() const { return at_; }

 private:
  bool begin(char bracket);
  bool next(char close);
  bool literal(std::string_view word);
  bool escape(std::string& out);
  bool hex4(std::uint32_t& out);
  bool number_text();
  void skip_space();

  std::string_view text_;
  std::size_t at_ = 0;
  bool first_ = false;  // a bracket has just been opened
  bool failed_ = false;
  std::size_t failed_at_ = 0;
  std::string why_;
};

}  // namespace pawl::checkpoint
