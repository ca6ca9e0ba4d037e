// NamePatterns: regular expressions for parameter names, as a job's Python gave them.
//
// Matched from the start of a name and not to its end, as re.match does. Plain names are looked up; RE2 matches
// the others in linear time. Patterns that RE2 does not support (look-around, back references), or reads otherwise than
// Python, are errors. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/result.h"

namespace re2 {
class RE2;
}

namespace pawl::checkpoint::deepspeed {

class NamePatterns {
 public:
  NamePatterns();
  ~NamePatterns();
  NamePatterns(NamePatterns&&) noexcept;
  NamePatterns& operator=(NamePatterns&&) noexcept;

  // One that is there already is not added again. Fails: `invalid`, naming it, where it can't be matched; `full`.
  [[nodiscard]] Status add(std::string_view pattern);
  [[nodiscard]] bool has(std::string_view pattern) const { return known_.contains(std::string(pattern)); }

  // The numbers of those that match, in the order in which they were added.
  [[nodiscard]] std::vector<std::uint32_t> matches(std::string_view name) const;
  // The one that matches, if any. Fails: `invalid` if several do; `list` is what the error calls them.
  [[nodiscard]] Result<std::optional<std::uint32_t>> match(std::string_view name, std::string_view list) const;
  [[nodiscard]] const std::string& pattern(std::uint32_t number) const { return given_[number]; }

 private:
  std::vector<std::string> given_;
  std::unordered_set<std::string> known_;
  std::unordered_map<std::string, std::uint32_t> literals_;
  std::vector<std::pair<std::uint32_t, std::unique_ptr<re2::RE2>>> expressions_;
};

}  // namespace pawl::checkpoint::deepspeed
