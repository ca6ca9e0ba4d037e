// Encoded ranges: zstd frames and raw deflate streams. The first byte says which, two more how long it decodes to.
#include <cstdlib>

#include "checkpoint/reshape/stored_file.h"
#include "env/byte_source.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

using namespace pawl;

using namespace pawl::checkpoint;

bool decodes(const Result<std::string>& decoded, std::uint64_t size_bytes) {
  if (decoded && decoded->size() != size_bytes) std::abort();
  if (!decoded && (decoded.error().what.empty() || decoded.error().code == Code::broken)) std::abort();
  return decoded.has_value();
}

// Two ways to learn a frame's size, which agree: its ends, and all of it.
void check_zstd(std::string_view encoded, std::uint64_t guess) {
  const bool is_guessed = decodes(decode_zstd(encoded, guess), guess);
  MemoryBytes source(encoded);
  const Result<ZstdEnds> ends = zstd_ends(source, 1 << 16, 1 << 10);
  if (!ends) return;
  if (ends->size_bytes > 1 << 16 || ends->head.size() > 1 << 10 || ends->tail.size() > 1 << 10) std::abort();
  if (is_guessed && ends->size_bytes != guess) std::abort();
  (void)decodes(decode_zstd(encoded, ends->size_bytes), ends->size_bytes);
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size < 3) return 0;
  const std::uint64_t guess = data[1] | std::uint64_t{data[2]} << 8;
  const std::string_view encoded(reinterpret_cast<const char*>(data) + 3, size - 3);
  if (data[0] % 2 == 0)
    check_zstd(encoded, guess);
  else
    (void)decodes(decode_deflate(encoded, guess), guess);
  return 0;
}
