// Safetensors: the header of one file, and Hugging Face's index over several.
//
// What always holds of one that was read: names differ; each tensor's range has exactly the bytes its type and shape
// need; the ranges cover the data from its first byte to the file's last, without holes and without overlap. Stricter
// than the library on one point: a duplicate name is an error. A file of 100,000 tensors opens in one pass.
// Reads no tensor's bytes. Pure but for the reads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/byte_source.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

struct SafetensorsEntry {
  std::string name;
  ElementType type = ElementType::float32;
  std::vector<std::uint64_t> shape;
  std::uint64_t offset_bytes = 0;  // in the file
  std::uint64_t size_bytes = 0;
};

struct SafetensorsFile {
  std::vector<SafetensorsEntry> tensors;                      // in the order of their bytes
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in the file's order
  std::uint64_t header_bytes = 0;                             // where the data begins
};

// Fails: `corrupt` with offset and reason; `invalid` for what is known and something else (foreign_file.h); `io`.
[[nodiscard]] Result<SafetensorsFile> read_safetensors(ByteSource& source);
// As above, of a file; errors name it.
[[nodiscard]] Result<SafetensorsFile> open_safetensors(const std::string& path, Files& files = real_files());

// Whether a file begins so: the length of a header, and the header's first character.
[[nodiscard]] bool begins_like_safetensors(std::string_view head);
[[nodiscard]] bool looks_like_safetensors(const std::string& path, Files& files = real_files());  // of that file

// model.safetensors.index.json, or pytorch_model.bin.index.json.
struct HuggingFaceIndex {
  std::vector<std::pair<std::string, std::string>> file_of;  // tensor name -> file name, in the index's order
  std::vector<std::string> files;                            // each once, sorted
};
// Fails: `corrupt`: not that JSON, a name twice, or a file name with a folder, "..", or a character no name has.
[[nodiscard]] Result<HuggingFaceIndex> parse_huggingface_index(std::string_view json);

// Appends the tensors of a file that lies at `path`, and names that its metadata say are tied to one of them.
void add_safetensors(SafetensorsFile file, const std::string& path, CheckpointView& view);

// All tensors of a file, or of the files that an index in their folder names. Fails as the readers; also `corrupt` if a
// tensor is not in the file that the index names, and `not_found` for a missing file. What files hold beyond the index
// becomes a note. More than eight dimensions or packed types: a note, too.
[[nodiscard]] Result<CheckpointView> view_safetensors(const std::string& path, Files& files = real_files());
[[nodiscard]] Result<CheckpointView> view_huggingface(const std::string& index_path, Files& files = real_files());

}  // namespace pawl::checkpoint
