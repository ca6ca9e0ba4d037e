#include "base/c_struct.h"

#include <cctype>
#include <string>

#include "base/text.h"

namespace pawl {
namespace {

Error wrong_size(const CStruct& known, std::size_t size) {
  std::string initialiser(known.name);
  for (char& c : initialiser) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return {Code::invalid, text(known.name, ".struct_size is ", size, ", at least ", known.size_bytes_min,
                              " bytes are needed: begin the struct with ", initialiser,
                              "_INIT, and build with the pawl.h of this libpawl")};
}

}  // namespace

Status check_output_struct(const void* given, const CStruct& known) {
  const std::size_t size = struct_size_of(given);
  if (size < known.size_bytes_min || size > kStructBytesMax) return wrong_size(known, size);
  return {};
}

Status check_input_struct(const void* given, const CStruct& known) {
  PAWL_TRY(check_output_struct(given, known));
  const std::size_t size = struct_size_of(given);
  const auto* const bytes = static_cast<const unsigned char*>(given);
  for (std::size_t at = known.size_bytes; at < size; ++at)
    if (bytes[at] != 0)
      return Error{Code::invalid,
                   text(known.name, " has ", size, " bytes, this library knows ", known.size_bytes, ", and byte ", at,
                        " is not 0: the program uses a field that needs a newer pawl")};
  return {};
}

Status check_input_structs(const void* first, std::size_t count, const CStruct& known) {
  if (count == 0) return {};
  PAWL_TRY(check_input_struct(first, known));
  const std::size_t size = struct_size_of(first);
  for (std::size_t i = 1; i < count; ++i) {
    const void* const each = static_cast<const std::byte*>(first) + i * size;
    if (struct_size_of(each) != size)
      return Error{Code::invalid, text(known.name, " number ", i, ": its struct_size is ", struct_size_of(each),
                                       ", that of number 0 is ", size, ": all of one array need the same")};
    PAWL_TRY(check_input_struct(each, known));
  }
  return {};
}

}  // namespace pawl
