// SafetensorsLayout: a safetensors file before it is written: its header, and where each tensor's bytes go.
//
// What always holds: offsets are multiples of the element's size; the ranges cover the data without holes; a reader of
// the format (checkpoint/containers/safetensors.h, the library) takes header and data as they are. Tensors of wider
// types come first, otherwise in the order given, so equal arguments give equal bytes.
// Types that the format lacks (complex128, torch's bits and quantised types) are held as what they are, bytes: U8 and
// flat, with the true type and shape in the metadata. Two numbers in a byte (float4_e2m1fn_x2) become F4, as in torch.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"
#include "tensor/box.h"
#include "tensor/element_type.h"

namespace pawl::checkpoint {

inline constexpr std::uint64_t kSafetensorsHeaderBytesMax = 100'000'000;  // the safetensors library's own limit

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

inline constexpr std::uint64_t kHeaderUnit = 8;  // a header's bytes are a multiple of it

// "BF16"; nothing where the format has no such type.
[[nodiscard]] std::optional<std::string_view> safetensors_name_of(ElementType type);

// Under the metadata key "pawl.type.<name>": what a tensor that the format can't hold really is: "complex128 [3,2]".
inline constexpr std::string_view kTrueTypeKey = "pawl.type.";
// In the metadata of a file whose keys all end in a role, and what it says.
inline constexpr std::string_view kKeysKey = "pawl.keys";
inline constexpr std::string_view kKeysWithRoles = "<name>/<role>";
// Gives a tensor back what that says; whether it was one that fits.
bool take_true_type(StoredTensor& tensor, std::string_view value);

// Fails: `invalid`, naming up to five tensors, if a name is there twice, is "__metadata__" or no UTF-8, or if a tensor
// is no whole number of bytes; `full` if the header passes the 100 MB that readers allow.
// `unit_bytes`: of a disk, a multiple of 8. The elements begin at a multiple of it, and tensors that fill whole units
// come first: these can be written past the page cache from end to end.
[[nodiscard]] Result<SafetensorsLayout> lay_out_safetensors(std::span<const SafetensorsTensor> tensors,
                                                            SafetensorsMetadata metadata = {},
                                                            std::uint64_t unit_bytes = kHeaderUnit);

}  // namespace pawl::checkpoint
