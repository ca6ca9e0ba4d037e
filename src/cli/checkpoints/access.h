// Opening a checkpoint for a command: found, read, and its view proven before anything relies on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "formats/read_options.h"
#include "reshape/checkpoint_view.h"
#include "reshape/execute.h"

namespace pawl {

// As open_checkpoint(); also `corrupt` where a piece does not lie in its tensor or file (reshape/pieces.h). Regions
// that no piece holds are among the view's problems.
[[nodiscard]] Result<CheckpointView> open_proven(const std::string& path, const ReadOptions& options);

// Of each of the view's files, in their order: the sizes that decide what a piece may reach. Fails: `not_found`, `io`.
[[nodiscard]] Result<std::vector<std::uint64_t>> file_sizes_of(const CheckpointView& view);

// Within this much memory, all at once, and to be ended by SIGINT or SIGTERM.
[[nodiscard]] ExecuteOptions execute_options(std::uint64_t memory_bytes);

// As report_error (cli/commands.h), with what a stranger's file put into it made harmless to a terminal.
int report_checkpoint_error(const Error& error, bool as_json);

}  // namespace pawl
