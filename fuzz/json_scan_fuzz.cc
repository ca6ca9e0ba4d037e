// JSON by the scanner and by a library that keeps a tree: both take the same texts. Seeds: indexes, headers.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "checkpoint/containers/json_scan.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

// How deep brackets nest, as the scanner counts; strings are left out.
std::size_t depth_of(std::string_view text) {
  std::size_t depth = 0, deepest = 0;
  bool is_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (is_string && c == '\\') ++i;
    if (c == '"') is_string = !is_string;
    if (is_string) continue;
    if (c == '{' || c == '[') deepest = std::max(deepest, ++depth);
    if ((c == '}' || c == ']') && depth > 0) --depth;
  }
  return deepest;
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  pawl::checkpoint::JsonScan scan(text);
  const bool is_taken = scan.skip() && scan.finish();
  if (is_taken == scan.failed()) std::abort();
  if (scan.failed() && scan.error().what.empty()) std::abort();
  // The library drops a byte order mark, which the standard lets a parser refuse; both refuse numbers past a double.
  if (text.starts_with("\xef\xbb\xbf") || depth_of(text) > 60) return 0;
  const bool is_json = nlohmann::json::accept(text);
  if (is_taken && !is_json) {
    // A number that no double holds is still JSON.
    const nlohmann::json parsed = nlohmann::json::parse(text, nullptr, false);
    if (parsed.is_discarded() && text.find_first_of("eE0123456789") == std::string_view::npos) std::abort();
    return 0;
  }
  if (!is_taken && is_json && text.find('\0') == std::string_view::npos) std::abort();  // which ends a text there
  return 0;
}
