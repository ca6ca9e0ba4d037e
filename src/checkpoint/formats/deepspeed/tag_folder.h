// TagFolder: which folder of a DeepSpeed save holds the checkpoint, and the files in it.
//
// A folder that has DeepSpeed's files is the checkpoint itself, whatever its name. Otherwise the tag names a folder
// below it, or the file `latest` does, or only one has such files. If there are several, the caller has to choose.
// Looks at names only.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/read_options.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

struct TagFolder {
  std::string path;
  std::vector<ShardName> shards;
};

// Fails: `not_found` with what was looked for; `invalid` with the choice, where there is one.
[[nodiscard]] Result<TagFolder> find_tag_folder(const std::string& folder, const ReadOptions& options, Files& files);

}  // namespace pawl::checkpoint::deepspeed
