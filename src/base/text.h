// text(a, b, ...): the arguments written one after another into a string. For errors, logs and keys.
//
// Takes strings, characters, integers, doubles, bools and ids. libpawl links nothing but libc and libstdc++,
// and our compilers have no std::format, hence these few lines.
#pragma once

#include <charconv>
#include <concepts>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace pawl {

inline void append_text(std::string& out, std::string_view value) {
  out.append(value);
}
inline void append_text(std::string& out, const char* value) {
  out.append(value);
}
inline void append_text(std::string& out, char value) {
  out.push_back(value);
}
inline void append_text(std::string& out, bool value) {
  out.append(value ? "true" : "false");
}

template <class Number>
requires(std::integral<Number> || std::floating_point<Number>) void append_text(std::string& out, Number value) {
  char digits[40];
  auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  (void)error;
  out.append(digits, end);
}

template <class Tag, class Integer>
void append_text(std::string& out, Id<Tag, Integer> id) {
  append_text(out, id.value);
}

template <class... Parts>
[[nodiscard]] std::string text(const Parts&... parts) {
  std::string out;
  (append_text(out, parts), ...);
  return out;
}

// The whole of `digits` as an unsigned number in `base`; false where it is anything else.
template <std::unsigned_integral Number>
[[nodiscard]] bool parse_number(std::string_view digits, Number& out, int base = 10) {
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

}  // namespace pawl
