// CheckpointFolder: the checkpoints of a job, one folder each: DIR/step-500, of this store.
//
// What is only being written, or was left by a save that did not end, is told apart; what is nothing of the kind is not
// mentioned. A checkpoint that is damaged never keeps the others from being listed. Reads manifests and sizes, no tensors' bytes.
// One that is removed loses its name first, in one step: at step-500 is all of it or nothing, at any instant and after any
// crash. What a removal that was killed has left is no checkpoint any more, and the next one deletes it.
// A job that goes on from an earlier step leaves the later ones behind, in the same folder: two histories. Each checkpoint says by ids
// which of them were before it, so nobody has to guess it from numbers or times.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/formats/native/store_manifest.h"

namespace pawl::checkpoint {

[[nodiscard]] std::string checkpoint_name(std::uint64_t step);                            // "step-500"
[[nodiscard]] std::optional<std::uint64_t> parse_checkpoint_name(std::string_view name);  // exactly what that writes

struct ListedCheckpoint {
  std::uint64_t step = 0;
  std::string path;
  bool finished = false;         // else it is being written, or was left so
  std::string damage;            // a sentence; empty: its files are there, as long as its manifest says
  bool is_unknown = false;       // `damage` says why it can't be looked at, which may pass: it may well be sound
  std::uint64_t bytes = 0;       // of its data files
  std::uint64_t tensors = 0;     // that are for everybody
  StoreIdentity identity;        // no id: a job's that says nothing of its history, or not a job's
  std::uint64_t written_ms = 0;  // since 1970; as the identity has it, or of the marker, or of the unfinished folder
};
// By step, unfinished ones of a step behind the finished one. `path` may also be one of these itself. Fails: `not_found`, `io`.
[[nodiscard]] Result<std::vector<ListedCheckpoint>> list_checkpoints(const std::string& path);
[[nodiscard]] std::vector<std::uint64_t> sound_steps(std::span<const ListedCheckpoint> listed);  // ascending

// The one that was published last, of those that are sound, or may be so (`is_unknown`), or say which they are; none that another says was
// before it, whatever clocks say. Null: there is none.
[[nodiscard]] const ListedCheckpoint* last_written(std::span<const ListedCheckpoint> listed);
// Those that led to `last`, as its identity says, and itself, in order of `listed`, sound or not. Only itself, if it says nothing.
[[nodiscard]] std::vector<ListedCheckpoint> history_of(std::span<const ListedCheckpoint> listed,
                                                       const ListedCheckpoint& last);
// Those that say which they are, and are not of the history that was written last of these, in order of `listed`.
[[nodiscard]] std::vector<ListedCheckpoint> left_behind(std::span<const ListedCheckpoint> listed);

struct Retention {
  std::uint64_t keep_last = 0;   // the newest sound ones; 0: all. More: older steps to go back to, more disk
  std::uint64_t keep_every = 0;  // also every sound step that is a multiple of it; 0: none
};
// The steps that retention gives up, ascending, of sound ones in any order. The newest is never among them. Pure.
[[nodiscard]] std::vector<std::uint64_t> to_remove(std::vector<std::uint64_t> sound, Retention retention);

// The one that has this id, or none. Fails: `not_found`; `invalid` if it is no checkpoint of this store by name and content, or a link;
// `stale` if somebody else replaces or removes it, or has replaced it; `io`, also where it may not be removed: then it stays as it is, unless its name is gone already.
[[nodiscard]] Status remove_checkpoint(const std::string& path, const std::string& id);
// Deletes what removals in that folder have left that were killed. Fails: `not_found`, `io`, after having tried all.
[[nodiscard]] Status finish_removals(const std::string& folder);

}  // namespace pawl::checkpoint
