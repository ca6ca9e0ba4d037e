#include "checkpoint/formats/dcp/dcp_objects.h"

#include <utility>

#include "base/text.h"
#include "checkpoint/reshape/stored_file.h"

namespace pawl::checkpoint {

constexpr std::uint64_t kObjectBytesMax = 64 << 20;

Result<ByteSource*> DcpObjects::source(std::uint32_t file) {
  sources_.resize(checkpoint_.files.size());
  if (sources_[file] == nullptr) {
    PAWL_ASSIGN(sources_[file], open_bytes(checkpoint_.files[file], files_));
  }
  return sources_[file].get();
}

Result<TorchFile> DcpObjects::read_at(const DcpPlace& place) {
  PAWL_ASSIGN(ByteSource* const file, source(place.file));
  if (place.length_bytes > kObjectBytesMax)
    return Error{Code::full, text("it has ", place.length_bytes, " bytes; at most ", kObjectBytesMax, " are read")};
  PAWL_ASSIGN(RangeBytes item, RangeBytes::open(*file, place.offset_bytes, place.length_bytes));
  if (place.transforms.empty()) return TorchFile::read(item);
  PAWL_ASSIGN(const ZstdEnds all, zstd_ends(item, kObjectBytesMax, kObjectBytesMax));
  MemoryBytes memory(all.head);
  return TorchFile::read(memory);
}

std::optional<TorchFile> DcpObjects::read(const DcpObject& object, CheckpointView& view) {
  Result<TorchFile> content = read_at(object.place);
  if (content) return std::move(*content);
  if (told_.insert(object.key).second)
    view.problems.push_back(text(kOfOptimizerState, ": ", checkpoint_.files[object.place.file], ": object ", object.key,
                                 ": ", content.error().what));
  return std::nullopt;
}

}  // namespace pawl::checkpoint
