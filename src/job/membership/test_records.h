// For unit tests of the records: a text that is almost the one that was written.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <string_view>

namespace pawl::job {

inline constexpr std::uint64_t kHuge = 18446744073709551615u;  // not a double: must come back exactly

inline std::string replaced(std::string source, std::string_view from, std::string_view to) {
  const auto at = source.find(from);
  EXPECT_NE(at, std::string::npos) << from << " is not in " << source;
  return at == std::string::npos ? source : source.replace(at, from.size(), to);
}

// With one to three places changed; some of the new characters are of `likely`.
inline std::string damaged(std::string whole, std::mt19937_64& random, std::string_view likely) {
  for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
    const std::size_t at = random() % whole.size();
    switch (random() % 4) {
      case 0:
        whole[at] = static_cast<char>(random());
        break;
      case 1:
        whole.erase(at, 1 + random() % 20);
        break;
      case 2:
        whole.insert(at, whole.substr(random() % whole.size(), random() % 40));
        break;
      default:
        whole[at] = likely[random() % likely.size()];
    }
    if (whole.empty()) whole = "x";
  }
  return whole;
}

}  // namespace pawl::job
