// The directory of a zip archive. Seeds: small .pt files.
#include <cstdlib>

#include "checkpoint/containers/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  MemoryBytes source(std::string_view(reinterpret_cast<const char*>(data), size));
  const Result<ZipDirectory> directory = ZipDirectory::read(source);
  if (!directory) return 0;
  for (const ZipRecord& record : directory->records()) {
    if (record.offset_bytes > size || record.size_bytes > size - record.offset_bytes) std::abort();
    if (directory->find(record.name) != &record) std::abort();
    if (record.name.front() == '/' || record.name.find("..") == 0) std::abort();
    (void)read_record(source, record, 1 << 16);
  }
  return 0;
}
