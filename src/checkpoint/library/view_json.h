// What pawl_checkpoint_json answers: a view as JSON text, always valid UTF-8 (bytes that aren't become U+FFFD). Pure.
#pragma once

#include <string>

#include "checkpoint/view/checkpoint_view.h"

namespace pawl::checkpoint {

[[nodiscard]] std::string json_of(const CheckpointView& view);

}  // namespace pawl::checkpoint
