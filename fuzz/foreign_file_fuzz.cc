// What a file is that no reader takes. Seeds: pointers, pages, archives of others.
//
// Whatever it says is text for a terminal: UTF-8, and short.
#include "checkpoint/containers/foreign_file.h"

#include <cstdlib>

#include "base/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  MemoryBytes source(std::string_view(reinterpret_cast<const char*>(data), size));
  const std::optional<Error> file = foreign_file(source);
  if (file && (file->what.empty() || file->what.size() > 1000 || !is_utf8(file->what))) std::abort();
  if (foreign_file(source, ForeignText::left_out) && !file) std::abort();
  if (const Result<ZipDirectory> directory = ZipDirectory::read(source))
    if (const std::optional<Error> archive = foreign_archive(*directory); archive && archive->what.empty())
      std::abort();
  return 0;
}
