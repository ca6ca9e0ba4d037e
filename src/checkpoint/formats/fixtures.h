// For tests: where checkpoints with known contents lie, and the sums their goldens give.
//
// The repository has a small set (test/fixtures). The whole set is found at PAWL_FIXTURES, or at ../shared/fixtures
// beside the checkout. Where it is not found the tests of it are skipped, except under CI, where it has to be there.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "env/files.h"

namespace pawl::checkpoint::fixtures {

using nlohmann::json;

inline std::string small_set() {
  return PAWL_CHECKOUT "/test/fixtures";
}

inline std::string whole_set() {  // empty if it isn't found
  const char* set = std::getenv("PAWL_FIXTURES");
  const std::string path = set != nullptr ? set : PAWL_CHECKOUT "/../shared/fixtures";
  return path_exists(path) ? path : std::string();
}

// The sets to run a golden test on: the small one always, the whole one where it is.
inline std::vector<std::string> sets() {
  std::vector<std::string> out = {small_set()};
  if (!whole_set().empty()) out.push_back(whole_set());
  return out;
}

// For the one test in each file that notices when the whole set is not there.
#define PAWL_NEEDS_WHOLE_SET()                                                                            \
  do {                                                                                                    \
    if (!::pawl::checkpoint::fixtures::whole_set().empty()) break;                                        \
    ASSERT_EQ(std::getenv("CI"), nullptr) << "under CI the whole set of fixtures has to be there";        \
    GTEST_SKIP() << "no ../shared/fixtures beside the checkout, and PAWL_FIXTURES does not name another"; \
  } while (false)

inline bool is_folder(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

inline std::vector<std::string> names_in(const std::string& folder) {
  Result<std::vector<std::string>> names = real_files().list(folder);
  EXPECT_TRUE(names.has_value()) << folder;
  return names ? *names : std::vector<std::string>();
}

inline std::string content(const std::string& path) {
  Result<std::string> bytes = read_file(path, std::uint64_t{1} << 30);
  EXPECT_TRUE(bytes.has_value()) << path;
  return bytes ? *bytes : std::string();
}

inline json golden(const std::string& folder) {
  return json::parse(content(folder + "/golden.json"), nullptr, false);
}

inline std::string sha256(std::string_view bytes) {
  static constexpr std::array<std::uint32_t, 64> kRound = [] {
    std::array<std::uint32_t, 64> out{};
    // The first 32 bits of the fractions of the cube roots of the first 64 primes: integer cube roots of p * 2^96.
    std::size_t found = 0;
    for (std::uint64_t prime = 2; found < 64; ++prime) {
      bool is_prime = true;
      for (std::uint64_t d = 2; d * d <= prime; ++d) is_prime = is_prime && prime % d != 0;
      if (!is_prime) continue;
      std::uint64_t root = 0;  // floor(cbrt(prime) * 2^32): 35 bits; its cube needs 105
      for (int bit = 35; bit >= 0; --bit) {
        __extension__ using Wide = unsigned __int128;
        const Wide next = root | std::uint64_t{1} << bit;
        if (next * next * next <= static_cast<Wide>(prime) << 96) root = static_cast<std::uint64_t>(next);
      }
      out[found++] = static_cast<std::uint32_t>(root);
    }
    return out;
  }();
  std::array<std::uint32_t, 8> sum = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::string padded(bytes);
  padded.push_back('\x80');
  while (padded.size() % 64 != 56) padded.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    padded.push_back(static_cast<char>(std::uint64_t{bytes.size()} * 8 >> shift));
  for (std::size_t at = 0; at < padded.size(); at += 64) {
    std::array<std::uint32_t, 64> word{};
    for (std::size_t i = 0; i < 64; ++i)
      word[i / 4] = i < 64 ? word[i / 4] << 8 | static_cast<unsigned char>(padded[at + i]) : 0;
    for (std::size_t i = 16; i < 64; ++i)
      word[i] = word[i - 16] + (std::rotr(word[i - 15], 7) ^ std::rotr(word[i - 15], 18) ^ word[i - 15] >> 3) +
                word[i - 7] + (std::rotr(word[i - 2], 17) ^ std::rotr(word[i - 2], 19) ^ word[i - 2] >> 10);
    std::array<std::uint32_t, 8> s = sum;
    for (std::size_t i = 0; i < 64; ++i) {
      const std::uint32_t one = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                                ((s[4] & s[5]) ^ (~s[4] & s[6])) + kRound[i] + word[i];
      const std::uint32_t two = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) +
                                ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
      s = {one + two, s[0], s[1], s[2], s[3] + one, s[4], s[5], s[6]};
    }
    for (std::size_t i = 0; i < 8; ++i) sum[i] += s[i];
  }
  std::string out;
  for (const std::uint32_t part : sum)
    for (int shift = 28; shift >= 0; shift -= 4) out.push_back("0123456789abcdef"[part >> shift & 15]);
  return out;
}

}  // namespace pawl::checkpoint::fixtures
