// Structs of the C interface: how one that was compiled with an older or newer header is read and filled in.
//
// Each begins with `size_t struct_size`, its size as the caller's header has it. What the caller's struct lacks counts
// as 0. What ours lacks must be 0 in the caller's, else the caller wants something that we can't do.
// Pure. Fails: `invalid`, naming the struct and what to do.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/result.h"

namespace pawl {

// A caller's struct can't be larger: a size beyond this was never set. So nothing beyond it is read or written.
inline constexpr std::size_t kStructBytesMax = 4096;

struct CStruct {
  const char* name;            // "pawl_tensor"; its initialiser is PAWL_TENSOR_INIT
  std::size_t size_bytes;      // as our header has it
  std::size_t size_bytes_min;  // of its first version
};

// Whether the caller's struct may be read: its size is possible, and what we don't know in it is 0. Not nullptr.
[[nodiscard]] Status check_input_struct(const void* given, const CStruct& known);
// Whether the caller's struct may be filled in. Not nullptr.
[[nodiscard]] Status check_output_struct(const void* given, const CStruct& known);
// The same of an array. Its elements lie as far apart as the first one's size says, so all must have that size.
[[nodiscard]] Status check_input_structs(const void* first, std::size_t count, const CStruct& known);

[[nodiscard]] inline std::size_t struct_size_of(const void* given) {
  std::size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  return size;
}

// Of a struct that was checked: what the caller said, in our form.
template <class T>
[[nodiscard]] T read_struct(const void* given) {
  T copy{};
  std::memcpy(&copy, given, std::min(sizeof(T), struct_size_of(given)));
  copy.struct_size = sizeof(T);
  return copy;
}
template <class T>
[[nodiscard]] T read_struct_at(const void* first, std::size_t index) {
  return read_struct<T>(static_cast<const std::byte*>(first) + index * struct_size_of(first));
}

// Into a struct that was checked. The caller's size stays.
template <class T>
void fill_struct(void* to, T answer) {
  const std::size_t size = struct_size_of(to);
  answer.struct_size = size;
  std::memset(to, 0, size);
  std::memcpy(to, &answer, std::min(sizeof(T), size));
}

}  // namespace pawl
