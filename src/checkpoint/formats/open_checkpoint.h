// OpenCheckpoint: any checkpoint, by its path: detects its format, and says what it holds.
//
// Contents decide, never the names of folders. A folder that points to another (latest, latest_universal,
// latest_checkpointed_iteration.txt) is followed, and so is one that holds a single checkpoint and nothing else that
// could be one. If there are several and no pointer, an error lists them, and --tag chooses one. Executes nothing.
// Reads no tensor's bytes.
#pragma once

#include <string>

#include "base/result.h"
#include "checkpoint/formats/read_options.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint {

// `path` is a file or a folder. Fails: `not_found` where nothing is, or nothing that is known: the error says what was
// looked for; `invalid` where a choice has to be made; and as the format's reader: `corrupt`, `full`, `io`.
[[nodiscard]] Result<CheckpointView> open_checkpoint(const std::string& path, const ReadOptions& options = {},
                                                     Files& files = real_files());

}  // namespace pawl::checkpoint
