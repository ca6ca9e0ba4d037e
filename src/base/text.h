// text(a, b, ...): the arguments written one after another into a string. For errors, logs and keys.
//
// Takes strings, characters, integers, floating-point numbers, bools, ids, and any type with a
// write_text(std::string& out, const Type&) in its namespace. libpawl links nothing but libc and libstdc++, and our
// compilers have no std::format, hence these few lines. A call passes a list of parts to one function in text.cc: it is
// written in more than a thousand places, and each must compile to little.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include "base/ids.h"

namespace pawl {

// One argument of text(). Refers to the argument: use it within the call only.
class TextPart {
 public:
  TextPart(std::string_view value) : data_(value.data()), size_(value.size()), kind_(Kind::characters) {}  // NOLINT
  TextPart(const std::string& value) : TextPart(std::string_view(value)) {}                                // NOLINT
  TextPart(const char* value) : TextPart(std::string_view(value)) {}                                       // NOLINT
  TextPart(char value) : number_(static_cast<unsigned char>(value)), kind_(Kind::character) {}             // NOLINT
  TextPart(bool value) : TextPart(std::string_view(value ? "true" : "false")) {}                           // NOLINT
  TextPart(float value) : f32_(value), kind_(Kind::f32) {}                                                 // NOLINT
  TextPart(double value) : f64_(value), kind_(Kind::f64) {}                                                // NOLINT
  template <std::signed_integral Number>
  TextPart(Number value) : number_(static_cast<std::uint64_t>(value)), kind_(Kind::signed_number) {}  // NOLINT
  template <std::unsigned_integral Number>
  TextPart(Number value) : number_(value), kind_(Kind::unsigned_number) {}  // NOLINT
  template <class Tag, class Integer>
  TextPart(Id<Tag, Integer> id) : TextPart(id.value) {}  // NOLINT
  template <class Value>
  requires requires(std::string& out, const Value& value) { write_text(out, value); }
  TextPart(const Value& value)  // NOLINT
      : data_(&value),
        write_([](std::string& out, const void* object) { write_text(out, *static_cast<const Value*>(object)); }),
        kind_(Kind::written) {}

 private:
  friend void append_text(std::string& out, const TextPart& part);
  enum class Kind : unsigned char { characters, character, signed_number, unsigned_number, f32, f64, written };
  union {
    const void* data_;
    std::uint64_t number_;
    float f32_;
    double f64_;
  };
  union {
    std::size_t size_ = 0;
    void (*write_)(std::string& out, const void* object);
  };
  Kind kind_;
};

void append_text(std::string& out, const TextPart& part);
[[nodiscard]] std::string join_text(std::initializer_list<TextPart> parts);

template <class... Parts>
[[nodiscard]] std::string text(const Parts&... parts) {
  return join_text({TextPart(parts)...});
}

// The whole of `digits` as an unsigned number of at most `most`; false, with `out` as it was, where it is anything else.
[[nodiscard]] bool parse_number_up_to(std::uint64_t most, std::string_view digits, std::uint64_t& out, int base);

// The whole of `digits` as an unsigned number in `base`; false where it is anything else.
template <std::unsigned_integral Number>
[[nodiscard]] bool parse_number(std::string_view digits, Number& out, int base = 10) {
  std::uint64_t number = 0;
  if (!parse_number_up_to(std::numeric_limits<Number>::max(), digits, number, base)) return false;
  out = static_cast<Number>(number);
  return true;
}

}  // namespace pawl
