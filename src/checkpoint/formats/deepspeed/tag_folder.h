// TagFolder: which folder of a DeepSpeed save holds the checkpoint, and the files in it.
//
// A folder with DeepSpeed's files is one itself, whatever its name. Else the tag says, or `latest`, or there is only
// one below. Of several none is taken. Looks at names only.
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
