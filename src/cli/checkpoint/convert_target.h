// Whether a conversion would replace what it reads.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

// `view` is of `source`. Fails: `invalid` where writing to `target` would replace the source or one of its files: they
// are the same by any spelling, by links, or a folder that is replaced holds one. Looks at the file system.
[[nodiscard]] Status check_target_is_no_source(const CheckpointView& view, const std::string& source,
                                               const std::string& target);

}  // namespace pawl::checkpoint
