#include "checkpoint/containers/json_text.h"

namespace pawl::checkpoint {
void append_json(std::string& out, std::string_view text) {
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') out += '\\';
    if (byte >= 0x20) {
      out += c;
      continue;
    }
    out += "\\u00";
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  out += '"';
}

}  // namespace pawl::checkpoint
