// A file that says it is one of torch.save: the zip directory, the pickle and the tensors. Seeds: small .pt files.
//
// What is accepted keeps its promise: every tensor's elements can be read, unless they are too many or their record
// does not unpack.
#include <cstdlib>

#include "checkpoint/containers/torch_file.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  MemoryBytes source(std::string_view(reinterpret_cast<const char*>(data), size));
  const Result<TorchFile> file = TorchFile::read(source);
  if (!file) {
    if (file.error().what.empty() || file.error().code == Code::broken) std::abort();
    return 0;
  }
  for (const TorchTensor& tensor : file->tensors()) {
    const Result<std::string> elements = read_elements(source, *file, tensor, 1 << 16);
    if (elements || elements.error().code == Code::full || elements.error().code == Code::invalid) continue;
    const bool is_packed = tensor.storage != kNoStorage && file->storages()[tensor.storage].deflated;
    if (!is_packed || elements.error().code != Code::corrupt) std::abort();  // only unpacking can tell
  }
  for (const StoredTensor& tensor : view_of(*file, "x").tensors)
    for (const StoredPiece& piece : tensor.pieces)
      if (piece.offset_bytes > size || span_bytes(piece, tensor.type) > size - piece.offset_bytes) std::abort();
  return 0;
}
