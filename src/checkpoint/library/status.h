// What a failure means at the border of libpawl_checkpoint: a pawl_status, and the sentence of this thread's last call.
#pragma once

#include "base/result.h"
#include "pawl/pawl.h"

namespace pawl::checkpoint {

// Keeps the sentence for last_error().
[[nodiscard]] pawl_status failed(Error error);
[[nodiscard]] pawl_status answer(Status status);
[[nodiscard]] const char* last_error();

}  // namespace pawl::checkpoint
