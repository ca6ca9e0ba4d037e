// Addresses as users and peers write them.
#include <cstdlib>
#include <string_view>

#include "base/text.h"
#include "env/network.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const pawl::Result<pawl::Address> address = pawl::Address::parse(input);
  if (!address) return 0;
  const pawl::Result<pawl::Address> again = pawl::Address::parse(pawl::text(*address));
  if (!again || !(*again == *address)) std::abort();
  return 0;
}
