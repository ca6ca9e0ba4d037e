#include "env/random.h"

#include <sys/random.h>

#include <sys/types.h>

namespace pawl {

std::string random_hex(std::size_t byte_count) {
  std::string hex;
  std::string bytes(byte_count, '\0');
  while (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
  }
  for (const char c : bytes) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

}  // namespace pawl
