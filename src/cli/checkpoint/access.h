// How commands open checkpoints (checkpoint/formats/proven_checkpoint.h), run the executor and report errors.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "checkpoint/formats/proven_checkpoint.h"
#include "checkpoint/reshape/execute.h"

namespace pawl::checkpoint {

// Within this much memory, all at once, and to be ended by SIGINT or SIGTERM.
[[nodiscard]] ExecuteOptions execute_options(std::uint64_t memory_bytes);

// As report_error (cli/exit_codes.h), with what a stranger's file put into it made harmless to a terminal; and 4 where
// something of a checkpoint is missing or damaged (`corrupt`).
int report_checkpoint_error(const Error& error, bool as_json);

}  // namespace pawl::checkpoint
