#include "checkpoint/formats/deepspeed/name_patterns.h"

#include <re2/re2.h>

#include <algorithm>

#include "base/text.h"

namespace pawl::checkpoint::deepspeed {
namespace {

constexpr std::size_t kExpressionsMax = 1000;  // of one list: every name is tried on each of them
constexpr std::size_t kPatternBytesMax = 4096;

// What a pattern matches if it is nothing but a name: "^layers\.0\.norm\.weight$", as jobs write for each parameter.
std::optional<std::string> literal_of(std::string_view pattern) {
  constexpr std::string_view kSpecial = "\\^$.|?*+()[]{}";
  if (!pattern.ends_with('$')) return std::nullopt;
  pattern.remove_suffix(1);
  if (pattern.starts_with('^')) pattern.remove_prefix(1);
  std::string name;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '\\') {
      if (++i == pattern.size()) return std::nullopt;
      const auto c = static_cast<unsigned char>(pattern[i]);
      if (c >= 0x80 || c == '_' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return std::nullopt;  // \d, \Z: a class or a place
    } else if (kSpecial.find(pattern[i]) != std::string_view::npos) {
      return std::nullopt;
    }
    name.push_back(pattern[i]);
  }
  return name;
}

}  // namespace

NamePatterns::NamePatterns() = default;
NamePatterns::~NamePatterns() = default;
NamePatterns::NamePatterns(NamePatterns&&) noexcept = default;
NamePatterns& NamePatterns::operator=(NamePatterns&&) noexcept = default;

Status NamePatterns::add(std::string_view pattern) {
  if (has(pattern)) return {};
  const auto number = static_cast<std::uint32_t>(given_.size());
  given_.emplace_back(pattern);
  known_.insert(given_.back());
  if (std::optional<std::string> name = literal_of(pattern)) {
    literals_.try_emplace(std::move(*name), number);
    return {};
  }
  if (pattern.size() > kPatternBytesMax || expressions_.size() == kExpressionsMax)
    return Error{Code::full, text("more than ", kExpressionsMax, " patterns in one list, or one longer than ",
                                  kPatternBytesMax, " bytes")};
  RE2::Options options;
  options.set_log_errors(false);
  auto expression = std::make_unique<RE2>(re2::StringPiece(pattern.data(), pattern.size()), options);
  // "{,3}" are four characters there, and up to three repetitions in Python.
  if (!expression->ok() || pattern.find("{,") != std::string_view::npos)
    return Error{Code::invalid, text("pattern \"", pattern,
                                     "\" can't be matched here: ", expression->ok() ? "{,n}" : expression->error())};
  expressions_.emplace_back(number, std::move(expression));
  return {};
}

std::vector<std::uint32_t> NamePatterns::matches(std::string_view name) const {
  std::vector<std::uint32_t> found;
  if (const auto at = literals_.find(std::string(name)); at != literals_.end()) found.push_back(at->second);
  const re2::StringPiece subject(name.data(), name.size());
  for (const auto& [number, expression] : expressions_)
    if (expression->Match(subject, 0, name.size(), RE2::ANCHOR_START, nullptr, 0)) found.push_back(number);
  std::ranges::sort(found);
  return found;
}

Result<std::optional<std::uint32_t>> NamePatterns::match(std::string_view name, std::string_view list) const {
  const std::vector<std::uint32_t> found = matches(name);
  if (found.size() > 1)
    return Error{Code::invalid, text("parameter ", name, ": two patterns of ", list, " match: \"", given_[found[0]],
                                     "\" and \"", given_[found[1]], "\"")};
  if (found.empty()) return std::optional<std::uint32_t>();
  return std::optional<std::uint32_t>(found[0]);
}

}  // namespace pawl::checkpoint::deepspeed
