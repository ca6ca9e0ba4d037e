#include "checkpoint/containers/json_scan.h"

#include <array>

#include "base/text.h"
#include "base/utf8.h"

namespace pawl::checkpoint {
namespace {

constexpr std::size_t kSkipDepthMax = 64;

// Characters that stand for themselves in a string, and need no second look.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> out{};
  for (std::size_t c = 0x20; c < 0x80; ++c) out[c] = c != '"' && c != '\\';
  return out;
}();
bool is_plain(char c) {
  return kPlain[static_cast<unsigned char>(c)];
}

}  // namespace

bool JsonScan::fail(std::string_view why) {
  if (!failed_) {
    failed_ = true;
    failed_at_ = at_;
    why_ = why;
  }
  return false;
}

Error JsonScan::error() const {
  return Error{Code::corrupt, text("JSON: offset ", failed_at_, ": ", why_)};
}

void JsonScan::skip_space() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
    ++at_;
}

char JsonScan::peek() {
  skip_space();
  if (failed_ || at_ == text_.size()) return 0;
  const char c = text_[at_];
  if (c == '-' || (c >= '0' && c <= '9')) return '0';
  return c == '{' || c == '[' || c == '"' || c == 't' || c == 'f' || c == 'n' ? c : '\0';
}

bool JsonScan::begin(char bracket) {
  skip_space();
  if (failed_ || at_ == text_.size() || text_[at_] != bracket) return fail(text("'", bracket, "' expected"));
  ++at_;
  first_ = true;
  return true;
}

bool JsonScan::next(char close) {
  skip_space();
  if (failed_) return false;
  if (at_ == text_.size()) return fail("cut off");
  if (text_[at_] == close) {
    ++at_;
    first_ = false;
    return false;
  }
  if (!first_) {
    if (text_[at_] != ',') return fail("',' expected");
    ++at_;
  }
  first_ = false;
  return true;
}

bool JsonScan::next_key(std::string& key) {
  if (!next('}') || !string(key)) return false;
  skip_space();
  if (at_ == text_.size() || text_[at_] != ':') return fail("':' expected");
  ++at_;
  return true;
}

bool JsonScan::next_item() {
  return next(']');
}

bool JsonScan::hex4(std::uint32_t& out) {
  if (text_.size() - at_ < 4 || !parse_number(text_.substr(at_, 4), out, 16)) return fail("a bad \\u");
  at_ += 4;
  return true;
}

bool JsonScan::escape(std::string& out) {
  if (at_ == text_.size()) return fail("cut off");
  const char c = text_[at_++];
  static constexpr std::string_view kFrom = "\"\\/bfnrt";
  static constexpr std::string_view kTo = "\"\\/\b\f\n\r\t";
  if (const std::size_t i = kFrom.find(c); i != std::string_view::npos) {
    out.push_back(kTo[i]);
    return true;
  }
  std::uint32_t code = 0;
  if (c != 'u') return fail("an unknown escape");
  if (!hex4(code)) return false;
  if (code >= 0xd800 && code < 0xe000) {
    std::uint32_t low = 0;
    if (code >= 0xdc00 || text_.substr(at_, 2) != "\\u") return fail("half a surrogate pair");
    at_ += 2;
    if (!hex4(low)) return false;
    if (low < 0xdc00 || low >= 0xe000) return fail("half a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(out, code);
  return true;
}

bool JsonScan::string(std::string& out) {
  skip_space();
  if (failed_ || at_ == text_.size() || text_[at_] != '"') return fail("a string expected");
  ++at_;
  out.clear();
  while (true) {
    const std::size_t from = at_;
    while (true) {
      while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
      if (at_ == text_.size() || static_cast<unsigned char>(text_[at_]) < 0x80) break;
      const std::size_t length = utf8_character_bytes(text_.substr(at_));
      if (length == 0) return fail("invalid UTF-8");
      at_ += length;
    }
    out.append(text_.substr(from, at_ - from));
    if (at_ == text_.size()) return fail("cut off");
    const char c = text_[at_];
    if (static_cast<unsigned char>(c) < 0x20) return fail("a control character in a string");
    ++at_;
    if (c == '"') return true;
    if (!escape(out)) return false;
  }
}

bool JsonScan::number_text() {
  const auto digits = [&] {
    const std::size_t from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ - from;
  };
  if (text_[at_] == '-') ++at_;
  const bool zero = at_ < text_.size() && text_[at_] == '0';
  const std::size_t whole = digits();
  if (whole == 0 || (zero && whole > 1)) return fail("a bad number");
  if (at_ < text_.size() && text_[at_] == '.') {
    ++at_;
    if (digits() == 0) return fail("a bad number");
  }
  if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
    ++at_;
    if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
    if (digits() == 0) return fail("a bad number");
  }
  return true;
}

bool JsonScan::number(std::uint64_t& out) {
  if (peek() != '0') return fail("a number expected");
  const std::size_t from = at_;
  if (!number_text()) return false;
  if (!parse_number(text_.substr(from, at_ - from), out)) {
    at_ = from;
    return fail("not a whole number of 64 bits");
  }
  return true;
}

bool JsonScan::numbers(std::vector<std::uint64_t>& out, std::size_t count_max) {
  out.clear();
  begin('[');
  while (next_item()) {
    if (out.size() == count_max) return fail("too many dimensions");
    if (!number(out.emplace_back())) return false;
  }
  return !failed_;
}

bool JsonScan::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) return fail("an unknown word");
  at_ += word.size();
  return true;
}

bool JsonScan::skip() {
  std::string open;  // the brackets around us; one entry a level
  std::string ignored;
  do {
    if (!open.empty()) {
      const bool more = open.back() == '{' ? next_key(ignored) : next_item();
      if (failed_) return false;
      if (!more) {
        open.pop_back();
        continue;
      }
    }
    const char c = peek();
    if (c == '{' || c == '[') {
      if (open.size() == kSkipDepthMax) return fail("nested too deep");
      (void)begin(c);
      open.push_back(c);
    } else if (c == '"'   ? !string(ignored)
               : c == '0' ? !number_text()
               : c == 't' ? !literal("true")
               : c == 'f' ? !literal("false")
               : c == 'n' ? !literal("null")
                          : !fail("a value expected")) {
      return false;
    }
  } while (!open.empty());
  return true;
}

bool JsonScan::finish() {
  skip_space();
  return !failed_ && (at_ == text_.size() || fail("something follows"));
}

}  // namespace pawl::checkpoint
