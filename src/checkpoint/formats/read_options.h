// ReadOptions: what a user may add that the files do not say.
//
// Every reader of a format takes them, and uses those that mean something to its format.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "checkpoint/names/parameter_order.h"
#include "env/files.h"

namespace pawl::checkpoint {

struct ReadOptions {
  // A file of parameter names (ParameterNames, checkpoint/names/parameter_order.h): for optimizer states that are keyed
  // by number. Empty: names come from the checkpoint, or an error asks for this file.
  std::string parameter_names_file;
  // Which of several checkpoints in one folder: the name of its subfolder ("global_step1200", "iter_0000003"). Empty:
  // the one that the folder's own pointer names (latest, latest_checkpointed_iteration.txt), or the only one.
  std::string tag;
};

// What the file of names says; nothing without one. Fails: `invalid`, naming the file; as files do.
[[nodiscard]] Result<std::optional<ParameterNames>> given_names(const ReadOptions& options, Files& files);

}  // namespace pawl::checkpoint
