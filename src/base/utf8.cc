#include "base/utf8.h"

#include <cstring>

namespace pawl {

std::size_t utf8_character_bytes(std::string_view text, Surrogates surrogates) {
  if (text.empty()) return 0;
  const auto lead = static_cast<unsigned char>(text[0]);
  if (lead < 0x80) return 1;
  if (lead < 0xc2 || lead > 0xf4) return 0;
  const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  if (text.size() < length) return 0;
  std::uint32_t code = lead & (0x7fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    const auto next = static_cast<unsigned char>(text[i]);
    if ((next & 0xc0) != 0x80) return 0;
    code = code << 6 | (next & 0x3f);
  }
  const bool overlong = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  return overlong || code > 0x10ffff || (surrogate && surrogates == Surrogates::refused) ? 0 : length;
}

bool is_utf8(std::string_view text, Surrogates surrogates) {
  while (!text.empty()) {
    std::uint64_t eight = 0;
    if (text.size() >= 8) std::memcpy(&eight, text.data(), 8);
    std::size_t length = 8;  // most names are ASCII
    if (text.size() < 8 || (eight & 0x8080'8080'8080'8080u) != 0) length = utf8_character_bytes(text, surrogates);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

void append_utf8(std::string& out, std::uint32_t code) {
  if (code < 0x80) {
    out.push_back(static_cast<char>(code));
    return;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  static constexpr unsigned char kLead[] = {0, 0xc0, 0xe0, 0xf0};
  out.push_back(static_cast<char>(kLead[more] | code >> (6 * more)));
  for (int i = more - 1; i >= 0; --i) out.push_back(static_cast<char>(0x80 | (code >> (6 * i) & 0x3f)));
}

}  // namespace pawl
