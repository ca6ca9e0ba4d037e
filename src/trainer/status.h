// What a failure means at the C border: our codes as pawl_status, and back (pawld refuses with a pawl_status).
//
// Inside libpawl two codes have one meaning each: `stale` is PAWL_RECOVER, `cancelled` is PAWL_STOP.
// Pure.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "pawl/pawl.h"

namespace pawl {

[[nodiscard]] pawl_status status_of(Code code);
[[nodiscard]] Code code_of(std::uint32_t status);  // a number that is no pawl_status, or PAWL_OK: `broken`

}  // namespace pawl
