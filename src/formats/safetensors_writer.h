// SafetensorsWriter: what a safetensors file to be written looks like: its header, and where each tensor's bytes go.
//
// What always holds of a layout: offsets are multiples of the element's size; the ranges cover the data without holes;
// a reader of the format (formats/safetensors.h, the library) takes header and data as they are. Tensors of wider types
// come first, otherwise in the order given, so equal arguments give equal bytes.
// Types that the format lacks (complex128, torch's bits and quantised types) are held as what they are, bytes: U8 and
// flat, with the true type and shape in the metadata. Two numbers in a byte (float4_e2m1fn_x2) become F4, as in torch.
// Pure but for one read: nothing is written here. formats/output_plan.h does that.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "env/files.h"
#include "formats/output_plan.h"
#include "reshape/checkpoint_view.h"
#include "tensor/element_type.h"
#include "tensor/region.h"

namespace pawl {

struct SafetensorsTensor {
  std::string name;
  ElementType type = ElementType::float32;
  Shape shape;
};
using SafetensorsMetadata = std::vector<std::pair<std::string, std::string>>;

struct SafetensorsLayout {
  std::string header;  // all of the file before the data: the length, the JSON, blanks up to a multiple of eight
  std::vector<std::uint64_t> offset_bytes;  // of each given tensor, in the file
  std::vector<std::uint64_t> size_bytes;    // likewise
  std::uint64_t file_bytes = 0;
};

[[nodiscard]] bool is_utf8(std::string_view text);
void append_json(std::string& out, std::string_view text);  // as a string of JSON; `text` is UTF-8

inline constexpr std::uint64_t kHeaderUnit = 8;  // a header's bytes are a multiple of it

// "BF16"; nothing where the format has no such type.
[[nodiscard]] std::optional<std::string_view> safetensors_name_of(ElementType type);

// Under the metadata key "pawl.type.<name>": what a tensor that the format can't hold really is: "complex128 [3,2]".
inline constexpr std::string_view kTrueTypeKey = "pawl.type.";

// Fails: `invalid`, naming up to five tensors, if a name is there twice, is "__metadata__" or no UTF-8, or if a tensor
// is no whole number of bytes; `full` if the header passes the 100 MB that readers allow.
// `unit_bytes`: of a disk, a multiple of 8. The elements begin at a multiple of it, and tensors that fill whole units
// come first: these can be written past the page cache from end to end.
[[nodiscard]] Result<SafetensorsLayout> lay_out_safetensors(std::span<const SafetensorsTensor> tensors,
                                                            SafetensorsMetadata metadata = {},
                                                            std::uint64_t unit_bytes = kHeaderUnit);

// One file, keys <name>/<role>. Fails: `not_found` where no tensor has a role, or there is none; as above.
[[nodiscard]] Result<OutputPlan> plan_safetensors(const CheckpointView& view, const WriteOptions& options);

// --- The other way: what a conversion (or anybody who follows it) wrote is understood again.

// "<name>/<role>": the roles that keys say.
[[nodiscard]] std::string role_key(std::string_view name, std::string_view role);
// A view of one safetensors file whose keys all end in a role (weight, master, exp_avg, exp_avg_sq, step, buffer, or an
// optimizer's word; formats/state_names.h) gets these roles. Any other view stays as it is. Pure.
void take_roles_from_keys(CheckpointView& view);
// Tensors that metadata of the view's files say to be of a type that the format lacks get it back, where sizes agree.
// Reads headers. Fails as open_safetensors.
[[nodiscard]] Status take_true_types(CheckpointView& view, Files& files = real_files());
// The same of one tensor, by its metadata's value. Whether it was one that fits.
bool take_true_type(StoredTensor& tensor, std::string_view value);

// --- Hugging Face: several files and an index.

// Which file each tensor goes to, files filled in the order given, none above `file_bytes_max` unless one tensor is.
[[nodiscard]] std::vector<std::uint32_t> split_into_files(std::span<const std::uint64_t> size_bytes,
                                                          std::uint64_t file_bytes_max);
// "model.safetensors" of one; else "model-00002-of-00007.safetensors".
[[nodiscard]] std::string huggingface_file_name(std::uint32_t file, std::uint32_t file_count);
inline constexpr std::string_view kHuggingFaceIndexName = "model.safetensors.index.json";
// The index over `names`, of which names[i] lies in file `file_of[i]` of `file_count`.
// Fails: `invalid` if a name is no UTF-8.
[[nodiscard]] Result<std::string> huggingface_index(std::span<const std::string> names,
                                                    std::span<const std::uint32_t> file_of, std::uint32_t file_count,
                                                    std::uint64_t total_bytes);
// A folder, keys as the tensors' names. Without roles it takes weights and buffers. Fails as plan_safetensors.
[[nodiscard]] Result<OutputPlan> plan_huggingface(const CheckpointView& view, const WriteOptions& options);

}  // namespace pawl
