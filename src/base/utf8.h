// UTF-8: what is valid, and how a character is written. Both checkers refuse overlong forms and what lies beyond U+10FFFF.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace pawl {

enum class Surrogates { refused, allowed };  // allowed: lone ones, as Python's "surrogatepass" takes them

// The length of the character at the front of `text` in bytes; 0 if none begins there.
[[nodiscard]] std::size_t utf8_character_bytes(std::string_view text, Surrogates surrogates = Surrogates::refused);
[[nodiscard]] bool is_utf8(std::string_view text, Surrogates surrogates = Surrogates::refused);
void append_utf8(std::string& out, std::uint32_t code);  // `code`: up to 0x10ffff

}  // namespace pawl
