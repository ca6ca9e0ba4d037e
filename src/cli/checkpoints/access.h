// How commands open checkpoints (formats/proven_checkpoint.h), run the executor and report errors.
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "formats/proven_checkpoint.h"
#include "reshape/execute.h"

namespace pawl {

// Within this much memory, all at once, and to be ended by SIGINT or SIGTERM.
[[nodiscard]] ExecuteOptions execute_options(std::uint64_t memory_bytes);

// As report_error (cli/commands.h), with what a stranger's file put into it made harmless to a terminal.
int report_checkpoint_error(const Error& error, bool as_json);

}  // namespace pawl
