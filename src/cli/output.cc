#include "cli/output.h"

#include <algorithm>
#include <cstdio>

#include "base/text.h"
#include "cli/exit_codes.h"

namespace pawl {

std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  return out;
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

std::string fixed(double value, int digits) {
  char buffer[64];
  std::snprintf(buffer, sizeof buffer, "%.*f", digits, value);
  return buffer;
}

void say(const std::string& sentence) {
  const std::string line = "pawl: " + sentence + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int report_error(const Error& error) {
  say(error.what);
  return error.code == Code::not_found ? kExitNotFound : kExitFailed;
}

int usage_error(const std::string& sentence) {
  say(sentence);
  return kExitUsage;
}

}  // namespace pawl
