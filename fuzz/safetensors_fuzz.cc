// A safetensors file, and the same bytes as a Hugging Face index. Seeds: small .safetensors files, index.json files.
#include <cstdlib>

#include "checkpoint/containers/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const Result<HuggingFaceIndex> index = parse_huggingface_index(bytes))
    for (const std::string& file : index->files)
      if (!is_plain_file_name(file)) std::abort();
  MemoryBytes source(bytes);
  const Result<SafetensorsFile> file = read_safetensors(source);
  if (!file) return 0;
  std::uint64_t at = file->header_bytes;
  for (const SafetensorsEntry& entry : file->tensors) {  // without holes, to the end
    if (entry.offset_bytes != at) std::abort();
    at += entry.size_bytes;
  }
  if (at != size) std::abort();
  return 0;
}
