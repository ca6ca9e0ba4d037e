// A folder with a file of torch.save from each rank. Seeds: packed folders (folder_input.h).
#include "checkpoint/formats/torch/rank_files.h"

#include "folder_input.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  fuzz::FolderFiles files(std::string_view(reinterpret_cast<const char*>(data), size));
  fuzz::check(view_rank_files(std::string(fuzz::kRoot), {}, files), files, files);
  return 0;
}
