// SaveFolder: the files of one save, opened one after another, and what was wrong with them.
//
// What always holds: every file that is opened is one of the view's, damaged or not; a problem names its file. There is
// one file for each kind and rank: of two, the second is a problem and is left out.
// Does not know what the files hold (model_states.h, optimizer_states.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/deepspeed/shard_file.h"
#include "checkpoint/formats/deepspeed/shard_names.h"
#include "checkpoint/formats/deepspeed/tag_folder.h"
#include "checkpoint/view/checkpoint_view.h"
#include "env/files.h"

namespace pawl::checkpoint::deepspeed {

class SaveFolder {
 public:
  // Adds to `view`, which outlives this.
  SaveFolder(TagFolder folder, Files& files, CheckpointView& view);

  [[nodiscard]] const std::string& path() const { return folder_.path; }
  [[nodiscard]] const std::vector<ShardName>& shards() const { return folder_.shards; }
  [[nodiscard]] std::vector<const ShardName*> shards_of(ShardName::Kind kind) const;  // by numbers, ascending
  // Ranks and layers that damaged files claim are believed up to this number: each has a file of its own.
  [[nodiscard]] std::uint64_t believable_max() const { return 64 * folder_.shards.size(); }

  // Nothing if the file is damaged; that is a problem then.
  [[nodiscard]] std::optional<ShardFile> open(const ShardName& name);

  void note(std::string sentence) { view_.notes.push_back(std::move(sentence)); }
  void leave_out(const std::vector<std::string>& sentences);  // of tensors that can't be read
  void problem(std::string sentence) { view_.problems.push_back(std::move(sentence)); }
  // A problem, and the error to return if the whole save turns out to hold nothing: the first one counts.
  void damage(Error error);
  [[nodiscard]] const std::optional<Error>& first_damage() const { return first_damage_; }

  [[nodiscard]] CheckpointView& view() { return view_; }
  [[nodiscard]] std::vector<std::uint64_t> file_sizes() const;  // of the view's files; 0: not opened here

 private:
  void leave_out_doubles();

  TagFolder folder_;
  Files& files_;
  CheckpointView& view_;
  std::vector<std::uint64_t> file_sizes_;
  std::optional<Error> first_damage_;
};

// "a, b, c, d and 3 more"
[[nodiscard]] std::string listed(const std::vector<std::string>& words);

}  // namespace pawl::checkpoint::deepspeed
