// Random numbers of the system, of which nobody can guess the next.
#pragma once

#include <cstddef>
#include <string>

namespace pawl {

[[nodiscard]] std::string random_hex(std::size_t byte_count);  // two digits a byte

}  // namespace pawl
