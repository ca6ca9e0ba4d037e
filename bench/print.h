// What every benchmark prints: a median with its spread, and how busy the machine is.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

namespace pawl::bench {

// "median (least .. greatest)". `values`: not empty.
inline std::string spread(std::vector<double> values, int digits) {
  std::ranges::sort(values);
  std::array<char, 64> out{};
  std::snprintf(out.data(), out.size(), "%.*f (%.*f .. %.*f)", digits, values[values.size() / 2], digits,
                values.front(), digits, values.back());
  return out.data();
}

// Of the last minute, as the kernel says it.
inline std::string load() {
  std::ifstream file("/proc/loadavg");
  std::string word;
  file >> word;
  return word;
}

}  // namespace pawl::bench
