// The manifest and the marker of our own store. What is taken lies inside its files, and is written and read again.
// Seeds: a manifest.
#include <cstdlib>

#include "checkpoint/formats/native/store_manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  (void)check_marker(bytes, bytes);
  const Result<StoreManifest> manifest = parse_store_manifest(bytes);
  if (!manifest) return 0;
  for (const StoreManifestTensor& tensor : manifest->tensors)
    for (const StoreManifestPiece& piece : tensor.pieces)
      if (piece.file >= manifest->files.size() ||
          piece_bytes(tensor, piece) > manifest->files[piece.file].size_bytes - piece.offset_bytes)
        std::abort();
  (void)check_manifest_tiles(*manifest);
  const Result<StoreManifest> again = parse_store_manifest(text_of(*manifest));
  if (!again || again->tensors != manifest->tensors || again->files != manifest->files ||
      again->aliases != manifest->aliases || again->values != manifest->values)
    std::abort();
  return 0;
}
