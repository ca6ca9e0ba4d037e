// Text to learn from: a file, or all text files below a folder in the order of their names, up to 8 MiB.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "outcome.h"

namespace charlm {

inline constexpr std::size_t kTextBytesMax = 8u << 20;

struct Text {
  std::vector<std::uint8_t> bytes;
  std::uint64_t hash = 0;  // seats must train on equal text: compared when they connect
  std::string source;      // where it comes from
};

// `path` empty: the Python standard library's sources, else text below /usr/share. A folder's files that hold a NUL
// byte in front are not text and passed over; symbolic links to folders are not followed.
// Fails: nothing at `path`, or not `bytes_min` bytes in all.
Outcome load_text(const std::string& path, std::size_t bytes_min, Text* text);

// 64-bit FNV-1a: short enough to be written again by whoever checks our files.
[[nodiscard]] std::uint64_t fnv1a(const void* data, std::size_t size);

}  // namespace charlm
