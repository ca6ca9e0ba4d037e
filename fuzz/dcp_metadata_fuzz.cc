// A .metadata file beside data files of zeros: the pickle's meaning, and places in files. Seeds: any .metadata.
#include <cstdlib>

#include "checkpoint/formats/dcp/dcp.h"
#include "folder_input.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size);

namespace {

void append(std::string& out, std::size_t number, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(number >> 8 * i));
}

void append_file(std::string& out, std::string_view name, std::string_view content, std::size_t zeros) {
  append(out, name.size(), 1);
  out += name;
  append(out, content.size() / 0xffff + 1, 2);
  for (std::size_t at = 0; at <= content.size(); at += 0xffff) {
    const std::string_view chunk = content.substr(at, 0xffff);
    append(out, chunk.size(), 2);
    out += chunk;
    append(out, at + 0xffff > content.size() ? zeros : 0, 4);
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace pawl;
  using namespace pawl::checkpoint;
  std::string folder;
  append_file(folder, ".metadata", {reinterpret_cast<const char*>(data), size}, 0);
  for (const std::string_view name : {"__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "__2_0.distcp", "__3_0.distcp"})
    append_file(folder, name, {}, 1 << 15);
  fuzz::FolderFiles files(folder);
  const Result<DcpCheckpoint> read = open_dcp(std::string(fuzz::kRoot), files);
  if (!read) {
    if (read.error().what.empty() || read.error().code == Code::broken) std::abort();
    return 0;
  }
  ++fuzz::accepted;
  for (const DcpTensor& tensor : read->tensors)
    for (const DcpChunk& chunk : tensor.chunks) {
      if (!check_inside(chunk.box, tensor.shape) || chunk.place.file >= read->files.size()) std::abort();
      const std::uint64_t bytes = files.size_of(read->files[chunk.place.file]);
      if (chunk.place.offset_bytes > bytes || chunk.place.length_bytes > bytes - chunk.place.offset_bytes) std::abort();
    }
  return 0;
}
