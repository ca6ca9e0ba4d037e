// What commands print: tables for people, JSON for programs.
#pragma once

#include <string>
#include <vector>

namespace pawl {

// Columns as wide as they must be, two blanks apart; the first row is the head.
[[nodiscard]] std::string table(const std::vector<std::vector<std::string>>& rows);
void print(const std::string& text);  // to standard output, at once
[[nodiscard]] std::string fixed(double value, int digits);

}  // namespace pawl
