// What a failure means at the C border: our codes as pawl_status, and back (pawld refuses with a pawl_status).
//
// Two codes have one meaning each: `cancelled` is PAWL_STOP; `stale` is PAWL_RECOVER inside libpawl, and what a library
// without recovery says it is.
// Pure.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "pawl/pawl.h"

namespace pawl {

[[nodiscard]] pawl_status status_of(Code code, pawl_status stale = PAWL_RECOVER);
[[nodiscard]] Code code_of(std::uint32_t status);  // a number that is no pawl_status, or PAWL_OK: `broken`

}  // namespace pawl
