// A folder of any format, found by looking. Seeds: packed folders of each (folder_input.h).
#include "checkpoint/formats/open_checkpoint.h"

#include "folder_input.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  fuzz::FolderFiles files(std::string_view(reinterpret_cast<const char*>(data), size));
  fuzz::check(open_checkpoint(std::string(fuzz::kRoot), {}, files), files, files);
  return 0;
}
