#include "base/text.h"

#include <charconv>

namespace pawl {
namespace {

template <class Number>
void append_number(std::string& out, Number value) {
  char digits[40];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace

void append_text(std::string& out, const TextPart& part) {
  switch (part.kind_) {
    case TextPart::Kind::characters:
      out.append(static_cast<const char*>(part.data_), part.size_);
      return;
    case TextPart::Kind::character:
      out.push_back(static_cast<char>(part.number_));
      return;
    case TextPart::Kind::signed_number:
      return append_number(out, static_cast<std::int64_t>(part.number_));
    case TextPart::Kind::unsigned_number:
      return append_number(out, part.number_);
    case TextPart::Kind::f32:
      return append_number(out, part.f32_);
    case TextPart::Kind::f64:
      return append_number(out, part.f64_);
    case TextPart::Kind::written:
      return part.write_(out, part.data_);
  }
}

std::string join_text(std::initializer_list<TextPart> parts) {
  std::string out;
  for (const TextPart& part : parts) append_text(out, part);
  return out;
}

bool parse_number_up_to(std::uint64_t most, std::string_view digits, std::uint64_t& out, int base) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() || number > most) return false;
  out = number;
  return true;
}

}  // namespace pawl
